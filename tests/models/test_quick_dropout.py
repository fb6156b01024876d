"""Dropout by cheap draws: the share, the scale, and nothing that hangs together."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from regard.models.kernels import dropout as drawing
from regard.models.kernels.dropout import FEW, Dropout, dropout

MANY = 1 << 20


@pytest.fixture(autouse=True)
def _ours(monkeypatch):
    monkeypatch.setattr(drawing, "drawn_by_mkl", lambda: False)


@pytest.mark.parametrize("share", [0.001, 0.1, 0.3, 0.5, 0.9])
def test_so_many_are_gone_and_the_others_are_as_much_larger(share):
    torch.manual_seed(1)
    found = dropout(torch.ones(MANY), share)
    kept = found != 0
    spread = math.sqrt(share * (1 - share) / MANY)
    assert abs(1 - kept.float().mean().item() - share) < 4 * spread + 1 / drawing.DRAWS
    assert found[kept].unique().tolist() == [pytest.approx(1 / (1 - share), rel=1e-3)]
    assert found.mean().item() == pytest.approx(1, abs=5 * spread / (1 - share))


def test_neighbours_know_nothing_of_one_another():
    """Four draws come with each word of the generator: all sixteen patterns are as frequent."""
    torch.manual_seed(2)
    gone = (dropout(torch.ones(MANY), 0.5) == 0).view(-1, 4).long()
    counts = torch.bincount(gone @ torch.tensor([1, 2, 4, 8]), minlength=16)
    expected = MANY / 4 / 16
    assert ((counts - expected) ** 2 / expected).sum().item() < 37.7  # χ², 15 degrees, 0.1 %


@given(st.integers(FEW, 3 * FEW), st.integers(0, 99))
def test_the_seed_decides_and_the_gradient_takes_the_same_places(numbers, seed):
    x = torch.rand(numbers) + 1
    first, again = (_drawn(x.requires_grad_(), seed) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, _drawn(x, seed + 1))
    (slope,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(slope * x, first)


def _drawn(x: torch.Tensor, seed: int) -> torch.Tensor:
    torch.manual_seed(seed)
    return dropout(x, 0.4)


def test_any_shape_type_and_order_of_memory():
    x = torch.rand(40, 3, 50).transpose(0, 2) + 1
    for kind in (torch.float32, torch.float64, torch.bfloat16):
        found = dropout(x.to(kind), 0.25)
        assert found.shape == x.shape
        assert found.dtype == kind
        kept = found != 0
        wanted = (x.to(kind) / 0.75)[kept]
        torch.testing.assert_close(found[kept], wanted, rtol=1e-2, atol=1e-2)
        assert 0.6 < kept.float().mean() < 0.9


def test_at_rest_nothing_is_drawn():
    layer, x = Dropout(0.5), torch.rand(FEW)
    before = torch.get_rng_state()
    assert layer.eval()(x) is x
    assert dropout(x, 0.0) is x
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(layer.train()(x), x)


def test_few_numbers_and_all_of_them_go_torchs_way():
    x = torch.rand(FEW - 1)
    torch.manual_seed(3)
    found = dropout(x, 0.5)
    torch.manual_seed(3)
    assert torch.equal(found, F.dropout(x, 0.5))
    assert not dropout(torch.rand(FEW), 1.0).any()


def test_many_models_at_once_draw_for_themselves():
    x = torch.ones(2, FEW)
    found = torch.func.vmap(lambda row: dropout(row, 0.5), randomness="different")(x)
    assert not torch.equal(found[0], found[1])

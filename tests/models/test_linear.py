"""The product of every layer: the kernels that stand in for torch's own choice."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
from torch.nn import functional as F

from regard.models.kernels import linear
from regard.models.kernels.linear import LARGE, ByOneDNN, Linear, _evened, onednn_is_exact, product

EXACT = pytest.mark.skipif(
    not onednn_is_exact(), reason="oneDNN is not here, or multiplies in bfloat16"
)


@pytest.mark.parametrize("outputs", [1, 63, 65, 1003])
@pytest.mark.parametrize("biased", [True, False])
def test_rows_of_zeros_change_neither_the_product_nor_its_gradients(outputs, biased):
    torch.manual_seed(0)
    x, weight = torch.randn(3, 5, 16), torch.randn(outputs, 16)
    bias = torch.randn(outputs) if biased else None
    given = [tensor for tensor in (x, weight, bias) if tensor is not None]
    found = []
    for multiply in (F.linear, _evened):
        for tensor in given:
            tensor.requires_grad_().grad = None
        y = multiply(x, weight, bias)
        assert y.shape == (3, 5, outputs)
        (y * torch.arange(outputs)).sum().backward()
        found.append([y.detach(), *(tensor.grad for tensor in given)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@EXACT
@pytest.mark.parametrize("wanted", [(True, True, True), (False, True, False), (True, False, False)])
@pytest.mark.parametrize("shape", [(3, 40, 128), (200, 128), (256, 128), (1030, 128)])
def test_by_onednn_there_and_back_it_is_the_product_in_double(shape, wanted):
    torch.manual_seed(0)
    given = [torch.randn(*shape), torch.randn(300, 128), torch.randn(300)]
    given[0] = given[0].mT.contiguous().mT  # as a view may come
    assert given[0].numel() * 300 >= LARGE
    grad = torch.randn(*shape[:-1], 300)
    found = []
    for multiply, kind in ((product, torch.float32), (F.linear, torch.float64)):
        parts = [t.detach().to(kind).requires_grad_(w) for t, w in zip(given, wanted, strict=True)]
        y = multiply(*parts)
        assert (type(y.grad_fn).__name__ == "ByOneDNNBackward") == (multiply is product)
        y.backward(grad.to(kind))
        found.append([y.detach(), *(part.grad for part in parts)])
    for one, other in zip(*found, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(one.double(), other, rtol=0, atol=2e-5 * other.std().item())


@EXACT
def test_what_is_small_or_watched_is_left_to_torch(monkeypatch):
    def never(*given: object) -> None:
        raise AssertionError("not here")

    monkeypatch.setattr(linear, "products_by_onednn", never)
    monkeypatch.setattr(ByOneDNN, "apply", never)
    layer, large = Linear(128, 300), torch.randn(200, 128)
    layer(large[:10])
    layer.double()(large.double())
    layer.bfloat16()(large.bfloat16())
    layer.float()
    with torch.autocast("cpu", torch.bfloat16):
        layer(large)
    torch.func.vmap(layer)(large[None])
    with pytest.raises(AssertionError, match="not here"):
        layer(large)


def test_few_numbers_of_rows_go_to_onednn_and_nearly_all_rows():
    asked = {rows: linear._first(rows) for rows in range(1, 4097)}
    assert all(rows * 7 / 8 < first <= rows for rows, first in asked.items())
    assert len(set(asked.values())) == 8 * 9 + 8  # eight in each of 8…4095, those below, and 4096


def test_the_switch_is_put_back_whatever_happens():
    switch = torch.backends.mkldnn.matmul
    before = switch.fp32_precision
    with pytest.raises(RuntimeError), linear.products_by_onednn():
        torch.zeros(2, 3) @ torch.zeros(2, 3)
    assert switch.fp32_precision == before


@EXACT
@pytest.mark.parametrize("rows", [1024, 1030])
def test_what_else_may_be_asked_of_a_large_product(rows):
    """Second derivatives, many gradients at once, changes in place, autocast on the way back."""
    torch.manual_seed(0)
    x = torch.randn(rows, 64)
    weight, bias = torch.randn(64, 64) / 8, torch.randn(64)
    assert x.numel() * 64 >= LARGE

    def found(multiply, kind):
        given = [t.detach().to(kind).requires_grad_() for t in (x, weight, bias)]
        y = multiply(*given)
        y.mul_(2.0)
        y[:, 0] = 0.0
        (slope,) = torch.autograd.grad(y.square().sum(), given[0], create_graph=True)
        second = torch.autograd.grad(slope.square().sum(), given)
        y = multiply(*given)
        ways = torch.stack([torch.ones_like(y), y.detach()])
        many = torch.autograd.grad(y, given, ways, retain_graph=True, is_grads_batched=True)
        with torch.autocast("cpu", torch.bfloat16):
            mixed = torch.autograd.grad(y, given, torch.ones_like(y))
        return [*second, *many, *mixed]

    for one, other in zip(
        found(product, torch.float32), found(F.linear, torch.float64), strict=True
    ):
        assert one.dtype == torch.float32
        scale = other.std().item() + other.abs().mean().item()
        torch.testing.assert_close(one.double(), other, rtol=0, atol=2e-5 * scale)


def test_threads_that_throw_the_switch_leave_it_as_it_was():
    before, together = torch.backends.mkldnn.matmul.fp32_precision, Barrier(2, timeout=60)

    def first() -> None:
        with linear.products_by_onednn():
            together.wait()
            together.wait()  # the other one is inside too
        together.wait()

    def second() -> None:
        together.wait()
        with linear.products_by_onednn():
            together.wait()
            together.wait()  # the first one has left

    with ThreadPoolExecutor(2) as threads:
        for one in [threads.submit(first), threads.submit(second)]:
            one.result()
    assert torch.backends.mkldnn.matmul.fp32_precision == before

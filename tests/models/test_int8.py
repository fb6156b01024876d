"""Int8 weights: the arithmetic as defined, what it may differ from float by, and whole models."""

import subprocess
import sys
from copy import deepcopy
from typing import NamedTuple

import pytest
import torch
from tiny_models import NAMES, WRITERS, assert_same, ids, memory_of, memory_of_row, tiny
from torch import Tensor, nn

from regard.decoding.search.beam import search
from regard.decoding.settings import Beam, SpecialTokens
from regard.errors import RegardError
from regard.models.construction import build
from regard.models.kernels import int8
from regard.models.kernels.int8 import Int8Linear, quantise
from regard.models.protocol import SequenceModel
from regard.models.transformer.model import Transformer
from regard.models.transformer.presets import preset

kernel = pytest.mark.skipif(not int8.limit(), reason="this processor has no int8 kernel")


class Known(NamedTuple):
    """Float rows whose rounding is known beforehand: values = steps · (whole + less than 0.4)."""

    values: Tensor  # (rows, width) float32
    whole: Tensor  # (rows, width) float64
    steps: Tensor  # (rows, 1) float64


def known(rows: int, width: int, most: int = 127, seed: int = 0) -> Known:
    """Rows from thousandths to thousands; each one's largest entry is exactly ±most steps."""
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randint(1 - most, most, (rows, width), generator=generator).double()
    beside = torch.rand(rows, width, generator=generator, dtype=torch.float64) * 0.8 - 0.4
    peaks = torch.randint(width, (rows, 1), generator=generator)
    signs = torch.randint(2, (rows, 1), generator=generator).double() * 2 - 1
    whole.scatter_(1, peaks, signs * most)
    beside.scatter_(1, peaks, 0.0)
    steps = 10 ** (torch.rand(rows, 1, generator=generator, dtype=torch.float64) * 6 - 3)
    return Known((steps * (whole + beside)).float(), whole, steps)


def bound(x: Tensor, weight: Tensor) -> Tensor:
    """The most that rounding vectors (rows, in) and weights (out, in) can change a product by."""
    x, weight = x.double().abs(), weight.double().abs()
    half_x = x.amax(1, keepdim=True) / int8.MOST / 2 * (1 if int8.limit() == int8.MOST else 2.1)
    half_w = weight.amax(1, keepdim=True) / int8.MOST / 2
    ones = torch.ones_like
    wrong = half_x * ones(x) @ weight.T + x @ (half_w * ones(weight)).T
    return (wrong + (half_x * ones(x)) @ (half_w * ones(weight)).T) * 1.0001


# --- one layer -------------------------------------------------------------------------------


@kernel
@pytest.mark.parametrize(("inputs", "outputs"), [(48, 33), (512, 100), (7, 1), (1, 5), (2048, 64)])
@pytest.mark.parametrize("rows", [1, 5, 64])
@pytest.mark.parametrize("biased", [True, False])
def test_both_sides_are_rounded_as_defined(inputs: int, outputs: int, rows: int, biased: bool):
    weight, x = known(outputs, inputs), known(rows, inputs, int8.limit(), seed=1)
    bias = torch.randn(outputs) if biased else None
    layer = Int8Linear(weight.values, bias)
    exact = x.steps * (x.whole @ weight.whole.T) * weight.steps.T
    exact = exact if bias is None else exact + bias.double()
    y = layer(x.values)
    size = exact.abs().amax(1, keepdim=True)
    assert y.dtype == torch.float32
    assert_same(y.double() / size, exact / size, 1e-6)


@pytest.mark.parametrize("biased", [True, False])
def test_without_the_kernel_the_weights_alone_are_rounded(biased: bool):
    weight, x = known(40, 96), torch.randn(5, 96, dtype=torch.float64)
    bias = torch.randn(40, dtype=torch.float64) if biased else None
    layer = Int8Linear(weight.values, bias)
    layer.unpack()
    exact = x @ (weight.whole * weight.steps).T
    exact = exact if bias is None else exact + bias
    assert torch.equal(layer.weight, weight.whole.to(torch.int8))
    size = 127 * weight.steps.T  # of a row's largest weight
    assert_same(layer(x) / size, exact / size, 1e-5)


@pytest.mark.parametrize("packed", [pytest.param(True, marks=kernel), False])
@pytest.mark.parametrize("size", [1.0, 1e-20, 1e15])
def test_a_result_is_as_near_to_floats_as_rounding_allows(packed: bool, size: float):
    torch.manual_seed(0)
    linear = nn.Linear(200, 70)
    linear.weight.data *= size
    x = torch.randn(30, 200) * torch.logspace(-10, 10, 30)[:, None]
    layer = Int8Linear(linear.weight, linear.bias)
    if not packed:
        layer.unpack()
    exact = x.double() @ linear.weight.double().T + linear.bias.double()
    away = (layer(x).double() - exact).abs()
    assert bool((away <= bound(x, linear.weight.detach()) + 1e-6 * exact.abs()).all())
    assert bool((away > 0).any())


@kernel
def test_a_vector_does_not_feel_its_neighbours():
    layer, x = Int8Linear(torch.randn(64, 128)), torch.randn(9, 128)
    alone = torch.cat([layer(row[None]) for row in x])
    beside = x.clone()
    beside[4] *= 1e6
    assert torch.equal(layer(x), alone)
    assert torch.equal(layer(beside)[[0, 1, 2, 3, 5, 6, 7, 8]], alone[[0, 1, 2, 3, 5, 6, 7, 8]])


@pytest.mark.parametrize("packed", [pytest.param(True, marks=kernel), False])
def test_rows_of_zeros_give_the_bias_and_nothing_else(packed: bool):
    weight, bias = torch.randn(6, 32), torch.randn(6)
    weight[2] = 0.0
    layer, x = Int8Linear(weight, bias), torch.randn(4, 32)
    if not packed:
        layer.unpack()
    x[1] = 0.0
    y = layer(x)
    assert torch.equal(y[:, 2], bias[2].expand(4))
    assert torch.equal(y[1], bias)
    assert bool((y[0, [0, 1, 3, 4, 5]] != bias[[0, 1, 3, 4, 5]]).all())


@pytest.mark.parametrize("packed", [pytest.param(True, marks=kernel), False])
def test_very_large_numbers_do_not_overflow_on_the_way(packed: bool):
    large = 1e37
    by_small, by_large = (
        Int8Linear(torch.full((3, 16), 1e-30)),
        Int8Linear(torch.full((3, 16), large)),
    )
    if not packed:
        by_small.unpack()
        by_large.unpack()
    expected = torch.full((2, 3), 16e7)
    assert_same(by_small(torch.full((2, 16), large)), expected, 1e-5)
    assert_same(by_large(torch.full((2, 16), 1e-30)), expected, 1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_vector_that_is_not_finite_shows_it_and_the_others_do_not(bad: float):
    layer, x = Int8Linear(torch.randn(8, 16)), torch.randn(3, 16)
    x[1, 5] = bad
    y = layer(x)
    assert not y[1].isfinite().any()
    assert torch.equal(y[[0, 2]], layer(x[[0, 2]]))


@pytest.mark.parametrize("packed", [pytest.param(True, marks=kernel), False])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 0), (2, 3), (2, 3, 4)])
def test_any_leading_shape(shape: tuple[int, ...], packed: bool):
    layer, x = Int8Linear(torch.randn(5, 12), torch.randn(5)), torch.randn(*shape, 12)
    if not packed:
        layer.unpack()
    y = layer(x)
    assert y.shape == (*shape, 5)
    assert_same(y.reshape(-1, 5), layer(x.reshape(-1, 12)), 1e-6)
    turned = torch.randn(12, 6).T  # not side by side in memory
    assert_same(layer(turned), layer(turned.contiguous()), 1e-6)


@kernel
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_types_are_computed_as_float32_and_given_back(dtype: torch.dtype):
    weight, x = torch.randn(20, 64).to(dtype), torch.randn(3, 64).to(dtype)
    bias = torch.randn(20).to(dtype)
    y = Int8Linear(weight, bias)(x)
    expected = Int8Linear(weight.float(), bias.float())(x.float()).to(dtype)
    assert y.dtype == dtype
    assert torch.equal(y, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_without_the_kernel_small_weights_survive_half_precision(dtype: torch.dtype):
    """In float16 a scale of 1e-6 would be a multiple of 6e-8, and unscaled sums would overflow."""
    weight, x = torch.randn(20, 512) * 1e-4, torch.full((1, 512), 60.0)
    layer = Int8Linear(weight.to(dtype))
    layer.unpack()
    exact = x.double() @ weight.to(dtype).double().T
    away = (layer(x.to(dtype)).double() - exact).abs()
    assert bool((away <= bound(x, weight) + 0.02 * exact.abs() + 1e-3).all())


def test_moving_saving_and_copying_change_nothing():
    layer, x = Int8Linear(torch.randn(20, 64), torch.randn(20)), torch.randn(3, 64)
    y = layer(x)
    saved = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    assert saved["weight"].dtype == torch.int8
    assert saved["weight"].shape == (20, 64)
    other = Int8Linear(torch.zeros(20, 64), torch.zeros(20))
    other.load_state_dict(saved)
    for twin in (layer, layer.to("cpu"), deepcopy(layer), other):
        assert (twin.packed is not None) == bool(int8.limit())
        assert torch.equal(twin(x), y)
    half = deepcopy(layer).to(torch.bfloat16)
    assert half.bias is not None
    assert (half.scale.dtype, half.bias.dtype) == (torch.float32, torch.bfloat16)
    assert torch.equal(half.scale, layer.scale)
    assert layer.bias is not None
    assert layer.bias.dtype == torch.float32


def test_int8_cannot_be_trained():
    layer = quantise(nn.Linear(8, 4))
    assert not list(layer.parameters())
    assert not layer.training
    with pytest.raises(RegardError, match="cannot be trained"):
        layer(torch.randn(2, 8, requires_grad=True))
    layer.train()
    with pytest.raises(RegardError, match="cannot be trained"):
        layer(torch.randn(2, 8))
    layer.eval()
    assert layer(torch.randn(2, 8)).shape == (2, 4)


def test_weights_that_are_not_finite_are_refused_by_name():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight.data[2, 1] = float("inf")
    with pytest.raises(RegardError, match="the weights of 1 are not finite"):
        quantise(model)


# --- the kernel ------------------------------------------------------------------------------


def test_a_kernel_that_adds_pairs_in_16_bits_gets_vectors_it_can_add(monkeypatch):
    def saturating(vectors: Tensor, most: int, weight: Tensor) -> Tensor:
        unsigned = (vectors * most).round() + most + 1  # (rows, in)
        products = unsigned[:, None] * weight.float()  # (rows, out, in)
        pairs = products.unflatten(-1, (-1, 2)).sum(-1).clamp(-(2**15), 2**15 - 1)
        return (pairs.sum(-1) - (most + 1) * weight.float().sum(-1)) / most

    monkeypatch.setattr(int8, "_packed", lambda weight, scale: weight)
    monkeypatch.setattr(int8, "_product", saturating)
    assert int8.limit.__wrapped__() == 63


def test_a_machine_without_the_kernel_keeps_plain_weights(monkeypatch):
    def missing(weight: Tensor, scale: Tensor) -> None:
        raise RuntimeError("no such engine")

    with monkeypatch.context() as patch:
        patch.setattr(int8, "_packed", missing)
        found = int8.limit.__wrapped__()
        assert found == 0
        patch.setattr(int8, "limit", lambda: found)
        layer = Int8Linear(torch.randn(6, 10))
        assert layer.packed is None
        assert layer.weight.shape == (6, 10)


MEASURE = """
import resource, warnings
import torch
from torch import nn
from regard.models.kernels.int8 import quantise

def held():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

warnings.simplefilter("error")
quantise(nn.Linear(64, 64))  # what the first call loads
before = held()
linear = nn.Linear(4096, 8192)
between = held()
layer = quantise(linear)
print((held() - between) / (between - before))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_process_holds_a_quarter_and_hears_no_warning():
    done = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 0.24 < float(done.stdout) < 0.30


# --- whole models ----------------------------------------------------------------------------


def nbytes(model: nn.Module) -> int:
    for part in model.modules():
        if isinstance(part, Int8Linear):
            part.unpack()
    return sum(t.nbytes for t in (*model.parameters(), *model.buffers()))


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_every_product_is_int8_and_the_original_is_as_it_was(name: str):
    model = deepcopy(tiny(name, torch.float32))
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    small = quantise(model)
    assert isinstance(small, Transformer)
    assert isinstance(small, SequenceModel)
    assert not any(isinstance(part, nn.Linear) for part in small.modules())
    assert isinstance(small.head.project, Int8Linear)
    assert not any(parameter.requires_grad for parameter in small.parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[key], before[key]) for key in before)
    small.embed.tokens.weight.zero_()
    assert torch.equal(model.embed.tokens.weight, before["embed.tokens.weight"])


class Brute(nn.Module):
    """The definition in float64, slowly."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight, self.bias = self.rounded(weight.detach().double(), 127), bias

    @staticmethod
    def rounded(rows: Tensor, most: int) -> Tensor:
        step = rows.abs().amax(-1, keepdim=True) / most
        return torch.where(step > 0, (rows / step).round() * step, 0.0)

    def forward(self, x: Tensor) -> Tensor:
        y = self.rounded(x, int8.limit()) @ self.weight.T
        return y if self.bias is None else y + self.bias


@kernel
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_a_model_is_the_float_model_with_every_product_rounded(name: str):
    model, tokens = tiny(name), ids(4, 10)
    small, brute = quantise(model), deepcopy(model)
    for part in list(brute.modules()):
        for child, layer in list(part.named_children()):
            if isinstance(layer, nn.Linear):
                setattr(part, child, Brute(layer.weight, layer.bias))
    if brute.head.project is None:
        brute.head.project = Brute(brute.embed.tokens.weight, None)
    exact, logits, rounded = (m(tokens, memory_of(m, 4)) for m in (model, small, brute))
    size = (exact - exact.mean(-1, keepdim=True)).norm()
    # A few entries next to a half are rounded the other way in float32.
    assert float((logits - rounded).norm() / size) < 0.005
    assert 0.005 < float((logits - exact).norm() / size) < 0.15


@pytest.mark.parametrize("case", WRITERS)
@torch.no_grad()
def test_steps_with_a_state_agree_with_a_full_pass(case: str):
    model, tokens = quantise(tiny(case)), ids(3, 8)
    memory = memory_of(model, 3)
    whole = model(tokens, memory)
    state = model.start(3, 8)
    first = model(tokens[:, :3], memory, state)
    steps = [model(tokens[:, at : at + 1], None, state) for at in range(3, 8)]
    assert_same(torch.cat([first, *steps], dim=1), whole, 1e-5)
    state.reorder([2, 0])
    assert state.rows == 2


@kernel
@pytest.mark.parametrize("case", ["gpt2-tiny", "llama-tiny", "t5-tiny", "marian-tiny"])
@torch.no_grad()
def test_a_row_beside_longer_ones_is_as_it_is_alone(case: str):
    model, tokens = quantise(tiny(case)), ids(2, 9)
    memory = memory_of(model, 2, [3, 5])
    beside = model(tokens, memory, lengths=[4, 9])
    alone = model(tokens[:1, :4], memory_of_row(model, 2, 0, 3))
    assert_same(beside[:1, :4], alone, 1e-5)


@torch.no_grad()
def test_beam_search_finds_what_it_finds_by_whole_passes():
    """The best of all pairs of tokens, with as many beams as tokens, is the best there is."""
    model = quantise(tiny("marian-tiny"))
    memory = memory_of(model, 1)
    signs = SpecialTokens(begin=0, ends=(1,), never=())
    found = search(
        model, [[0]], [2], Beam(beams=256, length_penalty=0.0), signs=signs, memory=memory
    )
    pairs = torch.tensor([[0, first] for first in range(256)])
    memories = model.encode(ids(1, 5, seed=7).expand(256, -1))
    chances = model(pairs, memories).log_softmax(-1)  # (first, 2, second)
    both = chances[0, 0][:, None] + chances[:, 1]  # (first, second)
    both[1] = chances[0, 0, 1]  # the first ended it
    (answer,) = found[0].hypotheses
    first, second = divmod(int(both.argmax()), 256)
    assert abs(answer.logprob - float(both.max())) < 1e-4
    assert answer.ids == [token for token in (first, second) if token != 1]


@torch.no_grad()
def test_an_encoder_and_its_pooler_are_int8_too():
    model = build(preset("bert-tiny")).eval()
    small, tokens = quantise(model), ids(2, 7)
    hidden, exact = small.hidden(tokens), model.hidden(tokens)
    assert float((hidden - exact).norm() / exact.norm()) < 0.05
    with pytest.raises(RegardError):
        small.start(1, 4)


@torch.no_grad()
def test_a_model_in_bfloat16_stays_in_bfloat16():
    model = tiny("marian-tiny", torch.bfloat16)
    small, tokens = quantise(model), ids(3, 6)
    state = small.start(3, 6)
    logits = small(tokens, memory_of(small, 3), state)
    exact = tiny("marian-tiny")(tokens, memory_of(tiny("marian-tiny"), 3))
    assert logits.dtype == state.layers[0].keys.dtype == torch.bfloat16
    assert float((logits - exact).norm() / exact.norm()) < 0.05


@pytest.mark.parametrize("name", ["llama-tiny", "marian-tiny"])
def test_linear_layers_shrink_to_a_quarter_and_a_tied_head_adds_one(name: str):
    model = build(preset(name))
    small = quantise(model)
    linears = [part for part in model.modules() if isinstance(part, nn.Linear)]
    counts = [part.weight.numel() for part in linears]
    scales = [part.out_features for part in linears]
    expected = nbytes(model) - 3 * sum(counts) + 4 * sum(scales)
    if model.head.project is None:
        expected += model.embed.tokens.weight.numel() + 4 * model.config.vocabulary
    assert nbytes(small) == expected
    assert nbytes(quantise(small)) == expected

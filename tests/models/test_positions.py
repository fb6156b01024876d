"""Position schemes against the papers' formulas, transformers' functions, and themselves."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.t5.modeling_t5 import T5Attention

from regard.models.masks import Causal, QueryKeyRange, resolve_mask
from regard.models.transformer.attention import Attention
from regard.models.transformer.config import RotaryScaling, TransformerConfig
from regard.models.transformer.positions import (
    SCHEMES,
    Alibi,
    Learned,
    Positions,
    Relative,
    Rotary,
    sinusoid,
)

CPU = torch.device("cpu")
HEADS, WIDTH, CONTEXT = 2, 8, 32


def scheme_of(name: str, bidirectional: bool = False) -> Positions:
    config = TransformerConfig(positions=name, context=CONTEXT, width=WIDTH, heads=HEADS)
    scheme = SCHEMES[name](config.resolved(), bidirectional).double()
    for parameter in scheme.parameters():
        torch.nn.init.normal_(parameter)
    return scheme


# --- sinusoidal ------------------------------------------------------------------------------


def test_sinusoids_are_the_formula():
    waves = sinusoid(torch.arange(50), 6)
    for n in range(50):
        for i in range(6):
            even = i % 2 == 0
            angle = n / 10000 ** ((i if even else i - 1) / 6)
            expected = math.sin(angle) if even else math.cos(angle)
            assert waves[n, i].item() == pytest.approx(expected, abs=1e-5)


def test_sinusoids_have_the_known_values():
    # Position 1 of width 4: sin 1, cos 1, sin 0.01, cos 0.01; position 0: 0, 1, 0, 1.
    expected = torch.tensor([[0, 1, 0, 1], [0.8414710, 0.5403023, 0.0099998, 0.9999500]])
    torch.testing.assert_close(sinusoid(torch.tensor([0, 1]), 4), expected)


def test_sinusoids_are_bounded_and_unique_for_thousands_of_positions():
    waves = sinusoid(torch.arange(4000), 32)
    assert waves.abs().max() <= 1
    distances = torch.cdist(waves, waves).fill_diagonal_(torch.inf)
    # Neighbours are 2 sin(1/2) ≈ 0.96 apart in the fastest wave alone; nobody comes much closer.
    assert distances.min() > 0.5


@given(st.integers(1, 60), st.lists(st.integers(0, 300), min_size=1, max_size=5))
def test_a_shift_is_one_matrix_whatever_the_position(shift: int, positions: list[int]):
    width = 6
    matrix = torch.zeros(width, width, dtype=torch.float64)  # made from the shift alone
    for pair in range(0, width, 2):
        cos, sin = (f(shift / 10000 ** (pair / width)) for f in (math.cos, math.sin))
        block = torch.tensor([[cos, sin], [-sin, cos]], dtype=torch.float64)
        matrix[pair : pair + 2, pair : pair + 2] = block
    n = torch.tensor(positions)
    moved = sinusoid(n, width).double() @ matrix.T
    # Angles of up to 360 radians in single precision are off by 360 · 2⁻²⁴ ≈ 2e-5.
    torch.testing.assert_close(sinusoid(n + shift, width).double(), moved, atol=1e-4, rtol=0)


def test_the_halves_layout_is_the_interleaved_one_with_sines_first():
    n = torch.arange(20)
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    assert torch.equal(sinusoid(n, 8, halves=True), sinusoid(n, 8)[:, order])


# --- rotary ----------------------------------------------------------------------------------


def turned(rotary: Rotary, x: Tensor, position: int) -> Tensor:
    return rotary.turn(torch.tensor([[position]]))(x[None, None, None])[0, 0, 0]


@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 100), st.integers(0, 999))
def test_a_turned_product_depends_on_the_distance_alone(i: int, j: int, shift: int, seed: int):
    q, k = torch.randn(2, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    rotary = Rotary(8, 10000.0)
    here = turned(rotary, q, i) @ turned(rotary, k, j)
    there = turned(rotary, q, i + shift) @ turned(rotary, k, j + shift)
    # Single-precision angles of up to 200 radians: 200 · 2⁻²⁴ ≈ 1e-5, times the norms.
    torch.testing.assert_close(here, there, atol=5e-4, rtol=0)


@given(st.integers(0, 5000), st.integers(0, 999))
def test_turning_keeps_the_norm_and_position_zero_stays(position: int, seed: int):
    x = torch.randn(8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    rotary = Rotary(8, 10000.0)
    # sin² + cos² of single-precision values is 1 to about 2⁻²³.
    torch.testing.assert_close(turned(rotary, x, position).norm(), x.norm(), rtol=1e-6, atol=0)
    assert torch.equal(turned(rotary, x, 0), x)


def llama_config(**rope: object) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        max_position_embeddings=131072,
        rope_parameters={"rope_theta": 500000.0, **rope},
    )


def test_turning_equals_transformers():
    config = llama_config(rope_type="default")
    positions = torch.tensor([[0, 1, 5, 70], [3, 4, 5, 6]])
    q, k = torch.randn(2, 2, 4, 4, 16)  # (rows, heads, positions, head_width) each
    cos, sin = LlamaRotaryEmbedding(config)(q, positions)
    expected_q, expected_k = apply_rotary_pos_emb(q, k, cos, sin)
    turn = Rotary(16, 500000.0).turn(positions)
    torch.testing.assert_close(turn(q), expected_q)
    torch.testing.assert_close(turn(k), expected_k)


@pytest.mark.parametrize(
    ("factor", "low", "high"), [(8.0, 1.0, 4.0), (32.0, 1.0, 4.0), (4, 0.5, 40)]
)
def test_llama3_scaling_equals_transformers(factor: float, low: float, high: float):
    config = llama_config(
        rope_type="llama3",
        factor=factor,
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position_embeddings=8192,
    )
    expected, attention_factor = ROPE_INIT_FUNCTIONS["llama3"](config, CPU)
    assert attention_factor == 1.0
    scaling = RotaryScaling("llama3", factor, low, high, 8192)
    torch.testing.assert_close(Rotary(16, 500000.0, scaling).frequencies(CPU), expected)
    # The three regimes are all met: kept, blended, slowed down.
    ratio = Rotary(16, 500000.0).frequencies(CPU) / expected
    assert ratio.min() == 1
    assert ratio.max().item() == pytest.approx(factor)
    assert ((ratio > 1.01) & (ratio < 0.99 * factor)).any()


def test_linear_scaling_moves_position_n_times_factor_to_n():
    plain, slowed = Rotary(8, 10000.0), Rotary(8, 10000.0, RotaryScaling("linear", factor=4.0))
    near, far = plain.turn(torch.tensor([[3, 10]])), slowed.turn(torch.tensor([[12, 40]]))
    torch.testing.assert_close(near.cos, far.cos)
    torch.testing.assert_close(near.sin, far.sin)


# --- biases ----------------------------------------------------------------------------------


def test_alibi_slopes_are_the_papers():
    assert Alibi(8).slopes() == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    sixteen = [2 ** (-0.5 * i) for i in range(1, 17)]
    assert Alibi(16).slopes() == pytest.approx(sixteen)
    # Twelve heads: those of 8, then of 16 the first, third, fifth and seventh.
    assert Alibi(12).slopes() == pytest.approx([*Alibi(8).slopes(), *sixteen[0:8:2]])
    assert Alibi(1).slopes() == [2**-8]


def test_alibi_subtracts_slope_times_distance():
    span = QueryKeyRange(torch.tensor([[0, 1], [4, 5]]), 2, 6, None)
    bias = Alibi(8).bias(span)
    assert bias.shape == (2, 8, 2, 6)
    for row, head, query, key in torch.cartesian_prod(*map(torch.arange, bias.shape)).tolist():
        distance = abs(span.positions[row, query].item() - key)
        assert bias[row, head, query, key] == -distance / 2 ** (head + 1)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (8, 20), (6, 50)])
def test_relative_buckets_equal_t5s(bidirectional: bool, buckets: int, distance: int):
    offsets = torch.arange(-500, 501)
    expected = T5Attention._relative_position_bucket(offsets, bidirectional, buckets, distance)
    ours = Relative(2, buckets, distance, bidirectional).bucket(offsets)
    assert torch.equal(ours, expected)
    if (buckets, distance) == (32, 128):
        used = set(ours.tolist())
        assert used <= set(range(32))
        assert len(used) == (31 if bidirectional else 32)  # "one ahead of itself" does not exist


def test_the_relative_bias_is_each_heads_number_for_the_bucket():
    relative = Relative(3, 8, 20, bidirectional=True)
    span = QueryKeyRange(torch.tensor([[2, 3], [5, 6]]), 2, 7, None)
    bias = relative.bias(span)
    assert bias.shape == (2, 3, 2, 7)
    for row, head, query, key in torch.cartesian_prod(*map(torch.arange, bias.shape)).tolist():
        offset = key - span.positions[row, query]
        assert bias[row, head, query, key] == relative.table.weight[relative.bucket(offset), head]


def test_a_causal_relative_bias_has_one_bucket_for_all_keys_ahead():
    relative = Relative(3, 8, 20, bidirectional=False)
    assert relative.bucket(torch.arange(0, 30)).eq(0).all()
    assert (relative.bucket(torch.arange(-30, 0)) > 0).all()


# --- every scheme ----------------------------------------------------------------------------


def test_learned_positions_are_rows_of_the_table():
    learned = Learned(5, 4)
    x = torch.randn(2, 3, 4)
    places = torch.tensor([[0, 1, 2], [2, 3, 4]])
    expected = torch.stack([x[r] + learned.table.weight[places[r]] for r in range(2)])
    assert torch.equal(learned.add(x, places), expected)
    assert learned.limit == 5


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_with_an_offset_is_the_middle_of_a_full_pass(name: str, bidirectional: bool):
    scheme = scheme_of(name, bidirectional)
    whole = QueryKeyRange.of(2, 9, 9, CPU)
    rows = torch.tensor([[4], [2]])  # each row at a place of its own
    part = QueryKeyRange(rows + torch.arange(3), 2, 7, None)
    x = torch.randn(2, 9, WIDTH, dtype=torch.float64)
    q = torch.randn(2, HEADS, 9, WIDTH // HEADS, dtype=torch.float64)
    for row, first in enumerate(rows.flatten().tolist()):
        here = slice(first, first + 3)
        places = part.positions[row : row + 1]
        added = scheme.add(x[row : row + 1, here], places)
        assert torch.equal(added, scheme.add(x, whole.positions)[row : row + 1, here])
        if (turn := scheme.turn(places)) is not None:
            full = scheme.turn(whole.positions)(q)
            assert torch.equal(turn(q[row : row + 1, :, here]), full[row : row + 1, :, here])
        if (bias := scheme.bias(part)) is not None:
            assert torch.equal(bias[row], scheme.bias(whole)[0, :, here, :7])


@pytest.mark.parametrize("name", SCHEMES)
def test_each_scheme_uses_its_own_hook_alone(name: str):
    scheme = scheme_of(name)
    x, span = torch.randn(1, 4, WIDTH, dtype=torch.float64), QueryKeyRange.of(1, 4, 4, CPU, first=1)
    used = {
        "add": not torch.equal(scheme.add(x, span.positions), x),
        "turn": scheme.turn(span.positions) is not None,
        "bias": scheme.bias(span) is not None,
    }
    own = {"rotary": "turn", "alibi": "bias", "relative": "bias", "none": None}.get(name, "add")
    assert [hook for hook, is_used in used.items() if is_used] == ([own] if own else [])


@pytest.mark.parametrize("name", [name for name in SCHEMES if name != "none"])
def test_gradients_through_each_scheme_are_the_differences(name: str):
    scheme, attention = scheme_of(name), Attention(WIDTH, HEADS).double()
    span = QueryKeyRange.of(1, 3, 3, CPU)
    x = torch.randn(1, 3, WIDTH, dtype=torch.float64, requires_grad=True)

    def attended(x: Tensor, *_: Tensor) -> Tensor:
        over = resolve_mask(Causal(), span, scheme.bias(span))
        return attention(scheme.add(x, span.positions), over, scheme.turn(span.positions))

    assert torch.autograd.gradcheck(attended, (x, *scheme.parameters()))

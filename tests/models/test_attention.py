"""Attention against its formula, torch's own module, loops, and finite differences."""

import math
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from regard.models.kernels.attention import any_shape
from regard.models.masks import (
    Causal,
    Dense,
    Documents,
    Mask,
    Padding,
    QueryKeyRange,
    Window,
    resolve_mask,
)
from regard.models.transformer.attention import (
    Additive,
    Attend,
    Attention,
    Dot,
    KeysValues,
    ScaledDot,
)

CPU = torch.device("cpu")
ROWS, HEADS, QUERIES, KEYS, WIDTH = 2, 4, 5, 5, 8

MASKS: dict[str, Mask | None] = {
    "nothing": None,
    "causal": Causal(),
    "window": Window(2),
    "padding": Padding(torch.tensor([5, 2])),
    "empty row": Padding(torch.tensor([0, 3])),
    "documents": Documents(torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 2, 2]])),
    "dense": Dense(torch.rand(2, 5, 5, generator=torch.Generator().manual_seed(1)) < 0.5),
    "several": Causal() & Padding(torch.tensor([4, 1])) & Window(3),
}


def explicit(q: Tensor, k: Tensor, v: Tensor, scale: float, allowed: Tensor | None = None):
    """softmax(QKᵀ · scale)V by its definition, exponentials and sums; nothing allowed: zeros."""
    weights = torch.exp(torch.einsum("...qd,...kd->...qk", q, k) * scale)
    if allowed is not None:
        weights = weights * allowed
    total = weights.sum(-1, keepdim=True)
    return torch.einsum("...qk,...kd->...qd", weights / total.where(total > 0, 1.0), v)


def heads(count: int = HEADS, length: int = KEYS, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(ROWS, count, length, WIDTH, dtype=dtype)


def span(queries: int = QUERIES, keys: int = KEYS, first: int = 0) -> QueryKeyRange:
    return QueryKeyRange.of(ROWS, queries, keys, CPU, first)


def allowed_by(mask: Mask | None) -> Tensor:
    return resolve_mask(mask, span()).allowed()


# --- one attention ---------------------------------------------------------------------------


@pytest.mark.parametrize("similarity", [Dot(), ScaledDot()])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_attend_is_softmax_of_scores_times_values(similarity: Dot, mask: Mask | None):
    q, k, v = heads(), heads(), heads()
    scale = 1.0 if type(similarity) is Dot else 1 / math.sqrt(WIDTH)
    expected = explicit(q, k, v, scale, allowed_by(mask))
    torch.testing.assert_close(Attend(similarity)(q, k, v, mask), expected)


@pytest.mark.parametrize("shape", [(5, 3), (2, 5, 3)])
def test_the_parameter_free_form_is_softmax_of_xxt_times_x(shape: tuple[int, ...]):
    x = torch.randn(shape, dtype=torch.float64)
    attend = Attend(Dot())
    assert not list(attend.parameters())
    torch.testing.assert_close(attend(x, x, x), explicit(x, x, x, 1.0))
    torch.testing.assert_close(attend(x, x, x), torch.softmax(x @ x.mT, -1) @ x)


def test_values_may_be_of_another_width_than_keys():
    q, k, v = heads(), heads(length=3), torch.randn(ROWS, HEADS, 3, 6, dtype=torch.float64)
    torch.testing.assert_close(Attend()(q, k, v), explicit(q, k, v, WIDTH**-0.5))


@pytest.mark.parametrize("dimensions", [2, 3, 4, 5])
@pytest.mark.parametrize("mask", [None, Causal(), Window(2)])
def test_any_number_of_leading_dimensions_gives_the_same(dimensions: int, mask: Mask | None):
    x = torch.randn(QUERIES, WIDTH, dtype=torch.float64)
    many = x.expand(*(2, 1, 2)[: dimensions - 2], -1, -1)
    expected = explicit(x, x, x, WIDTH**-0.5, allowed_by(mask)[0, 0])
    torch.testing.assert_close(Attend()(many, many, many, mask), expected.expand_as(many))


def test_with_five_dimensions_a_row_is_the_first_of_them():
    q = torch.randn(2, 2, 3, 4, WIDTH)
    both = Attend()(q, q, q, Padding(torch.tensor([1, 4])))
    # Row 0 has one real key, so every query of it gets exactly that key's value.
    torch.testing.assert_close(both[0], q[0, ..., :1, :].expand(-1, -1, 4, -1))


def test_the_additive_similarity_is_v_tanh_of_wq_plus_uk():
    similarity = Additive(query_width=3, key_width=4, hidden=6).double()
    q = torch.randn(2, 5, 3, dtype=torch.float64)
    k = torch.randn(2, 7, 4, dtype=torch.float64)
    scores = similarity(q, k)
    w, u, v = similarity.query.weight, similarity.key, similarity.score.weight[0]
    for row in range(2):
        for i in range(5):
            for j in range(7):
                expected = v @ torch.tanh(w @ q[row, i] + u.weight @ k[row, j] + u.bias)
                torch.testing.assert_close(scores[row, i, j], expected)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_additive_attention_is_the_softmax_of_its_scores(mask: Mask | None):
    similarity = Additive(WIDTH, WIDTH, 3).double()
    q, v = torch.randn(2, ROWS, QUERIES, WIDTH, dtype=torch.float64)
    weights = similarity(q, v).exp() * allowed_by(mask)[:, 0]
    expected = weights / weights.sum(-1, keepdim=True).clamp(min=1e-300) @ v
    torch.testing.assert_close(Attend(similarity)(q, v, v, mask), expected)


@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("similarity", [ScaledDot(), Additive(WIDTH, WIDTH, 3).double()])
def test_grouped_key_heads_equal_repeated_ones(kv_heads: int, similarity: Dot):
    q, k, v = heads(), heads(kv_heads), heads(kv_heads)
    k_all, v_all = (x.repeat_interleave(HEADS // kv_heads, dim=1) for x in (k, v))
    attend = Attend(similarity)
    torch.testing.assert_close(attend(q, k, v, Causal()), attend(q, k_all, v_all, Causal()))


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("kv_heads", "additive"), [(2, False), (HEADS, False), (HEADS, True)])
def test_the_weights_written_out_give_the_output(
    mask: Mask | None, biased: bool, kv_heads: int, additive: bool
):
    q, k, v = heads(), heads(kv_heads), heads(kv_heads)
    bias = torch.randn(1, HEADS, QUERIES, KEYS, dtype=torch.float64) if biased else None
    attend = Attend(Additive(WIDTH, WIDTH, 3).double() if additive else None)
    over = resolve_mask(mask, span(), bias)
    weights = attend.weigh(q, k, over)
    repeated = v.repeat_interleave(HEADS // kv_heads, dim=1)
    torch.testing.assert_close(weights.probabilities @ repeated, attend(q, k, v, over))
    assert weights.scores.shape == weights.allowed.shape == weights.probabilities.shape
    assert torch.equal(weights.allowed, allowed_by(mask).expand_as(weights.allowed))
    assert not weights.probabilities[~weights.allowed].any()
    sums = weights.allowed.any(-1).double()
    torch.testing.assert_close(weights.probabilities.sum(-1), sums)


@pytest.mark.parametrize("mask", [None, Causal()])
def test_without_heads_a_bias_is_weighed_as_it_is_attended(mask: Mask | None):
    x = torch.randn(ROWS, QUERIES, WIDTH, dtype=torch.float64)
    over = resolve_mask(mask, span(), torch.randn(1, 1, QUERIES, KEYS, dtype=torch.float64))
    probabilities = Attend().weigh(x, x, over).probabilities
    assert probabilities.shape == (ROWS, QUERIES, KEYS)
    torch.testing.assert_close(probabilities @ x, Attend()(x, x, x, over))


def test_scores_are_given_before_bias_and_mask():
    q, k = heads(), heads()
    over = resolve_mask(Causal(), span(), torch.randn(1, HEADS, QUERIES, KEYS, dtype=torch.float64))
    torch.testing.assert_close(Attend().weigh(q, k, over).scores, q @ k.mT / WIDTH**0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("way", ["kernel", "kernel with bias", "additive", "weigh"])
def test_a_query_that_may_see_nothing_gets_zeros_and_finite_gradients(way: str, dtype: torch.dtype):
    q, k, v = (heads(dtype=dtype).requires_grad_() for _ in range(3))
    attend = Attend(Additive(WIDTH, WIDTH, 3).to(dtype) if way == "additive" else None)
    bias = torch.zeros(1, HEADS, QUERIES, KEYS) if "bias" in way else None
    table = torch.ones(ROWS, QUERIES, KEYS, dtype=torch.bool)
    table[0], table[1, 2] = False, False  # a whole row, and one query of the other
    over = resolve_mask(Dense(table), span(), bias)
    y = attend.weigh(q, k, over).probabilities @ v if way == "weigh" else attend(q, k, v, over)
    assert not y[0].any()
    assert not y[1, :, 2].any()
    assert y[1, :, 0].all()
    gradients = torch.autograd.grad(y.square().sum(), (q, k, v))
    for gradient in gradients:
        assert gradient.isfinite().all()
        assert not gradient[0].any()  # what gave nothing gets nothing
        assert gradient[1].any()


def test_the_variance_of_a_product_is_its_width_and_one_when_scaled():
    width, samples = 64, 20000
    q, k = torch.randn(2, samples, width, dtype=torch.float64)
    # The spread of a variance estimate is about √(2/samples) = 1 %; five of them are allowed.
    scores = Dot()(q[:, None], k[:, None]).flatten()
    assert scores.var().item() == pytest.approx(width, rel=0.05)
    scores = ScaledDot()(q[:, None], k[:, None]).flatten()
    assert scores.var().item() == pytest.approx(1, rel=0.05)


@given(st.integers(0, 10**6), st.permutations(range(KEYS)))
def test_the_order_of_keys_does_not_matter(seed: int, order: list[int]):
    generator = torch.Generator().manual_seed(seed)
    q, k, v = torch.randn(3, KEYS, WIDTH, dtype=torch.float64, generator=generator)
    torch.testing.assert_close(Attend()(q, k[order], v[order]), Attend()(q, k, v))


@pytest.mark.parametrize("similarity", [None, Additive(WIDTH, WIDTH, 3)])
def test_dropout_keeps_the_mean_in_training_and_is_off_in_evaluation(similarity):
    x = torch.randn(3, WIDTH)
    attend, plain = Attend(similarity, dropout=0.5), Attend(similarity)
    many = x.expand(20000, 3, WIDTH)
    with torch.no_grad():
        assert not torch.equal(attend(x, x, x), attend(x, x, x))
        # The mean of 20,000 has a spread of about 1 / √20000 = 0.7 %.
        torch.testing.assert_close(
            attend(many, many, many).mean(0), plain(x, x, x), atol=0.05, rtol=0
        )
        attend.eval()
        assert torch.equal(attend(x, x, x), plain(x, x, x))


# --- many heads ------------------------------------------------------------------------------


def like_torch(attention: Attention, width: int, source_width: int = 0) -> nn.MultiheadAttention:
    """torch's own module with the same weights."""
    source = {"kdim": source_width, "vdim": source_width} if source_width else {}
    twin = nn.MultiheadAttention(width, attention.heads, batch_first=True, **source).double()
    with torch.no_grad():
        twin.out_proj.weight.copy_(attention.output.weight)
        twin.out_proj.bias.copy_(attention.output.bias)
        if source_width:
            twin.q_proj_weight.copy_(attention.query.weight)
            twin.k_proj_weight.copy_(attention.key_value.weight[:width])
            twin.v_proj_weight.copy_(attention.key_value.weight[width:])
            twin.in_proj_bias.copy_(torch.cat((attention.query.bias, attention.key_value.bias)))
        else:
            twin.in_proj_weight.copy_(attention.query_key_value.weight)
            twin.in_proj_bias.copy_(attention.query_key_value.bias)
    return twin


@pytest.mark.parametrize("mask", [MASKS[n] for n in ("nothing", "causal", "padding", "window")])
def test_self_attention_equals_torchs(mask: Mask | None):
    attention = Attention(12, 3).double()
    x = torch.randn(ROWS, QUERIES, 12, dtype=torch.float64)
    # torch wants True where a pair is hidden, once for each head.
    hidden = ~allowed_by(mask)[:, 0].expand(ROWS, -1, -1).repeat_interleave(3, dim=0)
    expected, _ = like_torch(attention, 12)(x, x, x, attn_mask=hidden)
    torch.testing.assert_close(attention(x, mask), expected)


def test_cross_attention_equals_torchs():
    attention = Attention(12, 3, source_width=20).double()
    x = torch.randn(ROWS, QUERIES, 12, dtype=torch.float64)
    source = torch.randn(ROWS, 7, 20, dtype=torch.float64)
    lengths = torch.tensor([7, 4])
    hidden = torch.arange(7) >= lengths[:, None]
    expected, _ = like_torch(attention, 12, 20)(x, source, source, key_padding_mask=hidden)
    actual = attention(x, Padding(lengths), source=attention.read(source))
    torch.testing.assert_close(actual, expected)


def test_keys_and_values_of_a_source_are_its_two_projections():
    attention = Attention(12, 3, kv_heads=1, source_width=7).double()
    source = torch.randn(ROWS, 6, 7, dtype=torch.float64)
    read = attention.read(source)
    assert isinstance(read, KeysValues)
    both = source @ attention.key_value.weight.T + attention.key_value.bias
    torch.testing.assert_close(read.keys[:, 0], both[..., :4])
    torch.testing.assert_close(read.values[:, 0], both[..., 4:])


@pytest.mark.parametrize("normalise", [0.0, 1e-6])
def test_fewer_key_heads_equal_full_ones_with_repeated_weights(normalise: float):
    grouped = Attention(12, 6, kv_heads=2, normalise=normalise).double()
    full = Attention(12, 6, normalise=normalise).double()
    sizes = [12, 4, 4]  # 6 query heads, 2 key heads, 2 value heads, each 2 wide

    def repeated(rows: Tensor) -> Tensor:
        return rows.unflatten(0, (2, 2)).repeat_interleave(3, dim=0).flatten(0, 1)

    weights = grouped.state_dict()
    for name in ("query_key_value.weight", "query_key_value.bias"):
        q, k, v = weights[name].split(sizes)
        weights[name] = torch.cat((q, repeated(k), repeated(v)))
    full.load_state_dict(weights)
    x = torch.randn(ROWS, QUERIES, 12, dtype=torch.float64)
    torch.testing.assert_close(grouped(x, Causal()), full(x, Causal()))


def test_query_and_key_heads_are_normalised_by_their_root_mean_square():
    attention = Attention(12, 3, normalise=1e-6, bias=False).double()
    nn.init.normal_(attention.query_norm.weight)
    nn.init.normal_(attention.key_norm.weight)
    x = torch.randn(1, QUERIES, 12, dtype=torch.float64)
    q, k, v = (x @ attention.query_key_value.weight.T).chunk(3, dim=-1)
    mixed = []
    for head in range(3):
        part = slice(4 * head, 4 * head + 4)
        qh, kh = q[..., part], k[..., part]
        qh = qh / (qh.square().mean(-1, keepdim=True) + 1e-6).sqrt() * attention.query_norm.weight
        kh = kh / (kh.square().mean(-1, keepdim=True) + 1e-6).sqrt() * attention.key_norm.weight
        mixed.append(explicit(qh, kh, v[..., part], 0.5))
    expected = torch.cat(mixed, -1) @ attention.output.weight.T
    torch.testing.assert_close(attention(x), expected)


def test_normalised_cross_attention_does_not_feel_the_length_of_queries():
    attention = Attention(12, 3, source_width=12, normalise=1e-12, bias=False).double()
    x, source = torch.randn(2, ROWS, QUERIES, 12, dtype=torch.float64)
    read = attention.read(source)
    torch.testing.assert_close(attention(5 * x, source=read), attention(x, source=read))
    louder = attention.read(5 * source)
    torch.testing.assert_close(louder.keys, read.keys)
    torch.testing.assert_close(louder.values, 5 * read.values)


def flops(attention: Attention, x: Tensor) -> int:
    # Of all kernels, only the plain one shows its matrix products to the counter.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        attention(x)
    return counter.get_total_flops()


def test_many_heads_cost_what_one_full_width_head_costs():
    n, d, x = 6, 16, torch.randn(ROWS, 6, 16)
    products = 2 * ROWS * (4 * n * d * d + 2 * n * n * d)  # q, k, v, output; scores, mixing
    for count in (1, 2, 8, 16):
        attention = Attention(d, count)
        assert flops(attention, x) == products
        assert sum(p.numel() for p in attention.parameters()) == 4 * (d * d + d)


# --- gradients -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "mask"),
    [({}, None), ({}, Causal()), ({"kv_heads": 1}, Causal()), ({"normalise": 1e-3}, Window(2))],
    ids=["self", "causal", "grouped", "normalised"],
)
def test_gradients_of_self_attention_are_the_differences(settings: dict, mask: Mask | None):
    attention = Attention(4, 2, **settings).double()
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    # Differences move the parameters in place, so that giving them to gradcheck is enough.
    assert torch.autograd.gradcheck(lambda x, *_: attention(x, mask), (x, *attention.parameters()))


def test_gradients_of_cross_attention_are_the_differences():
    attention = Attention(4, 2, source_width=3).double()
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    source = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)
    over = Padding(torch.tensor([5, 2]))
    assert torch.autograd.gradcheck(
        lambda x, source, *_: attention(x, over, source=attention.read(source)),
        (x, source, *attention.parameters()),
    )


def test_gradients_of_additive_attention_are_the_differences():
    attend = Attend(Additive(4, 3, 5)).double()
    q = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    k = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)
    over = Padding(torch.tensor([5, 0]))
    assert torch.autograd.gradcheck(
        lambda q, k, *_: attend(q, k, k, over), (q, k, *attend.parameters())
    )


def test_for_any_shape_only_cudnn_is_left_out_and_comes_back_afterwards():
    asked = (
        torch.backends.cuda.cudnn_sdp_enabled,
        torch.backends.cuda.flash_sdp_enabled,
        torch.backends.cuda.mem_efficient_sdp_enabled,
        torch.backends.cuda.math_sdp_enabled,
    )
    before = [enabled() for enabled in asked]
    with any_shape():
        assert [enabled() for enabled in asked] == [False, True, True, True]
    assert [enabled() for enabled in asked] == before


def test_threads_that_overlap_leave_the_choice_of_kernels_as_it_was():
    before = torch.backends.cuda.cudnn_sdp_enabled()
    inside, go_on = threading.Event(), threading.Event()

    def first() -> None:
        with any_shape():
            inside.set()
            go_on.wait(10)

    thread = threading.Thread(target=first)
    thread.start()
    inside.wait(10)
    with any_shape():  # entered while the other is inside, left after it
        go_on.set()
        thread.join(10)
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert torch.backends.cuda.cudnn_sdp_enabled() == before

"""Masks against loops in plain Python, alone and combined; and what reaches the kernel."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from regard.errors import RegardError
from regard.models.masks import (
    AttentionMask,
    Causal,
    Combined,
    Dense,
    Documents,
    Mask,
    Padding,
    QueryKeyRange,
    Window,
    fitting,
    resolve_mask,
)
from regard.models.transformer.attention import Attend

CPU = torch.device("cpu")
ROWS, QUERIES, KEYS = 2, 5, 5


# --- a twin that knows one row, one query and one key at a time -------------------------------


def sees(mask: Mask, row: int, query: int, position: int, key: int) -> bool:
    """Whether the row's query of this number, standing at `position`, may see the key."""
    match mask:
        case Causal():
            return key <= position
        case Window(size=size):
            return abs(position - key) < size
        case Padding(lengths=lengths):
            return key < lengths.tolist()[row]
        case Documents(ids=ids):
            return ids[row].tolist()[position] == ids[row].tolist()[key]
        case Dense(table=table):
            one = table[row if len(table) > 1 else 0] if table.dim() == 3 else table
            return one[query if len(one) > 1 else 0].tolist()[key]
    raise TypeError(mask)


def multiplied_out(masks: list[Mask], span: QueryKeyRange) -> Tensor:
    """(rows, queries, keys), by loops."""
    table = torch.empty(span.rows, span.queries, span.keys, dtype=torch.bool)
    for row, query, key in itertools.product(*map(range, table.shape)):
        position = span.positions.expand(span.rows, -1)[row].tolist()[query]
        table[row, query, key] = all(sees(mask, row, query, position, key) for mask in masks)
    return table


def read_back(overlay: AttentionMask) -> Tensor:
    """What a kernel given this overlay (without bias) would let through; (rows, queries, keys)."""
    span = overlay.span
    table = torch.ones(span.queries, span.keys, dtype=torch.bool)
    if overlay.triangle:
        assert overlay.table is None
        table = table.tril()
    elif overlay.table is not None:
        table = overlay.table[:, 0]
    return table.expand(span.rows, span.queries, span.keys)


@st.composite
def spans(draw: st.DrawFn) -> QueryKeyRange:
    """All rows alike, or each row at a place of its own as in a ragged state."""
    rows, queries = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    if draw(st.booleans()):
        first = draw(st.integers(0, 4))
        keys = draw(st.one_of(st.just(first + queries), st.integers(1, 8)))
        return QueryKeyRange.of(rows, queries, keys, CPU, first)
    starts = torch.tensor(draw(st.lists(st.integers(0, 5), min_size=rows, max_size=rows)))
    positions = starts[:, None] + torch.arange(queries)
    return QueryKeyRange(positions, rows, int(starts.max()) + queries, None)


@st.composite
def masks(draw: st.DrawFn, span: QueryKeyRange) -> Mask:
    """Any mask that fits the span."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    kind = draw(st.sampled_from([Causal, Window, Padding, Documents, Dense]))
    if kind is Causal:
        return Causal()
    if kind is Window:
        return Window(draw(st.integers(1, 9)))
    if kind is Padding:
        low = draw(st.sampled_from([0, span.keys]))  # half of the time, nothing is hidden
        return Padding(torch.randint(low, span.keys + 2, (span.rows,), generator=generator))
    if kind is Documents:
        width = max(span.keys, int(span.positions.max()) + 1)
        return Documents(torch.randint(3, (span.rows, width), generator=generator))
    shape = (draw(st.sampled_from([1, span.queries])), span.keys)
    if draw(st.booleans()):
        shape = (draw(st.sampled_from([1, span.rows])), *shape)
    return Dense(torch.rand(shape, generator=generator) < 0.6)


@st.composite
def spanned(draw: st.DrawFn, most: int = 4) -> tuple[QueryKeyRange, list[Mask]]:
    span = draw(spans())
    return span, draw(st.lists(masks(span), min_size=1, max_size=most))


# --- what masks say --------------------------------------------------------------------------


@settings(max_examples=200)
@given(spanned(most=1))
def test_each_mask_says_what_its_loop_says(case: tuple[QueryKeyRange, list[Mask]]):
    span, [mask] = case
    allowed = fitting(mask, span)
    assert allowed.dtype == torch.bool
    assert torch.equal(allowed.expand(span.rows, span.queries, -1), multiplied_out([mask], span))


@settings(max_examples=200)
@given(spanned())
def test_combined_masks_are_the_masks_multiplied_out(case: tuple[QueryKeyRange, list[Mask]]):
    span, several = case
    mask = None
    for one in several:
        mask = one & mask if mask is None else mask & one
    expected = multiplied_out(several, span)
    overlay = resolve_mask(mask, span)
    assert torch.equal(read_back(overlay), expected)
    shape = (span.rows, 1, span.queries, span.keys)
    assert torch.equal(overlay.allowed().expand(shape)[:, 0], expected)


@settings(max_examples=100)
@given(spanned(), st.integers(1, 3))
def test_a_bias_is_kept_where_allowed_and_minus_infinity_elsewhere(
    case: tuple[QueryKeyRange, list[Mask]], heads: int
):
    span, several = case
    bias = torch.randn(1, heads, span.queries, span.keys)
    overlay = resolve_mask(Combined(tuple(several)), span, bias)
    shape = (span.rows, heads, span.queries, span.keys)
    expected = bias.where(multiplied_out(several, span)[:, None], -torch.inf)
    assert torch.equal(overlay.table.expand(shape), expected)
    assert not overlay.triangle


@settings(max_examples=300)
@given(spanned())
def test_a_mask_that_says_it_hides_nothing_hides_nothing(case: tuple[QueryKeyRange, list[Mask]]):
    span, several = case
    for mask in (*several, Combined(tuple(several))):
        if mask.hides_nothing(span):
            assert multiplied_out(list(mask.parts()), span).all()


def test_where_all_rows_are_alike_every_small_case_is_told_exactly():
    # All of them, because the ends of the ranges are where an offset by one would hide.
    sizes = [Window(size) for size in range(1, 7)]
    for first, queries, keys in itertools.product(range(4), range(1, 4), range(1, 6)):
        span = QueryKeyRange.of(1, queries, keys, CPU, first)
        lengths = [Padding(torch.tensor([length])) for length in (keys - 1, keys, keys + 1)]
        for mask in (Causal(), *sizes, *lengths):
            expected = multiplied_out([mask], span)
            assert mask.hides_nothing(span) == expected.all()
            assert torch.equal(read_back(resolve_mask(mask, span)), expected)


@settings(max_examples=100)
@given(spanned())
def test_a_mask_that_spares_a_querys_own_position_leaves_no_query_blind(
    case: tuple[QueryKeyRange, list[Mask]],
):
    span, several = case
    own = span.positions.expand(span.rows, -1)
    sparing = [mask for mask in several if mask.spares_self()]
    if sparing and own.max() < span.keys:
        assert multiplied_out(sparing, span).gather(2, own[..., None]).all()


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_blind_queries_are_marked_for_kernels_that_do_not_know_them(device: str):
    # The CPU's kernels give zeros by themselves; what others see is shown on meta.
    def blind(mask: Mask) -> Tensor | None:
        return resolve_mask(mask, QueryKeyRange.of(ROWS, QUERIES, KEYS, torch.device(device))).blind

    assert blind(Causal() & Window(2)) is None
    marked = blind(Causal() & Padding(torch.tensor([0, 3])))
    assert marked is None if device == "cpu" else marked.shape == (ROWS, 1, QUERIES, 1)


@pytest.mark.parametrize("other", [Causal(), Causal() & Window(2)])
def test_and_flattens_and_takes_nothing_for_nothing(other: Mask):
    mask = Window(3)
    assert (mask & other).parts() == (mask, *other.parts())
    assert (other & mask).parts() == (*other.parts(), mask)
    assert mask & None is mask
    assert None & mask is mask


def test_a_mask_by_keys_alone_is_what_cross_attention_respects():
    padding, anyone = Padding(torch.tensor([1, 2])), Dense(torch.tensor([[True, False]]))
    each_row = Dense(torch.ones(2, 1, 2, dtype=torch.bool))
    assert padding.of_keys() is padding
    assert anyone.of_keys() is anyone
    assert each_row.of_keys() is each_row
    by_query = Dense(torch.ones(2, 2, dtype=torch.bool))
    for mask in (Causal(), Window(2), Documents(torch.zeros(2, 2)), by_query):
        assert mask.of_keys() is None
    assert (Causal() & padding & by_query & anyone).of_keys().parts() == (padding, anyone)
    assert (Causal() & Window(1)).of_keys() is None


# --- masks that do not fit -------------------------------------------------------------------

WRONG = {
    "padding of other rows": Padding(torch.tensor([1, 2, 3])),
    "full padding of other rows": Padding(torch.tensor([KEYS, KEYS, KEYS])),
    "documents of other rows": Documents(torch.zeros(3, KEYS)),
    "documents of too few positions": Documents(torch.zeros(ROWS, KEYS - 1)),
    "documents without rows": Documents(torch.zeros(KEYS)),
    "dense of other rows": Dense(torch.ones(3, QUERIES, KEYS, dtype=torch.bool)),
    "dense of other queries": Dense(torch.ones(QUERIES + 1, KEYS, dtype=torch.bool)),
    "dense of other keys": Dense(torch.ones(QUERIES, KEYS + 1, dtype=torch.bool)),
    "dense of one key": Dense(torch.ones(QUERIES, 1, dtype=torch.bool)),
}


@pytest.mark.parametrize("lengths", [[[1], [2]], 3, [1.5, 2.0]])
def test_padding_that_is_not_a_whole_number_for_each_row_cannot_be_made(lengths: object):
    with pytest.raises(RegardError, match="whole number"):
        Padding(torch.tensor(lengths))


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "combined"])
@pytest.mark.parametrize("ragged", [False, True], ids=["alike", "ragged"])
@pytest.mark.parametrize("mask", WRONG.values(), ids=WRONG)
def test_a_mask_that_does_not_fit_is_refused_in_one_sentence(mask: Mask, ragged: bool, alone: bool):
    span = QueryKeyRange.of(ROWS, QUERIES, KEYS, CPU)
    if ragged:
        span = QueryKeyRange(torch.tensor([[0], [1]]) + torch.arange(QUERIES), ROWS, KEYS, None)
    with pytest.raises(RegardError) as caught:
        resolve_mask(mask if alone else Window(2) & mask, span)
    message = str(caught.value)
    assert "\n" not in message
    assert "document" in message.lower() or type(mask).__name__ in message


@pytest.mark.parametrize(
    "table", [torch.ones(2, 2), torch.ones(2, dtype=torch.bool), torch.ones(1, 1, 2, 2).bool()]
)
def test_a_dense_mask_must_be_boolean_of_two_or_three_dimensions(table: Tensor):
    with pytest.raises(RegardError, match=r"a dense mask must be a boolean tensor .* of shape"):
        Dense(table)


@pytest.mark.parametrize("size", [0, -1])
def test_a_window_must_hold_a_position(size: int):
    with pytest.raises(RegardError, match=f"at least one position, not {size}"):
        Window(size)


# --- the cheapest thing that reaches the kernel ------------------------------------------------


class Kernels(TorchDispatchMode):
    """Notes how attention kernels are called, and every tensor of queries × keys that is made."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, bool, bool]] = []  # name, causal, with a mask
        self.tables = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if "scaled_dot_product" in name:
            causal = args[4] if len(args) > 4 else kwargs.get("is_causal", False)
            self.calls.append((name, causal, kwargs.get("attn_mask") is not None))
        made = func(*args, **kwargs)
        if isinstance(made, Tensor) and made.shape[-2:] == (QUERIES, KEYS):
            self.tables += 1
        return made


FLASH = "_scaled_dot_product_flash_attention_for_cpu"


def kernels_of(mask: Mask | None, queries: int = QUERIES, first: int = 0) -> Kernels:
    """The kernels that attention runs under a mask, laying the mask included."""
    q, k, v = (torch.randn(ROWS, 1, n, 8) for n in (queries, KEYS, KEYS))
    with Kernels() as kernels:
        Attend()(q, k, v, resolve_mask(mask, QueryKeyRange.of(ROWS, queries, KEYS, CPU, first)))
    return kernels


@pytest.mark.parametrize("mask", [Causal(), Causal() & Causal(), Causal() & Window(KEYS)])
def test_the_square_causal_mask_is_left_to_the_kernel(mask: Mask):
    over = resolve_mask(mask, QueryKeyRange.of(ROWS, QUERIES, KEYS, CPU))
    assert over.triangle is True
    assert over.table is None
    kernels = kernels_of(mask)
    assert kernels.calls == [(FLASH, True, False)]
    assert kernels.tables == 0


def test_a_single_new_token_needs_no_mask():
    over = resolve_mask(Causal(), QueryKeyRange.of(ROWS, 1, KEYS, CPU, first=KEYS - 1))
    assert over.table is None
    assert not over.triangle
    assert kernels_of(Causal(), 1, KEYS - 1).calls == [(FLASH, False, False)]


@pytest.mark.parametrize("mask", [Padding(torch.tensor([KEYS, KEYS])), Window(KEYS), None])
def test_a_mask_that_hides_nothing_is_dropped(mask: Mask | None):
    over = resolve_mask(mask, QueryKeyRange.of(ROWS, QUERIES, KEYS, CPU))
    assert over.table is None
    assert not over.triangle
    assert kernels_of(mask).calls == [(FLASH, False, False)]


def test_several_new_tokens_in_the_middle_need_a_table():
    # The kernel's own triangle starts at the first key, which would hide most of the prefix.
    over = resolve_mask(Causal(), QueryKeyRange.of(ROWS, 2, KEYS, CPU, first=3))
    assert not over.triangle
    assert over.table.tolist() == [[[[True] * 4 + [False], [True] * 5]]]
    assert kernels_of(Causal(), 2, 3).calls == [(FLASH, False, True)]


def test_a_bias_takes_the_triangle_into_its_table():
    bias = torch.randn(1, 3, QUERIES, KEYS)
    span = QueryKeyRange.of(ROWS, QUERIES, KEYS, CPU)
    below = torch.ones(QUERIES, KEYS).tril().bool()
    assert torch.equal(resolve_mask(Causal(), span, bias).table, bias.where(below, -torch.inf))
    assert resolve_mask(None, span, bias).table is bias

"""A cache of keys and values: its size, its sharing, masks over it, and what it refuses."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import (
    assert_same,
    ids,
    memory_of,
    memory_of_row,
    settings_of,
    tiny,
)
from torch import Tensor

from regard.errors import RegardError
from regard.models.construction import build
from regard.models.masks import Causal, Documents, Padding, Window
from regard.models.transformer.attention import Attention
from regard.models.transformer.cache import KeyValueState, Moves
from regard.models.transformer.model import Transformer
from regard.models.transformer.presets import preset

few = settings(max_examples=8)
pytestmark = pytest.mark.usefixtures("poisoned")


def alone(model: Transformer, rows: int, row: int, text: Tensor, length: int = 5) -> Tensor:
    """The logits of one row's text (positions,) by itself: no padding, no state, own source."""
    return model(text[None], memory_of_row(model, rows, row, length))[0]


# --- splits ----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["gpt2-tiny", "llama-tiny", "t5-tiny", "marian-tiny", "regard-2"])
@torch.no_grad()
def test_in_bfloat16_steps_agree_with_a_full_pass_and_with_float64(case: str):
    model, exact = tiny(case, torch.bfloat16), tiny(case)
    tokens = ids(2, 8)
    whole = model(tokens, memory_of(model, 2))
    assert whole.dtype == torch.bfloat16
    state = model.start(2, 8)
    memory = memory_of(model, 2)
    steps = torch.cat([model(token, memory, state) for token in tokens.split([3, 1, 1, 3], 1)], 1)
    # A rounding is 2⁻⁹ of a number; some twenty of them in a row add up to about 2 per cent,
    # and T5, whose scores are not scaled down, triples that in its softmax.
    most = 0.03 if model.config.scale_scores else 0.08
    assert (steps - whole).norm() / whole.norm() < most
    wanted = exact(tokens, memory_of(exact, 2))
    assert (whole - wanted).norm() / wanted.norm() < most


@pytest.mark.parametrize("case", ["gpt2-tiny rotary", "t5-tiny"])
@few
@given(cut=st.integers(1, 7))
@torch.no_grad()
def test_a_mask_means_the_same_in_steps_as_at_once(case: str, cut: int):
    model, tokens = tiny(case), ids(2, 8)
    documents = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2], [0, 1, 1, 1, 1, 1, 2, 2]])
    mask = Documents(documents) & Window(3) & Padding(torch.tensor([8, 4]))
    whole = model(tokens, memory_of(model, 2), mask=mask)
    state, memory = model.start(2, 8), memory_of(model, 2)
    first = model(tokens[:, :cut], memory, state, mask=mask)
    rest = [model(token, memory, state, mask=mask) for token in tokens[:, cut:].split(1, dim=1)]
    assert_same(torch.cat([first, *rest], dim=1), whole)


# --- ragged rows -----------------------------------------------------------------------------


def feed(
    model: Transformer, state: KeyValueState, texts: Tensor, counts: list[int], memory=None
) -> list[Tensor]:
    """Give row r its next `counts[r]` tokens, padded on the right with garbage; the real logits."""
    batch = ids(len(counts), max(1, *counts), seed=99)
    for row, (held, count) in enumerate(zip(state.lengths, counts, strict=True)):
        batch[row, :count] = texts[row, held : held + count]
    logits = model(batch, memory, state, lengths=counts)
    return [logits[row, :count] for row, count in enumerate(counts)]


@torch.no_grad()
def test_real_tokens_that_fit_are_taken_even_if_the_padding_sticks_out():
    model, texts = tiny("gpt2-tiny"), ids(2, 6)
    state = model.start(2, 6)
    padded = torch.cat((texts, ids(2, 4, seed=1)), dim=1)  # as wide from the very beginning
    logits = model(padded, state=state, lengths=[5, 1])
    assert_same(logits[0, :5], alone(model, 2, 0, texts[0, :5]))
    last = feed(model, state, texts, [0, 5])  # 5 + 5 positions, but only 6 are real
    assert_same(last[1], alone(model, 2, 1, texts[1])[1:])
    assert state.lengths == [5, 6]


@torch.no_grad()
def test_padding_that_sticks_out_needs_no_document():
    model, texts = tiny("gpt2-tiny none"), ids(2, 6)
    documents = Documents(torch.tensor([[0, 0, 0, 1, 1, 1], [0, 1, 1, 1, 1, 1]]))
    state = model.start(2, 6)
    model(texts[:, :4], state=state, lengths=[4, 1], mask=documents)
    rest = torch.cat((texts[:, 4:6], ids(2, 3)), dim=1)  # row 0: two real, then garbage
    rest[1] = texts[1, 1:6]
    logits = model(rest, state=state, lengths=[2, 5], mask=documents)
    whole = model(texts, mask=documents)
    assert_same(logits[0, :2], whole[0, 4:])
    assert_same(logits[1], whole[1, 1:])


# --- reordered rows --------------------------------------------------------------------------


def test_reordered_rows_do_not_share_memory():
    model, state = tiny("gpt2-tiny"), tiny("gpt2-tiny").start(1, 4)
    with torch.no_grad():
        model(ids(1, 2), state=state)
        state.reorder([0, 0])
        model(torch.tensor([[1], [2]]), state=state)
        both = model(torch.tensor([[3], [3]]), state=state)
    assert not torch.equal(both[0], both[1])


def same_where_it_says_so(state: KeyValueState) -> bool:
    """Whether cells of which the state says that they hold the same do so, in all layers."""
    used = max(state.lengths)
    said = torch.from_numpy(state.contents[:, :used])  # (rows, positions)
    for held in (tensor for layer in state.layers for tensor in layer):
        cells = held[:, :, :used].transpose(1, 2).flatten(2)  # (rows, positions, numbers)
        for position in range(used):
            alike = said[:, None, position] == said[None, :, position]
            pairs = cells[:, None, position] == cells[None, :, position]
            if not bool(pairs.all(-1)[alike].all()):
                return False
    return True


@given(data=st.data())
@torch.no_grad()
def test_cells_that_are_said_to_hold_the_same_do(data: st.DataObject):
    model = tiny("llama-tiny")
    state = model.start(2, 24)
    for turn in range(6):
        rows = state.rows
        new = data.draw(st.lists(st.integers(1, 3), min_size=rows, max_size=rows))
        even = data.draw(st.booleans())
        lengths = None if even else new
        model(ids(rows, max(new), seed=turn), state=state, lengths=lengths)
        if data.draw(st.booleans()):
            state.rollback([data.draw(st.integers(0, 2)) % (held + 1) for held in state.lengths])
        order = data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=4))
        state.reorder(order)
        assert same_where_it_says_so(state)


@torch.no_grad()
def test_of_beams_only_what_they_do_not_share_is_copied(monkeypatch: pytest.MonkeyPatch):
    copied: list[int] = []
    made = Moves.of.__func__  # type: ignore[attr-defined]

    def listening(cls: type[Moves], *given: object) -> Moves:
        moves = made(cls, *given)
        copied.append(0 if moves.positions is None else len(moves.positions))
        return moves

    monkeypatch.setattr(Moves, "of", classmethod(listening))
    model = tiny("llama-tiny")
    state = model.start(1, 24)
    model(ids(1, 10), state=state)
    state.reorder([0, 0, 0])  # new room: the prompt is copied as a whole
    model(ids(3, 2), state=state)
    state.reorder([0, 1, 0])  # row 2 has the prompt already
    model(ids(3, 1, seed=1), state=state)
    state.reorder([0, 0, 2])
    state.reorder([2, 0, 1])  # 0 and 1 are the same, 2 has parted from them by its last token
    assert copied == [0, 2, 3, 2]


# --- the source ------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["t5-tiny", "marian-tiny"])
@torch.no_grad()
def test_a_sources_keys_and_values_are_computed_once(case: str, monkeypatch: pytest.MonkeyPatch):
    reads = []
    original = Attention.read
    monkeypatch.setattr(Attention, "read", lambda *a: (reads.append(a[0]), original(*a))[1])
    model = tiny(case)
    state, memory = model.start(2, 9), memory_of(model, 2)
    for step in range(6):
        model(ids(2, 1), memory if step % 2 == 0 else None, state)
    state.reorder([1, 1, 0])
    model(ids(3, 1), None, state)
    model(ids(3, 1), memory, state)
    assert len(reads) == len(set(reads)) == model.config.layers


# --- size ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", ["gpt2-tiny", "llama-tiny", "t5-tiny"])
def test_a_cache_holds_two_numbers_per_position_head_feature_layer_and_row(case: str, dtype):
    rows, room = 3, 10
    state = tiny(case, dtype).start(rows, room)
    config = settings_of(case).resolved()
    numbers = 2 * room * config.kv_heads * config.head_width * config.layers * rows
    assert state.bytes == numbers * dtype.itemsize
    state.reorder([0, 1, 2, 0, 1, 2])
    assert state.bytes == 2 * numbers * dtype.itemsize
    state.free()
    assert state.bytes == 0


def test_a_cache_of_gpt2_takes_what_the_formula_of_the_lectures_says():
    with torch.device("meta"):
        state = build(preset("gpt2")).start(1, 1024)
    assert state.bytes == 2 * 1024 * 768 * 12 * 4  # 2 · n · d · L numbers of 4 bytes


def test_the_room_is_allocated_once():
    model, state = tiny("llama-tiny"), tiny("llama-tiny").start(2, 8)
    places = [tensor.data_ptr() for layer in state.layers for tensor in layer]
    with torch.no_grad():
        for _ in range(4):
            model(ids(2, 2), state=state)
    assert [tensor.data_ptr() for layer in state.layers for tensor in layer] == places


@torch.no_grad()
def test_what_is_forgotten_gives_its_room_back():
    model = tiny("gpt2-tiny")
    state = model.start(2, 4)
    model(ids(2, 4), state=state)
    with pytest.raises(RegardError, match="room for 4 tokens"):
        model(ids(2, 1), state=state)
    state.rollback([2, 1])
    assert state.lengths == [2, 3]
    model(ids(2, 1), state=state)
    assert state.lengths == [3, 4]


# --- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["gpt2-tiny", "t5-tiny"])
def test_a_state_of_other_rows_is_refused_and_left_as_it_was(case: str):
    model = tiny(case)
    state = model.start(2, 8)
    with pytest.raises(RegardError, match=r"the state has 2 rows.* 3"):
        model(ids(3, 2), memory_of(model, 3), state)
    with torch.no_grad():
        logits = model(ids(2, 2), memory_of(model, 2), state)
        assert_same(logits, model(ids(2, 2), memory_of(model, 2)))


@pytest.mark.parametrize("case", ["llama-tiny", "t5-tiny"])
@torch.no_grad()
def test_a_full_state_is_refused_and_left_as_it_was(case: str):
    model, memory = tiny(case), memory_of(tiny(case), 1)
    state = model.start(1, 4)
    model(ids(1, 3), memory, state)
    with pytest.raises(RegardError, match="room for 4 tokens a row, 5 are needed"):
        model(ids(1, 2), memory, state)
    assert state.lengths == [3]
    logits = model(ids(1, 1, seed=3), memory, state)
    text = torch.cat((ids(1, 3), ids(1, 1, seed=3)), dim=1)
    assert_same(logits, model(text, memory)[:, -1:])


@torch.no_grad()
def test_the_learned_table_ends_for_a_state_too_but_not_for_padding():
    model = tiny("gpt2-tiny")  # 64 positions
    state = model.start(2, 80)
    model(ids(2, 60), state=state)
    with pytest.raises(RegardError, match=r"65 positions are needed .* table has 64"):
        model(ids(2, 5), state=state)
    assert state.lengths == [60, 60]
    texts = torch.cat((ids(2, 60), ids(2, 4, seed=1)), dim=1)
    padded = torch.cat((texts[:, 60:], ids(2, 3, seed=2)), dim=1)  # positions up to 66
    logits = model(padded, state=state, lengths=[4, 4])
    assert_same(logits[:, :4], model(texts)[:, 60:])


def test_a_state_of_another_number_format_is_refused():
    state = tiny("gpt2-tiny", torch.float32).start(2, 4)
    with pytest.raises(RegardError, match="state"):
        tiny("gpt2-tiny", torch.bfloat16)(ids(2, 1), state=state)


@pytest.mark.parametrize("change", [{"layers": 1}, {"layers": 3}, {"width": 64}])
def test_a_state_of_another_model_is_refused(change: dict):
    other = build(replace(settings_of("gpt2-tiny"), **change)).double()
    with pytest.raises(RegardError, match="state"):
        tiny("gpt2-tiny")(ids(2, 1), state=other.start(2, 4))


def test_something_else_than_a_cache_is_refused():
    class Nothing:
        rows = 2

    with pytest.raises(RegardError, match="KeyValueState, not a Nothing"):
        tiny("gpt2-tiny")(ids(2, 1), state=Nothing())


def test_only_the_real_lengths_are_kept_by_a_ragged_state():
    state = tiny("gpt2-tiny").start(3, 9)
    with torch.no_grad():
        tiny("gpt2-tiny")(ids(3, 4), state=state, lengths=torch.tensor([4, 0, 2]))
    assert state.lengths == [4, 0, 2]
    span = state.span(3, 2)
    assert span.positions.tolist() == [[4, 5], [0, 1], [2, 3]]
    assert (span.keys, span.first) == (6, None)
    # Row 1 has nothing behind it, so its first query sees itself alone.
    assert Causal().allowed(span)[1, 0].tolist() == [True] + [False] * 5

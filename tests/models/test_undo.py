"""Tokens that a state forgets are as if they had never been read."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import assert_same, ids, memory_of, memory_of_row, tiny
from torch import Tensor

from regard.errors import RegardError
from regard.models.transformer.cache import KeyValueState
from regard.models.transformer.model import Transformer

CASES = ["gpt2-tiny", "llama-tiny", "t5-tiny", "marian-tiny", "gpt2-tiny alibi"]
SOURCES = [5, 2, 3]
pytestmark = pytest.mark.usefixtures("poisoned")


def feed(model: Transformer, state: KeyValueState, pieces: list[Tensor], memory=None) -> Tensor:
    """Each row takes in its own piece; (rows, most, vocabulary), garbage behind the real ones."""
    counts = [len(piece) for piece in pieces]
    batch = ids(len(pieces), max(1, *counts), seed=99)
    for row, piece in enumerate(pieces):
        batch[row, : len(piece)] = piece
    return model(batch, memory, state, lengths=counts)


def assert_continues(model, state, held: list[Tensor], origin: list[int], seed: int) -> None:
    """Two more tokens a row, compared with a pass over what each row should hold."""
    new = ids(len(held), 2, seed=seed)
    logits = model(new, None, state)
    for row, text in enumerate(held):
        held[row] = torch.cat((text, new[row]))
        memory = memory_of_row(model, 3, origin[row], SOURCES[origin[row]])
        assert_same(logits[row], model(held[row][None], memory)[0, -2:])
    assert state.lengths == [len(text) for text in held]


counts = st.lists(st.integers(1, 5), min_size=3, max_size=3)


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=12)
@given(
    first=counts,
    more=counts,
    forget=st.lists(st.integers(0, 5), min_size=3, max_size=3),
    order=st.lists(st.integers(0, 2), min_size=1, max_size=5),
    again=st.lists(st.integers(0, 2), min_size=5, max_size=5),
    before=st.booleans(),
)
@torch.no_grad()
def test_going_on_after_forgetting_is_never_having_read(
    case, first, more, forget, order, again, before
):
    model, texts = tiny(case), ids(3, 10)
    state = model.start(3, 30)
    held = [texts[row, :count] for row, count in enumerate(first)]
    feed(model, state, held, memory_of(model, 3, SOURCES))
    origin = [0, 1, 2]
    if before:  # rows move between being read and forgetting
        state.reorder(order)
        held, origin = [held[row] for row in order], [origin[row] for row in order]
    pieces = [ids(more[row % 3], seed=7 + row) for row in range(len(held))]
    feed(model, state, pieces)
    taken = [min(forget[row % 3], len(piece)) for row, piece in enumerate(pieces)]
    state.rollback(taken)
    held = [
        torch.cat((text, piece[: len(piece) - count]))
        for text, piece, count in zip(held, pieces, taken, strict=True)
    ]
    assert state.lengths == [len(text) for text in held]
    if not before:
        rows = [row % len(held) for row in again]
        state.reorder(rows)
        held, origin = [held[row] for row in rows], [origin[row] for row in rows]
    assert_continues(model, state, held, origin, seed=1)
    state.rollback([1 + row % 2 for row in range(len(held))])
    held = [text[: len(text) - 1 - row % 2] for row, text in enumerate(held)]
    assert_continues(model, state, held, origin, seed=2)


@torch.no_grad()
def test_all_may_be_forgotten_and_the_source_stays():
    model = tiny("marian-tiny")
    state, memory = model.start(2, 6), memory_of(model, 2)
    model(ids(2, 4), memory, state)
    state.rollback([4, 4])
    assert state.lengths == [0, 0]
    assert_same(model(ids(2, 6, seed=3), None, state), model(ids(2, 6, seed=3), memory))


@torch.no_grad()
def test_what_is_forgotten_gives_its_room_back():
    model = tiny("gpt2-tiny")
    state = model.start(2, 4)
    model(ids(2, 4), state=state)
    with pytest.raises(RegardError, match="room for 4 tokens"):
        model(ids(2, 1), state=state)
    state.rollback([2, 1])
    model(ids(2, 1), state=state)
    assert state.lengths == [3, 4]


@pytest.mark.parametrize(
    "wrong", [[1], [1, 1, 1], [-1, 0], [4, 0], [0, 3], [0.5, 0], [[1], [1]], "ab", [math.nan, 0]]
)
@torch.no_grad()
def test_what_was_never_read_cannot_be_forgotten(wrong):
    model = tiny("gpt2-tiny")
    state = model.start(2, 8)
    model(ids(2, 3), state=state, lengths=[3, 2])
    with pytest.raises(RegardError) as caught:
        state.rollback(wrong)
    assert "\n" not in str(caught.value)
    assert state.lengths == [3, 2]

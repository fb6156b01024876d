"""A state that watches its source, and rows that share one: as if each had been read anew."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import assert_same, ids, memory_of, memory_of_row, tiny
from torch import Tensor

import regard
from regard.models.transformer.cache import KeyValueState
from regard.models.transformer.model import Transformer


def looks(model: Transformer, tokens: Tensor, memory, **named) -> Tensor:
    """What the tape says of a pass: (rows, layers, heads, new, source positions)."""
    with regard.record(model) as tape:
        model(tokens, memory, **named)
    names = [f"decoder.blocks.{layer}.cross" for layer in range(model.config.layers)]
    return torch.stack([tape[name].probabilities for name in names], dim=1)


# --- rows that share a source ----------------------------------------------------------------

SOURCES = [5, 2, 3]


def check_against_anew(
    model: Transformer, state: KeyValueState, origin: list[int], held: list[Tensor], turn: int
) -> None:
    """One more step, compared with a pass over each row's whole text with its own source."""
    new = ids(len(held), 1 + turn % 2, seed=40 + turn)
    logits = model(new, None, state)
    for row, text in enumerate(held):
        held[row] = torch.cat((text, new[row]))
        memory = memory_of_row(model, 3, origin[row], SOURCES[origin[row]])
        wanted = model(held[row][None], memory)[0, -new.shape[1] :]
        assert_same(logits[row], wanted)
        seen = looks(model, held[row][None], memory)[0, ..., -new.shape[1] :, :]
        assert_same(state.attention[row, ..., : SOURCES[origin[row]]], seen)
        assert state.attention[row, ..., SOURCES[origin[row]] :].abs().sum() == 0
    assert state.lengths == [len(text) for text in held]


orders = st.one_of(
    st.lists(st.integers(0, 99), min_size=1, max_size=8),  # anything
    st.integers(1, 4).map(lambda each: [r for r in range(6) for _ in range(each)]),  # beams
    st.permutations(range(6)),
    st.lists(st.integers(0, 99), min_size=1, max_size=3).map(sorted),  # some leave
)


@pytest.mark.parametrize("case", ["t5-tiny", "marian-tiny"])
@settings(max_examples=30)
@given(turns=st.lists(orders, min_size=1, max_size=4), ragged=st.booleans())
@torch.no_grad()
def test_any_reorders_are_as_if_each_row_had_been_read_anew(case, turns, ragged):
    model = tiny(case)
    counts = [2, 1, 3] if ragged else [2, 2, 2]
    texts = ids(3, 3)
    state = model.start(3, 20, return_attention=True)
    model(texts, memory_of(model, 3, SOURCES), state, lengths=counts)
    held = [texts[row, :count] for row, count in enumerate(counts)]
    origin = [0, 1, 2]
    for turn, order in enumerate(turns):
        rows = [row % state.rows for row in order]
        state.reorder(rows)
        held, origin = [held[row] for row in rows], [origin[row] for row in rows]
        check_against_anew(model, state, origin, held, turn)


@pytest.mark.parametrize(
    "turns",
    [
        [[0, 0, 1, 1, 2, 2], [0, 0, 0, 1, 1, 1, 2, 2, 2]],  # beams, then more of them from beam 0
        [[0, 0, 1, 1, 2, 2], [1, 0, 2, 2, 5, 4], [2, 3]],  # permuted within sources; two leave
        [[0, 0, 1, 1, 2, 2], [0, 2, 1, 3, 4, 5]],  # no longer side by side
        [[0, 1, 2, 0, 1, 2], [0, 3, 1, 4, 2, 5]],  # side by side again
        [[2, 2, 0, 0, 0, 0]],  # groups of two and four
        [[1, 1, 1, 1], [0], [0, 0, 0], [2, 1]],
    ],
)
@torch.no_grad()
def test_reorders_that_share_split_and_join_sources(turns: list[list[int]]):
    model, texts = tiny("marian-tiny"), ids(3, 2)
    state = model.start(3, 20, return_attention=True)
    model(texts, memory_of(model, 3, SOURCES), state)
    held, origin = list(texts), [0, 1, 2]
    for turn, rows in enumerate(turns):
        state.reorder(rows)
        held, origin = [held[row] for row in rows], [origin[row] for row in rows]
        check_against_anew(model, state, origin, held, turn)


@torch.no_grad()
def test_beams_of_a_source_share_its_keys_and_values():
    """What the sharing is for: as many rows as sources are kept, however many beams read them."""
    model = tiny("marian-tiny")
    state = model.start(3, 9)
    model(ids(3, 2), memory_of(model, 3, SOURCES), state)
    kept = [layer.keys.data_ptr() for layer in state.reading.layers]
    for rows, sources in (
        ([row for row in range(3) for _ in range(5)], 3),
        ([*range(10, 15), *range(5)], 2),
        ([0, 5, 1], 3),
    ):
        state.reorder(rows)
        assert [len(layer.keys) for layer in state.reading.layers] == [sources] * 2
        if len(rows) == 15:  # nobody left, so nothing is copied
            assert [layer.keys.data_ptr() for layer in state.reading.layers] == kept

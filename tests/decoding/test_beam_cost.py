"""What a beam search pays for: each prompt once, then one token for each beam that goes on."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twins import (
    CONTEXT,
    WRITERS,
    disliking,
    found_by,
    sources_for,
    words,
    writer,
)

from regard.decoding.search.beam import Node, _seated
from regard.decoding.settings import Beam
from regard.models.transformer.cache import KeyValueState
from regard.models.transformer.model import Transformer
from regard.text.specials import BOS, EOS

PROMPTS = [[BOS, *words(count, count)] for count in (3, 0, 6)]


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The shapes of the tokens that models were given."""
    shapes: list[tuple[int, int]] = []
    forward = Transformer.forward

    def listening(self, tokens, *arguments, **named):
        shapes.append(tuple(tokens.shape))
        return forward(self, tokens, *arguments, **named)

    monkeypatch.setattr(Transformer, "forward", listening)
    return shapes


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("beams", [1, 4])
def test_a_prompt_is_read_once_and_then_one_token_of_each_beam(name, beams, taken):
    module = disliking(writer(name), EOS)
    found_by(module, PROMPTS, [6, 9, 3], Beam(beams), sources_for(module, 3, 1))
    # The longest prompt has 7 tokens; rows leave at their limits, whose last token is not read.
    assert taken == [(3, 7), *[(3 * beams, 1)] * 2, *[(2 * beams, 1)] * 3, *[(beams, 1)] * 3]


# --- which slot a beam has -------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2-tiny", "marian-tiny"])
def test_a_beam_that_goes_on_stays_where_its_cache_is(name, monkeypatch):
    """So that only what has no child there is overwritten."""
    orders: list[tuple[int, list[int]]] = []
    reorder = KeyValueState.reorder

    def listening(self, rows: Sequence[int]) -> None:
        orders.append((self.rows, list(rows)))
        reorder(self, rows)

    monkeypatch.setattr(KeyValueState, "reorder", listening)
    module = disliking(writer(name, 1), EOS)
    found_by(module, PROMPTS, [CONTEXT - 8] * 3, Beam(4), sources_for(module, 3, 1))
    assert orders[0] == (3, [0] * 4 + [1] * 4 + [2] * 4)  # the prompts become beams
    assert len(orders) == CONTEXT - 9
    for rows, order in orders[1:]:
        assert rows == len(order) == 12
        assert all(order[origin] == origin for origin in order)
    changed = [order for _, order in orders[1:] if order != list(range(12))]
    assert len(changed) > 10  # else this would say little


def kept_of(slots: Sequence[int]) -> list[tuple[int, Node]]:
    """Nodes behind beams in these slots, best first."""
    return [(slot, Node(token, 0.0, None, (0, 0))) for token, slot in enumerate(slots)]


@given(st.integers(1, 6).flatmap(lambda beams: st.lists(st.integers(0, beams - 1), max_size=beams)))
def test_each_beam_has_a_slot_and_the_first_of_a_parent_has_its_parents(slots):
    beams = max((*slots, len(slots) - 1, 0)) + 1
    kept = kept_of(slots)
    origins, nodes = _seated(kept, beams, beams)
    assert len(origins) == len(nodes) == beams
    placed = [(origins[place], node) for place, node in enumerate(nodes) if node is not None]
    assert sorted(placed, key=lambda one: one[1].token) == kept
    for slot in {*slots}:
        assert nodes[slot] is kept[slots.index(slot)][1]
        assert origins[slot] == slot


def test_the_first_step_fills_all_slots_from_the_prompt():
    kept = kept_of([0, 0, 0])
    origins, nodes = _seated(kept, 1, 4)
    assert origins == [0, 0, 0, 0]
    assert nodes == [kept[0][1], kept[1][1], kept[2][1], None]

"""Texts behind prompts, searched or drawn: how long, how joined, why ended, what is left behind."""

import pytest
import torch
from twins import (
    CONTEXT,
    VOCABULARY,
    disliking,
    found_by,
    sources,
    sources_for,
    words,
    writer,
)

from regard.decoding.decode_batch import DecodeBatch
from regard.decoding.search.speculative import Speculation
from regard.decoding.settings import TARGET, TEXT, Beam, Sampling
from regard.decoding.streams import continue_all, search_all
from regard.decoding.text_model import TextModel
from regard.decoding.translation import translate_ids
from regard.loading import Model
from regard.models.transformer.cache import KeyValueState
from regard.text.learning import learn
from regard.text.specials import BOS, EOS

WORDS = learn(
    "word", ["the cat , sat on a mat . dog ran under that hat and was no her his we"], VOCABULARY
)
ENDLESS = disliking(writer("gpt2-tiny", 1), EOS)


# --- how long, and why ended -----------------------------------------------------------------


@pytest.mark.parametrize("beams", [1, 3])
def test_a_search_writes_as_many_tokens_as_were_asked_for_or_fill_the_context(beams):
    speaker = TextModel(ENDLESS, TEXT)
    sizes, limit = (1, CONTEXT - 5, CONTEXT - 4, CONTEXT - 3, CONTEXT), 5
    given = [[BOS, *words(size - 1, size)] for size in sizes]
    found = search_all(speaker, given, Beam(beams, n_best=beams), limit)
    # The last token is not read, so it may stand behind the last position.
    wanted = [(5, "limit"), (5, "limit"), (5, "limit"), (4, "room"), (1, "room")]
    for answers, (most, why) in zip(found, wanted, strict=True):
        assert [(len(one.ids), one.end) for one in answers] == [(most, why)] * beams
    drawn = continue_all(speaker, given, Sampling(limit=limit, temperature=0)).whole()
    assert [(len(one.ids), one.end) for one in drawn] == wanted


def test_a_search_that_meets_an_end_says_so_however_little_room_there_is():
    speaker = TextModel(writer("gpt2-tiny", ends=1e4), TEXT)
    given = [[BOS], [BOS, *words(CONTEXT - 1, 0)]]
    for (one,) in search_all(speaker, given, Beam(2), 5):
        assert (one.ids, one.end) == ([], "end")


# --- how joined ------------------------------------------------------------------------------


def test_what_is_found_or_drawn_is_joined_to_its_prompt():
    """A word has a blank before it, unless the prompt ends with one or there is none."""
    assert len(WORDS) == VOCABULARY
    signs = tuple(WORDS.encode(", .").tolist())
    model = Model(ENDLESS, {}, WORDS)
    prompts = ["", "the cat", "the cat ", "the zebra"]
    searched = model.generate(prompts, max_tokens=4, beam=Beam(2, banned=signs))
    drawn = model.generate(prompts, max_tokens=4, temperature=0, banned=signs)
    for found in (searched, drawn):
        for prompt, one in zip(prompts, found, strict=True):
            assert len(one.ids) == 4
            gap = " " if prompt in ("the cat", "the zebra") else ""
            assert one.text == gap + WORDS.decode(one.ids)


# --- what is banned --------------------------------------------------------------------------


@pytest.mark.parametrize("beams", [1, 3])
def test_a_search_by_its_number_of_beams_writes_nothing_that_is_banned(beams):
    model = Model(ENDLESS, {}, WORDS)
    free = model.generate(["the", "a dog"], n=beams, max_tokens=6, beam=beams)
    banned = sorted({one.ids[0] for one in free})
    found = model.generate(["the", "a dog"], n=beams, max_tokens=6, beam=beams, banned=banned)
    assert not {*banned} & {token for one in found for token in one.ids}
    beam = Beam(beams, n_best=beams, banned=tuple(banned))
    wanted = model.generate(["the", "a dog"], max_tokens=6, beam=beam)
    assert [(one.ids, one.score) for one in found] == [(one.ids, one.score) for one in wanted]


# --- attention to the source -----------------------------------------------------------------


def test_attention_is_as_wide_as_its_own_source_whatever_stands_beside_it():
    speaker = TextModel(writer("marian-tiny", 2, ends=1.0), TARGET)
    texts, forced = sources(5, 9), [[6], [], [7, 8], [], [9]]
    assert len({*map(len, texts)}) > 2
    beam = Beam(3, attention=True, n_best=3)
    together = translate_ids(speaker, texts, beam, prefixes=forced)
    for row, answers in enumerate(together):
        alone = translate_ids(speaker, [texts[row]], beam, prefixes=[forced[row]])[0]
        for one, other in zip(answers, alone, strict=True):
            assert one.ids == other.ids
            assert one.attention.shape == (other.attention.shape[0], len(texts[row]))
            torch.testing.assert_close(one.attention, other.attention, atol=1e-5, rtol=0)
            sums = one.attention.sum(-1)
            torch.testing.assert_close(sums, torch.ones_like(sums))


# --- what is left behind ---------------------------------------------------------------------


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> list[KeyValueState]:
    """All that were begun."""
    begun: list[KeyValueState] = []
    begin = KeyValueState.__init__

    def listening(self, *arguments, **named):
        begin(self, *arguments, **named)
        begun.append(self)

    monkeypatch.setattr(KeyValueState, "__init__", listening)
    return begun


@pytest.mark.parametrize("name", ["gpt2-tiny", "marian-tiny"])
def test_a_search_gives_its_memory_back(name, states):
    module = writer(name, ends=1.0)
    found_by(module, [[BOS]] * 3, [4, 9, 1], Beam(3), sources_for(module, 3, 1))
    assert [state.rows for state in states] == [0]
    assert [state.bytes for state in states] == [0]


@pytest.mark.parametrize("drafted", [False, True])
def test_writing_gives_its_memory_back_when_it_is_asked_for_more_and_there_is_none(drafted, states):
    asked = [Sampling(limit=limit, temperature=0) for limit in (4, 9)]
    begun = {"prompts": [[BOS], [BOS, 6]], "asked": asked, "context": CONTEXT}
    if drafted:
        steps = Speculation.begin(ENDLESS, writer("llama-tiny"), **begun)
    else:
        steps = DecodeBatch.begin(ENDLESS, **begun)
    while steps.open:
        assert steps.step()
    assert steps.step() == []
    assert [state.bytes for state in states] == [0] * (2 if drafted else 1)

"""Where a stop string ends a text, with a draft that runs ahead and without.

The models have learnt by heart what they write, so that every step is known.
"""

from collections.abc import Sequence

import numpy as np
import pytest

from regard.decoding.incremental_text import Stops
from regard.decoding.settings import TEXT, Sampling
from regard.decoding.streams import Stream, continue_all
from regard.decoding.text_model import TextModel
from regard.models.counting.estimate import estimate
from regard.models.counting.model import NGram, NGramConfig
from regard.text.learning import learn
from regard.text.specials import BOS, EOS

BYTES = learn("byte", ["x"], 0)
LETTERS = "abcdefghijklm"


def reciting(*texts: str | bytes) -> TextModel:
    """Knows these texts, and goes on with the one that a prompt begins."""
    config = NGramConfig(len(BYTES), 8, "maximum-likelihood")
    ids = np.array([token for text in texts for token in (BOS, *BYTES.encode(text), EOS)])
    return TextModel(NGram(config, estimate(ids, 8, len(BYTES), BOS, config.rule)), TEXT, BYTES)


def recited(
    texts: Sequence[str | bytes], stop: Sequence[str], drafted: bool, limit: int = 50
) -> Stream:
    """Each text from its first letter on; a draft knows them as well."""
    prompts = [BYTES.encode(text)[:1].tolist() for text in texts]
    draft = reciting(*texts) if drafted else None
    asked = Sampling(limit=limit, temperature=0)
    return continue_all(reciting(*texts), prompts, asked, stop=stop, draft=draft, ahead=4)


# --- which string counts ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strings", "text", "shown"),
    [
        (["abb", "b"], "xabb", "xa"),  # b is whole while abb still waits
        (["b", "abb"], "xabb", "xa"),
        (["abcd", "bc"], "xabcd", "xa"),
        (["abcd", "bc"], "xabd", "xabd"),
        (["bb", "abb"], "xabb", "x"),  # whole at once: nothing of either is shown
        (["abb", "bb"], "xabb", "x"),
    ],
)
def test_the_string_that_is_whole_first_ends_a_text_however_it_comes(strings, text, shown):
    for parts in ([text], list(text), *([text[:cut], text[cut:]] for cut in range(1, len(text)))):
        stops = Stops(strings)
        found = "".join(map(stops.add, parts))
        assert stops.stopped == (shown != text)
        assert found + ("" if stops.stopped else stops.end()) == shown


# --- with a draft ----------------------------------------------------------------------------


@pytest.mark.parametrize("place", range(10))
def test_what_a_burst_brought_behind_a_stop_does_not_come(place):
    stop = LETTERS[place : place + 2]
    plain = recited([f"1{LETTERS}"], [stop], drafted=False).whole()
    stream = recited([f"1{LETTERS}"], [stop], drafted=True)
    pieces = list(stream)
    assert stream.acceptance == 1.0  # so each step brings five tokens
    assert [piece.end for piece in pieces] == [None] * (place + 1) + ["stop"]
    assert "".join(piece.text for piece in pieces) == LETTERS[:place]
    ids = [token.id for piece in pieces for token in piece.tokens]
    assert ids == BYTES.encode(LETTERS[: place + 2]).tolist()
    assert recited([f"1{LETTERS}"], [stop], drafted=True).whole() == plain


@pytest.mark.parametrize("drafted", [False, True])
def test_a_row_that_a_string_stops_is_computed_no_more(monkeypatch, drafted):
    texts = [f"1{LETTERS}", f"2{LETTERS.upper()}"]
    taken: dict[NGram, list[int]] = {}
    forward = NGram.forward

    def listening(self, tokens, *arguments, **named):
        taken.setdefault(self, []).append(len(tokens))
        return forward(self, tokens, *arguments, **named)

    monkeypatch.setattr(NGram, "forward", listening)
    found = recited(texts, ["c"], drafted).whole()
    assert [(one.text, one.end) for one in found] == [
        ("ab", "stop"),
        (LETTERS.upper(), "end"),
    ]
    model, *draft = taken.values()
    if drafted:  # the prompt, and 14 tokens in steps of five
        assert model == [2, 2, 1, 1]
        assert draft == [[2] * 5 + [1] * 8]
    else:
        assert model == [2, 2, 2, *[1] * 11]


@pytest.mark.parametrize("drafted", [False, True])
@pytest.mark.parametrize(
    ("stop", "text", "end"),
    [
        ([], "ab�", "end"),
        (["bc"], "ab�", "end"),  # b is held back until nothing more comes
        (["b�"], "a", "stop"),
        (["�"], "ab", "stop"),
        (["�c"], "ab�", "end"),
    ],
)
def test_half_a_character_at_the_end_is_watched_as_all_else_is(drafted, stop, text, end):
    (found,) = recited([b"1ab\xe2\x82"], stop, drafted).whole()
    assert (found.text, found.end) == (text, end)
    (short,) = recited([b"1ab\xe2\x82\xac"], stop, drafted, limit=4).whole()
    assert (short.text, short.end) == (text, "limit" if end == "end" else end)

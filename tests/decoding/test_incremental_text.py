"""Text as it comes: whole characters, joined as in the whole text, and nothing behind a stop."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.decoding.incremental_text import Spelling, Stops, checked_stops
from regard.errors import RegardError
from regard.text.learning import learn
from regard.text.specials import EOS

BYTES = learn("byte", ["x"], 0)
SIGNS = ("the", "a", "cat", ".", ",", "(", ")", "“", "”", "'s", "\n")


@given(st.text())
def test_no_character_is_ever_shown_half(text):
    ids = BYTES.encode(text).tolist()
    spelling = Spelling(BYTES)
    shown = [spelling.add(token) for token in ids]
    whole = BYTES.decode(ids)
    so_far = ""
    for piece in shown:
        so_far += piece
        assert whole.startswith(so_far)
    assert so_far + spelling.end() == whole


@given(st.binary(max_size=12))
def test_any_bytes_become_the_text_that_decoding_them_at_once_gives(raw):
    ids = BYTES.encode(raw).tolist()
    spelling = Spelling(BYTES)
    found = "".join(map(spelling.add, ids)) + spelling.end()
    assert found == raw.decode("utf-8", "replace")


@given(st.lists(st.sampled_from(SIGNS), min_size=2), st.data())
def test_tokens_that_follow_are_joined_as_in_the_whole_text(pieces, drawn):
    text = " ".join(pieces)
    for kind in ("word", "char", "byte"):
        tokenizer = learn(kind, [f"{text} cat"], 0)
        ids = tokenizer.encode(text).tolist()
        cut = drawn.draw(st.integers(1, len(ids)))
        spelling = Spelling(tokenizer, ids[:cut])
        behind = "".join(map(spelling.add, [*ids[cut:], EOS])) + spelling.end()
        prompt = tokenizer.decode_bytes(ids[:cut]).decode("utf-8", "ignore")  # its whole characters
        assert prompt + behind == tokenizer.decode(ids)


LETTERS = st.text("ab.", max_size=30)


def shown_of(text, strings, cuts):
    """What is shown when the text comes in parts of these sizes, over and over."""
    stops, shown, place, turn = Stops(strings), "", 0, 0
    while place < len(text):
        size = cuts[turn % len(cuts)]
        shown += stops.add(text[place : place + size])
        place, turn = place + size, turn + 1
    return shown if stops.stopped else shown + stops.end(), stops.stopped


CUTS = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@given(LETTERS, st.lists(st.text("ab.", min_size=1, max_size=4), max_size=3), CUTS)
def test_stops_cut_before_the_first_whole_string_however_the_text_comes(text, strings, cuts):
    ends = [
        (end, -len(string))
        for end in range(1, len(text) + 1)
        for string in strings
        if text[:end].endswith(string)
    ]
    wanted = text, False
    if ends:
        end, size = min(ends)
        wanted = text[: end + size], True
    assert shown_of(text, strings, cuts) == wanted


@given(LETTERS, st.lists(st.text("ab.", min_size=1, max_size=4), min_size=1, max_size=3))
def test_no_more_is_held_back_than_may_become_a_stop_string(text, strings):
    stops, shown = Stops(strings), ""
    for end, letter in enumerate(text, 1):
        shown += stops.add(letter)
        if stops.stopped:
            return
        held = text[len(shown) : end]
        assert not held or any(string.startswith(held) for string in strings)


def test_a_stop_string_may_begin_in_one_token_and_end_in_another():
    stops = Stops(["\n\n", "END"])
    assert stops.add("one\n") == "one"
    assert stops.add("two E") == "\ntwo "
    assert stops.add("N") == ""
    assert stops.add("T") == "ENT"
    assert stops.add("\n") == ""
    assert stops.add("\nrest") == ""
    assert stops.stopped


@pytest.mark.parametrize(
    ("strings", "words"),
    [
        (["x"] * 65, "65 are too many; give at most 64"),
        ([""], "1 to 1,000 characters"),
        (["a" * 1001], "1 to 1,000 characters"),
        ([3], "1 to 1,000 characters"),
    ],
)
def test_what_cannot_be_watched_for_is_said(strings, words):
    with pytest.raises(RegardError, match=words):
        checked_stops(strings)


def test_one_string_is_one_string():
    assert checked_stops("abc") == ("abc",)

"""Text as it comes: whole characters, joined as in the whole text, and nothing behind a stop."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.decoding.streaming import Spelling, Stops, checked_stops
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
        spelling = Spelling(tokenizer, ids[:cut], "x")
        behind = "".join(map(spelling.add, [*ids[cut:], EOS])) + spelling.end()
        prompt = tokenizer.decode_bytes(ids[:cut]).decode("utf-8", "ignore")  # its whole characters
        assert prompt + behind == tokenizer.decode(ids)


LETTERS = st.text("ab.", max_size=30)


@given(LETTERS, st.lists(st.text("ab.", min_size=1, max_size=4), max_size=3), st.data())
def test_stops_cut_where_the_first_string_begins_however_the_text_is_cut_up(text, strings, drawn):
    """Against looking at the whole text after each part, as the definition has it."""
    stops, shown, seen = Stops(strings), "", ""
    while seen != text and not stops.stopped:
        part = text[len(seen) : len(seen) + drawn.draw(st.integers(1, 5))]
        seen += part
        shown += stops.add(part)
        places = [seen.find(string) for string in strings if string in seen]
        if places:
            assert stops.stopped
            assert shown == seen[: min(places)]
        else:
            assert not stops.stopped
            held = seen[len(shown) :]
            assert seen.startswith(shown)
            assert not held or any(string.startswith(held) for string in strings)
    if not stops.stopped:
        assert shown + stops.end() == text
        assert not any(string in text for string in strings)
    assert stops.add("more") == "" or not stops.stopped


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

"""How a text goes on behind its prompt: the rest of a character, and the blank between words."""

import pytest

from regard.decoding.incremental_text import Spelling
from regard.text.learning import learn
from regard.text.specials import BOS, UNK

BYTES = learn("byte", ["x"], 0)
WORDS = learn("word", ["( the cat ) , sat\n on ."], 0)
CHARACTERS = ("é", "€", "🙂")  # of two, three and four bytes

LEARNT = "Schöne grüne Öfen, süße Äpfel und ein Löffel; 猫は眠る。 " * 4
MET = f"{LEARNT[:60]} Ärger 🙂🎉 naïve – 眠る猫と犬 žluťoučký 👩‍👧 «€»\n"
PIECES = learn("bpe", [LEARNT], 330)


# --- characters ------------------------------------------------------------------------------


@pytest.mark.parametrize("before", ["", "x", "é", "€", "🙂"])
@pytest.mark.parametrize("character", CHARACTERS)
def test_a_prompt_that_ends_inside_a_character_is_made_whole(before, character):
    begun, inside = BYTES.encode(before).tolist(), BYTES.encode(character).tolist()
    for cut in range(1, len(inside)):
        spelling = Spelling(BYTES, [BOS, *begun, *inside[:cut]])
        shown = [spelling.add(token) for token in [*inside[cut:], *BYTES.encode("y").tolist()]]
        assert shown == [""] * (len(inside) - cut - 1) + [character, "y"]
        assert spelling.end() == ""


@pytest.mark.parametrize("character", CHARACTERS)
def test_what_never_makes_it_whole_is_one_sign_and_no_more_is_lost(character):
    inside = BYTES.encode(character).tolist()
    for cut in range(1, len(inside)):
        spelling = Spelling(BYTES, inside[:cut])
        assert spelling.add(BYTES.encode("y").tolist()[0]) == "�y"
        assert Spelling(BYTES, inside[:cut]).end() == "�"


def test_pieces_of_a_text_join_to_it_and_none_holds_half_a_character():
    ids = PIECES.encode(MET).tolist()
    contents = [PIECES.decode_bytes([token]) for token in ids]
    halves = [one for one in contents if "�" in one.decode("utf-8", "replace")]
    assert len(halves) > 20  # else there would be nothing to wait for
    assert max(map(len, contents)) > 4
    for cut in range(len(ids)):
        spelling = Spelling(PIECES, ids[:cut])
        shown = [*map(spelling.add, ids[cut:]), spelling.end()]
        assert not any("�" in piece for piece in shown)
        begun = PIECES.decode_bytes(ids[:cut]).decode("utf-8", "ignore")
        assert begun + "".join(shown) == MET


# --- blanks between words --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "word", "whole"),
    [
        ("", "cat", "cat"),
        ("the", "cat", "the cat"),
        ("the ", "cat", "the cat"),
        ("the cat", ",", "the cat,"),
        ("the (", "cat", "the (cat"),
        ("the\n", "cat", "the\ncat"),
        ("zebra", "cat", "zebra cat"),
        ("zebra ", "cat", "zebra cat"),
        ("zebra\n", "cat", "zebra\ncat"),
        ("the zebra", "cat", "the zebra cat"),
        ("the zebra ", "cat", "the zebra cat"),
        ("the zebra", ",", "the zebra,"),
        ("zebra", ",", "zebra,"),
        ("(zebra", "cat", "(zebra cat"),
        ("the\nzebra", "cat", "the\nzebra cat"),
        ("zebra (", "cat", "zebra (cat"),
    ],
)
def test_a_word_is_joined_to_what_was_given_by_one_blank(prompt, word, whole):
    ids = WORDS.encode(prompt).tolist()
    assert (UNK in ids) == ("zebra" in prompt)
    spelling = Spelling(WORDS, ids, prompt)
    (token,) = WORDS.encode(word).tolist()
    assert prompt + spelling.add(token) == whole
    (sat,) = WORDS.encode("sat").tolist()
    assert spelling.add(sat) == WORDS.decode([token, sat]).removeprefix(word)  # as ever, then


def test_no_blank_is_put_behind_what_has_no_words():
    for tokenizer in (BYTES, PIECES):
        (token,) = tokenizer.encode("x").tolist()
        assert Spelling(tokenizer, [], "zebra").add(token) == "x"
        blank = tokenizer.encode(" ").tolist()
        assert Spelling(tokenizer, blank, " ").add(blank[0]) == " "  # one that was written

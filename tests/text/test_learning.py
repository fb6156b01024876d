"""What is learned: the frequent first, always the same, or a sentence why not."""

import os
import subprocess
import sys

import pytest
from learned_tokenizers import library, tokenizer

from regard.data.readers.files import pieces
from regard.errors import RegardError
from regard.text.learning import learn
from regard.text.specials import SPECIALS
from regard.text.tokenizer import KINDS


def learned(kind, texts, vocabulary=0, **more) -> tuple[str, ...]:
    return learn(kind, texts, vocabulary, **more).vocabulary.tokens[len(SPECIALS) :]


def test_the_most_frequent_come_first_and_equals_by_code_point():
    assert learned("char", ["abb", "ccbé"]) == ("b", "c", "a", "é")
    assert learned("char", ["abb", "ccbé"], 7) == ("b", "c")
    assert learned("word", ["b a, b.", "a c"]) == ("a", "b", ",", ".", "c")
    assert learned("word", ["b a, b.", "a c"], 6) == ("a",)


def test_words_are_what_the_pattern_says():
    words = learned("word", ["don't well-known <unk> <pad>\n x.. 'tis हिन्दी"])
    found = {"don't", "well-known", "<", "pad", ">", "\n", "x", "..", "'tis", "हिन्दी"}
    assert set(words) == found


def test_an_unlimited_word_vocabulary_stops_at_fifty_thousand():
    texts = (f"w{i} " for i in range(60_000))
    assert len(learn("word", texts)) == 50_000


def test_what_is_rare_is_left_out_of_characters_and_words():
    texts = ["b a, b.", "a c"]
    assert learned("word", texts, min_frequency=2) == ("a", "b")
    assert learned("word", texts, min_frequency=1) == learned("word", texts)
    assert learned("word", texts, 6, min_frequency=2) == ("a",)
    assert learned("char", ["abb", "ccbé"], min_frequency=2) == ("b", "c")
    assert learned("char", ["abb", "ccbé"], min_frequency=4) == ()
    for kind in ("byte", "bpe"):
        assert learned(kind, texts, 300, min_frequency=9) == learned(kind, texts, 300)
    with pytest.raises(RegardError, match="min_frequency is -1"):
        learn("word", texts, min_frequency=-1)


def test_words_of_a_tokenised_text_are_what_stands_between_blanks():
    text = "the U.S. , he said , it 's <unk> .\n"
    assert not learn("word", [text]).vocabulary.tokenised  # too little to tell
    for found in (learn("word", [text], tokenised=True), learn("word", [text] * 30)):
        assert found.vocabulary.tokenised
        assert set(found.vocabulary.tokens[5:]) == {*text.split(), "\n"} - {"<unk>"}
    for found in (learn("word", [text] * 30, tokenised=False), learn("word", [text])):
        assert {"U", "S", ".", "'s"} < set(found.vocabulary.tokens)
    for kind in ("byte", "char", "bpe"):
        assert not learn(kind, [text] * 30, 300, tokenised=True).vocabulary.tokenised


@pytest.mark.parametrize("tokenised", [False, True])
@pytest.mark.parametrize("kind", ["char", "word", "bpe"])
def test_no_token_of_lines_has_a_newline(kind, tokenised):
    texts = ["a b\r\n\n  a b\n\n  a b\n", "b a\n\n  b"] * 9
    with_newlines = learn(kind, texts, 400, tokenised=tokenised)
    of_lines = learn(kind, texts, 400, tokenised=tokenised, lines=True)
    tokens = [{*found.vocabulary.contents()} for found in (with_newlines, of_lines)]
    alone = {b"\n", b"\r"} if kind == "bpe" else set()  # as every byte
    assert any(b"\n" in token for token in tokens[0] - alone)
    assert not any(b"\n" in token or b"\r" in token for token in tokens[1] - alone)
    assert any(b"b" in token for token in tokens[1])
    if kind == "bpe":
        lines = [line for text in texts for line in text.splitlines()]
        assert of_lines.vocabulary == learn(kind, lines, 400).vocabulary


def test_byte_pairs_merge_the_most_frequent_pair_first():
    # "ab" five times; then "abc" three times.
    tokens = learned("bpe", ["abc abc abc ab ab".replace(" ", "\n")], 263)
    assert tokens[256:] == ("ab", "abc")


def test_a_vocabulary_stops_where_nothing_is_repeated():
    assert len(learn("bpe", ["abcdefg"], 500)) == 261


@pytest.mark.parametrize("kind", KINDS)
def test_how_the_text_is_divided_makes_no_difference(kind, tmp_path):
    path = tmp_path / "library.txt"
    path.write_text(library()[:80_000], encoding="utf-8", newline="")
    whole = learn(kind, [library()[:80_000]], 700)
    parts = learn(kind, (piece.text for piece in pieces(path, 1000)), 700)
    assert parts.vocabulary == whole.vocabulary


def test_learning_is_the_same_on_any_number_of_threads():
    code = (
        "from learned_tokenizers import tokenizer; "
        "print(tokenizer('bpe').fingerprint, tokenizer('bpe-letters').fingerprint)"
    )
    here = os.path.dirname(__file__)
    for threads in ("1", "3"):
        found = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"RAYON_NUM_THREADS": threads, "PYTHONPATH": here},
            capture_output=True,
            text=True,
            check=True,
        )
        assert found.stdout.split() == [
            tokenizer("bpe").fingerprint,
            tokenizer("bpe-letters").fingerprint,
        ]
        assert found.stderr == ""  # and no progress bar


@pytest.mark.parametrize("kind", KINDS)
def test_progress_counts_the_characters_read(kind):
    told: list[int] = []
    learn(kind, ["abc", "", "de\udcff"], 300, told.append)
    assert told == [3, 3, 6]


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_text_is_refused(kind):
    for texts in ([], ["", ""]):
        with pytest.raises(RegardError, match="cannot be learned from an empty text"):
            learn(kind, texts, 300)


@pytest.mark.parametrize("kind", KINDS)
def test_a_mistake_in_the_text_is_heard(kind, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n{"txt": "a"}\n')
    with pytest.raises(RegardError, match='line 2 has no "text"'):
        learn(kind, (piece.text for piece in pieces(path)), 300)


@pytest.mark.parametrize("vocabulary", [-1, 0, 260])
def test_too_small_a_vocabulary_of_byte_pairs_is_refused(vocabulary):
    with pytest.raises(RegardError, match=f"at least 261 .* not {vocabulary}"):
        learn("bpe", ["abc"], vocabulary)


@pytest.mark.parametrize("kind", ["char", "word"])
def test_too_small_a_vocabulary_is_refused(kind):
    for vocabulary in (-3, 5):
        with pytest.raises(RegardError, match="more than the 5 specials"):
            learn(kind, ["abc"], vocabulary)


def test_a_kind_that_does_not_exist_is_refused_with_the_nearest():
    with pytest.raises(RegardError, match=r"cannot be of kind 'chars'; did you mean 'char'\?"):
        learn("chars", ["abc"])

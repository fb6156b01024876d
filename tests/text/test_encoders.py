"""Fast encoding gives the ids that the `tokenizers` library gives for the same file."""

import random

import numpy as np
import pytest
import tiktoken
from hypothesis import given
from learned_tokenizers import ALL, BPE, HARD, hard_texts, library, tokenizer

from regard.text import bpe
from regard.text.bytelevel import CHARACTERS
from regard.text.invalid_utf8 import escaped
from regard.text.learning import learn
from regard.text.regex_agreement import RegexAgreement
from regard.text.specials import SPECIALS
from regard.text.tokenizer import Tokenizer
from regard.text.vocabulary import Vocabulary


def expected(tokens: Tokenizer, text: str) -> list[int]:
    return tokens.reference.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("name", ALL)
@given(text=hard_texts)
def test_ids_are_those_of_the_library(name, text):
    assert tokenizer(name).encode(text).tolist() == expected(tokenizer(name), text)


@pytest.mark.parametrize("name", ALL)
def test_ids_of_a_long_text_are_those_of_the_library(name):
    tokens, text = tokenizer(name), library()
    ids = tokens.encode(text)
    assert ids.dtype == np.uint32
    assert ids.tolist() == expected(tokens, text)


@pytest.mark.parametrize("name", ["char", "word", "word-tokenised", "bpe-scripts"])
def test_every_character_has_the_ids_of_the_library(name):
    codes = [*range(0xD800), *range(0xE000, 0x10000), *range(0x1F000, 0x1FB00)]
    step = 1 if tokenizer(name).kind == "word" else 7
    text = "\n".join(f"a{c} {c}1{c}'{c} !{c}" for c in map(chr, codes[::step]))
    assert tokenizer(name).encode(text).tolist() == expected(tokenizer(name), text)


def test_everything_like_a_blank_parts_words_as_in_the_library():
    # One at a time: a text with any of \x1c–\x1f takes another way than one without.
    tokens = learn("word", ["a b"], tokenised=True)
    likely = {chr(code) for code in range(0x110000) if chr(code).isspace()}
    assert {"\x1c", "\x1f", "\x85", "\xa0", "\u3000"} < likely
    for blank in likely | {"\0", "\x1b", "\x7f", "\u180e", "\u200b", "\u2060", "\ufeff"}:
        text = f"a{blank}b {blank} a{blank}\n"
        assert tokens.encode(text).tolist() == expected(tokens, text), repr(blank)


@pytest.mark.parametrize("name", BPE)
@pytest.mark.parametrize(
    "text", ["a" * 200_000, " " * 200_000, "\n " * 100_000 + "x", "=" * 200_000], ids=repr
)
def test_a_run_without_end_is_encoded_as_the_library_does(name, text):
    assert tokenizer(name).encode(text).tolist() == expected(tokenizer(name), text)


def test_a_million_blanks_do_not_reach_the_engine_that_panics():
    # tiktoken 0.14 raises PanicException here; that it comes back at all is the fact.
    text = "x" + " " * 1_000_000 + "y"
    assert tokenizer("bpe").decode(tokenizer("bpe").encode(text)) == text


@pytest.mark.parametrize(("before", "run", "found"), [
    (0, bpe.RUN, True),
    (1, 2 * bpe.RUN - 1, True),
    (bpe.RUN - 1, 2 * bpe.RUN, True),
    (3, bpe.RUN - 1, False),
    (0, bpe.RUN - 1, False),
])  # fmt: skip
def test_long_runs_of_blanks_are_found_and_short_ones_are_not(before, run, found):
    assert bpe._blank("x" * before + " " * run + "x" * bpe.RUN) == found


@pytest.mark.parametrize("name", BPE)
def test_what_is_learned_is_sound(name):
    vocabulary = tokenizer(name).vocabulary
    assert len(vocabulary.merges) > 30
    assert bpe.sound(vocabulary, tokenizer(name).reference)


def test_what_is_learned_from_few_letters_is_sound():
    # Small alphabets make the tokens that could be formed in many ways.
    draw = random.Random(0)
    for letters in ["a", "ab", "abc", "a=", "ab1"] * 4:
        texts = ["".join(draw.choices(letters, k=draw.randint(1, 25))) for _ in range(100)]
        tokens = learn("bpe", texts, 400)
        assert bpe.sound(tokens.vocabulary, tokens.reference)
        for _ in range(20):
            text = "".join(draw.choices(letters, k=60))
            assert tokens.encode(text).tolist() == expected(tokens, text)


def by_rules(*merges: tuple[str, str]) -> Tokenizer:
    formed = dict.fromkeys(left + right for left, right in merges)
    return Tokenizer(Vocabulary("bpe", (*SPECIALS, *CHARACTERS, *formed), merges))


UNSOUND = {
    "a token that its rule cannot form": (("a", "b"), ("b", "c"), ("a", "bc")),
    "a token with two rules": (("a", "b"), ("ab", "c"), ("b", "c"), ("a", "bc")),
}


@pytest.mark.parametrize("merges", UNSOUND.values(), ids=UNSOUND)
def test_an_unsound_vocabulary_is_left_to_the_library(merges):
    tokens = by_rules(*merges)
    assert not bpe.sound(tokens.vocabulary, tokens.reference)
    for text in ("abc", "abcabc", "bcabc aabcc"):
        assert tokens.encode(text).tolist() == expected(tokens, text)


def test_tiktoken_would_get_an_unsound_vocabulary_wrong():
    tokens = by_rules(*UNSOUND["a token that its rule cannot form"])
    ranks = {content: i for i, content in enumerate(tokens.vocabulary.contents()) if content}
    encoding = tiktoken.Encoding("", pat_str=".+", mergeable_ranks=ranks, special_tokens={})
    assert encoding.encode_ordinary("abc") != expected(tokens, "abc")


def test_characters_that_engines_see_differently_are_found_and_asked_about_once():
    asked = []

    def one(texts):
        asked.extend(texts)
        return [text.endswith("é") for text in texts]

    alike = RegexAgreement(one, lambda texts: [text in ("aé", "!é", "1é", "aß") for text in texts])
    assert alike("plain")
    assert not asked
    assert alike("café é")
    assert not alike("é ß")
    assert not alike("ß")
    assert asked == ["aé", "1é", "!é", "aß", "1ß", "!ß"]


@pytest.mark.parametrize("name", ["byte", *BPE])
@given(text=hard_texts, broken=hard_texts)
def test_broken_bytes_are_single_tokens_between_valid_stretches(name, text, broken):
    tokens = tokenizer(name)
    table = {content: i for i, content in enumerate(tokens.vocabulary.contents())}
    ids = tokens.encode(escaped(text) + b"\xff\xc3" + escaped("a" + broken)).tolist()
    single = [table[b"\xff"], table[b"\xc3"]]
    assert ids == [*expected(tokens, text), *single, *expected(tokens, "a" + broken)]


def test_the_hard_texts_need_what_they_are_for():
    # Some must go to the library, some must not: otherwise the tests above test one way only.
    words = tokenizer("word")._encoder.words
    assert {words.alike(text) for text in HARD} == {True, False}

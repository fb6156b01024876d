"""BPE-dropout: other tokens for the same text, as often as it should be."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from learned_tokenizers import BPE, hard_texts, library, tokenizer

from regard.errors import RegardError
from regard.text.bytelevel import CHARACTERS
from regard.text.dropout import BPEDropout
from regard.text.specials import SPECIALS
from regard.text.tokenizer import Tokenizer
from regard.text.vocabulary import Vocabulary

seeds, rates = st.integers(0, 2**32), st.floats(0, 1)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("name", BPE)
@given(text=hard_texts, rate=rates, seed=seeds)
def test_the_text_comes_back(name, text, rate, seed):
    ids = BPEDropout(tokenizer(name), rate).encode(text, rng(seed))
    assert ids.dtype == np.uint32
    assert tokenizer(name).decode(ids) == text


@given(data=st.binary(), seed=seeds)
def test_every_sequence_of_bytes_comes_back(data, seed):
    ids = BPEDropout(tokenizer("bpe"), 0.3).encode(data, rng(seed))
    assert tokenizer("bpe").decode_bytes(ids) == data


@pytest.mark.parametrize("name", BPE)
@given(text=hard_texts)
def test_without_dropping_the_tokens_are_the_usual(name, text):
    expected = tokenizer(name).encode(text).tolist()
    assert BPEDropout(tokenizer(name), 0.0).encode(text, rng()).tolist() == expected
    # And so is what our own merging does when no coin falls: the smallest rate there is.
    assert BPEDropout(tokenizer(name), 5e-324).encode(text, rng()).tolist() == expected


def test_dropping_everything_leaves_bytes():
    ids = BPEDropout(tokenizer("bpe"), 1.0).encode("the return é", rng())
    assert ids.tolist() == tokenizer("byte").encode("the return é").tolist()


def test_the_same_generator_gives_the_same_tokens_whatever_was_encoded_before():
    text = library()[:5000]
    fresh, used = BPEDropout(tokenizer("bpe"), 0.2), BPEDropout(tokenizer("bpe"), 0.2)
    used.encode(text[1000:], rng(5))
    found = fresh.encode(text, rng(1))
    assert np.array_equal(found, used.encode(text, rng(1)))
    assert not np.array_equal(found, fresh.encode(text, rng(2)))


def test_more_dropping_gives_more_tokens():
    text = library()[:20_000]
    counts = [
        len(BPEDropout(tokenizer("bpe"), rate).encode(text, rng())) for rate in (0, 0.1, 0.5, 1)
    ]
    assert counts == sorted(set(counts))


def by_definition(word: str, dropout: BPEDropout, draw: np.random.Generator) -> tuple[int, ...]:
    """A word's tokens as the paper has it: toss for every merge, do the best that is left."""
    symbols = [dropout.ids[character] for character in word]
    while True:
        pairs = [(symbols[i], symbols[i + 1]) for i in range(len(symbols) - 1)]
        offered = [
            (dropout.rules[pair][0], i)
            for i, pair in enumerate(pairs)
            if pair in dropout.rules and draw.random() >= dropout.rate
        ]
        if not offered:
            return tuple(symbols)
        _, i = min(offered)
        symbols[i : i + 2] = [dropout.rules[pairs[i]][1]]


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_each_way_to_cut_a_word_is_as_likely_as_by_the_definition(rate):
    merges = (("a", "b"), ("b", "c"), ("ab", "c"))
    formed = tuple(left + right for left, right in merges)
    dropout = BPEDropout(
        Tokenizer(Vocabulary("bpe", (*SPECIALS, *CHARACTERS, *formed), merges)), rate
    )
    words, ours, theirs = 20_000, rng(1), rng(2)
    found = Counter(tuple(dropout.encode("abcab", ours).tolist()) for _ in range(words))
    expected = Counter(by_definition("abcab", dropout, theirs) for _ in range(words))
    assert len(expected) >= 8
    for way in expected | found:
        share = (expected[way] + found[way]) / (2 * words)
        spread = (2 * share * (1 - share) / words) ** 0.5
        assert abs(expected[way] - found[way]) / words < 4.5 * spread


def test_a_word_without_end_is_merged_too():
    text = "ab" * 20_000
    ids = BPEDropout(tokenizer("bpe-letters"), 0.1).encode(text, rng())
    assert tokenizer("bpe-letters").decode(ids) == text
    assert len(ids) < len(text) / 4


@pytest.mark.parametrize("name", ["byte", "char", "word"])
def test_other_kinds_are_refused(name):
    with pytest.raises(RegardError, match=f"needs a tokenizer of kind bpe, not {name}"):
        BPEDropout(tokenizer(name), 0.1)


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_a_rate_that_is_no_probability_is_refused(rate):
    with pytest.raises(RegardError, match="must be from 0 to 1"):
        BPEDropout(tokenizer("bpe"), rate)

"""Counting with arrays, against counting with dictionaries as the definition has it."""

import math
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.errors import RegardError
from regard.models.counting import FALLBACK, kneser_ney

UNKNOWN, BEGIN, END = 0, 1, 2
WORDS = st.integers(3, 7)
CORPORA = st.lists(st.lists(WORDS, max_size=8), min_size=1, max_size=25)
VOCABULARY = 9  # 8 never stands in any corpus


def joined(sentences) -> np.ndarray:
    return np.array([token for words in sentences for token in (BEGIN, *words, END)])


class Twin:
    """Interpolated modified Kneser–Ney by the book: dictionaries and a recursion."""

    def __init__(self, sentences, order):
        self.order = order
        texts = [(BEGIN, *words, END) for words in sentences]
        plain = [Counter() for _ in range(order + 1)]
        for text in texts:
            for end in range(1, len(text) + 1):
                for n in range(1, min(order, end) + 1):
                    plain[n][text[end - n : end]] += 1
        self.counts = [Counter() for _ in range(order + 1)]
        self.counts[order] = plain[order]
        for n in range(1, order):
            before = defaultdict(set)
            for gram in plain[n + 1]:
                before[gram[1:]].add(gram[0])
            for gram, times in plain[n].items():
                self.counts[n][gram] = times if gram[0] == BEGIN else len(before[gram])
        self.counts[1].pop((BEGIN,), None)
        self.discounts = [None, *(self.discount(n) for n in range(1, order + 1))]

    def discount(self, n):
        times = Counter(value for value in self.counts[n].values())
        one, two, three, four = (times[k] for k in (1, 2, 3, 4))
        if not (one and two and three):
            return FALLBACK
        share = one / (one + 2 * two)
        found = 1 - 2 * share * two / one, 2 - 3 * share * three / two, 3 - 4 * share * four / three
        return found if all(0 <= v <= k for k, v in enumerate(found, 1)) else FALLBACK

    def probability(self, context, token):
        if token == BEGIN:
            return 0.0
        context = tuple(context)[max(0, len(context) - self.order + 1) :]
        n = len(context) + 1
        lower = self.probability(context[1:], token) if context else 1 / (VOCABULARY - 1)
        after = {g[-1]: c for g, c in self.counts[n].items() if g[:-1] == context and c}
        if not after:
            return lower
        taken = {word: self.discounts[n][min(c, 3) - 1] for word, c in after.items()}
        total = sum(after.values())
        own = (after[token] - taken[token]) / total if token in after else 0.0
        return own + sum(taken.values()) / total * lower


@settings(max_examples=60, deadline=None)
@given(CORPORA, st.integers(1, 4), st.lists(st.integers(3, 8), max_size=6))
def test_each_token_has_the_probability_of_the_definition(sentences, order, words):
    table, twin = kneser_ney(joined(sentences), order, VOCABULARY, BEGIN), Twin(sentences, order)
    text = [BEGIN, *words, END]
    found, lengths = table.logprobs(np.array(text))
    assert found[0] == -math.inf
    for end in range(1, len(text)):
        wanted = twin.probability(text[:end], text[end])
        assert math.exp(found[end]) == pytest.approx(wanted, rel=1e-9, abs=1e-15)
        assert 1 <= lengths[end] <= min(order, end + 1)


@settings(max_examples=40, deadline=None)
@given(CORPORA, st.integers(1, 4), st.lists(st.integers(3, 8), max_size=4))
def test_what_may_follow_any_context_has_probability_one_in_all(sentences, order, words):
    table = kneser_ney(joined(sentences), order, VOCABULARY, BEGIN)
    total = sum(
        math.exp(table.logprobs(np.array([BEGIN, *words, token]))[0][-1])
        for token in range(VOCABULARY)
        if token != BEGIN
    )
    assert total == pytest.approx(1.0, rel=1e-9)


def test_a_larger_corpus_has_discounts_of_its_own_and_unseen_text_a_finite_perplexity():
    rng = np.random.default_rng(0)
    words = [(3 + rng.zipf(1.6, rng.integers(1, 12)) % 200).tolist() for _ in range(3000)]
    table = kneser_ney(joined(words), 3, 204, BEGIN)
    assert not any(level.fallback for level in table.levels)
    for level in table.levels:
        assert all(0 < value < k for k, value in enumerate(level.discounts, 1))
    found, _ = table.logprobs(np.array([BEGIN, 203, 203, 203, END]))
    assert np.isfinite(found[1:]).all()


def test_sequences_do_not_see_one_another():
    table = kneser_ney(joined([[3, 4, 5], [3, 4, 6], [5, 5]]), 3, VOCABULARY, BEGIN)
    alone = [table.logprobs(joined([words]))[0] for words in ([3, 4], [], [5, 6, 7])]
    together = table.logprobs(joined([[3, 4], [], [5, 6, 7]]))[0]
    np.testing.assert_array_equal(np.concatenate(alone), together)


@pytest.mark.parametrize(
    ("ids", "order", "words"),
    [
        ([1, 3, 2], 0, "raise order"),
        ([], 3, "the text is empty"),
        ([1, 99, 2], 2, "from 0 to 8"),
        ([1, -1, 2], 2, "from 0 to 8"),
    ],
)
def test_bad_input_is_one_sentence(ids, order, words):
    with pytest.raises(RegardError, match=words):
        kneser_ney(np.array(ids, np.int64), order, VOCABULARY, BEGIN)

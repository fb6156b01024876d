"""Counting with arrays, against counting with dictionaries as the definition has it."""

import math
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.errors import RegardError
from regard.models.counting.estimate import FALLBACK, estimate, smoothing

UNKNOWN, BEGIN, END = 0, 1, 2
WORDS = st.integers(3, 7)
CORPORA = st.lists(st.lists(WORDS, max_size=8), min_size=1, max_size=25)
VOCABULARY = 9  # 8 never stands in any corpus
THRESHOLDS = st.lists(st.integers(0, 3), max_size=3).map(lambda values: [0, *sorted(values)])


def joined(sentences) -> np.ndarray:
    return np.array([token for words in sentences for token in (BEGIN, *words, END)])


class Twin:
    """Interpolated modified Kneser–Ney by the book: dictionaries and a recursion."""

    def __init__(self, sentences, order, prune=(0,), never=()):
        self.order = order
        self.prune = [None, *prune, *[prune[-1]] * order]
        self.never = {BEGIN, *never}
        texts = [(BEGIN, *words, END) for words in sentences]
        plain = self.plain = [Counter() for _ in range(order + 1)]
        for text in texts:
            for end in range(1, len(text) + 1):
                for n in range(1, min(order, end) + 1):
                    plain[n][text[end - n : end]] += 1
        self.counts = [Counter() for _ in range(order + 1)]
        self.counts[order] = Counter(plain[order])
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
        if token in self.never:
            return 0.0
        context = tuple(context)[max(0, len(context) - self.order + 1) :]
        n = len(context) + 1
        below = 1 / (VOCABULARY - len(self.never))
        lower = self.probability(context[1:], token) if context else below
        after = {g[-1]: c for g, c in self.counts[n].items() if g[:-1] == context and c}
        if not after:
            return lower
        kept = {word for word in after if self.plain[n][(*context, word)] > self.prune[n]}
        taken = {word: self.discounts[n][min(c, 3) - 1] for word, c in after.items()}
        given = sum(taken[word] if word in kept else after[word] for word in after)
        total = sum(after.values())
        own = (after[token] - taken[token]) / total if token in kept else 0.0
        return own + given / total * lower


@settings(max_examples=60, deadline=None)
@given(CORPORA, st.integers(1, 4), st.lists(st.integers(3, 8), max_size=6), THRESHOLDS)
def test_each_token_has_the_probability_of_the_definition(sentences, order, words, prune):
    prune = prune[:order]
    table = estimate(joined(sentences), order, VOCABULARY, BEGIN, prune=prune, never=[UNKNOWN])
    twin = Twin(sentences, order, prune, never=[UNKNOWN])
    text = [BEGIN, *words, END]
    found, lengths = table.logprobs(np.array(text))
    assert found[0] == -math.inf
    for end in range(1, len(text)):
        wanted = twin.probability(text[:end], text[end])
        assert math.exp(found[end]) == pytest.approx(wanted, rel=3e-6, abs=1e-15)
        assert 1 <= lengths[end] <= min(order, end + 1)


@settings(max_examples=60, deadline=None)
@given(CORPORA, st.integers(1, 4), st.lists(st.integers(3, 8), max_size=4), THRESHOLDS)
def test_what_may_follow_any_context_has_probability_one_in_all(sentences, order, words, prune):
    table = estimate(
        joined(sentences), order, VOCABULARY, BEGIN, prune=prune[:order], never=[UNKNOWN, 8]
    )
    behind = table.following([BEGIN, *words])
    assert (behind[[UNKNOWN, BEGIN, 8]] == -math.inf).all()
    assert np.exp(behind).sum() == pytest.approx(1.0, rel=1e-6)


@settings(max_examples=40, deadline=None)
@given(CORPORA, st.integers(2, 4), THRESHOLDS)
def test_pruning_takes_out_what_was_seen_too_rarely_and_nothing_else(sentences, order, prune):
    prune = prune[:order]
    plain = Twin(sentences, order).plain
    table = estimate(joined(sentences), order, VOCABULARY, BEGIN, prune=prune)
    for n in range(2, order + 1):
        least = prune[min(n, len(prune)) - 1]
        found = {tuple(gram) for gram in table.grams(n, 0, len(table.levels[n - 1].keys)).tolist()}
        assert found == {gram for gram, times in plain[n].items() if times > least}
        assert all(table.place(gram) >= 0 for gram in found)


def test_a_larger_corpus_has_discounts_of_its_own_and_unseen_text_a_finite_perplexity():
    rng = np.random.default_rng(0)
    words = [(3 + rng.zipf(1.6, rng.integers(1, 12)) % 200).tolist() for _ in range(3000)]
    table = estimate(joined(words), 3, 204, BEGIN)
    assert not any(level.fallback for level in table.levels)
    for level in table.levels:
        assert all(0 < value < k for k, value in enumerate(level.discounts, 1))
    found, _ = table.logprobs(np.array([BEGIN, 203, 203, 203, END]))
    assert np.isfinite(found[1:]).all()


def test_discounts_that_had_to_be_made_up_are_named():
    table = estimate(joined([[3, 4]]), 2, VOCABULARY, BEGIN)
    assert [(level.discounts, level.fallback) for level in table.levels] == [(FALLBACK, True)] * 2


def test_sequences_do_not_see_one_another():
    table = estimate(joined([[3, 4, 5], [3, 4, 6], [5, 5]]), 3, VOCABULARY, BEGIN)
    alone = [table.logprobs(joined([words]))[0] for words in ([3, 4], [], [5, 6, 7])]
    together = table.logprobs(joined([[3, 4], [], [5, 6, 7]]))[0]
    np.testing.assert_array_equal(np.concatenate(alone), together)


@pytest.mark.parametrize(
    ("ids", "order", "more", "words"),
    [
        ([1, 3, 2], 0, {}, "raise order"),
        ([], 3, {}, "the text is empty"),
        ([1, 99, 2], 2, {}, "from 0 to 8"),
        ([1, -1, 2], 2, {}, "from 0 to 8"),
        ([[1, 3, 2]], 2, {}, "a row of numbers"),
        ([1, 3, 2], 2, {"vocabulary": 1 << 40}, "too many for one table"),
        ([1, 3, 2], 2, {"begin": 9}, "begin and never"),
        ([1, 3, 2], 2, {"never": [-1]}, "begin and never"),
        ([1, 3, 3, 2], 2, {"never": [0, 3]}, "token 3 .* stands in the text 2 times"),
        ([1, 3, 2], 2, {"prune": [0, 0, 1]}, "at most 2 lengths"),
        ([1, 3, 2], 3, {"prune": [0, 2, 1]}, "none smaller than the one before"),
        ([1, 3, 2], 3, {"prune": [1, 1]}, "0 for single tokens"),
        ([1, 3, 2], 3, {"prune": [0, 0.5]}, "whole numbers"),
        ([1, 3, 2], 2, {"prune": [0, 1], "kind": smoothing("add-k")}, "nothing can be pruned"),
    ],
)
def test_bad_input_is_one_sentence(ids, order, more, words):
    asked = {"vocabulary": VOCABULARY, "begin": BEGIN, **more}
    with pytest.raises(RegardError, match=words):
        estimate(np.array(ids, np.int64), order, **asked)


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("knesser-ney", {}, "did you mean 'kneser-ney'"),
        ("add-k", {"k": 0.0}, "raise k"),
        ("add-k", {"k": -1.0}, "raise k"),
        ("add-k", {"k": math.nan}, "raise k"),
        ("stupid-backoff", {"factor": 0.0}, "above 0 and at most 1"),
    ],
)
def test_a_smoothing_that_cannot_be_is_one_sentence(name, values, words):
    with pytest.raises(RegardError, match=words):
        smoothing(name, **values)

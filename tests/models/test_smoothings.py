"""Add-k, stupid back-off and maximum likelihood, against their definitions over plain counts."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.models.counting.estimate import estimate, smoothing

UNKNOWN, BEGIN, END, VOCABULARY = 0, 1, 2, 9
NEVER = (UNKNOWN, BEGIN)
CORPORA = st.lists(st.lists(st.integers(3, 7), max_size=8), min_size=1, max_size=15)
TEXTS = st.lists(st.integers(3, 8), max_size=6)
ORDERS = st.integers(1, 4)


class Plain:
    """How often each n-gram stands in some sentences, and what follows what."""

    def __init__(self, sentences, order):
        self.order = order
        self.ids = np.array([token for words in sentences for token in (BEGIN, *words, END)])
        self.times, self.followed = Counter(), Counter()
        for words in sentences:
            text = (BEGIN, *words, END)
            for end in range(2, len(text) + 1):
                for n in range(1, min(order, end) + 1):
                    self.times[text[end - n : end]] += 1
                    self.followed[text[end - n : end - 1]] += 1

    def context(self, text):
        return tuple(text[max(0, len(text) - self.order + 1) :]) if self.order > 1 else ()

    def table(self, name, **values):
        kind = smoothing(name, **values)
        return estimate(self.ids, self.order, VOCABULARY, BEGIN, kind, never=[UNKNOWN])


def agrees(table, text, wanted):
    """Table and definition say the same of each token, one by one and all at once."""
    found, _ = table.logprobs(np.array(text))
    for end in range(1, len(text)):
        value = wanted(text[:end], text[end])
        assert math.exp(found[end]) == pytest.approx(value, rel=3e-6, abs=1e-30)
        assert table.following(text[:end])[text[end]] == pytest.approx(found[end], abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(CORPORA, ORDERS, TEXTS, st.sampled_from([0.01, 0.5, 1.0, 3.0]))
def test_add_k_is_the_count_and_k_of_the_sum(sentences, order, words, k):
    plain = Plain(sentences, order)
    predicted = VOCABULARY - len(NEVER)

    def wanted(before, token):
        context = plain.context(before)
        own = plain.times[(*context, token)] + k
        return own / (plain.followed[context] + k * predicted)

    table = plain.table("add-k", k=k)
    agrees(table, [BEGIN, *words, END], wanted)
    behind = table.following([BEGIN, *words])
    assert table.normalised
    assert (behind[list(NEVER)] == -math.inf).all()
    assert np.exp(behind).sum() == pytest.approx(1.0, rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(CORPORA, ORDERS, TEXTS)
def test_maximum_likelihood_is_the_share_and_impossible_what_was_never_seen(
    sentences, order, words
):
    plain = Plain(sentences, order)

    def wanted(before, token):
        context = plain.context(before)
        times = plain.times[(*context, token)]
        return times / plain.followed[context] if times else 0.0

    table = plain.table("maximum-likelihood")
    agrees(table, [BEGIN, *words, END], wanted)
    known = plain.followed[plain.context([BEGIN, *words])] > 0
    total = np.exp(table.following([BEGIN, *words])).sum()
    assert total == pytest.approx(1.0 if known else 0.0, rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(CORPORA, ORDERS, TEXTS, st.sampled_from([0.4, 0.9]))
def test_stupid_backoff_is_the_share_or_a_factor_for_each_token_left_out(
    sentences, order, words, factor
):
    plain = Plain(sentences, order)

    def score(context, token):
        if times := plain.times[(*context, token)]:
            return times / plain.followed[context]
        return factor * score(context[1:], token) if context else 0.0

    table = plain.table("stupid-backoff", factor=factor)
    agrees(table, [BEGIN, *words, END], lambda before, token: score(plain.context(before), token))
    assert not table.normalised


def test_scores_of_stupid_backoff_do_not_sum_to_one():
    table = Plain([[3, 4], [3, 5], [4, 3]], 2).table("stupid-backoff")
    assert np.exp(table.following([BEGIN, 3])).sum() == pytest.approx(1 + 0.4 / 3)


def test_a_bag_of_words_does_not_know_the_order():
    sentences = [[3, 4, 5], [3, 3, 6]]
    for name in ("kneser-ney", "add-k", "stupid-backoff", "maximum-likelihood"):
        table = Plain(sentences, 1).table(name)
        one, other = (
            table.logprobs(np.array(row))[0] for row in ([1, 3, 4, 6, 2], [1, 6, 3, 2, 4])
        )
        np.testing.assert_array_equal(np.sort(one), np.sort(other))
    found, _ = Plain(sentences, 1).table("maximum-likelihood").logprobs(np.array([1, 3, 4, 2, 7]))
    np.testing.assert_allclose(np.exp(found), [0, 3 / 8, 1 / 8, 2 / 8, 0], rtol=1e-6)

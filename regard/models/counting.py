"""Counting (M4): what followed the last few tokens, and how often, smoothed for what never did.

An n-gram is a context, itself an n-gram one shorter, and a token. So all of one length are one
sorted array of numbers, context · vocabulary + token, and counting, estimating and looking up are
sorts and searches in such arrays: no loop over tokens, no hash table.

The estimate is interpolated modified Kneser–Ney (Chen and Goodman 1998), as KenLM makes it:

    p(w | c) = (a(cw) - D(a(cw))) / Σ a(c·) + γ(c) · p(w | c without its first token)

where a is the count for the longest n-grams, and for those that begin a sequence; else the number
of different tokens that stood before. D has three values for each length, for a of 1, 2 and more;
γ(c) gives away what they took. Below the single tokens lies the uniform distribution, over all
tokens but the one that begins a sequence, which is never predicted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from regard.errors import RegardError

FALLBACK = (0.5, 1.0, 1.5)  # discounts where counts of counts are 0, as KenLM's fallback has them


@dataclass(frozen=True)
class Grams:
    """All n-grams of one length, in the order of their keys."""

    keys: np.ndarray  # (grams,) place of the context one level below · vocabulary + token
    counts: np.ndarray  # (grams,) how often each stood there
    suffixes: np.ndarray  # (grams,) the place, one level below, of each without its first token
    first: np.ndarray  # (grams,) True where it begins a sequence


@dataclass(frozen=True)
class Level:
    """What is known of the n-grams of one length."""

    keys: np.ndarray  # (grams,) sorted; of single tokens their ids
    logprobs: np.ndarray  # (grams,) natural logarithms
    backoffs: np.ndarray  # (grams,) log γ of each as a context; 0 where nothing ever followed
    discounts: tuple[float, float, float]
    fallback: bool  # whether they had to be made up


@dataclass(frozen=True)
class Table:
    """An estimated model: one level for each length from 1 to its order."""

    levels: tuple[Level, ...]
    vocabulary: int
    begin: int

    @property
    def order(self) -> int:
        return len(self.levels)

    def place(self, tokens: Sequence[int]) -> int:
        """Where an n-gram stands in its level; -1 if it was never seen."""
        at = int(tokens[0])
        for level, token in zip(self.levels[1:], tokens[1:], strict=False):
            key = at * self.vocabulary + int(token)
            at = int(np.searchsorted(level.keys, key))
            if at == len(level.keys) or level.keys[at] != key:
                return -1
        return at

    def logprobs(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The log-probability of each token (tokens,) given those before it, back to `begin`.

        And how long the n-gram was that decided. That of `begin` itself is -inf.
        """
        ids = _checked(ids, self.vocabulary)
        behind = _behind(ids, self.begin)
        found = self.levels[0].logprobs[ids].copy()
        length = np.ones(len(ids), np.int64)
        places = ids.astype(np.int64)  # of the n-gram that ends at each token; -1: unknown
        for n, level in enumerate(self.levels[1:], 2):
            here = np.nonzero(behind >= n - 1)[0]
            contexts = places[here - 1]
            here, contexts = here[contexts >= 0], contexts[contexts >= 0]
            wanted = contexts * self.vocabulary + ids[here]
            at = np.minimum(np.searchsorted(level.keys, wanted), max(len(level.keys) - 1, 0))
            known = level.keys[at] == wanted if len(level.keys) else np.zeros(len(at), bool)
            found[here] += self.levels[n - 2].backoffs[contexts]
            found[here[known]] = level.logprobs[at[known]]
            length[here[known]] = n
            places = np.full(len(ids), -1, np.int64)
            places[here[known]] = at[known]
        return found, length


def count(ids: np.ndarray, order: int, vocabulary: int, begin: int) -> list[Grams]:
    """All n-grams of 2 to `order` tokens in ids (tokens,), none of which reaches over a `begin`."""
    ids = _checked(ids, vocabulary)
    behind = _behind(ids, begin)
    places = ids.astype(np.int64)  # of the n-gram that ends at each token, one level below
    found = []
    for n in range(2, order + 1):
        here = np.nonzero(behind >= n - 1)[0]
        contexts = places[here - 1]
        keys, first, inverse, counts = np.unique(
            contexts * vocabulary + ids[here],
            return_index=True,
            return_inverse=True,
            return_counts=True,
        )
        starts = behind[here][first] == n - 1
        found.append(Grams(keys, counts, places[here][first], starts))
        places = np.full(len(ids), -1, np.int64)
        places[here] = inverse
    return found


def kneser_ney(ids: np.ndarray, order: int, vocabulary: int, begin: int) -> Table:
    """Count ids (tokens,), in which `begin` stands before each sequence, and smooth."""
    if order < 1:
        raise RegardError(f"an n-gram has at least one token, not {order}; raise order")
    if not len(ids):
        raise RegardError("there is nothing to count: the text is empty")
    if max(len(ids), vocabulary) * vocabulary > np.iinfo(np.int64).max:
        raise RegardError(f"{len(ids):,} tokens of {vocabulary:,} kinds are too many for one table")
    grams = count(ids, order, vocabulary, begin)
    adjusted = _adjusted(ids, grams, vocabulary, begin)
    levels = [_unigrams(adjusted[0], vocabulary, begin)]
    for level, counts in zip(grams, adjusted[1:], strict=True):
        levels[-1], above = _stacked(levels[-1], level, counts, vocabulary)
        levels.append(above)
    return Table(tuple(levels), vocabulary, begin)


def _adjusted(
    ids: np.ndarray, grams: Sequence[Grams], vocabulary: int, begin: int
) -> list[np.ndarray]:
    """The counts that probabilities are made of, from single tokens to the longest n-grams."""
    plain = np.bincount(ids, minlength=vocabulary)
    plain[begin] = 0
    found = []
    for below, level in zip([None, *grams], grams, strict=False):
        size = vocabulary if below is None else len(below.keys)
        before = np.bincount(level.suffixes, minlength=size)
        if below is None:
            before[begin] = 0
        else:
            before = np.where(below.first, below.counts, before)
        found.append(before)
    return [*found, grams[-1].counts if grams else plain]


def _discounts(counts: np.ndarray) -> tuple[tuple[float, float, float], bool]:
    """What is taken from a count of 1, 2, and more; and whether it had to be made up."""
    ones, twos, threes, fours = (int(np.count_nonzero(counts == k)) for k in (1, 2, 3, 4))
    if not (ones and twos and threes):
        return FALLBACK, True
    share = ones / (ones + 2 * twos)
    taken = (
        1 - 2 * share * twos / ones,
        2 - 3 * share * threes / twos,
        3 - 4 * share * fours / threes,
    )
    bad = any(not 0 <= value <= k for k, value in enumerate(taken, 1))
    return (FALLBACK, True) if bad else (taken, False)


def _unigrams(counts: np.ndarray, vocabulary: int, begin: int) -> Level:
    """Single tokens above the uniform distribution; counts (vocabulary,)."""
    discounts, fallback = _discounts(counts)
    taken = np.array((0.0, *discounts))[np.minimum(counts, 3)]
    total = counts.sum()
    uniform = 1 / max(vocabulary - 1, 1)  # all but `begin`
    probabilities = np.full(vocabulary, uniform)
    if total:
        probabilities = (counts - taken) / total + taken.sum() / total * uniform
    probabilities[begin] = 0.0
    keys = np.arange(vocabulary)
    return Level(keys, _log(probabilities), np.zeros(vocabulary), discounts, fallback)


def _stacked(
    below: Level, grams: Grams, counts: np.ndarray, vocabulary: int
) -> tuple[Level, Level]:
    """The level below with its back-off weights, and the n-grams that lie above it."""
    contexts = grams.keys // vocabulary
    discounts, fallback = _discounts(counts)
    taken = np.array((0.0, *discounts))[np.minimum(counts, 3)]
    totals = np.bincount(contexts, counts, minlength=len(below.keys))
    given = np.bincount(contexts, taken, minlength=len(below.keys))
    gamma = np.divide(given, totals, out=np.ones(len(totals)), where=totals > 0)
    lower = np.exp(below.logprobs[grams.suffixes])
    probabilities = (counts - taken) / totals[contexts] + gamma[contexts] * lower
    above = Level(grams.keys, _log(probabilities), np.zeros(len(grams.keys)), discounts, fallback)
    return Level(below.keys, below.logprobs, _log(gamma), below.discounts, below.fallback), above


def _log(values: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(values)


def _behind(ids: np.ndarray, begin: int) -> np.ndarray:
    """How many tokens of its own sequence stand before each; (tokens,)."""
    places = np.arange(len(ids))
    return places - np.maximum.accumulate(np.where(ids == begin, places, 0))


def _checked(ids: np.ndarray, vocabulary: int) -> np.ndarray:
    ids = np.asarray(ids)
    if ids.ndim != 1 or (len(ids) and not 0 <= ids.min() <= ids.max() < vocabulary):
        raise RegardError(f"token ids must be a row of numbers from 0 to {vocabulary - 1}")
    return ids

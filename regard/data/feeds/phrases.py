"""Phrases: two words that are mostly seen together become one (Mikolov et al. 2013).

A pair (a, b) is a phrase if (count(ab) - δ) · words / (count(a) · count(b)) exceeds a threshold; δ,
the least count of a word, keeps out what stood together by chance. A phrase is a token whose
spelling has a blank, `new york`: no tokenizer makes such a word of a text, so that the vocabulary
alone says which pairs they are.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from regard.text.specials import SPECIALS

STRETCH = 1 << 22  # tokens that are counted at once
MOST = 1 << 20  # phrases, the best of them
ROOM = 1 << 26  # pairs that are counted at once, which take 1 GiB


class Ids(Protocol):
    """Token ids of which a part can be read."""

    def __len__(self) -> int: ...

    def read(self, start: int, stop: int) -> np.ndarray:
        """The ids from `start` up to `stop` or the end, (tokens,)."""
        ...


def find_phrases(tokens: Ids, vocabulary: int, threshold: float, least: int) -> np.ndarray:
    """The pairs of words (phrases, 2) that score above a threshold, the best first."""
    words = np.zeros(vocabulary, np.int64)
    keys, counts, rare = np.empty(0, np.int64), np.empty(0, np.int64), 0
    for start in range(0, len(tokens), STRETCH):
        ids = tokens.read(start, start + STRETCH + 1)  # one more: a pair may lie on the border
        words += np.bincount(ids[:STRETCH], minlength=vocabulary)
        both = (ids[:-1] >= len(SPECIALS)) & (ids[1:] >= len(SPECIALS))
        found, seen = np.unique((ids[:-1] * vocabulary + ids[1:])[both], return_counts=True)
        keys, counts = _added(keys, counts, found, seen)
        if len(keys) > ROOM:  # rare ones cannot become phrases any more, or hardly
            rare += 1
            keys, counts = keys[counts > rare], counts[counts > rare]
    words[: len(SPECIALS)] = 0
    pairs = np.stack(np.divmod(keys, vocabulary), 1)  # (pairs, 2)
    apart = words[pairs[:, 0]].astype(np.float64) * words[pairs[:, 1]]
    scores = (counts - least) * float(words.sum()) / np.maximum(apart, 1)
    good = np.flatnonzero((scores > threshold) & (counts >= least))
    best = good[np.argsort(-scores[good], kind="stable")][:MOST]
    return pairs[best]


def _added(
    keys: np.ndarray, counts: np.ndarray, more: np.ndarray, seen: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Two sorted tables of counts as one."""
    both, where = np.unique(np.concatenate((keys, more)), return_inverse=True)
    summed = np.bincount(where, np.concatenate((counts, seen)), minlength=len(both))
    return both, summed.astype(np.int64)


def spelled(pairs: np.ndarray, words: Sequence[str]) -> list[str]:
    """The phrases (phrases, 2) as tokens."""
    return [f"{words[a]} {words[b]}" for a, b in pairs.tolist()]


def phrases_in(words: Sequence[str]) -> np.ndarray:
    """The phrases of a vocabulary: (phrases, 3) two words and what they become together."""
    places = {word: place for place, word in enumerate(words)}
    found = []
    for place, word in enumerate(words[len(SPECIALS) :], len(SPECIALS)):
        first, blank, second = word.partition(" ")
        if blank and first in places and second in places:
            found.append((places[first], places[second], place))
    return np.array(found, np.int64).reshape(-1, 3)


class Joined:
    """A text whose phrases are one token each; reading a part of it may give fewer."""

    def __init__(self, tokens: Ids, words: Sequence[str]) -> None:
        self.tokens, self.vocabulary = tokens, len(words)
        phrases = phrases_in(words)
        keys = phrases[:, 0] * self.vocabulary + phrases[:, 1]
        order = np.argsort(keys)
        self.keys, self.wholes = keys[order], phrases[order, 2]

    def __len__(self) -> int:
        return len(self.tokens)

    def read(self, start: int, stop: int) -> np.ndarray:
        """The ids from `start` up to `stop` or the end; the first of two overlapping phrases."""
        return self.joined(self.tokens.read(start, stop))

    def joined(self, ids: np.ndarray) -> np.ndarray:
        """ids (tokens,) with each phrase as one."""
        if len(ids) < 2 or not len(self.keys):
            return ids
        wanted = ids[:-1] * self.vocabulary + ids[1:]
        at = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        hits = np.flatnonzero(self.keys[at] == wanted)
        # In a run of hits that overlap (a b c, of "a b" and "b c") every second one stays.
        begins = np.flatnonzero(np.diff(hits, prepend=-2) > 1)
        inside = np.arange(len(hits)) - np.repeat(begins, np.diff(begins, append=len(hits)))
        taken = hits[inside % 2 == 0]
        result = ids.copy()
        result[taken] = self.wholes[at[taken]]
        return np.delete(result, taken + 1)

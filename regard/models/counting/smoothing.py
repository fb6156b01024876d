"""From counts to probabilities (M3, M4): what never followed a context gets its share too.

Every smoothing here is one formula with other numbers in it,

    p(w | c) = (a(cw) - D(a(cw))) / (Σ a(c·) + e) + γ(c) · p(w | c without its first token)
    γ(c)     = (Σ D(a(c·)) + what was pruned + e) / (Σ a(c·) + e)

down to single tokens, below which all that can be predicted are equally likely.

- Kneser–Ney, interpolated and modified (Chen and Goodman 1998), as KenLM makes it: a is the count
  for the longest n-grams, and for those that begin a sequence; else the number of different tokens
  that stood before. D has three values for each length, for a of 1, 2 and more; e = 0.
- Add-k: a is the count, D = 0 and e = k for each token that can be predicted, whole contexts only:
  a shorter one is never asked, so its n-grams have the probability of what lies below them.
- Maximum likelihood is that with k = 0 and nothing below: what was never seen is impossible.
- Stupid back-off (Brants and others 2007): shares of counts, and a factor for each token by which
  the context had to be shortened. Scores, not probabilities: they do not sum to one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from regard.models.counting.config import Smoothing
from regard.models.counting.grams import Grams, changes
from regard.models.counting.scratch import Room, gather, pieces, tally
from regard.models.counting.table import Level, Table

FALLBACK = (0.5, 1.0, 1.5)  # discounts where counts of counts are 0, as KenLM's fallback has them
NONE = (0.0, 0.0, 0.0)


def discounts_of(counts: np.ndarray) -> tuple[tuple[float, float, float], bool]:
    """What is taken from a count of 1, 2, and more; and whether it had to be made up.

    `counts` (4,) has how many n-grams have a count of 1, 2, 3 and 4.
    """
    ones, twos, threes, fours = (int(count) for count in counts)
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


@dataclass
class _Below:
    """What a level needs to know of the one below."""

    probabilities: np.ndarray  # (grams,) before anything is pruned
    places: np.ndarray | None  # (grams,) in the table, -1 where pruned; None: each in its place
    backoffs: np.ndarray  # (grams that stayed,) to be filled


@dataclass
class Estimator:
    """Makes a table of counts, each level above the one before."""

    smoothing: Smoothing
    vocabulary: int
    begin: int
    never: Sequence[int]  # ids that are never predicted, `begin` among them
    prune: Sequence[int]  # for each length: what was seen no more often is left out
    room: Room
    chunk: int  # n-grams in memory at a time, and those of one context more

    @property
    def order(self) -> int:
        return len(self.prune)

    def table(self, tokens: np.ndarray, grams: Sequence[Grams]) -> Table:
        """The table of the counts of tokens (vocabulary,) and of all longer n-grams."""
        level, below = self._tokens(tokens, grams)
        levels = [level]
        for n, here in enumerate(grams, 2):
            above = grams[n - 1] if n < self.order else None
            level, below = self._level(n, here, above, below)
            levels.append(level)
        kind = self.smoothing
        return Table(tuple(levels), self.vocabulary, self.begin, kind.normalised, kind.unseen)

    def _tokens(self, counts: np.ndarray, grams: Sequence[Grams]) -> tuple[Level, _Below]:
        """Single tokens, above nothing but the uniform distribution."""
        kind, never = self.smoothing, list(self.never)
        if kind.discounted and grams:
            counts = tally(grams[0].suffixes, self.vocabulary, Room(), self.chunk)
        counts[self.begin] = 0
        predicted = self.vocabulary - len(never)
        lowest = 1 / max(predicted, 1) if kind.uniform else 0.0
        probabilities = np.full(self.vocabulary, lowest)
        discounts, fallback = self._discounts(counts)
        added = kind.added * predicted
        total = counts.sum() + added
        if total and self._decides(1):
            taken = np.array((0.0, *discounts))[np.minimum(counts, 3)]
            given = (taken.sum() + added) / total
            probabilities = (counts - taken) / total + given * lowest
        probabilities[never] = 0.0
        backoffs = self._backoffs(self.vocabulary if grams else 0)
        keys, logs = np.arange(self.vocabulary), _log(probabilities)
        level = Level(keys, logs.astype(np.float32), backoffs, discounts, fallback)
        return level, _Below(probabilities, None, backoffs)

    def _level(
        self, n: int, grams: Grams, above: Grams | None, below: _Below
    ) -> tuple[Level, _Below]:
        """The n-grams; and those below get the back-offs that they have as contexts."""
        counts = self._adjusted(grams, above)
        discounts, fallback = self._discounts(counts)
        lower = gather(below.probabilities, grams.suffixes, self.room, self.chunk)
        size, places = self._places(grams.counts, self.prune[n - 1])
        backoffs = self._backoffs(0 if above is None else size)
        keys, logs = self.room.array(size, np.int64), self.room.array(size, np.float32)
        probabilities = self.room.array(0 if above is None else len(grams), np.float64)
        at = 0
        for piece in self._whole_contexts(grams.keys):
            part, stay = grams[piece], slice(None) if places is None else places[piece] >= 0
            found = self._interpolated(n, part, counts[piece], discounts, lower[piece], below)
            if above is not None:
                probabilities[piece] = found
            kept = self._renumbered(part.keys[stay], below.places)
            there = slice(at, at + len(kept))
            keys[there], logs[there] = kept, _log(found[stay])
            at = there.stop
        level = Level(keys, logs, backoffs, discounts, fallback)
        return level, _Below(probabilities, places, backoffs)

    def _interpolated(
        self,
        n: int,
        grams: Grams,
        counts: np.ndarray,
        discounts: tuple[float, float, float],
        lower: np.ndarray,
        below: _Below,
    ) -> np.ndarray:
        """The formula, for all n-grams (grams,) of some contexts, whose back-offs it notes."""
        contexts = grams.keys // self.vocabulary
        starts = np.flatnonzero(changes(contexts))  # (contexts,)
        sizes = np.diff(starts, append=len(contexts))
        added = self.smoothing.added * (self.vocabulary - len(self.never))
        taken = np.array((0.0, *discounts))[np.minimum(counts, 3)]
        given = np.where(grams.counts <= self.prune[n - 1], counts, taken)
        totals = np.add.reduceat(counts, starts) + added
        gammas = (np.add.reduceat(given, starts) + added) / totals
        found = (counts - taken) / np.repeat(totals, sizes) + np.repeat(gammas, sizes) * lower
        if not self._decides(n):
            found = np.where(grams.first, found, lower)
            gammas[~grams.first[starts]] = 1.0
        if self.smoothing.normalised:
            owners = contexts[starts] if below.places is None else below.places[contexts[starts]]
            below.backoffs[owners[owners >= 0]] = _log(gammas[owners >= 0])
        return found

    def _decides(self, n: int) -> bool:
        """Whether n-grams are asked wherever they stand, not just where a sequence begins."""
        return n == self.order or not self.smoothing.whole

    def _backoffs(self, length: int) -> np.ndarray:
        """Those of contexts behind which nothing is known, to begin with; (length,)."""
        found = self.room.array(length, np.float32)
        found[:] = self.smoothing.unseen
        return found

    def _discounts(self, counts: np.ndarray) -> tuple[tuple[float, float, float], bool]:
        if not self.smoothing.discounted:
            return NONE, False
        found = np.zeros(6, np.int64)
        for piece in pieces(len(counts), self.chunk):
            found += np.bincount(np.minimum(counts[piece], 5), minlength=6)
        return discounts_of(found[1:5])

    def _adjusted(self, grams: Grams, above: Grams | None) -> np.ndarray:
        """The counts (grams,) that probabilities are made of."""
        if above is None or not self.smoothing.discounted:
            return grams.counts
        counts = tally(above.suffixes, len(grams), self.room, self.chunk)
        for piece in pieces(len(grams), self.chunk):
            part = grams[piece]
            counts[piece][part.first] = part.counts[part.first]
        return counts

    def _places(self, counts: np.ndarray, threshold: int) -> tuple[int, np.ndarray | None]:
        """How many n-grams stay, and where each is then, -1 if pruned; None: where it was."""
        if not threshold:
            return len(counts), None
        places, size = self.room.array(len(counts), np.int64), 0
        for piece in pieces(len(counts), self.chunk):
            stay = counts[piece] > threshold
            places[piece] = np.where(stay, size - 1 + np.cumsum(stay), -1)
            size += int(np.count_nonzero(stay))
        return size, places

    def _renumbered(self, keys: np.ndarray, places: np.ndarray | None) -> np.ndarray:
        """Keys (any,) whose contexts have moved to other places."""
        if places is None:
            return keys
        contexts, tokens = np.divmod(keys, self.vocabulary)
        return places[contexts] * self.vocabulary + tokens

    def _whole_contexts(self, keys: np.ndarray) -> Iterator[slice]:
        """Sorted keys (grams,) in slices that part no context."""
        low = 0
        while low < len(keys):
            high = min(low + self.chunk, len(keys))
            if high < len(keys):
                beyond = (keys[high - 1] // self.vocabulary + 1) * self.vocabulary
                high = int(np.searchsorted(keys, beyond))
            yield slice(low, high)
            low = high


def _log(values: np.ndarray) -> np.ndarray:
    """Logarithms (any,), of which rounding makes none positive."""
    with np.errstate(divide="ignore"):
        return np.minimum(np.log(values), 0.0)

"""Batches of pairs of about the same lengths, so that little is padding.

In each epoch the pairs are put in an order drawn from (seed, epoch) and sorted by target length,
ties left as drawn. This is cut into strips from a random place on, each strip sorted by source
length, all of it cut into batches of at most so many tokens, and the batches shuffled. So both
lengths are alike in a batch, and yet most of a pair's companions are others in the next epoch.

With a `spread` the pairs are sorted by their longer side plus a random number up to it instead:
more padding (Multi30k: 15 % with 4, 20 % with 6, 40 % with 20) and more varied batches, from which
a small corpus is learnt better (docs/measurements.md).
"""

import threading
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import numpy as np

from regard.data.batch import Batch, padded
from regard.data.feeds.masking import IGNORE
from regard.data.feeds.order import generator, turned_seed
from regard.data.readers.pairs import EncodedPairs
from regard.errors import RegardError
from regard.text.dropout import BPEDropout
from regard.text.specials import EOS, PAD

# How many times more strips than batches in a strip. Padding of Multi30k in batches of 8,192
# tokens, mean of 20 epochs: 8.5 % with 1, 8.3 % with 2, 8.6 % with 3. Sorted by target, then by
# source, without strips: 11.3 %.
STRIPS = 2
SAMPLED = 500  # pairs that tell what BPE-dropout adds
KEPT = 3  # plans of epochs: steps may be asked for by several threads, at about the same place


@dataclass(frozen=True)
class PairBatches:
    """Pairs in batches of up to `tokens` tokens on the longer side, padding included.

    BPE-dropout makes rows longer: batches are planned for what it adds on average, and a pair that
    would outgrow its batch stays as it is.
    """

    train: EncodedPairs
    valid: EncodedPairs
    tokens: int
    seed: int = 0
    dropout: tuple[BPEDropout, BPEDropout] | None = None  # BPE-dropout of the two sides
    spread: int = 0  # tokens by which lengths in a batch may differ more
    telling = 20  # steps that show how lengths vary
    _plans: dict[int, list[np.ndarray]] = field(default_factory=dict, init=False, repr=False)
    _ends: list[int] = field(default_factory=lambda: [0], init=False, repr=False)  # of epochs
    _lock: threading.RLock = field(default_factory=threading.RLock, init=False, repr=False)

    def step(self, step: int) -> Batch:
        epoch, index = self._place(step)
        chosen = self._plan(epoch)[index]
        if self.dropout is None:
            batch = _batch(self.train, chosen)
        else:
            batch = _batch(self._dropped(chosen, epoch), np.arange(len(chosen)))
        return replace(batch, examples=chosen)

    def turned(self, turn: int) -> Self:
        return replace(self, seed=turned_seed(self.seed, turn))

    def epoch(self, step: int) -> float:
        epoch, index = self._place(step)
        return epoch + index / len(self._plan(epoch))

    def held_out(self, rows: int) -> Iterator[Batch]:
        for first in range(0, len(self.valid), rows):
            yield _batch(self.valid, np.arange(first, min(first + rows, len(self.valid))))

    def _place(self, step: int) -> tuple[int, int]:
        """The epoch that a step falls in, and its number there."""
        with self._lock:
            while self._ends[-1] <= step:
                self._ends.append(self._ends[-1] + len(self._plan(len(self._ends) - 1)))
            epoch = bisect_right(self._ends, step) - 1
            return epoch, step - self._ends[epoch]

    def _plan(self, epoch: int) -> list[np.ndarray]:
        with self._lock:
            if epoch not in self._plans:
                if len(self._plans) == KEPT:
                    del self._plans[next(iter(self._plans))]  # the oldest
                self._plans[epoch] = plan(
                    *self._lengths, self.tokens, self.seed, epoch, self.spread
                )
            return self._plans[epoch]

    @cached_property
    def _lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """What to plan for: tokens of sources and targets, each (pairs,)."""
        source, target = self.train.lengths
        if self.dropout is None or not len(self.train):
            return source, target
        some = np.arange(0, len(self.train), max(1, len(self.train) // SAMPLED))
        whole = self._longest
        grown = self._broken_up(some, 0, whole).lengths
        planned = [
            np.minimum(np.ceil(old * (new.sum() / old[some].sum())), whole).astype(np.int64)
            for old, new in zip((source, target), grown, strict=True)
        ]
        return planned[0], planned[1]

    @property
    def _longest(self) -> int:
        """Tokens of the longest side of a pair, which the model has room for."""
        return max(int(side.max()) for side in self.train.lengths)

    def _dropped(self, chosen: np.ndarray, epoch: int) -> EncodedPairs:
        """The chosen pairs with their words broken up anew, within the tokens of a step."""
        return self._broken_up(chosen, epoch, min(self._longest, self.tokens // len(chosen)))

    def _broken_up(self, chosen: np.ndarray, epoch: int, longest: int) -> EncodedPairs:
        """The chosen pairs with their words broken up, but for those that get too long."""
        assert self.dropout is not None
        sources, targets = [], []
        for index in chosen.tolist():
            rng = generator(self.seed, 5, epoch, index)
            pair, start = self.train.texts[index], self.train.targets[index][:1]
            source = np.append(self.dropout[0].encode(pair.source, rng), EOS)
            target = np.append(self.dropout[1].encode(pair.target, rng), EOS)
            fits = max(len(source), len(target)) <= longest
            sources.append(source if fits else self.train.sources[index])
            targets.append(np.append(start, target) if fits else self.train.targets[index])
        return EncodedPairs(sources, targets, [self.train.texts[i] for i in chosen.tolist()])


def plan(
    source: np.ndarray, target: np.ndarray, tokens: int, seed: int, epoch: int, spread: int = 0
) -> list[np.ndarray]:
    """The batches of one epoch: arrays of pair numbers; sizes are given as (pairs,) lengths."""
    longer = np.maximum(source, target)
    if not len(longer):
        raise RegardError("there are no pairs to train on")
    if longer.max() > tokens:
        raise RegardError(
            f"a pair of {longer.max()} tokens does not fit {tokens} tokens a step; raise "
            "tokens_per_step or lower longest"
        )
    rng = generator(seed, 4, epoch)
    order = _spread(longer, spread, rng) if spread else _alike(source, target, tokens, rng)
    batches = list(_cut(order, longer[order], tokens))
    return [batches[i] for i in rng.permutation(len(batches))]


def _spread(longer: np.ndarray, spread: int, rng: np.random.Generator) -> np.ndarray:
    """An order by length (pairs,) plus a random number up to `spread`."""
    return np.argsort(longer + spread * rng.random(len(longer)), kind="stable")


def _alike(
    source: np.ndarray, target: np.ndarray, tokens: int, rng: np.random.Generator
) -> np.ndarray:
    """An order in which pairs (pairs,) that follow one another have nearly the same lengths."""
    drawn = rng.permutation(len(target))
    by_target = drawn[np.argsort(target[drawn], kind="stable")]  # ties stay as drawn
    used = np.cumsum(np.maximum(source, target)[by_target])
    strips = max(1.0, np.sqrt(STRIPS * used[-1] / tokens))
    strip = (used / used[-1] * strips + 2 * rng.random()).astype(np.int64)
    # Up the sources in one strip, down in the next, so that a batch may reach over the border.
    turns = np.where(strip % 2, -1, 1) * source[by_target]
    return by_target[np.lexsort((turns, strip))]


def _cut(order: np.ndarray, longer: np.ndarray, tokens: int) -> Iterator[np.ndarray]:
    """The pairs in `order` as batches, each as many as fit; longer (pairs,) is in that order."""
    first = 0
    while first < len(order):
        widths = np.maximum.accumulate(longer[first : first + tokens // longer[first]])
        rows = np.arange(1, len(widths) + 1)
        fitting = int(np.count_nonzero(widths * rows <= tokens))  # a product that only grows
        yield order[first : first + fitting]
        first += fitting


def _batch(pairs: EncodedPairs, chosen: np.ndarray) -> Batch:
    """The chosen pairs as one batch, padded on the right."""
    source, source_lengths = padded([pairs.sources[i] for i in chosen.tolist()])
    targets = [pairs.targets[i] for i in chosen.tolist()]
    tokens, lengths = padded([ids[:-1] for ids in targets], PAD)
    asked, _ = padded([ids[1:] for ids in targets], IGNORE)
    asked_for, read = int(lengths.sum()), int(source_lengths.sum())
    return Batch(tokens, asked, asked_for, asked_for + read, lengths, None, source, source_lengths)

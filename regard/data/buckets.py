"""Batches of pairs of about the same length, so that little is padding.

In each epoch the pairs are put in an order drawn from (seed, epoch), sorted by length with ties and
near-ties left as drawn, cut into batches of at most so many tokens, and the batches shuffled.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from regard.data.batch import Batch, padded
from regard.data.masking import IGNORE
from regard.data.order import generator
from regard.data.pairs import EncodedPairs
from regard.errors import RegardError
from regard.text.dropout import Dropout
from regard.text.specials import EOS, PAD


@dataclass(frozen=True)
class Buckets:
    """Pairs in batches of up to `tokens` tokens on the longer side, padding included."""

    train: EncodedPairs
    valid: EncodedPairs
    tokens: int
    seed: int = 0
    dropout: tuple[Dropout, Dropout] | None = None  # BPE-dropout of the two sides
    _plans: dict[int, list[np.ndarray]] = field(default_factory=dict, repr=False)
    _counts: list[int] = field(default_factory=list, repr=False)  # batches of each epoch so far

    def step(self, step: int) -> Batch:
        epoch, index = self._place(step)
        chosen = self._plan(epoch)[index]
        if self.dropout is None:
            return _batch(self.train, chosen)
        return _batch(self._dropped(chosen, epoch), np.arange(len(chosen)))

    def epoch(self, step: int) -> float:
        epoch, index = self._place(step)
        return epoch + index / len(self._plan(epoch))

    def held_out(self, rows: int) -> Iterator[Batch]:
        for first in range(0, len(self.valid), rows):
            yield _batch(self.valid, np.arange(first, min(first + rows, len(self.valid))))

    def _place(self, step: int) -> tuple[int, int]:
        """The epoch that a step falls in, and its number there."""
        epoch = 0
        while True:
            if epoch == len(self._counts):
                self._counts.append(len(self._plan(epoch)))
            if step < self._counts[epoch]:
                return epoch, step
            step -= self._counts[epoch]
            epoch += 1

    def _plan(self, epoch: int) -> list[np.ndarray]:
        if epoch not in self._plans:
            for old in [known for known in self._plans if known < epoch - 1]:
                del self._plans[old]
            self._plans[epoch] = plan(*self.train.lengths, self.tokens, self.seed, epoch)
        return self._plans[epoch]

    def _dropped(self, chosen: np.ndarray, epoch: int) -> EncodedPairs:
        """The chosen pairs with their words broken up anew."""
        assert self.dropout is not None
        sources, targets = [], []
        for index in chosen.tolist():
            rng = generator(self.seed, 5, epoch, index)
            pair = self.train.texts[index]
            source = self.dropout[0].encode(pair.source, rng).astype(np.int64)
            target = self.dropout[1].encode(pair.target, rng).astype(np.int64)
            sources.append(np.append(source, EOS))
            targets.append(np.concatenate((self.train.targets[index][:1], target, [EOS])))
        return EncodedPairs(sources, targets, [self.train.texts[i] for i in chosen.tolist()])


def plan(
    source: np.ndarray, target: np.ndarray, tokens: int, seed: int, epoch: int
) -> list[np.ndarray]:
    """The batches of one epoch: arrays of pair numbers; sizes are given as (pairs,) lengths."""
    rng = generator(seed, 4, epoch)
    longer = np.maximum(source, target)
    if longer.max() > tokens:
        raise RegardError(
            f"a pair of {longer.max()} tokens does not fit {tokens} tokens a step; raise "
            "tokens_per_step or lower longest"
        )
    # Sorted by target, then source; a little noise mixes neighbours that would always meet.
    drawn = rng.permutation(len(target))
    noise = rng.random((2, len(target)))
    keys = source[drawn] + 2 * noise[0], target[drawn] + noise[1]
    order = drawn[np.lexsort((keys[0], keys[1].astype(np.int64)))]
    batches = []
    first = width = 0
    for place, index in enumerate(order):
        grown = max(width, int(longer[index]))
        if grown * (place + 1 - first) > tokens and place > first:
            batches.append(order[first:place])
            first, grown = place, int(longer[index])
        width = grown
    batches.append(order[first:])
    return [batches[i] for i in rng.permutation(len(batches))]


def _batch(pairs: EncodedPairs, chosen: np.ndarray) -> Batch:
    """The chosen pairs as one batch, padded on the right."""
    source, source_lengths = padded([pairs.sources[i] for i in chosen.tolist()])
    targets = [pairs.targets[i] for i in chosen.tolist()]
    tokens, lengths = padded([ids[:-1] for ids in targets], PAD)
    asked, _ = padded([ids[1:] for ids in targets], IGNORE)
    asked_for, read = int(lengths.sum()), int(source_lengths.sum())
    return Batch(tokens, asked, asked_for, asked_for + read, lengths, None, source, source_lengths)


def padding(batches: Iterator[Batch]) -> float:
    """The share of computed positions that hold nothing."""
    real = computed = 0
    for batch in batches:
        real += batch.real_tokens
        computed += batch.positions
    return 1 - real / computed if computed else 0.0

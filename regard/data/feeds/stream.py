"""Language modelling: one long stream of tokens cut into rows.

Documents follow one another as `<s> … </s>`, and a row is `context` tokens of that stream. In each
epoch every row is read once, in an order drawn from (seed, epoch), and the cuts between rows move,
so that a token is not always seen with the same past.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch

from regard.data.batch import Batch
from regard.data.feeds.masking import IGNORE, corrupt
from regard.data.feeds.order import generator, shuffled, turned_seed
from regard.data.token_files import Tokens
from regard.text.specials import BOS, PAD


@dataclass(frozen=True)
class TextFeed:
    """Rows of a training and a held-out part for causal models: each token's target is the next."""

    train: Tokens
    valid: Tokens
    context: int
    rows: int  # in one step
    seed: int = 0
    document_mask: bool = False  # documents in a row do not see one another
    telling = 1  # all rows are alike

    @property
    def rows_per_epoch(self) -> int:
        # One row less than would fit, to leave room for the cuts to move.
        return max(1, (len(self.train) - self.context) // self.context)

    def epoch(self, step: int) -> float:
        return step * self.rows / self.rows_per_epoch

    def step(self, step: int) -> Batch:
        numbers = step * self.rows + np.arange(self.rows)
        epochs, places = np.divmod(numbers, self.rows_per_epoch)
        starts = np.empty(self.rows, dtype=np.int64)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            order = shuffled(places[here], self.rows_per_epoch, self.seed, int(epoch))
            starts[here] = self._shift(int(epoch)) + order.astype(np.int64) * self.context
        return self._batch(self.train, starts, numbers)

    def _shift(self, epoch: int) -> int:
        """Where the first row of an epoch is cut: anywhere that leaves room for the others."""
        room = len(self.train) - 1 - self.rows_per_epoch * self.context
        return int(generator(self.seed, 1, epoch).integers(room + 1)) if room > 0 else 0

    def held_out(self, rows: int) -> Iterator[Batch]:
        starts = np.arange(0, max(len(self.valid) - 1, 0), self.context)
        for first in range(0, len(starts), rows):
            some = starts[first : first + rows]
            yield self._batch(self.valid, some, first + np.arange(len(some)), held_out=True)

    def turned(self, turn: int) -> Self:
        return replace(self, seed=turned_seed(self.seed, turn))

    def _batch(
        self,
        tokens: Tokens,
        starts: np.ndarray,
        numbers: np.ndarray,
        held_out: bool = False,
        ring: bool = False,
    ) -> Batch:
        """The rows that begin at `starts`; each has a number of its own, for what is drawn.

        With `ring` rows go on at the beginning where the tokens end.
        """
        ids = tokens.rows(starts, self.context + 1, PAD, ring)  # one more is read: the last target
        inputs, targets = self._question(ids, numbers, held_out)
        documents = None
        if self.document_mask:
            found = [tokens.documents(start, start + self.context) for start in starts.tolist()]
            documents = torch.from_numpy(np.stack(found))
        valid = int((targets != IGNORE).sum())
        lengths = np.minimum(len(tokens) - starts * (not ring), self.context)
        return Batch(
            torch.from_numpy(inputs),
            torch.from_numpy(targets),
            valid,
            int(lengths.sum()),
            torch.from_numpy(lengths) if lengths.min() < self.context else None,
            documents,
            examples=starts,
        )

    def _question(
        self, ids: np.ndarray, numbers: np.ndarray, held_out: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """ids (rows, context + 1) -> what is read and what is asked, each (rows, context)."""
        targets = ids[:, 1:].copy()
        # That a new document begins is no news behind </s>, and padding is nobody's.
        targets[(targets == PAD) | (targets == BOS)] = IGNORE
        return np.ascontiguousarray(ids[:, :-1]), targets


ANEW = 32  # steps behind which a row begins anew
TRACKS = 16  # rows that a held-out text is read in at most: the same for everyone who measures
# Contexts that each of them has at least. A track begins with nothing remembered: seven of them in
# a text of 125 tokens made a perplexity of 17.66 from 17.32.
TRACK = 32


@dataclass(frozen=True)
class ContinuedTextFeed(TextFeed):
    """The same for models that remember: each row goes on where it ended in the step before.

    In an epoch the text, a ring, is laid out in as many tracks as there are rows, which are read
    side by side; each epoch begins at another place of it. Where a track begins, and each row once
    in `ANEW` steps, nothing is remembered and `<s>` stands for the first token, as where a text
    begins: a model that never starts anew does not learn to (docs/measurements.md).
    """

    @property
    def tracks(self) -> int:
        return max(1, min(self.rows, (len(self.train) - 1) // self.context))

    @property
    def steps_per_epoch(self) -> int:
        return max(1, (len(self.train) - 1) // (self.tracks * self.context))

    def epoch(self, step: int) -> float:
        return step / self.steps_per_epoch

    def step(self, step: int) -> Batch:
        epoch, place = divmod(step, self.steps_per_epoch)
        length = self.steps_per_epoch * self.context  # of a track
        ring = len(self.train) > self.context  # else a row would hold the text more than once
        first = int(generator(self.seed, 1, epoch).integers(len(self.train))) if ring else 0
        numbers = np.arange(self.tracks)
        starts = first + numbers * length + place * self.context
        starts = starts % len(self.train) if ring else starts
        turns = numbers * ANEW // self.tracks  # the rows take turns
        fresh = (place + turns) % ANEW == 0 if place else np.ones(self.tracks, bool)
        return _begun(self._batch(self.train, starts, numbers, ring=ring), fresh)

    def held_out(self, rows: int) -> Iterator[Batch]:
        """The held-out part in up to `TRACKS` rows, whatever number is asked for: they continue."""
        asked = max(len(self.valid) - 1, 0)
        tracks = max(1, min(TRACKS, asked // (TRACK * self.context)))
        length = -(-asked // tracks)
        numbers = np.arange(tracks)
        for place in range(0, length, self.context):
            batch = self._batch(self.valid, numbers * length + place, numbers, held_out=True)
            ends = np.minimum((numbers + 1) * length, asked) - numbers * length - place
            here = np.clip(ends, 0, self.context)  # of the last piece of a track less is its own
            beyond = torch.from_numpy(np.arange(self.context) >= here[:, None])
            targets = batch.targets.masked_fill(beyond, IGNORE)
            batch = replace(
                batch,
                targets=targets,
                valid=int((targets != IGNORE).sum()),
                real_tokens=int(here.sum()),
                lengths=torch.from_numpy(here) if here.min() < self.context else None,
            )
            yield _begun(batch, np.full(tracks, place == 0))


def _begun(batch: Batch, fresh: np.ndarray) -> Batch:
    """A batch whose rows continue those before but for the `fresh` ones (rows,)."""
    anew = torch.from_numpy(fresh)
    tokens = batch.tokens.clone()
    tokens[anew, 0] = BOS
    return replace(batch, tokens=tokens, fresh=anew)


@dataclass(frozen=True)
class MaskedTextFeed(TextFeed):
    """The same rows for encoders: some tokens are hidden, and those are asked for (M19)."""

    vocabulary: int = 0
    share: float = 0.15

    def _question(
        self, ids: np.ndarray, numbers: np.ndarray, held_out: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        # The held-out part is hidden the same way in every run, however many rows a batch has.
        seed, use = (0, 2) if held_out else (self.seed, 3)
        asked = [
            corrupt(row[None, :-1], generator(seed, use, number), self.vocabulary, share=self.share)
            for row, number in zip(ids, numbers.tolist(), strict=True)
        ]
        inputs, targets = zip(*asked, strict=True)
        return np.concatenate(inputs), np.concatenate(targets)

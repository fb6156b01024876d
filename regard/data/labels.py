"""Texts with labels, as pairs whose target is one token (M25)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from regard.data.batch import Batch
from regard.data.buckets import Buckets
from regard.data.masking import IGNORE
from regard.data.pairs import EncodedPairs
from regard.errors import RegardError
from regard.text.specials import EOS

ONE = 3  # tokens of a target that is one: <s>, the label, </s>


@dataclass(frozen=True)
class Labels(Buckets):
    """Pairs of a text and its label, which is all that is asked for: that it ends is no news."""

    def step(self, step: int) -> Batch:
        return _asked(super().step(step))

    def held_out(self, rows: int) -> Iterator[Batch]:
        for batch in super().held_out(rows):
            yield _asked(batch)


def _asked(batch: Batch) -> Batch:
    """The batch with nothing asked but the labels."""
    asked = batch.targets.masked_fill(batch.targets == EOS, IGNORE)  # (rows, positions)
    return replace(batch, targets=asked, valid=int(torch.count_nonzero(asked != IGNORE)))


def check_labels(pairs: EncodedPairs, part: str) -> None:
    """Refuse targets that are no single word."""
    for number, (ids, pair) in enumerate(zip(pairs.targets, pairs.texts, strict=True), 1):
        if len(ids) != ONE:
            raise RegardError(
                f"a label must be one word, but {part} pair {number} has {pair.target!r:.60}; "
                "write it without blanks"
            )

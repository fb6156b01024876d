"""Texts with labels, as pairs whose target is one token (M25)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from regard.data.batch import Batch
from regard.data.feeds.masking import IGNORE
from regard.data.feeds.pair_batches import PairBatches
from regard.data.readers.pairs import EncodedPairs
from regard.errors import RegardError
from regard.text.specials import EOS, UNK

ONE = 3  # tokens of a target that is one: <s>, the label, </s>


@dataclass(frozen=True)
class LabelBatches(PairBatches):
    """Pairs of a text and its label, which is all that is asked for: that it ends is no news."""

    def step(self, step: int) -> Batch:
        return _asked(super().step(step))

    def held_out(self, rows: int) -> Iterator[Batch]:
        for batch in super().held_out(rows):
            yield _asked(batch)


def _asked(batch: Batch) -> Batch:
    """The batch with nothing asked but labels that are known."""
    nothing = (batch.targets == EOS) | (batch.targets == UNK)  # (rows, positions)
    asked = batch.targets.masked_fill(nothing, IGNORE)
    return replace(batch, targets=asked, valid=int(torch.count_nonzero(asked != IGNORE)))


def check_labels(pairs: EncodedPairs, what: str, known: bool = False) -> None:
    """Refuse targets that are no single word or, if all must be `known`, a special token."""
    for number, (ids, pair) in enumerate(zip(pairs.targets, pairs.texts, strict=True), 1):
        if len(ids) != ONE:
            raise RegardError(
                f"a label must be one word, but {what} {number} has {pair.target!r:.60}; "
                "write it without blanks"
            )
        if known and ids[1] == UNK:
            raise RegardError(f"{pair.target!r} stands for no label; call it otherwise")


def strange_labels(pairs: EncodedPairs) -> list[str]:
    """A sentence about labels that were not trained, if any."""
    strange = sum(int(ids[1] == UNK) for ids in pairs.targets)
    if not strange:
        return []
    return [
        f"{strange:,} of {len(pairs):,} labels are none of this run's: they count as wrong, and "
        "are left out of the loss"
    ]

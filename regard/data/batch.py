"""What one step of training reads: tokens, and what should have been written."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from regard.data.feeds.masking import IGNORE
from regard.text.specials import PAD


@dataclass(frozen=True)
class Batch:
    """Rows of tokens with their targets, and for pairs the source they are written from."""

    tokens: Tensor  # (rows, positions) what the model reads
    targets: Tensor  # (rows, positions) what it should answer, IGNORE where nothing is asked
    valid: int  # how many targets are asked for
    real_tokens: int  # tokens that are no padding, sources too
    lengths: Tensor | None = None  # (rows,) real tokens of padded rows
    documents: Tensor | None = None  # (rows, positions) where documents may not see one another
    source: Tensor | None = None  # (rows, source positions), or pictures (rows, 3, size, size)
    source_lengths: Tensor | None = None  # (rows,)
    examples: np.ndarray | None = None  # (rows,) which ones these are, for the record
    fresh: Tensor | None = None  # (rows,) False: the row goes on where it ended in the batch before

    @property
    def rows(self) -> int:
        return len(self.tokens)

    @property
    def positions(self) -> int:
        """Tokens computed, padding included, sources too."""
        source = self.source
        read = 0 if source is None or source.dim() != 2 else source.numel()
        return self.tokens.numel() + read

    def to(self, device: torch.device) -> Self:
        """The same on another device; from pinned memory without waiting."""
        return self.each(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> Self:
        """The same in memory that a GPU can copy from by itself."""
        return self.each(lambda tensor: tensor.pin_memory())

    def each(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The same with every tensor changed alike."""
        changed: dict[str, Any] = {
            one.name: change(value)
            for one in fields(self)
            if isinstance(value := getattr(self, one.name), Tensor)
        }
        return replace(self, **changed)

    def parts(self, rows: int) -> list[Self]:
        """The same in parts of up to `rows` rows; padding no longer needed is cut off."""
        if rows >= self.rows:
            return [self]
        return [self._part(slice(first, first + rows)) for first in range(0, self.rows, rows)]

    def _part(self, rows: slice) -> Self:
        width = source_width = None
        if self.lengths is not None:
            width = int(self.lengths[rows].max())
        if self.source_lengths is not None:
            source_width = int(self.source_lengths[rows].max())
        targets = self.targets[rows, :width]
        tokens = self.tokens[rows, :width]
        real = tokens.numel() if self.lengths is None else int(self.lengths[rows].sum())
        if self.source_lengths is not None:
            real += int(self.source_lengths[rows].sum())
        return replace(
            self,
            tokens=tokens,
            targets=targets,
            valid=int((targets != IGNORE).sum()),
            real_tokens=real,
            lengths=None if self.lengths is None else self.lengths[rows],
            documents=None if self.documents is None else self.documents[rows, :width],
            source=None if self.source is None else self.source[rows, :source_width],
            source_lengths=None if self.source_lengths is None else self.source_lengths[rows],
            examples=None if self.examples is None else self.examples[rows],
            fresh=None if self.fresh is None else self.fresh[rows],
        )


class Feed(Protocol):
    """Batches to train on, and the held-out part in order.

    `step` is a pure function of the number: any step can be asked for, in any order, by any
    process, and is the same each time.
    """

    @property
    def telling(self) -> int:
        """How many steps show how rows vary: one where all are of one length."""
        ...

    def step(self, step: int) -> Batch:
        """All rows of one optimizer step."""
        ...

    def epoch(self, step: int) -> float:
        """How often the training part has been seen when `step` begins."""
        ...

    def held_out(self, rows: int) -> Iterator[Batch]:
        """Every target of the held-out part once, in order, `rows` rows at a time."""
        ...

    def turned(self, turn: int) -> Self:
        """The same examples in another order, for each turn above 0 another one."""
        ...


def padded(rows: list[np.ndarray], fill: int = PAD) -> tuple[Tensor, Tensor]:
    """Rows of different lengths as one (rows, positions) and their lengths (rows,)."""
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    table = np.full((len(rows), int(lengths.max())), fill, dtype=np.int64)
    for row, ids in enumerate(rows):
        table[row, : len(ids)] = ids
    return torch.from_numpy(table), torch.from_numpy(lengths)

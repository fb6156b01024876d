"""What a recurrent model remembers between steps: a few vectors, whatever the length of a text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.models.masks import AttentionMask, Dense, Mask, QueryKeyRange, fitting, resolve_mask
from regard.models.protocol import SEVERAL, BaseState, Memory, forgotten, with_rows
from regard.models.recurrent.cells import Held
from regard.models.recurrent.config import RecurrentConfig
from regard.models.transformer.sources import (
    Source,
    chosen_source,
    joined_masks,
    joined_source,
)


@dataclass(frozen=True, eq=False)
class EncodedSource:
    """What a decoder sees of a source, for each of its rows."""

    memory: Memory
    whole: Tensor  # (rows, hidden)
    keys: Tensor | None = None  # (rows, positions, any), made once; None without attention
    values: Tensor | None = None  # (rows, positions, hidden)
    mask: Mask | None = None
    rows: tuple[int, ...] = ()  # which row of the memory each row reads

    def overlay(self, queries: int) -> AttentionMask:
        """The mask laid over the scores of so many queries a row."""
        return resolve_mask(self.mask, self._span(queries))

    @property
    def bytes(self) -> int:
        """What is kept of the source: all its places where a decoder looks at them, else one."""
        looked_at = [part for part in (self.keys, self.values) if part is not None]
        return sum(part.nbytes for part in (looked_at or [self.whole]))

    def reorder(self, wanted: Sequence[int]) -> "EncodedSource":
        """The given rows. Beams of one source that change places leave all as it is."""
        rows = tuple(self.rows[row] for row in wanted)
        if rows == self.rows:
            return self
        index = torch.tensor(wanted, device=self.whole.device)
        keys = None if self.keys is None else self.keys[index]
        values = None if self.values is None else self.values[index]
        mask = self.mask
        if mask is not None and values is not None:
            span = self._span(1)
            table = None if mask.hides_nothing(span) else fitting(mask, span)
            mask = None if table is None else Dense(table.expand(span.rows, -1, -1)[index])
        return EncodedSource(self.memory, self.whole[index], keys, values, mask, rows)

    def joined(self, other: "EncodedSource") -> "EncodedSource":
        """Its rows, and then those of another source that the same model has read."""
        first = 1 + max(self.rows, default=-1)
        there = (*self.rows, *(first + row for row in other.rows))
        whole = torch.cat([self.whole, other.whole])
        if self.keys is None or self.values is None or other.keys is None or other.values is None:
            return EncodedSource(SEVERAL, whole, rows=there)
        rows = len(self.values)
        keys = with_rows(self.keys, rows, other.keys)
        values = with_rows(self.values, rows, other.values)
        mask = joined_masks((self.mask, self._span(1)), (other.mask, other._span(1)))
        return EncodedSource(SEVERAL, whole, keys, values, mask, there)

    def _span(self, queries: int) -> QueryKeyRange:
        assert self.values is not None
        rows, positions = self.values.shape[:2]
        return QueryKeyRange.of(rows, queries, positions, self.values.device)


@dataclass(frozen=True, eq=False)
class RecurrentState:
    """All that the next step needs of those before it."""

    held: tuple[Held, ...] = ()  # of each layer; empty until a source starts it
    fed: Tensor | None = None  # (rows, width): what attention gave, where steps read it

    def chosen(self, index: Tensor) -> "RecurrentState":
        """The given rows."""
        held = tuple(tuple(part[index] for part in layer) for layer in self.held)
        return RecurrentState(held, None if self.fed is None else self.fed[index])

    def joined(self, other: "RecurrentState") -> "RecurrentState":
        """Its rows, and then those of another."""
        held = tuple(
            tuple(torch.cat(parts) for parts in zip(*layers, strict=True))
            for layers in zip(self.held, other.held, strict=True)
        )
        if self.fed is None or other.fed is None:
            return RecurrentState(held)
        return RecurrentState(held, torch.cat([self.fed, other.fed]))

    def detached(self) -> "RecurrentState":
        """The numbers alone: gradients end where a call began."""
        held = tuple(tuple(part.detach() for part in layer) for layer in self.held)
        return RecurrentState(held, None if self.fed is None else self.fed.detach())

    def tensors(self) -> list[Tensor]:
        found = [part for layer in self.held for part in layer]
        return found if self.fed is None else [*found, self.fed]


class HiddenState(BaseState):
    """The hidden vectors of `rows` sequences."""

    def __init__(
        self,
        config: RecurrentConfig,
        rows: int,
        remembered: RecurrentState,
        return_attention: bool = False,
    ) -> None:
        self.config, self.return_attention = config, return_attention
        self.remembered = remembered
        self.source: Source | None = None
        self.freed = False
        self._can_rollback = [0] * rows  # tokens of each row that came with the last call
        self._again: Callable[[list[int]], RecurrentState] | None = None

    @property
    def rows(self) -> int:
        return len(self._can_rollback)

    def tensors(self) -> list[Tensor]:
        """All that is remembered, each with rows first; of a text, no source."""
        return self.remembered.tensors()

    @property
    def bytes(self) -> int:
        """What the hidden vectors occupy, all layers and rows, however long the text was."""
        return sum(tensor.nbytes for tensor in self.tensors())

    def take(
        self,
        remembered: RecurrentState,
        counts: Sequence[int],
        again: Callable[[list[int]], RecurrentState],
    ) -> None:
        """Rows have read `counts` tokens more; `again` tells what fewer of them would have left."""
        self.remembered, self._can_rollback, self._again = remembered, list(counts), again

    def rollback(self, counts: Sequence[int]) -> None:
        """Row r forgets its last `counts[r]` tokens, of those that came with the last call.

        Nothing can be taken out of a hidden vector: what remains of the call is computed again.
        """
        taken = forgotten(counts, self._can_rollback)
        if not any(taken):
            return
        assert self._again is not None
        left = [there - less for there, less in zip(self._can_rollback, taken, strict=True)]
        self.remembered, self._can_rollback, self.attention = self._again(left), left, None

    def free(self) -> None:
        """Give the memory back; the state must not be used again."""
        self.remembered, self.source, self.attention, self._again = (
            RecurrentState(),
            None,
            None,
            None,
        )
        self.freed, self._can_rollback = True, []

    def _model(self) -> object:
        kinds = [(tensor.dtype, tensor.device) for tensor in self.tensors()[:1]]
        return None if self.freed else (self.config, kinds)

    def _choose(self, rows: list[int]) -> None:
        again, before = self._again, self._can_rollback
        tensors = self.tensors()
        if tensors:
            index = torch.tensor(rows, dtype=torch.long, device=tensors[0].device)
            self.remembered = self.remembered.chosen(index)
            if again is not None:
                self._again = _reordered(again, before, rows, index)
        self._can_rollback = [before[row] for row in rows]
        self.source = chosen_source(self.source, rows)

    def _admit(self, other: Self) -> None:
        self.source = joined_source(self.source, other.source, self.rows)
        mine, theirs, rows = self._remaining(), other._remaining(), self.rows

        def again(left: list[int]) -> RecurrentState:
            return mine(left[:rows]).joined(theirs(left[rows:]))

        self._again = again if rows else theirs
        self.remembered = self.remembered.joined(other.remembered)
        self._can_rollback = self._can_rollback + other._can_rollback

    def _remaining(self) -> Callable[[list[int]], RecurrentState]:
        """What fewer tokens of the last call would have left; without a call what there is."""
        remembered, again = self.remembered, self._again
        return lambda left: remembered if again is None else again(left)

    def check(self, config: RecurrentConfig, rows: int, mine: Tensor) -> None:
        """Refuse a state that does not fit a model, of which `mine` is a weight, and its tokens."""
        if self.freed or self.config != config:
            raise RegardError(
                "the state was freed or is another model's; start one with this model"
            )
        if self.rows != rows:
            raise RegardError(f"the state has {self.rows} rows, the tokens have {rows}")
        tensors = self.tensors()
        held = tensors[0] if tensors else mine
        if (held.dtype, held.device) != (mine.dtype, mine.device):
            raise RegardError(
                f"the state holds {held.dtype} on {held.device}, but the model is now {mine.dtype} "
                f"on {mine.device}; start a new one"
            )


def _reordered(
    again: Callable[[list[int]], RecurrentState],
    before: Sequence[int],
    wanted: Sequence[int],
    index: Tensor,
) -> Callable[[list[int]], RecurrentState]:
    """How to compute less of a call for rows that have changed places since."""

    def one_by_one(left: list[int]) -> RecurrentState:
        # Rows that repeat may forget different counts: one pass for each count that occurs.
        found: dict[int, RecurrentState] = {}
        for count in set(left):
            found[count] = again([min(count, most) for most in before]).chosen(index)
        layers = tuple(
            tuple(
                torch.stack([found[count].held[i][j][row] for row, count in enumerate(left)])
                for j in range(len(layer))
            )
            for i, layer in enumerate(found[left[0]].held)
        )
        fed = None
        if found[left[0]].fed is not None:
            fed = torch.stack([_fed(found[count])[row] for row, count in enumerate(left)])
        return RecurrentState(layers, fed)

    return one_by_one


def _fed(remembered: RecurrentState) -> Tensor:
    assert remembered.fed is not None
    return remembered.fed


def encoded_source(memory: Memory, whole: Tensor, keys: Tensor | None) -> EncodedSource:
    """A source as its decoder first sees it, row by row."""
    source = EncodedSource(memory, whole, rows=tuple(range(len(whole))))
    if keys is None:
        return source
    return replace(source, keys=keys, values=memory.values, mask=memory.mask)

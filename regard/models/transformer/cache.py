"""What a Transformer remembers between steps: the keys and values of the prefix (M22).

Room is allocated once, and touched where something is written: what a text never reaches takes no
memory on a CPU. Rows may have different lengths: row r's next token goes to position `lengths[r]`.
What padding leaves behind there is overwritten, never seen: a later key is hidden from an earlier
query by causality alone. It must be numbers all the same, since what is hidden counts 0 times.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.errors import RegardError
from regard.models.masks import QueryKeyRange, whole_numbers
from regard.models.protocol import BaseState
from regard.models.transformer.attention import KeysValues, Slot
from regard.models.transformer.config import TransformerConfig
from regard.models.transformer.sources import CrossAttentionCache, chosen_source, joined_source
from regard.models.validation import check_room

FREE = -1  # what cells of rows that are free hold
ALIGNED = 8  # positions: kernels want the tables that they add to scores in such multiples


class KeyValueState(BaseState):
    """A preallocated key/value cache for `batch_size` sequences of up to `capacity` tokens.

    Rows that leave free their places, which others take; where none is free the memory doubles.
    With `fixed` no tensor that a kernel is given changes its shape or place from step to step: all
    positions are looked at, and how many of them hold a token is known to the device, too.
    """

    def __init__(
        self,
        config: TransformerConfig,
        batch_size: int,
        capacity: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        return_attention: bool = False,
        fixed: bool = False,
    ) -> None:
        check_room(batch_size, capacity)
        self.config, self.return_attention, self.fixed = config, return_attention, fixed
        self.capacity = capacity
        # Padding may stand behind the last position: in `fixed` mode it is written there.
        cells = (capacity // ALIGNED + 1) * ALIGNED if fixed else capacity
        self.lengths = [0] * batch_size  # tokens held by each row; on the host, so that kernels
        #                                  are chosen without asking the device
        told = batch_size if fixed else 0  # rows whose lengths the device knows
        self._starts = torch.zeros(told, dtype=torch.long, device=device)
        self.filled = cells * fixed  # so many positions hold numbers in every row
        shape = (batch_size, config.kv_heads, cells, config.head_width)
        make = torch.zeros if fixed else torch.empty
        self.layers: list[KeysValues] = []  # of the rows in use
        self._allocated = [
            KeysValues(
                make(shape, dtype=dtype, device=device), make(shape, dtype=dtype, device=device)
            )
            for _ in range(config.layers)
        ]
        # Of each cell (row, position) what it holds: of the positions that are used, cells that say
        # the same hold the same numbers. Rows that are free hold nothing that another row has.
        self._contents = np.zeros((batch_size, cells), np.int64)
        self.written = 0  # cells until now
        self.reading: CrossAttentionCache | None = None  # the source's keys and values, once read
        self._show()

    @property
    def rows(self) -> int:
        return len(self.lengths)

    @property
    def bytes(self) -> int:
        """What the rows there are occupy: 2 · capacity · width · layers numbers each.

        What rows that left had stays allocated beside it, until the state goes or grows.
        """
        return sum(tensor.nbytes for layer in self.layers for tensor in layer)

    def span(self, rows: int, new: int, real: Sequence[int] | None = None) -> QueryKeyRange:
        """Where `new` more tokens a row will stand, and the keys they will meet.

        Of row r, `real[r]` tokens are real (all, if not given); only they need room.
        """
        if rows != self.rows:
            raise RegardError(f"the state has {self.rows} rows, the tokens have {rows}")
        ends = [held + (real[r] if real else new) for r, held in enumerate(self.lengths)]
        self._check_fits(max(ends))
        device, first = self.layers[0].keys.device, self.lengths[0]
        if self.fixed:
            positions = self.starts[:, None] + torch.arange(new, device=device)  # (rows, new)
            return QueryKeyRange(positions, rows, self.contents.shape[1], None)
        if len(set(self.lengths)) == 1 and first + new <= self.capacity:
            return QueryKeyRange.of(rows, new, first + new, device, first)
        starts = torch.tensor(self.lengths, device=device)  # (rows,)
        positions = starts[:, None] + torch.arange(new, device=device)  # (rows, new)
        return QueryKeyRange(positions, rows, max(ends), None)

    def _check_fits(self, tokens: int) -> None:
        if tokens > self.capacity:
            raise RegardError(
                f"the state has room for {self.capacity} tokens a row, {tokens} are needed; "
                "start it with more room"
            )

    def slots(self, span: QueryKeyRange, real: Sequence[int]) -> Sequence[Slot]:
        """Each layer's part of the cache, ready to take in `real[r]` tokens of row r."""
        places = None
        self._note(span)
        if self.fixed:
            positions = span.positions.clamp(max=span.keys - 1)  # (rows, new)
            return [FixedSlot(held, positions) for held in self.layers]
        if span.first is None:
            # On the host: which tokens are real is known there, and no answer has to be waited for.
            counts, starts = torch.tensor([[*real], self.lengths], device="cpu")  # (rows,) each
            wanted = torch.arange(span.queries, device="cpu") < counts[:, None]  # (rows, new)
            rows, columns = wanted.nonzero(as_tuple=True)
            positions = starts[rows] + columns
            places = Places(*(t.to(span.device) for t in (rows, columns, positions)))
        return [LayerSlot(held, span, places, self.filled) for held in self.layers]

    def _note(self, span: QueryKeyRange) -> None:
        """Whatever is written in this pass is found nowhere else."""
        first = min(self.lengths) if span.first is None else span.first
        new = self.contents[:, first : span.keys]
        new[:] = np.arange(self.written + 1, self.written + 1 + new.size).reshape(new.shape)
        self.written += new.size

    def advance(self, new: Sequence[int]) -> None:
        """Row r has taken in `new[r]` real tokens."""
        self.lengths = [held + more for held, more in zip(self.lengths, new, strict=True)]
        self.filled = max(self.filled, *self.lengths)
        if self.fixed:
            alike = len(set(new)) == 1
            self.starts += new[0] if alike else torch.tensor(new, device=self.starts.device)

    def rollback(self, counts: Sequence[int]) -> None:
        """Row r forgets its last `counts[r]` tokens; what they left is overwritten, never seen."""
        given = whole_numbers(counts, "counts")
        taken = given.tolist()
        if given.shape != (self.rows,) or any(
            not 0 <= count <= held for count, held in zip(taken, self.lengths, strict=False)
        ):
            raise RegardError(f"rows of {self.lengths} tokens cannot forget {taken}")
        self.lengths = [held - count for held, count in zip(self.lengths, taken, strict=True)]
        self.attention = None
        self._tell()

    def free(self) -> None:
        """Give the memory back; the state is empty and must not be used again."""
        self.layers, self._allocated, self.reading, self.lengths = [], [], None, []
        self.attention = None

    def reorder(self, rows: Tensor | Sequence[int]) -> None:
        """Row i becomes what row `rows[i]` was; their number may change, rows may repeat."""
        if not self.layers:
            raise RegardError("the state was freed; start a new one")
        super().reorder(rows)

    def _model(self) -> object:
        return self.layers and (self.config, *(_kind(part) for part in self.layers[0]))

    def _choose(self, rows: list[int]) -> None:
        used = max(self.lengths)
        if len(rows) > self.rows and not self.fixed:
            self.filled = used  # the rest is new room
        moves = Moves.of(rows, self._contents, used, self._starts.device)
        for i, layer in enumerate(self._allocated):
            self._allocated[i] = KeysValues(*(moves.made(held, used, self.fixed) for held in layer))
        self._contents = moves.noted(self._contents, rows, used)
        self.lengths = [self.lengths[row] for row in rows]
        self.reading = chosen_source(self.reading, rows)
        self._show()

    def _admit(self, other: Self) -> None:
        used, first, end = max(other.lengths, default=0), self.rows, self.rows + other.rows
        self._check_fits(used)
        self.reading = joined_source(self.reading, other.reading, first)
        if end > len(self._contents):
            self._grow(max(end, 2 * len(self._contents)))
        for mine, theirs in zip(self._allocated, other.layers, strict=True):
            for held, fresh in zip(mine, theirs, strict=True):
                held[first:end, :, :used] = fresh[:, :, :used]
                held[first:end, :, used : self.filled] = 0.0
                held[:first, :, self.filled : used] = 0.0
        self.filled = max(self.filled, used)
        self._contents[first:end] = 0
        self._contents[first:end, :used] = other.contents[:, :used] + self.written + 1
        self.written += other.written + 1
        self.lengths = [*self.lengths, *other.lengths]
        self._show()

    def _grow(self, rows: int) -> None:
        """New memory for so many rows, to which all that is used is copied."""
        used, there = max(self.lengths, default=0), self.rows
        if not self.fixed:
            self.filled = used
        for i, layer in enumerate(self._allocated):
            larger = KeysValues(*(_larger(held, rows, self.fixed) for held in layer))
            for held, made in zip(layer, larger, strict=True):
                made[:there, :, :used] = held[:there, :, :used]
            self._allocated[i] = larger
        contents = np.full((rows, self._contents.shape[1]), FREE, np.int64)
        contents[:there] = self.contents
        self._contents = contents

    def _show(self) -> None:
        """The rows in use, as passes see them."""
        rows = self.rows
        self.layers = [KeysValues(*(held[:rows] for held in layer)) for layer in self._allocated]
        self.contents = self._contents[:rows]
        self._contents[rows:] = FREE
        if self.fixed and len(self._starts) < len(self._contents):
            self._starts = self._starts.new_zeros(len(self._contents))
        self.starts = self._starts[:rows]
        self._tell()

    def _tell(self) -> None:
        """Tell the device how long the rows are, in the memory that it knows."""
        if self.fixed:
            self.starts.copy_(torch.tensor(self.lengths, dtype=torch.long))


def _kind(tensor: Tensor) -> object:
    return tensor.dtype, tensor.device


class Moves(NamedTuple):
    """Which cells of a cache are copied where; a row's place that stays keeps what it holds.

    Beams of one text have most of it in common, cell for cell: only where they part is copied.
    """

    rows: int  # how many there will be
    grow: bool  # in new room
    origins: Tensor  # (moves,): rows
    places: Tensor  # (moves,): rows
    positions: Tensor | None  # (moves,); None: all that are used

    @classmethod
    def of(
        cls, wanted: Sequence[int], contents: NDArray[np.int64], used: int, device: torch.device
    ) -> Self:
        """`contents` are those of all places for rows, of which `used` positions matter."""
        rows = len(wanted)
        if rows > len(contents):
            every = torch.arange(rows, device=device)
            return cls(rows, True, torch.tensor(wanted, device=device), every, None)
        origins = np.asarray(wanted, np.int64)
        places, positions = np.nonzero(contents[origins, :used] != contents[:rows, :used])
        moves = torch.from_numpy(np.stack((origins[places], places, positions))).to(device)
        return cls(rows, False, *moves.unbind(0))

    def made(self, held: Tensor, used: int, fixed: bool) -> Tensor:
        """The cache (places for rows, kv_heads, cells, head_width) in its new order."""
        if self.positions is None:
            made = _larger(held, self.rows, fixed)
            made[:, :, :used] = held[:, :, :used][self.origins]
            return made
        picked = held[self.origins, :, self.positions]  # a copy, before any of it is overwritten
        held[self.places, :, self.positions] = picked  # (moves, kv_heads, head_width)
        return held

    def noted(
        self, contents: NDArray[np.int64], wanted: Sequence[int], used: int
    ) -> NDArray[np.int64]:
        """What each cell then holds."""
        made = np.zeros((self.rows, contents.shape[1]), np.int64) if self.grow else contents
        made[: self.rows, :used] = contents[list(wanted), :used]
        return made


def _larger(held: Tensor, rows: int, fixed: bool) -> Tensor:
    """New memory for more rows of a cache (rows, kv_heads, cells, head_width)."""
    return (held.new_zeros if fixed else held.new_empty)(rows, *held.shape[1:])


class Places(NamedTuple):
    """Where each real token of ragged rows comes from and goes to; each (tokens,)."""

    rows: Tensor
    columns: Tensor  # among the new tokens of the row
    positions: Tensor  # in the row's cache


@dataclass(frozen=True)
class LayerSlot:
    """One layer's part of the cache, and where the new tokens of this pass go."""

    held: KeysValues
    span: QueryKeyRange
    places: Places | None  # for rows that differ; else the tokens stand side by side
    filled: int  # positions that hold numbers in every row until now

    def extend(self, new: KeysValues) -> KeysValues:
        """Store new keys and values (rows, kv_heads, new, head_width); return all up to them.

        Numbers are kept, not gradients: else each step would hold the graph of all before it.
        """
        for held, fresh in zip(self.held, (t.detach() for t in new), strict=True):
            if self.places is None:
                held[:, :, self.span.first : self.span.keys] = fresh
            else:
                rows, columns, positions = self.places
                held[:, :, self.filled : self.span.keys] = 0.0
                held[rows, :, positions] = fresh[rows, :, columns].to(held.dtype)
        return KeysValues(*(held[:, :, : self.span.keys] for held in self.held))


@dataclass(frozen=True)
class FixedSlot:
    """One layer's part of a cache whose shapes do not change."""

    held: KeysValues
    positions: Tensor  # (rows, new): where new tokens go; what is none goes where nobody looks

    def extend(self, new: KeysValues) -> KeysValues:
        """Store new keys and values (rows, kv_heads, new, head_width); return the whole cache."""
        rows = torch.arange(len(self.positions), device=self.positions.device)[:, None]
        for held, fresh in zip(self.held, (t.detach() for t in new), strict=True):
            held[rows, :, self.positions] = fresh.transpose(1, 2).to(held.dtype)
        return self.held

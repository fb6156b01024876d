"""What a Transformer remembers between steps: the keys and values of the prefix (M22).

Room is allocated once, and touched where something is written: what a text never reaches takes no
memory on a CPU. Rows may have different lengths: row r's next token goes to position `lengths[r]`.
What padding leaves behind there is overwritten, never seen: a later key is hidden from an earlier
query by causality alone. It must be numbers all the same, since what is hidden counts 0 times.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import gcd
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.errors import RegardError
from regard.models.masks import (
    AttentionMask,
    Dense,
    Mask,
    QueryKeyRange,
    fitting,
    resolve_mask,
    whole_numbers,
)
from regard.models.protocol import Memory, chosen_rows
from regard.models.transformer.attention import KeysValues
from regard.models.transformer.config import TransformerConfig
from regard.models.validation import check_room


@dataclass(frozen=True, eq=False)
class CrossAttentionCache:
    """A source as the decoder sees it.

    Without `layers` each block works out its keys and values itself, in its own forward (training,
    scoring); a state keeps them, computed once.
    """

    memory: Memory
    mask: Mask | None
    layers: tuple[KeysValues, ...] | None = None
    each: int = 1  # so many rows, side by side, read one row of the layers: the beams of a source

    def overlay(self, new: int) -> AttentionMask:
        """The source's mask laid over the scores of `new` queries a row."""
        return resolve_mask(self.mask, self._span(new * self.each))

    @property
    def bytes(self) -> int:
        """What the source's keys and values occupy, of all layers."""
        return sum(tensor.nbytes for layer in self.layers or () for tensor in layer)

    def reorder(self, rows: Sequence[int]) -> "CrossAttentionCache":
        """The given rows; beams of one source that stay side by side go on sharing its row."""
        read = [row // self.each for row in rows]  # which row of the layers
        each = _side_by_side(read)
        kept = read[::each]
        if kept == list(range(self._rows)):
            return self if each == self.each else replace(self, each=each)
        index = torch.tensor(kept, device=self.memory.values.device)
        layers = tuple(KeysValues(*(held[index] for held in layer)) for layer in self.layers or ())
        mask = self.mask
        span = self._span(1)
        if mask is not None and mask.hides_nothing(span):
            mask = None
        if mask is not None:
            mask = Dense(fitting(mask, span).expand(span.rows, -1, -1)[index])
        return CrossAttentionCache(self.memory, mask, layers, each)

    @property
    def _rows(self) -> int:
        return self.layers[0].keys.shape[0] if self.layers else self.memory.rows

    def _span(self, queries: int) -> QueryKeyRange:
        values = self.memory.values
        return QueryKeyRange.of(self._rows, queries, values.shape[1], values.device)


def _side_by_side(read: Sequence[int]) -> int:
    """The largest number of rows, side by side, that read the same wherever one looks."""
    return gcd(*(len(list(group)) for _, group in groupby(read)))


class KeyValueState:
    """A preallocated key/value cache for `rows` sequences of up to `room` tokens."""

    def __init__(
        self,
        config: TransformerConfig,
        rows: int,
        room: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        return_attention: bool = False,
    ) -> None:
        check_room(rows, room)
        self.config, self.room, self.return_attention = config, room, return_attention
        self.attention: Tensor | None = None  # see the protocol
        self.lengths = [0] * rows  # tokens held by each row; on the host, so that kernels are
        #                            chosen without asking the device
        shape = (rows, config.kv_heads, room, config.head_width)
        self.layers = [
            KeysValues(
                torch.empty(shape, dtype=dtype, device=device),
                torch.empty(shape, dtype=dtype, device=device),
            )
            for _ in range(config.layers)
        ]
        self.filled = 0  # so many positions hold numbers in every row
        # Of each cell (row, position) what it holds: of the positions that are used, cells that say
        # the same hold the same numbers.
        self.contents = np.zeros((rows, room), np.int64)
        self.written = 0  # cells until now
        self.reading: CrossAttentionCache | None = None  # the source's keys and values, once read

    @property
    def rows(self) -> int:
        return len(self.lengths)

    @property
    def bytes(self) -> int:
        """What the rows there are occupy: 2 · room · width · layers numbers each.

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
        if max(ends) > self.room:
            raise RegardError(
                f"the state has room for {self.room} tokens a row, {max(ends)} are needed; "
                "start it with more room"
            )
        device, first = self.layers[0].keys.device, self.lengths[0]
        if len(set(self.lengths)) == 1 and first + new <= self.room:
            return QueryKeyRange.of(rows, new, first + new, device, first)
        starts = torch.tensor(self.lengths, device=device)  # (rows,)
        positions = starts[:, None] + torch.arange(new, device=device)  # (rows, new)
        return QueryKeyRange(positions, rows, max(ends), None)

    def slots(self, span: QueryKeyRange, real: Sequence[int]) -> list["LayerSlot"]:
        """Each layer's part of the cache, ready to take in `real[r]` tokens of row r."""
        places = None
        self._note(span)
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

    def reorder(self, rows: Tensor | Sequence[int]) -> None:
        """Row i becomes what row `rows[i]` was; their number may change, rows may repeat."""
        if not self.layers:
            raise RegardError("the state was freed; start a new one")
        wanted = chosen_rows(rows, self.rows)
        if wanted == list(range(self.rows)):
            return
        used = max(self.lengths)
        if len(wanted) > self.rows:
            self.filled = used  # the rest is new room
        moves = Moves.of(wanted, self.contents[:, :used], self.layers[0].keys.device)
        for i, layer in enumerate(self.layers):
            self.layers[i] = KeysValues(*(moves.made(held, used) for held in layer))
        self.contents = moves.noted(self.contents, wanted, used)
        self.lengths = [self.lengths[row] for row in wanted]
        self.attention = None  # of the rows as they were
        self.reading = self.reading and self.reading.reorder(wanted)

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

    def free(self) -> None:
        """Give the memory back; the state is empty and must not be used again."""
        self.layers, self.reading, self.lengths, self.attention = [], None, [], None


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
    def of(cls, wanted: Sequence[int], contents: NDArray[np.int64], device: torch.device) -> Self:
        """`contents` are those of the positions that are used."""
        rows = len(wanted)
        if rows > len(contents):
            every = torch.arange(rows, device=device)
            return cls(rows, True, torch.tensor(wanted, device=device), every, None)
        origins = np.asarray(wanted)
        places, positions = np.nonzero(contents[origins] != contents[:rows])
        moves = torch.from_numpy(np.stack((origins[places], places, positions))).to(device)
        return cls(rows, False, *moves.unbind(0))

    def made(self, held: Tensor, used: int) -> Tensor:
        """The cache (rows, kv_heads, room, head_width) in its new order."""
        if self.positions is None:
            made = held.new_empty(self.rows, *held.shape[1:])
            made[:, :, :used] = held[:, :, :used][self.origins]
            return made
        picked = held[self.origins, :, self.positions]  # a copy, before any of it is overwritten
        held[self.places, :, self.positions] = picked  # (moves, kv_heads, head_width)
        return held[: self.rows]

    def noted(
        self, contents: NDArray[np.int64], wanted: Sequence[int], used: int
    ) -> NDArray[np.int64]:
        """What each cell (rows, room) then holds."""
        made = np.zeros((self.rows, contents.shape[1]), np.int64) if self.grow else contents
        made[: self.rows, :used] = contents[list(wanted), :used]
        return made[: self.rows]


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

"""What a Transformer remembers between steps: the keys and values of the prefix (M22).

Room is allocated once. Rows may have different lengths: row r's next token goes to position
`lengths[r]`. What padding leaves behind there is overwritten, never seen: a later key is hidden
from an earlier query by causality alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.models.attention import KeysValues
from regard.models.config import TransformerConfig
from regard.models.masks import Dense, Mask, Overlay, Span, fitting, lay, whole_numbers
from regard.models.protocol import Memory


@dataclass(frozen=True, eq=False)
class Reading:
    """A source as the decoder sees it.

    Without `layers` each block works out its keys and values itself, in its own forward (training,
    scoring); a state keeps them, computed once.
    """

    memory: Memory
    mask: Mask | None
    layers: tuple[KeysValues, ...] | None = None
    origins: tuple[int, ...] | None = None  # which row of the memory each row reads, if known

    def overlay(self, new: int) -> Overlay:
        """The source's mask laid over the scores of `new` queries a row."""
        return lay(self.mask, self._span(new))

    def reorder(self, rows: Tensor, host: Sequence[int] | None) -> "Reading":
        """The given rows; nothing is copied when each goes on reading the same source row."""
        origins = None
        if host is not None and self.origins is not None:
            origins = tuple(self.origins[row] for row in host)
            if origins == self.origins:
                return self
        layers = tuple(KeysValues(*(held[rows] for held in kept)) for kept in self.layers or ())
        mask = self.mask
        span = self._span(1)
        if mask is not None and mask.hides_nothing(span):
            mask = None
        if mask is not None:
            mask = Dense(fitting(mask, span).expand(span.rows, -1, -1)[rows])
        return Reading(self.memory, mask, layers, origins)

    def _span(self, new: int) -> Span:
        rows, keys = self.memory.values.shape[:2]
        if self.layers:
            rows = self.layers[0].keys.shape[0]
        return Span.of(rows, new, keys, self.memory.values.device)


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
    ) -> None:
        if not (isinstance(rows, int) and isinstance(room, int) and rows >= 1 and room >= 1):
            raise RegardError(
                "a state needs at least one row and room for one token, "
                f"not {rows} rows × {room} tokens"
            )
        self.config, self.room = config, room
        self.lengths = [0] * rows  # tokens held by each row; on the host, so that kernels are
        #                            chosen without asking the device
        shape = (rows, config.kv_heads, room, config.head_width)
        self.layers = [
            KeysValues(
                torch.zeros(shape, dtype=dtype, device=device),
                torch.zeros(shape, dtype=dtype, device=device),
            )
            for _ in range(config.layers)
        ]
        self.reading: Reading | None = None  # the source's keys and values, once read

    @property
    def rows(self) -> int:
        return len(self.lengths)

    @property
    def bytes(self) -> int:
        """What the cache occupies, all layers and rows: 2 · room · width · layers numbers each."""
        return sum(tensor.nbytes for layer in self.layers for tensor in layer)

    def span(self, rows: int, new: int, real: Sequence[int] | None = None) -> Span:
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
            return Span.of(rows, new, first + new, device, first)
        starts = torch.tensor(self.lengths, device=device)  # (rows,)
        positions = starts[:, None] + torch.arange(new, device=device)  # (rows, new)
        return Span(positions, rows, max(ends), None)

    def slots(self, span: Span, real: Sequence[int]) -> list["LayerSlot"]:
        """Each layer's part of the cache, ready to take in `real[r]` tokens of row r."""
        places = None
        if span.first is None:
            # On the host: which tokens are real is known there, and no answer has to be waited for.
            counts, starts = torch.tensor([[*real], self.lengths], device="cpu")  # (rows,) each
            wanted = torch.arange(span.queries, device="cpu") < counts[:, None]  # (rows, new)
            rows, columns = wanted.nonzero(as_tuple=True)
            positions = starts[rows] + columns
            places = Places(*(t.to(span.device) for t in (rows, columns, positions)))
        return [LayerSlot(held, span, places) for held in self.layers]

    def advance(self, new: Sequence[int]) -> None:
        """Row r has taken in `new[r]` real tokens."""
        self.lengths = [held + more for held, more in zip(self.lengths, new, strict=True)]

    def reorder(self, rows: Tensor | Sequence[int]) -> None:
        """Row i becomes what row `rows[i]` was; their number may change, rows may repeat."""
        if not self.layers:
            raise RegardError("the state was freed; start a new one")
        given = whole_numbers(rows, "rows")
        if given.dim() != 1 or not len(given):
            raise RegardError(f"reorder needs a list of rows, not shape {tuple(given.shape)}")
        alike = len(set(self.lengths)) == 1  # then no question to the device is needed
        host = given.tolist() if given.device.type == "cpu" or not alike else None
        if host is not None:
            if not 0 <= min(host) <= max(host) < self.rows:
                raise RegardError(f"the state has rows 0 to {self.rows - 1}, not {host}")
            if host == list(range(self.rows)):
                return
        index = given.to(self.layers[0].keys.device, torch.long)
        used = max(self.lengths)
        self.lengths = (
            self.lengths[:1] * len(index) if host is None else [self.lengths[r] for r in host]
        )
        for i, layer in enumerate(self.layers):
            self.layers[i] = KeysValues(*(_pick(held, index, used) for held in layer))
        self.reading = self.reading and self.reading.reorder(index, host)

    def free(self) -> None:
        """Give the memory back; the state is empty and must not be used again."""
        self.layers, self.reading, self.lengths = [], None, []


def _pick(held: Tensor, rows: Tensor, used: int) -> Tensor:
    """The given rows, in place if their number stays; only the positions in use are copied."""
    picked = held if len(rows) == len(held) else held.new_zeros(len(rows), *held.shape[1:])
    picked[:, :, :used] = held[:, :, :used][rows]
    return picked


class Places(NamedTuple):
    """Where each real token of ragged rows comes from and goes to; each (tokens,)."""

    rows: Tensor
    columns: Tensor  # among the new tokens of the row
    positions: Tensor  # in the row's cache


@dataclass(frozen=True)
class LayerSlot:
    """One layer's part of the cache, and where the new tokens of this pass go."""

    held: KeysValues
    span: Span
    places: Places | None  # for rows that differ; else the tokens stand side by side

    def extend(self, new: KeysValues) -> KeysValues:
        """Store new keys and values (rows, kv_heads, new, head_width); return all up to them.

        Numbers are kept, not gradients: else each step would hold the graph of all before it.
        """
        for held, fresh in zip(self.held, (t.detach() for t in new), strict=True):
            if self.places is None:
                held[:, :, self.span.first : self.span.keys] = fresh
            else:
                rows, columns, positions = self.places
                held[rows, :, positions] = fresh[rows, :, columns].to(held.dtype)
        return KeysValues(*(held[:, :, : self.span.keys] for held in self.held))

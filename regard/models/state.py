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
from regard.models.masks import Dense, Mask, Overlay, Span, fitting, lay
from regard.models.protocol import Memory


@dataclass(frozen=True)
class Reading:
    """A source as the decoder sees it: each layer's keys and values, computed once."""

    memory: Memory
    layers: tuple[KeysValues, ...]
    mask: Mask | None

    def overlay(self, new: int) -> Overlay:
        """The source's mask laid over the scores of `new` queries a row."""
        return lay(self.mask, self._span(new))

    def reorder(self, rows: Tensor) -> "Reading":
        layers = tuple(KeysValues(*(held[rows] for held in layer)) for layer in self.layers)
        mask = self.mask
        span = self._span(1)
        if mask is not None and mask.hides_nothing(span):
            mask = None
        if mask is not None:
            mask = Dense(fitting(mask, span).expand(span.rows, -1, -1)[rows])
        return Reading(self.memory, layers, mask)

    def _span(self, new: int) -> Span:
        keys = self.layers[0].keys  # (rows, kv_heads, keys, head_width)
        return Span.of(keys.shape[0], new, keys.shape[2], keys.device)


class KeyValueState:
    """A preallocated key/value cache for `rows` sequences of up to `room` tokens."""

    def __init__(
        self,
        rows: int,
        room: int,
        *,
        layers: int,
        kv_heads: int,
        head_width: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        if rows < 1 or room < 1:
            raise RegardError(
                "a state needs at least one row and room for one token, "
                f"not {rows} rows × {room} tokens"
            )
        self.room = room
        self.lengths = [0] * rows  # tokens held by each row; on the host, so that kernels are
        #                            chosen without asking the device
        shape = (rows, kv_heads, room, head_width)
        self.layers = [
            KeysValues(
                torch.zeros(shape, dtype=dtype, device=device),
                torch.zeros(shape, dtype=dtype, device=device),
            )
            for _ in range(layers)
        ]
        self.reading: Reading | None = None  # the source's keys and values, once read

    @property
    def rows(self) -> int:
        return len(self.lengths)

    @property
    def bytes(self) -> int:
        """What the cache occupies, all layers and rows: 2 · room · width · layers numbers each."""
        return sum(tensor.nbytes for layer in self.layers for tensor in layer)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Layers, key/value heads and head width: what must agree with the model's."""
        if not self.layers:
            return (0, 0, 0)
        keys = self.layers[0].keys  # (rows, kv_heads, room, head_width)
        return (len(self.layers), keys.shape[1], keys.shape[3])

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
            wanted = torch.arange(span.queries) < torch.tensor(real)[:, None]  # (rows, new)
            rows, columns = wanted.nonzero(as_tuple=True)
            positions = torch.tensor(self.lengths)[rows] + columns
            places = Places(*(t.to(span.device) for t in (rows, columns, positions)))
        return [LayerSlot(held, span, places) for held in self.layers]

    def advance(self, new: Sequence[int]) -> None:
        """Row r has taken in `new[r]` real tokens."""
        self.lengths = [held + more for held, more in zip(self.lengths, new, strict=True)]

    def reorder(self, rows: Tensor | Sequence[int]) -> None:
        """Row i becomes what row `rows[i]` was; their number may change, rows may repeat."""
        if not self.layers:
            raise RegardError("the state was freed; start a new one")
        device = self.layers[0].keys.device
        index = torch.as_tensor(rows, dtype=torch.long)
        if index.dim() != 1 or not len(index):
            raise RegardError(f"reorder needs a list of rows, not shape {tuple(index.shape)}")
        if index.device.type == "cpu" and not 0 <= int(index.min()) <= int(index.max()) < self.rows:
            raise RegardError(f"the state has rows 0 to {self.rows - 1}, not {index.tolist()}")
        index = index.to(device)
        alike = len(set(self.lengths)) == 1  # then no question to the device is needed
        used = max(self.lengths)
        self.lengths = (
            self.lengths[:1] * len(index) if alike else [self.lengths[r] for r in index.tolist()]
        )
        for i, layer in enumerate(self.layers):
            self.layers[i] = KeysValues(*(_pick(held, index, used) for held in layer))
        self.reading = self.reading and self.reading.reorder(index)

    def free(self) -> None:
        """Give the memory back; the state is empty and must not be used again."""
        self.layers, self.reading, self.lengths = [], None, []


def _pick(held: Tensor, rows: Tensor, used: int) -> Tensor:
    """The given rows in a tensor of their own, copying only the positions in use."""
    picked = held.new_zeros(len(rows), *held.shape[1:])
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

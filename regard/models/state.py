"""What a Transformer remembers between steps: the keys and values of the prefix (M22).

Room is allocated once. Rows may have different lengths: row r's next token goes to position
`lengths[r]`, and what padding left behind there is overwritten, never seen (a later key is hidden
from an earlier query by causality alone).
"""

from collections.abc import Sequence
from dataclasses import dataclass

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
        if mask is not None:
            span = self._span(1)
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

    def span(self, rows: int, new: int) -> Span:
        """Where `new` more tokens per row will stand, and the keys they will meet."""
        if rows != self.rows:
            raise RegardError(f"the state has {self.rows} rows, the tokens have {rows}")
        most = max(self.lengths) + new
        if most > self.room:
            raise RegardError(
                f"the state has room for {self.room} tokens a row, {most} are needed; "
                "start it with more room"
            )
        device = self.layers[0].keys.device
        if len(set(self.lengths)) == 1:
            return Span.of(rows, new, most, device, first=self.lengths[0])
        starts = torch.tensor(self.lengths, device=device)  # (rows,)
        positions = starts[:, None] + torch.arange(new, device=device)  # (rows, new)
        return Span(positions, rows, most, None)

    def slot(self, layer: int, span: Span) -> "LayerSlot":
        return LayerSlot(self.layers[layer], span)

    def advance(self, new: Sequence[int]) -> None:
        """Row r has taken in `new[r]` real tokens."""
        self.lengths = [held + more for held, more in zip(self.lengths, new, strict=True)]

    def reorder(self, rows: Tensor | Sequence[int]) -> None:
        """Row i becomes what row `rows[i]` was; their number may change, rows may repeat."""
        device = self.layers[0].keys.device
        index = torch.as_tensor(rows, dtype=torch.long, device=device)
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


@dataclass(frozen=True)
class LayerSlot:
    """One layer's part of the cache, and where the new tokens of this pass go."""

    held: KeysValues
    span: Span

    def extend(self, new: KeysValues) -> KeysValues:
        """Store new keys and values (rows, kv_heads, new, head_width); return all up to them."""
        for held, fresh in zip(self.held, new, strict=True):
            if self.span.first is not None:
                held[:, :, self.span.first : self.span.keys] = fresh
            else:
                rows = torch.arange(self.span.rows, device=held.device)[:, None]  # (rows, 1)
                held[rows, :, self.span.positions] = fresh.transpose(1, 2).to(held.dtype)
        return KeysValues(*(held[:, :, : self.span.keys] for held in self.held))

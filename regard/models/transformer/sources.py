"""What a decoder sees of its sources: their keys and values, computed once, whoever joins later."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import gcd
from typing import Protocol, Self, TypeVar

import torch
from torch.nn import functional as F

from regard.errors import RegardError
from regard.models.masks import AttentionMask, Dense, Mask, QueryKeyRange, fitting, resolve_mask
from regard.models.protocol import SEVERAL, Memory, with_rows
from regard.models.transformer.attention import KeysValues


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
    allocated: tuple[KeysValues, ...] | None = None  # the layers with rows that are free

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
        if kept == list(range(len(kept))) and self.mask is None:  # others have left
            layers = tuple(
                KeysValues(*(held[: len(kept)] for held in layer)) for layer in self.layers or ()
            )
            return replace(self, layers=layers, each=each, allocated=self.allocated or self.layers)
        return self._indexed(kept, each)

    def joined(self, other: "CrossAttentionCache") -> "CrossAttentionCache":
        """Its rows, and then those of another source that the same model has read.

        They are written to free rows, of which new memory has as many as are in use.
        """
        each = gcd(self.each, other.each)
        mine, theirs = self._shared_by(each), other._shared_by(each)
        assert mine.layers is not None
        assert theirs.layers is not None
        rows, total = mine._rows, mine._rows + theirs._rows
        allocated = tuple(
            KeysValues(*(with_rows(a, rows, b, spare=total) for a, b in zip(*both, strict=True)))
            for both in zip(mine.allocated or mine.layers, theirs.layers, strict=True)
        )
        layers = tuple(KeysValues(*(held[:total] for held in layer)) for layer in allocated)
        mask = joined_masks((mine.mask, mine._span(1)), (theirs.mask, theirs._span(1)))
        return CrossAttentionCache(SEVERAL, mask, layers, each, allocated)

    def _shared_by(self, each: int) -> "CrossAttentionCache":
        """The same with a row of the layers for so many rows, which divide those of now."""
        if each == self.each:
            return self
        rows = self._rows * self.each
        index = [row // self.each for row in range(0, rows, each)]
        return self._indexed(index, each)

    def _indexed(self, kept: Sequence[int], each: int) -> "CrossAttentionCache":
        index = torch.tensor(kept, device=self._span(1).device)
        layers = tuple(KeysValues(*(held[index] for held in layer)) for layer in self.layers or ())
        mask, span = self.mask, self._span(1)
        if mask is not None and mask.hides_nothing(span):
            mask = None
        if mask is not None:
            mask = Dense(fitting(mask, span).expand(span.rows, -1, -1)[index])
        return CrossAttentionCache(self.memory, mask, layers, each)

    @property
    def _rows(self) -> int:
        return self.layers[0].keys.shape[0] if self.layers else self.memory.rows

    def _span(self, queries: int) -> QueryKeyRange:
        if self.layers:
            keys = self.layers[0].keys  # (rows, kv_heads, positions, head_width)
            return QueryKeyRange.of(self._rows, queries, keys.shape[2], keys.device)
        values = self.memory.values
        return QueryKeyRange.of(self._rows, queries, values.shape[1], values.device)


class Source(Protocol):
    """A source as a state keeps it, with one look for all layers or one for each."""

    @property
    def memory(self) -> Memory: ...

    def reorder(self, rows: Sequence[int]) -> Self: ...

    def joined(self, other: Self) -> Self: ...


S = TypeVar("S", bound=Source)


def chosen_source(source: S | None, rows: Sequence[int]) -> S | None:
    """The given rows of what was read, if there are any."""
    return None if source is None or not rows else source.reorder(rows)


def joined_source(mine: S | None, theirs: S | None, rows: int) -> S | None:
    """What `rows` rows have read, and after it what those read that are admitted to them."""
    if not rows:
        return theirs
    if (mine is None) != (theirs is None):
        raise RegardError("some rows have read a source and others have not; let all read theirs")
    return None if mine is None or theirs is None else mine.joined(theirs)


def joined_masks(*sources: tuple[Mask | None, QueryKeyRange]) -> Mask | None:
    """The masks of some sources as one of all their rows; the shorter ones are padded."""
    most = max(span.keys for _, span in sources)
    tables = []
    for mask, span in sources:
        table = torch.ones(1, 1, span.keys, dtype=torch.bool, device=span.device)
        if mask is not None and not mask.hides_nothing(span):
            table = fitting(mask, span)
        tables.append(F.pad(table.expand(span.rows, 1, -1), (0, most - span.keys)))
    joined = torch.cat(tables)  # (rows, 1, positions)
    return None if joined.device.type == "cpu" and bool(joined.all()) else Dense(joined)


def _side_by_side(read: Sequence[int]) -> int:
    """The largest number of rows, side by side, that read the same wherever one looks."""
    return gcd(*(len(list(group)) for _, group in groupby(read)))

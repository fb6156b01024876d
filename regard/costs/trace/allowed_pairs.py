"""How many pairs of query and key a mask lets meet, exactly.

Most masks show each query one stretch of keys; only for others is the table built."""

from typing import NamedTuple

import torch
from torch import Tensor

from regard.models.masks import Causal, Documents, Mask, Padding, QueryKeyRange, Window, fitting


class Stretch(NamedTuple):
    """The keys that each query may see, where they stand side by side; (rows or 1, queries)."""

    first: Tensor
    end: Tensor

    def __and__(self, other: "Stretch") -> "Stretch":
        return Stretch(torch.maximum(self.first, other.first), torch.minimum(self.end, other.end))

    @property
    def pairs(self) -> Tensor:
        return (self.end - self.first).clamp(min=0)


def allowed_pairs(mask: Mask | None, span: QueryKeyRange) -> int:
    """Pairs of all rows; the span and what the mask holds must have numbers."""
    positions = span.positions
    seen = Stretch(torch.zeros_like(positions), torch.full_like(positions, span.keys))
    rest: list[Mask] = []
    for part in () if mask is None else mask.parts():
        found = _stretch(part, span)
        if found is None:
            rest.append(part)
        else:
            seen = seen & found
    if not rest:
        counted = seen.pairs
        return int(counted.sum()) * (span.rows // len(counted))
    assert mask is not None
    table = fitting(mask, span)  # (rows or 1, queries or 1, keys)
    repeats = (span.rows // table.shape[0]) * (span.queries // table.shape[1])
    return int(table.sum()) * repeats


def _stretch(mask: Mask, span: QueryKeyRange) -> Stretch | None:
    """What one mask lets each query see, if that is a stretch of keys."""
    positions = span.positions  # (rows or 1, queries)
    none, every = torch.zeros_like(positions), torch.full_like(positions, span.keys)
    match mask:
        case Causal():
            return Stretch(none, positions + 1)
        case Window(size=size):
            return Stretch(positions - size + 1, positions + size)
        case Padding(lengths=lengths):
            return Stretch(none[:1], lengths[:, None].clamp(max=span.keys))
        case Documents(ids=ids):
            return _document(ids, positions, every)
    return None


def _document(ids: Tensor, positions: Tensor, every: Tensor) -> Stretch | None:
    """The document around each position; none where one comes back after another."""
    new = torch.ones_like(ids, dtype=torch.bool)
    new[:, 1:] = ids[:, 1:] != ids[:, :-1]
    if any(int(new[row].sum()) != len(ids[row].unique()) for row in range(len(ids))):
        return None
    places = torch.arange(ids.shape[1]).expand_as(ids)
    first = torch.where(new, places, 0).cummax(1).values
    ends = torch.where(new, places, ids.shape[1]).flip(1).cummin(1).values.flip(1)
    end = torch.cat([ends[:, 1:], torch.full_like(ends[:, :1], ids.shape[1])], 1)
    rows = max(len(ids), len(positions))
    at = positions.clamp(max=ids.shape[1] - 1).expand(rows, -1)
    found = (edge.expand(rows, -1).gather(1, at) for edge in (first, end))
    begin, behind = found
    return Stretch(begin, torch.minimum(behind, every))

"""Who may look at whom (M13). A mask is a value; attention turns it into a kernel's argument.

A mask answers for a `QueryKeyRange`: which queries (they stand at given positions) meet which keys
(key j stands at position j). `resolve_mask` reduces a mask and a position bias to an
`AttentionMask`, the cheapest thing a kernel can be given that is right, once for a whole pass
through all layers.
"""

from dataclasses import dataclass
from functools import reduce
from typing import Self

import torch
from torch import Tensor

from regard.errors import RegardError


def whole_numbers(given: object, what: str) -> Tensor:
    """A list or tensor of whole numbers as a tensor; lists stay on the host."""
    if not isinstance(given, Tensor):
        try:
            given = torch.as_tensor(given, device="cpu")
        except (TypeError, ValueError, RuntimeError, OverflowError):
            raise RegardError(f"{what} must be whole numbers, not {given!r}") from None
    if given.numel() and (given.is_floating_point() or given.dtype == torch.bool):
        raise RegardError(f"{what} must be whole numbers, not {given.dtype}")
    return given


@dataclass(frozen=True, eq=False)
class QueryKeyRange:
    """The queries and keys that meet in one pass."""

    positions: Tensor  # (rows or 1, queries): where each query stands
    rows: int
    keys: int
    first: int | None  # where the queries of every row begin, if all agree; known on the host

    @classmethod
    def of(cls, rows: int, queries: int, keys: int, device: torch.device, first: int = 0) -> Self:
        """All rows alike: their queries stand at `first`, `first` + 1, ..."""
        positions = torch.arange(first, first + queries, device=device)[None]  # (1, queries)
        return cls(positions, rows, keys, first)

    @property
    def queries(self) -> int:
        return self.positions.shape[1]

    @property
    def device(self) -> torch.device:
        return self.positions.device

    def key_positions(self) -> Tensor:
        return torch.arange(self.keys, device=self.device)  # (keys,)


class Mask:
    """Which query may see which key. Combine masks with `&`."""

    def allowed(self, span: QueryKeyRange) -> Tensor:
        """True where the query may see the key; (rows or 1, queries or 1, keys)."""
        raise NotImplementedError

    def hides_nothing(self, span: QueryKeyRange) -> bool:
        """Whether every pair is allowed, as far as can be told without asking the device."""
        return False

    def spares_self(self) -> bool:
        """Whether a query always sees its own position, so that none is left with nothing."""
        return False

    def of_keys(self) -> "Mask | None":
        """The part that speaks of keys alone, whoever asks; what cross-attention must respect."""
        return None

    def parts(self) -> tuple["Mask", ...]:
        return (self,)

    def __and__(self, other: "Mask | None") -> "Mask":
        return self if other is None else Combined(self.parts() + _mask(other).parts())

    def __rand__(self, other: "Mask | None") -> "Mask":
        return self if other is None else _mask(other) & self


def _mask(given: object) -> Mask:
    if not isinstance(given, Mask):
        raise RegardError(
            f"a mask must be a value such as Padding(lengths) or Dense(table), "
            f"not a {type(given).__name__}"
        )
    return given


@dataclass(frozen=True)
class Causal(Mask):
    """No query sees a later key."""

    def allowed(self, span: QueryKeyRange) -> Tensor:
        return span.key_positions() <= span.positions[..., None]  # (rows or 1, queries, keys)

    def hides_nothing(self, span: QueryKeyRange) -> bool:
        return span.first is not None and span.first >= span.keys - 1

    def spares_self(self) -> bool:
        return True

    def is_square(self, span: QueryKeyRange) -> bool:
        """Whether this is the plain triangle that kernels know by themselves."""
        return span.first == 0 and span.queries == span.keys


@dataclass(frozen=True)
class Window(Mask):
    """A query sees only the `size` nearest positions on each side, its own included."""

    size: int

    def __post_init__(self) -> None:
        if not isinstance(self.size, int) or self.size < 1:
            raise RegardError(f"a window must hold at least one position, not {self.size!r}")

    def allowed(self, span: QueryKeyRange) -> Tensor:
        distance = span.positions[..., None] - span.key_positions()  # (rows or 1, queries, keys)
        return distance.abs() < self.size

    def hides_nothing(self, span: QueryKeyRange) -> bool:
        if span.first is None:
            return False
        return self.size > max(span.first + span.queries - 1, span.keys - 1 - span.first)

    def spares_self(self) -> bool:
        return True


@dataclass(frozen=True, eq=False)
class Padding(Mask):
    """Row r has `lengths[r]` real keys; what follows is padding."""

    lengths: Tensor  # (rows,), on any device; on the host, full rows are recognised for free

    def __post_init__(self) -> None:
        lengths = whole_numbers(self.lengths, "the lengths of a Padding mask")
        object.__setattr__(self, "lengths", lengths)
        if lengths.dim() != 1:
            shape = tuple(lengths.shape)
            raise RegardError(f"a Padding mask needs one whole number for each row, not {shape}")

    def allowed(self, span: QueryKeyRange) -> Tensor:
        lengths = self.lengths.to(span.device)
        return (span.key_positions() < lengths[:, None])[:, None]  # (rows, 1, keys)

    def hides_nothing(self, span: QueryKeyRange) -> bool:
        if self.lengths.device.type != "cpu" or torch.compiler.is_compiling():
            return False
        if len(self.lengths) != span.rows:
            return False
        return bool((self.lengths >= span.keys).all())

    def of_keys(self) -> Mask:
        return self


@dataclass(frozen=True, eq=False)
class Documents(Mask):
    """Several documents share a packed row; a query sees its own document only.

    This is between the positions of one sequence; it does not reach into cross-attention.
    """

    ids: Tensor  # (rows, at least keys): which document each position belongs to

    def __post_init__(self) -> None:
        if not isinstance(self.ids, Tensor):
            ids = whole_numbers(self.ids, "document ids")
            object.__setattr__(self, "ids", ids)

    def allowed(self, span: QueryKeyRange) -> Tensor:
        if self.ids.dim() != 2 or self.ids.shape[1] < span.keys:
            raise RegardError(
                f"document ids of shape {tuple(self.ids.shape)} do not cover {span.keys} "
                "positions; give one id per row and position"
            )
        if self.ids.shape[0] not in (1, span.rows):
            raise RegardError(f"document ids for {self.ids.shape[0]} rows, not for {span.rows}")
        rows = max(self.ids.shape[0], span.positions.shape[0])
        ids = self.ids.to(span.device).expand(rows, -1)
        positions = span.positions.expand(rows, -1)  # (rows, queries)
        # Padding behind a row's last real token may stand beyond the ids.
        mine = ids.gather(1, positions.clamp(max=ids.shape[1] - 1))  # (rows, queries)
        return mine[..., None] == ids[:, None, : span.keys]  # (rows, queries, keys)

    def spares_self(self) -> bool:
        return True


@dataclass(frozen=True, eq=False)
class Dense(Mask):
    """Any mask at all: True where the query may see the key."""

    table: Tensor  # (queries, keys) or (rows, queries, keys), each but the keys may be 1

    def __post_init__(self) -> None:
        if not isinstance(self.table, Tensor):
            raise RegardError(f"a dense mask must be a tensor, not a {type(self.table).__name__}")
        if self.table.dtype != torch.bool or self.table.dim() not in (2, 3):
            raise RegardError(
                "a dense mask must be a boolean tensor (queries, keys) or (rows, queries, keys), "
                f"not {self.table.dtype} of shape {tuple(self.table.shape)}"
            )

    def allowed(self, span: QueryKeyRange) -> Tensor:
        return self.table.to(span.device).reshape(-1, *self.table.shape[-2:])

    def of_keys(self) -> Mask | None:
        return self if self.table.shape[-2] == 1 else None


@dataclass(frozen=True, eq=False)
class Combined(Mask):
    """Allowed where all of several masks allow."""

    masks: tuple[Mask, ...]

    def allowed(self, span: QueryKeyRange) -> Tensor:
        return reduce(torch.logical_and, (mask.allowed(span) for mask in self.masks))

    def hides_nothing(self, span: QueryKeyRange) -> bool:
        return all(mask.hides_nothing(span) for mask in self.masks)

    def of_keys(self) -> Mask | None:
        found = tuple(mask for mask in self.masks if mask.of_keys() is not None)
        return Combined(found) if found else None

    def parts(self) -> tuple[Mask, ...]:
        return self.masks


@dataclass(frozen=True, eq=False)
class AttentionMask:
    """What lies over the scores of one pass: nothing, the causal triangle, or a dense table."""

    span: QueryKeyRange
    mask: Mask | None = None  # as asked for, so that a tape can show it
    bias: Tensor | None = None  # (rows or 1, heads, queries, keys), added to the scores
    table: Tensor | None = None  # (rows or 1, 1 or heads, queries or 1, keys): True/False, or
    #                              the bias with -inf where the mask forbids
    triangle: bool = False  # the kernel's own causal path is right
    blind: Tensor | None = None  # (rows or 1, 1, queries or 1, 1): True where nothing is allowed

    def allowed(self) -> Tensor:
        """The mask written out; (rows or 1, 1, queries, keys)."""
        if self.mask is None:
            shape = (1, 1, self.span.queries, self.span.keys)
            return torch.ones(shape, dtype=torch.bool, device=self.span.device)
        allowed = fitting(self.mask, self.span)
        return allowed[:, None].expand(-1, 1, self.span.queries, -1)


def fitting(mask: Mask, span: QueryKeyRange) -> Tensor:
    """The mask written out, (rows or 1, queries or 1, keys), or an error if it cannot fit."""
    wanted = (span.rows, span.queries, span.keys)
    tables = []
    for part in mask.parts():
        table = part.allowed(span)
        fits = table.dim() == 3 and table.shape[-1] == span.keys
        if not fits or any(h not in (1, w) for h, w in zip(table.shape, wanted, strict=True)):
            raise RegardError(
                f"the mask {_shape_of(part)} does not fit {span.rows} rows × {span.queries} "
                f"queries × {span.keys} keys; give one entry per row and key"
            )
        tables.append(table)
    return reduce(torch.logical_and, tables)


def _shape_of(mask: Mask) -> str:
    shapes = [str(tuple(v.shape)) for v in vars(mask).values() if isinstance(v, Tensor)]
    return f"{type(mask).__name__}{', '.join(shapes)}"


def resolve_mask(
    mask: Mask | None, span: QueryKeyRange, bias: Tensor | None = None
) -> AttentionMask:
    """Reduce a mask and a position bias to the cheapest thing that is right for this span."""
    parts = () if mask is None else _mask(mask).parts()
    parts = tuple(part for part in parts if not part.hides_nothing(span))
    if not parts:
        return AttentionMask(span, mask, bias, table=bias)
    if bias is None and all(isinstance(part, Causal) and part.is_square(span) for part in parts):
        return AttentionMask(span, mask, triangle=True)
    allowed = fitting(parts[0] if len(parts) == 1 else Combined(parts), span)[:, None]
    # CPU kernels give zeros where nothing is allowed; cuDNN's (torch 2.11, half precision) gives
    # the mean of all values, and NaN gradients. So there a blind query sees all, then is zeroed.
    blind = None
    own_key = span.first is None or span.first + span.queries <= span.keys
    sighted = own_key and all(part.spares_self() for part in parts)
    if span.device.type != "cpu" and not sighted:
        blind = ~allowed.any(-1, keepdim=True)
        allowed = allowed | blind
    table = allowed if bias is None else bias.masked_fill(~allowed, -torch.inf)
    return AttentionMask(span, mask, bias, table, blind=blind)

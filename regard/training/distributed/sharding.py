"""Tensors of which each process holds some rows, in memory and on disk.

In memory a share is a DTensor cut along its first dimension as FSDP2 cuts: by `torch.chunk`, so
that the last processes may hold fewer rows or none. On disk it is a tensor in a file together with
which rows of the whole it is. All of this takes whole tensors too, so that nobody has to ask.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from regard.errors import Problems, RegardError, UnreadableError
from regard.storage import opened, shown
from regard.storage.tensors import check_missing

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

MOST = 1 << 62  # more rows than that, and they cannot be counted


def _shared(tensor: Tensor) -> "TypeGuard[DTensor]":
    # Not by isinstance: importing DTensor takes 0.8 s that no process alone should wait.
    return hasattr(tensor, "device_mesh")


def local(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor, in the same memory; of a share without its history."""
    if not _shared(tensor):
        return tensor
    with torch.no_grad():
        return tensor.to_local()


def rows(tensor: Tensor) -> tuple[int, int] | None:
    """The first row of the whole that this process holds, and the first behind; None: it is whole.

    A process without any is said to stand behind the last row.
    """
    if not _shared(tensor):
        return None
    (placement,) = tensor.placements  # one dimension of processes: all of them
    if not placement.is_shard():
        return None
    assert placement.is_shard(0), "shares are cut along rows"
    count, rank = tensor.device_mesh.size(), tensor.device_mesh.get_local_rank()
    each = -(-len(tensor) // count)
    return min(rank * each, len(tensor)), min((rank + 1) * each, len(tensor))


def whole(tensor: Tensor) -> Tensor:
    """All rows, on every process; all processes must ask."""
    if not _shared(tensor):
        return tensor
    with torch.no_grad():
        return tensor.full_tensor()


def _height(shape: Sequence[int]) -> int:
    """How many rows a tensor has; a single number is one."""
    return shape[0] if len(shape) else 1


class Piece(NamedTuple):
    """Some rows of a tensor in a file."""

    file: Path
    first: int
    last: int  # the first behind
    shape: tuple[int, ...]  # of the whole
    kind: str  # of numbers, in the format's words


class Pieces:
    """Tensors by name whose rows may lie in many files; only the rows asked for are read."""

    def __init__(self, pieces: Mapping[str, Sequence[Piece]], opened: Mapping[Path, Any]) -> None:
        self.pieces = pieces
        self._opened = opened

    @staticmethod
    def of(tables: Mapping[Path, Any]) -> "Pieces":
        """The tensors of some safetensors files; none may lack a row or have one twice.

        Each file comes with a table of those that are shares, {name: {"shape", "first", "last"}};
        what is not in it is whole. Files and tables may be anybody's.
        """
        problems = Problems(str(next(iter(tables), Path()).parent))
        found: dict[str, list[Piece]] = {}
        opened = {path: _opened(path, problems) for path in tables}
        for path, table in tables.items():
            for name, piece in _held(path, opened[path], table, problems):
                found.setdefault(name, []).append(piece)
        for name, pieces in found.items():
            pieces.sort(key=lambda piece: (piece.first, piece.last))
            for problem in _lacks(pieces):
                problems.add(f"tensor {shown(name)}: {problem}")
        problems.report()
        return Pieces(found, opened)

    def names(self) -> list[str]:
        return list(self.pieces)

    def shape(self, name: str) -> tuple[int, ...]:
        """A whole tensor's shape."""
        return self._of(name)[0].shape

    def like(self, name: str, tensor: Tensor) -> Tensor:
        """The stored rows that this process holds of a tensor of the same shape."""
        if self.shape(name) != tuple(tensor.shape):
            raise RegardError(
                f"tensor {shown(name)} has shape {self.shape(name)} in "
                f"{self._of(name)[0].file.parent}, but {tuple(tensor.shape)} is needed"
            )
        return self.read(name, *(rows(tensor) or ()))

    def read(self, name: str, first: int = 0, last: int | None = None) -> Tensor:
        """Rows `first` to before `last` (all, if not said) of a tensor, from wherever they are."""
        pieces = self._of(name)
        height = _height(pieces[0].shape)
        last = height if last is None else last
        if not 0 <= first <= last <= height:
            raise RegardError(
                f"rows {first} to {last} of tensor {shown(name)} were asked for; it has {height}"
            )
        needed = [piece for piece in pieces if piece.first < last and first < piece.last]
        parts = [self._slice(name, piece, first, last) for piece in needed or pieces[:1]]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _slice(self, name: str, piece: Piece, first: int, last: int) -> Tensor:
        """What a piece has of some rows."""
        begin = min(max(first, piece.first), piece.last)
        end = max(min(last, piece.last), begin)
        place = slice(begin - piece.first, end - piece.first) if piece.shape else ...
        try:
            return self._opened[piece.file].get_slice(name)[place]
        except (SafetensorError, OSError) as error:
            raise RegardError(f"{piece.file} cannot be read: {error}") from None

    def _of(self, name: str) -> Sequence[Piece]:
        if name not in self.pieces:
            folder = next(iter(self._opened), Path()).parent
            raise RegardError(f"{folder} holds no tensor {shown(name)}")
        return self.pieces[name]


def _opened(path: Path, problems: Problems) -> Any:
    try:
        opened(path).close()  # a FIFO would be waited for
        return safe_open(path, "pt")
    except FileNotFoundError as error:
        check_missing(path, error)
        problems.add(f"{path.name} is missing")
    except (OSError, MemoryError) as error:
        raise UnreadableError(path, error) from None
    except (SafetensorError, ValueError) as error:
        problems.add(f"{path.name} is damaged or cut off ({error})")
    return None


def _held(path: Path, opened: Any, table: Any, problems: Problems) -> Iterator[tuple[str, Piece]]:
    """The tensors of a file with the rows that its table says they are."""
    if opened is None:
        return
    if not isinstance(table, dict):
        problems.add(f"the rows of {path.name} must be an object, not a {type(table).__name__}")
        return
    names = opened.keys()
    for name in sorted(table.keys() - set(names), key=str):
        problems.add(f"{path.name} is said to hold tensor {shown(str(name))}, which it does not")
    for name in names:
        view = opened.get_slice(name)
        stored = tuple(view.get_shape())
        try:
            first, last, shape = _place(table, name, stored)
        except ValueError as error:
            problems.add(f"tensor {shown(name)} in {path.name}: {error}")
            continue
        yield name, Piece(path, first, last, shape, view.get_dtype())


def _place(
    table: Mapping[str, Any], name: str, stored: tuple[int, ...]
) -> tuple[int, int, tuple[int, ...]]:
    """The first row, the first behind, and the shape of the whole, for a tensor as it is stored."""
    if name not in table:
        return 0, _height(stored), stored
    numbers: list[Any] = []
    with suppress(KeyError, TypeError):
        numbers = [table[name]["first"], table[name]["last"], *table[name]["shape"]]
    if len(numbers) < 3 or not all(type(n) is int and 0 <= n < MOST for n in numbers):
        raise ValueError("its table must say shape, first and last in whole numbers from 0 on")
    first, last, *shape = numbers
    if not first <= last <= shape[0]:
        raise ValueError(f"rows {first} to {last} are not among its {shape[0]}")
    if stored != (last - first, *shape[1:]):
        raise ValueError(f"{stored} is not the shape of rows {first} to {last} of {tuple(shape)}")
    return first, last, tuple(shape)


def _lacks(pieces: Sequence[Piece]) -> Iterator[str]:
    """What keeps pieces, in the order of their rows, from being one whole tensor."""
    if len({(piece.shape, piece.kind) for piece in pieces}) > 1:
        yield "its files do not agree on its shape and kind of numbers"
        return
    reached = 0
    for piece in pieces:
        if piece.first > reached:
            yield f"rows {reached} to {piece.first} are in no file"
        elif piece.first < min(reached, piece.last):
            yield f"rows {piece.first} to {min(reached, piece.last)} are in two files"
        reached = max(reached, piece.last)
    if reached < _height(pieces[0].shape):
        yield f"rows {reached} to {_height(pieces[0].shape)} are in no file"

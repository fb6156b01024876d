"""Writing checkpoints while training goes on.

Tensors are copied off the device at once and written by a thread. A folder appears under its name
when it is whole and on the disk. Processes that hold shares of the tensors write them beside it,
and the first process takes them in.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.storage import building, discard, no_room, read_json, sync, write_json
from regard.storage.event_log import LOG
from regard.storage.lock import Lock
from regard.storage.tensors import write_safetensors
from regard.training.checkpoints.reading import (
    FOLDER,
    FORMAT,
    KINDS,
    PLACE,
    Checkpoint,
    Place,
    sealed,
)
from regard.training.distributed.processes import Processes
from regard.training.distributed.sharding import local, rows

HEARING = 0.2  # seconds that a second Ctrl-C may be late while a checkpoint is written
ALIGNED = 64  # bytes: any number may start there
AGAIN = "the same command puts it aside, and goes on from the checkpoint before it"
ROWS = "rows.json"  # beside a share: which rows its tensors are


Key = tuple[str, str]  # of a tensor: kind of file, name


class Part(NamedTuple):
    """A file of a checkpoint: its tensors, and which rows of the whole they are where not all."""

    tensors: dict[str, Tensor]
    rows: dict[str, Any]


class Checkpoints:
    """Writes the checkpoints of one run; the last `keep` stay, and the best.

    What a run wrote before (`found`) counts among them.
    """

    def __init__(
        self,
        folder: Path,
        keep: int,
        processes: Processes,
        found: Sequence[Checkpoint] = (),
        about: Mapping[str, Any] | None = None,
        lock: Lock | None = None,
    ) -> None:
        self.folder = folder / FOLDER
        self.keep = max(keep, 1)
        self.processes = processes
        self.about, self.lock = dict(about or {}), lock
        self.steps = [one.place.step for one in found if one.place.regular]
        self.spare = [one.place.step for one in found if not one.place.regular]
        self._writer = ThreadPoolExecutor(1)
        self._pending: Future[None] | None = None
        self._before = self.steps, self.spare  # what is written now
        self._abandoned = threading.Event()
        self._arena: Future[Tensor] | None = None

    def reserve(self, size: int) -> None:
        """Pin so many bytes of main memory to copy to, meanwhile: 1.5 GB take 1.5 s."""
        self._arena = self._writer.submit(_pinned, size)

    def save(
        self, place: Place, weights: Mapping[str, Tensor], remembered: Mapping[str, Tensor]
    ) -> float:
        """Write a checkpoint in the background; an earlier one is waited for first.

        Gives the seconds until training may go on.
        """
        begin = time.perf_counter()
        self.wait()
        named = {
            (kind, name): tensor
            for kind, tensors in zip(KINDS, (weights, remembered), strict=True)
            for name, tensor in sorted(tensors.items())  # whatever was remembered first
        }
        tables = {key: _table(tensor) for key, tensor in named.items()}
        shared = any(tables.values())
        mine = [key for key in named if self.processes.first or tables[key]]
        copies = self._copied({key: local(named[key]) for key in mine})
        parts = {kind: Part({}, {}) for kind in KINDS}
        for (kind, name), copy in copies.items():
            parts[kind].tensors[name] = copy
            if tables[kind, name]:
                parts[kind].rows[name] = tables[kind, name]
        suffix = self._suffix() if shared else ""
        files = {f"{kind}{suffix}.safetensors": part for kind, part in parts.items()}
        dropped = self._drop(place)
        self._pending = self._writer.submit(self._write, place, files, shared, dropped)
        return time.perf_counter() - begin

    def _suffix(self) -> str:
        return f"-{self.processes.rank + 1:05}-of-{self.processes.count:05}"

    def _drop(self, place: Place) -> list[int]:
        """Take the new step into the books; which others go when it is written."""
        self._before = list(self.steps), self.spare
        dropped = [step for step in self.spare if step != place.step]
        self.spare = []
        if not place.regular:
            self.spare = [place.step]
        elif place.step not in self.steps:
            self.steps.append(place.step)
        best = {place.best_step} if place.best_step else set()
        kept = {place.step, *best, *self.steps[-self.keep :]}
        dropped += [step for step in self.steps if step not in kept]
        self.steps = [step for step in self.steps if step in kept]
        return [step for step in dropped if step not in kept]

    def _copied(self, tensors: Mapping[Key, Tensor]) -> dict[Key, Tensor]:
        """Copies in main memory that training will not change.

        From a GPU they go to pinned memory, which is kept for the next time: pinning takes longer
        than copying.
        """
        if not any(tensor.is_cuda for tensor in tensors.values()):
            return {
                name: tensor.detach().clone(memory_format=torch.contiguous_format)
                for name, tensor in tensors.items()
            }
        arena = self._room(sum(_padded(tensor.nbytes) for tensor in tensors.values()))
        copies, place = {}, 0
        for name, tensor in tensors.items():
            room = arena[place : place + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            copies[name] = room.copy_(tensor.detach(), non_blocking=True)
            place += _padded(tensor.nbytes)
        torch.cuda.synchronize()
        return copies

    def _room(self, size: int) -> Tensor:
        if self._arena is None or len(self._arena.result()) < size:
            self.reserve(size)
        assert self._arena is not None
        return self._arena.result()

    def _write(
        self, place: Place, files: Mapping[str, Part], shared: bool, dropped: Sequence[int]
    ) -> None:
        """Write this process's files; the first process makes the checkpoint of them all."""
        try:
            self._check_place()
            if self.processes.first:
                self._build(place, files, shared)
                for step in dropped:
                    discard(self.path(step))
            elif shared:
                with building(self._share(place.step, self.processes.rank), replace=True) as folder:
                    write_json(_written(files, folder), folder / ROWS, inside=True)
        except OSError as error:
            needed = sum(
                tensor.nbytes for part in files.values() for tensor in part.tensors.values()
            )
            raise RegardError(
                f"cannot write checkpoint {place.step}: {no_room(error, self.folder, needed)}; the "
                "ones before it are whole, and the same command goes on from the last of them"
            ) from None

    def _build(self, place: Place, files: Mapping[str, Part], shared: bool) -> None:
        with building(self.path(place.step), replace=True) as folder:
            tables = _written(files, folder)
            for rank in range(1, self.processes.count) if shared else ():
                tables |= self._taken(self._share(place.step, rank), folder)
            names = sorted(path.name for path in folder.iterdir())
            content = {
                "format": FORMAT,
                "place": place.table(),
                "about": self.about,
                "files": {kind: [n for n in names if n.startswith(kind)] for kind in KINDS},
                "rows": tables,
            }
            write_json(sealed(content), folder / PLACE, inside=True)
            if (log := self.folder.parent / LOG).exists():
                sync(log)  # place.json says how long it is
            self._check_place()  # writing may have taken minutes

    def _share(self, step: int, rank: int) -> Path:
        return self.folder / f".{step}.share-{rank}"

    def _taken(self, share: Path, folder: Path) -> dict[str, Any]:
        """Move another process's files into a checkpoint's folder, once they are whole."""
        end = time.monotonic() + self.processes.patience.total_seconds()
        while not share.is_dir():
            if self._abandoned.is_set() or time.monotonic() > end:
                raise RegardError(f"the share {share} of a checkpoint did not come")
            time.sleep(0.02)
        tables = read_json(share / ROWS)
        (share / ROWS).unlink()
        for path in share.glob("*.safetensors"):
            path.rename(folder / path.name)
        discard(share)  # a network disk may keep what was removed in it a while longer
        return tables

    def clean(self) -> None:
        """Remove what a run that was killed left half done; before any process writes."""
        if self.processes.first:
            for path in self.folder.glob(".*.share-*"):
                discard(path)  # of a link the link alone
        self.processes.barrier()

    def path(self, step: int) -> Path:
        return self.folder / str(step)

    def _check_place(self) -> None:
        """Refuse to write into a folder that has taken the place of the run's own."""
        if self.lock is not None:
            self.lock.check()

    def check(self) -> None:
        """Raise what went wrong while writing, if writing is over."""
        self._check_place()
        if self._pending is not None and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Until this process's files are on disk; what went wrong there is raised here."""
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        try:
            # A signal that comes as the waiting begins is heard when it ends: so not in one go.
            while not wait([pending], HEARING).done:
                pass
            pending.result()
        except BaseException:
            self.steps, self.spare = self._before  # nothing came, and nothing went
            raise

    def abandon(self) -> None:
        """Training failed: what is being written may be finished, but nobody else is waited for."""
        self._abandoned.set()

    def close(self) -> None:
        try:
            self.wait()
        except RegardError:
            if not self._abandoned.is_set():  # else there is a reason before this one
                raise
        finally:
            self._writer.shutdown()

    def open(self, step: int) -> Checkpoint:
        """A checkpoint that this run wrote, whole on disk, and still as it was written."""
        self.wait()
        self.processes.barrier()
        try:
            found = Checkpoint(self.path(step))
            if self.processes.first:  # once is enough, and the others end with it
                found.verify()
        except RegardError as error:
            raise RegardError(f"{error}; {AGAIN}") from None
        return found

    def last(self, count: int) -> list[int]:
        """The last `count` steps that were kept, the oldest first; before the first none is."""
        return sorted(step for step in self.steps if step)[-count:]


def _table(tensor: Tensor) -> dict[str, Any]:
    """Which rows of the whole a share is; empty for what is whole."""
    held = rows(tensor)
    if held is None:
        return {}
    return {"shape": list(tensor.shape), "first": held[0], "last": held[1]}


def _written(files: Mapping[str, Part], folder: Path) -> dict[str, Any]:
    """Write files into a folder; which rows they hold, by file, where not all."""
    for name, part in files.items():
        write_safetensors(part.tensors, folder / name)
    return {name: part.rows for name, part in files.items() if part.rows}


def _pinned(size: int) -> Tensor:
    """Memory that a GPU can copy to by itself, as long as there is enough of it."""
    try:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)
    except RuntimeError:
        return torch.empty(size, dtype=torch.uint8)


def _padded(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED

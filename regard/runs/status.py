"""How runs stand, told from what is on disk: settings, the lock, checkpoints, the log.

Nothing is loaded whole that may be large, and nothing that is damaged is fatal: a listing of runs
must not fail because of one of them.
"""

import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from regard.errors import RegardError
from regard.families.settings import Settings
from regard.runs import recipes
from regard.runs.recipes import BESIDE
from regard.runs.run_folder import CHECKPOINTS, RUN, is_run
from regard.storage import read_file
from regard.storage.event_log import LOG
from regard.storage.lock import Holder, holder
from regard.storage.status_file import log_status, whole

Word = Literal[
    "running",
    "finished",
    "stopped early",
    "interrupted",
    "killed",
    "failed",
    "not begun",
    "damaged",
    "unreadable",
]
ENDS: dict[str, Word] = {  # reasons of an `end`
    "finished": "finished",
    "stopped early": "stopped early",
    "interrupted": "interrupted",
    "failed": "failed",
}
WAITS = (0.01, 0.1, 0.5)  # seconds until a file that has no name is looked for again
DEPTH = 4  # folders below each other in which runs are looked for


@dataclass(frozen=True)
class RunState:
    """How one run stands."""

    folder: Path
    word: Word
    reason: str  # why it failed or is damaged
    step: int = 0
    steps: int | None = None  # to do in all
    best_loss: float | None = None
    best_bleu: float | None = None  # of what is judged by what it writes
    best_step: int | None = None
    model: str = ""
    data: tuple[str, ...] = ()
    updated: float = 0.0  # seconds since 1970
    size: int = 0  # bytes
    holder: Holder | None = None
    checkpoints: tuple[int, ...] = ()  # their steps, the oldest first

    @property
    def can_go_on(self) -> bool:
        return self.word in ("interrupted", "killed", "failed") and bool(self.checkpoints)


def states(folder: Path) -> list[RunState]:
    """All runs in a folder, or that one run, the last changed first."""
    found: dict[str, Path] = {}
    for path in _runs(folder, DEPTH):
        found.setdefault(os.path.realpath(path), path)  # a link may lead to one of them
    return sorted(map(state, found.values()), key=lambda s: (-s.updated, str(s.folder)))


def _runs(folder: Path, depth: int) -> Iterator[Path]:
    if is_run(folder):
        yield folder
        return
    try:
        inner = sorted(os.scandir(folder), key=lambda e: (e.is_symlink(), e.name)) if depth else []
    except OSError:  # no folder, or not ours to read
        return
    for entry in inner:
        path = folder / entry.name
        if entry.name.startswith(".") or not entry.is_dir():
            continue
        if not entry.is_symlink():
            yield from _runs(path, depth - 1)
        elif is_run(path):  # else it may lead round in a circle
            yield path


def state(folder: Path) -> RunState:
    """How a run stands; a disk that is away for a moment is no damage."""
    try:
        return _state(folder)
    except OSError as error:
        why = f"cannot read {error.filename or folder}: {error.strerror}"
        return RunState(
            folder,
            "unreadable",
            why,
            updated=_updated(folder),
            size=_size(folder),
            holder=holder(folder),
            checkpoints=_checkpoints(folder),
        )


def _state(folder: Path) -> RunState:
    settings, reason = _settings(folder / RUN)
    held = holder(folder)  # before the log: a run that ends says so, then lets go of its lock
    log, saved = log_status(folder), _checkpoints(folder)
    if reason or log.damage:
        word: Word = "damaged"
    elif held:
        word = "running"
    elif log.last or saved:
        word = ENDS.get(str(log.end.get("reason")), "killed")
    else:
        word = "not begun"
    best = log.best
    return RunState(
        folder=folder,
        word=word,
        reason=reason or log.damage or _message(log.end),
        step=log.step or 0,
        steps=settings.training.steps if settings else whole(log.start.get("steps")),
        best_loss=best.loss if best else None,
        best_bleu=best.bleu if best else None,
        best_step=best.step if best else None,
        model=settings.model.preset if settings else str(log.start.get("model", "")),
        data=settings.data.train if settings else (),
        updated=_updated(folder),
        size=_size(folder),
        holder=held,
        checkpoints=saved,
    )


def _message(end: Mapping[str, Any]) -> str:
    return str(end.get("message", "")) if end.get("reason") == "failed" else ""


# What stands in the folder


def _settings(path: Path) -> tuple[Settings | None, str]:
    """The settings a run was begun with, or what is wrong with them."""
    try:
        found = recipes.parsed(_settled(path))
        tables = {key: value for key, value in found.items() if key not in BESIDE}
        return Settings().changed(tables, str(path)), ""
    except RegardError as error:
        return None, str(error).replace("\n  -", ";")
    except FileNotFoundError as error:
        return None, f"cannot read {path}: {error.strerror}"
    except (ValueError, RecursionError) as error:  # bad UTF-8 is a ValueError too
        return None, f"{path} is not readable TOML: {error}"


def _settled(path: Path) -> bytes:
    """The bytes of a file, which on network disks has no name while another takes its place."""
    for wait in WAITS:
        try:
            return read_file(path, recipes.MOST_BYTES)
        except FileNotFoundError:
            time.sleep(wait)
    return read_file(path, recipes.MOST_BYTES)


def _checkpoints(folder: Path) -> tuple[int, ...]:
    """The steps of the checkpoints; half of one has another name."""
    try:
        names = [entry.name for entry in os.scandir(folder / CHECKPOINTS) if entry.is_dir()]
    except OSError:
        return ()
    return tuple(sorted(int(name) for name in names if re.fullmatch("[0-9]{1,18}", name)))


def _updated(folder: Path) -> float:
    return max(_modified(folder / name) for name in (RUN, LOG, CHECKPOINTS))


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _size(folder: Path) -> int:
    """The bytes of all files; what goes while it is counted does not count."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(where, name)).st_size
            except OSError:
                continue
    return total

"""How runs stand, told from what is on disk: settings, the lock, checkpoints, the log's end.

Nothing is loaded whole that may be large, and nothing that is damaged is fatal: a listing of runs
must not fail because of one of them.
"""

import math
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from regard.errors import RegardError
from regard.families.file_names import RUN, WEIGHTS
from regard.families.settings import Settings
from regard.runs import recipes
from regard.runs.recipes import BESIDE
from regard.storage import read_file
from regard.storage.event_log import LOG, holed, parsed
from regard.storage.lock import Holder, holder

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
BLOCK, MOST = 1 << 18, 1 << 23  # bytes of a log that are read at once, and in all
LARGEST = 1 << 22  # bytes of a run.toml; a thousand files with long names take a tenth
BEGUN = (LOG, "checkpoints", WEIGHTS)  # any of them tells of a run, whatever its run.toml says
WAITS = (0.01, 0.1, 0.5)  # seconds until a file that has no name is looked for again
DEPTH = 4  # folders below each other in which runs are looked for


@dataclass(frozen=True)
class State:
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


def states(folder: Path) -> list[State]:
    """All runs in a folder, or that one run, the last changed first."""
    found: dict[str, Path] = {}
    for path in _runs(folder, DEPTH):
        found.setdefault(os.path.realpath(path), path)  # a link may lead to one of them
    return sorted(map(state, found.values()), key=lambda s: (-s.updated, str(s.folder)))


def _runs(folder: Path, depth: int) -> Iterator[Path]:
    if _is_run(folder):
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
        elif _is_run(path):  # else it may lead round in a circle
            yield path


def _is_run(folder: Path) -> bool:
    """Whether a folder has a run.toml that is not just a recipe of somebody's."""
    if not os.path.isfile(folder / RUN):  # unlike pathlib's, False where it may not be asked
        return False
    return any(os.path.lexists(folder / name) for name in BEGUN) or not _is_recipe(folder / RUN)


def _is_recipe(path: Path) -> bool:
    """Whether settings do not say what a run was made with; damaged ones may have."""
    try:
        found = recipes.parsed(read_file(path, LARGEST))
    except (OSError, ValueError, RecursionError):
        return False
    return "versions" not in found


def state(folder: Path) -> State:
    """How a run stands; a disk that is away for a moment is no damage."""
    try:
        return _state(folder)
    except OSError as error:
        why = f"cannot read {error.filename or folder}: {error.strerror}"
        return State(
            folder,
            "unreadable",
            why,
            updated=_updated(folder),
            size=_size(folder),
            holder=holder(folder),
            checkpoints=_checkpoints(folder),
        )


def _state(folder: Path) -> State:
    settings, reason = _settings(folder / RUN)
    held = holder(folder)  # before the log: a run that ends says so, then lets go of its lock
    told, saved = _told(folder / LOG), _checkpoints(folder)
    if reason or told.damage:
        word: Word = "damaged"
    elif held:
        word = "running"
    elif told.last or saved:
        word = ENDS.get(str(told.end.get("reason")), "killed")
    else:
        word = "not begun"
    return State(
        folder=folder,
        word=word,
        reason=reason or told.damage or _message(told.end),
        step=told.step or 0,
        steps=settings.training.steps if settings else _whole(told.start.get("steps")),
        best_loss=told.best_loss,
        best_bleu=told.best_bleu,
        best_step=told.best_step,
        model=settings.model.preset if settings else str(told.start.get("model", "")),
        data=settings.data.train if settings else (),
        updated=_updated(folder),
        size=_size(folder),
        holder=held,
        checkpoints=saved,
    )


# What stands in the folder


def _settings(path: Path) -> tuple[Settings | None, str]:
    """What a run was begun with, or what is wrong with that."""
    try:
        content = _settled(path)
        if len(content) > LARGEST:
            return None, f"{path} is too large to be a run's"
        found = recipes.parsed(content)
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
            return _content(path)
        except FileNotFoundError:
            time.sleep(wait)
    return _content(path)


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(LARGEST + 1)


def _checkpoints(folder: Path) -> tuple[int, ...]:
    """The steps of the checkpoints; half of one has another name."""
    try:
        names = [entry.name for entry in os.scandir(folder / "checkpoints") if entry.is_dir()]
    except OSError:
        return ()
    return tuple(sorted(int(name) for name in names if re.fullmatch("[0-9]{1,18}", name)))


def _updated(folder: Path) -> float:
    return max(_modified(folder / name) for name in (RUN, LOG, "checkpoints"))


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


# What the log says


@dataclass
class LogTail:
    """What is known of a log's end, read backwards."""

    last: Mapping[str, Any] = field(default_factory=dict)  # the last event
    start: Mapping[str, Any] = field(default_factory=dict)  # the last of its kind, if it was seen
    step: int | None = None
    best_loss: float | None = None
    best_bleu: float | None = None
    best_step: int | None = None
    damage: str = ""
    reach: float = math.inf  # the step that training went back to later
    known: bool = False  # which was the best

    @property
    def end(self) -> Mapping[str, Any]:
        """The event that ended it, if that is the last."""
        return self.last if self.last.get("event") == "end" else {}

    def take(self, event: Mapping[str, Any]) -> None:
        """One event more, which comes before those taken."""
        self.last = self.last or event
        kind, step = event.get("event"), _whole(event.get("step"))
        if kind == "back":
            step = _whole(event.get("to"))
        if kind == "start":
            self.start = self.start or event
        elif self.step is None:
            self.step = step
        if kind in ("back", "resume") and step is not None:
            self.reach = min(self.reach, step)
        self._take_best(kind, event, step)

    def _take_best(self, kind: Any, event: Mapping[str, Any], step: int | None) -> None:
        if self.known:
            return
        loss, bleu = _finite(event.get("loss")), _finite(event.get("bleu"))
        if kind == "end":
            step, loss = _whole(event.get("best_step")), _finite(event.get("best_loss"))
            bleu = _finite(event.get("best_bleu"))
            self.known = not step  # nothing was ever validated
        elif kind != "validation" or event.get("best") is not True:
            return
        if step and step <= self.reach and (loss is not None or bleu is not None):
            self.best_loss, self.best_step, self.known = loss, step, True
            self.best_bleu = bleu if loss is None else None


def _told(path: Path) -> LogTail:
    """Read a log from its end, as far as needed."""
    told = LogTail()
    try:
        regular = stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        regular = not os.path.islink(path)  # a link that leads nowhere is none
        if regular:
            return told
    if regular:
        _take(path, told)
    else:  # a pipe would wait for ever
        told.damage = f"{path} is no file"
    return told


def _take(path: Path, told: LogTail) -> None:
    seen = 0
    for line in _backwards(path):
        seen += 1
        event = parsed(line)
        if event is not None:
            told.take(event)
        elif not told.last and seen > 1 and not holed(line):  # what a kill tears has no newline
            told.damage = f"{path} ends in a line that is no event"
        if told.damage or (told.known and told.step is not None):
            return
    if not seen and path.stat().st_size:
        told.damage = f"{path} ends in a line that is too long to be an event"


def _backwards(path: Path) -> Iterator[bytes]:
    """Lines from the last (what stands behind the last newline) as far back as `MOST` bytes."""
    with path.open("rb") as file:
        place = file.seek(0, os.SEEK_END)
        least, rest = max(0, place - MOST), b""
        while place > least:
            begin = max(least, place - BLOCK)
            file.seek(begin)
            rest, *lines = (file.read(place - begin) + rest).split(b"\n")
            yield from reversed(lines)
            place = begin
        if not least:
            yield rest


def _whole(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 63 else None


def _finite(value: Any) -> float | None:
    good = type(value) in (int, float) and abs(value) < 1e300  # a whole number may be larger
    return float(value) if good else None


def _message(end: Mapping[str, Any]) -> str:
    return str(end.get("message", "")) if end.get("reason") == "failed" else ""

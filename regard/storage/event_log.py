"""Training is a stream of events, flat and small; who wants to know about it is a sink."""

import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, cast

from regard.errors import RegardError
from regard.storage import make_folder, no_room, opened, replacing

LOG, STATUS = "log.jsonl", "status.json"  # in the run's folder
LONGEST = 4 << 20  # bytes of a line
MEASURED = (
    "step",
    "validation",
    "evaluation",
    "end",
)  # events with numbers; in others "nan" may be a word
COUNTED = ("step", "to")  # whole numbers, of every event; null for what is not known
NUMBERS = (
    "loss",
    "bleu",
    "learning_rate",
    "gradient_norm",
    "tokens",
    "tokens_per_second",
)  # of what is measured, null too
MOST = 1e100  # of a number that can be drawn; what diverges is infinite long before
NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class Sink(Protocol):
    """Takes each event as it happens: a log, a terminal, TensorBoard."""

    def write(self, event: Mapping[str, Any]) -> None:
        """Take one event: its kind is in "event", its place in "step" and "time"."""

    def close(self) -> None:
        """Finish; nothing is written afterwards."""


class Sinks(Sink):
    """Several sinks as one, in their order."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self.sinks = list(sinks)

    def write(self, event: Mapping[str, Any]) -> None:
        for sink in self.sinks:
            sink.write(event)

    def close(self) -> None:
        """Close all, even when one of them fails: a terminal must come back to life."""
        try:
            while self.sinks:
                self.sinks.pop(0).close()
        finally:
            if self.sinks:
                self.close()


class Log(Sink):
    """A run's own record, one event a line in `log.jsonl`.

    A run that goes on does so in the file, behind the first `kept` bytes: those of its checkpoint.
    """

    def __init__(self, folder: str | Path, kept: int | None = None) -> None:
        self.path = Path(folder) / LOG
        self.place = 0  # where the last line begins
        try:
            make_folder(self.path.parent)
            if self.path.is_symlink():
                raise ValueError("it is a link, and what it leads to would be cut off")
            _part(self.path)
            if kept is not None and self.path.exists():
                with suppress(OSError):  # it tells of what is cut off
                    self.path.with_name(STATUS).unlink()
                os.truncate(self.path, min(kept, self.path.stat().st_size))
            _mend(self.path)
            # Unbuffered: what a killed run has logged, it has logged, and what did not fit on the
            # disk is not tried again by `close`.
            self._file = self.path.open("ab", buffering=0)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise RegardError(f"cannot write the log {self.path}: {reason}") from None

    def write(self, event: Mapping[str, Any]) -> None:
        # ASCII, because a model may write half a surrogate pair, which UTF-8 cannot hold.
        plain = {key: _spelled(value) for key, value in event.items()}
        line = json.dumps(plain, allow_nan=False).encode("ascii") + b"\n"
        self.place, rest = self._file.seek(0, os.SEEK_END), line
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            with suppress(OSError):
                self._file.truncate(self.place)  # no torn line, should somebody go on
            reason = no_room(error, self.path.parent, len(line))
            raise RegardError(
                f"cannot write the log {self.path}: {reason}; the last checkpoint stays good"
            ) from None

    @property
    def is_there(self) -> bool:
        """Whether its folder was not moved away, nor another one put in its place."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._file.fileno()))
        except OSError:
            return False

    def close(self) -> None:
        with suppress(OSError):  # checkpoints are saved, and a run whose end is not logged resumes
            os.fsync(self._file.fileno())
        self._file.close()


def read(path: str | Path) -> list[dict[str, Any]]:
    """The events in a log, or in the log of a run's folder.

    What a kill or a power cut left is no event: a torn last line, or zeros for what was not on the
    disk yet.
    """
    path = Path(path)
    path = path / LOG if path.is_dir() else path
    events = []
    try:
        with opened(path) as file:
            for number, line in enumerate(iter(lambda: file.readline(LONGEST), b""), start=1):
                event = parsed(line)
                if event is not None and _is_sound(event):
                    events.append(event)
                elif event is not None or (
                    not holed(line) and (line.endswith(b"\n") or len(line) == LONGEST)
                ):
                    raise RegardError(
                        f"{path}, line {number}: not an event; remove the line to go on"
                    )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RegardError(f"cannot read the log {path}: {reason}") from None
    return events


def parsed(line: bytes) -> dict[str, Any] | None:
    """An event, or None for what is not a whole one; no beginning of an object is an object."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict):
        return None
    if _is_measured(event):
        return {key: NOT_FINITE.get(v, v) if isinstance(v, str) else v for key, v in event.items()}
    return event


def holed(line: bytes) -> bool:
    """Whether a power cut left zeros in place of a part of an event, which has none."""
    return b"\0\0" in line and line.strip(b"\0\n") != b""  # one may be a bit that flipped


def _is_measured(event: Mapping[str, Any]) -> bool:
    return event.get("event") in MEASURED


def _is_sound(event: Mapping[str, Any]) -> bool:
    """Whether its kind, place and numbers are of their types: logs are passed on, and anybody may
    have made one."""
    numbers = NUMBERS if _is_measured(event) else ()
    return (
        isinstance(event.get("event"), str)
        and all(is_count(event[key]) for key in COUNTED if event.get(key) is not None)
        and is_number(event.get("time", 0.0))
        and all(is_number(event[key]) for key in numbers if event.get(key) is not None)
    )


def is_count(value: object) -> bool:
    """True for a whole number that a step, say, may have."""
    return type(value) is int and 0 <= value < 1 << 63


def is_number(value: object) -> bool:
    """Whether it can be drawn, is infinite, or is NaN."""
    if type(value) is float and not math.isfinite(value):
        return True
    return type(value) in (int, float) and abs(cast(float, value)) < MOST


def _spelled(value: Any) -> Any:
    """JSON has no NaN and no infinity, so they go as the strings "nan", "inf" and "-inf"."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _part(path: Path) -> None:
    """Give a log that has other names too (`cp -al` keeps a copy so) a file of its own."""
    if path.is_file() and path.stat().st_nlink > 1:
        with replacing(path) as partial:
            shutil.copyfile(path, partial)


def _mend(path: Path) -> None:
    """Take away a torn last line, so that what follows starts on a line of its own."""
    if not path.exists():
        return
    with opened(path) as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - LONGEST))
        tail = file.read()
    torn = tail[tail.rfind(b"\n") + 1 :]
    if len(torn) == LONGEST:
        raise ValueError("its last line is too long for an event; move the file away")
    if torn and parsed(torn) is None:
        os.truncate(path, end - len(torn))
    elif torn:
        with path.open("ab") as file:
            file.write(b"\n")

"""`status.json`: how a run stands, kept beside its log so that nobody reads a long log whole.

The log decides. The file holds what the log said up to some line, and where that line begins:
whoever looks reads the log on from there, so that a kill between a line and the file hides nothing.
Where the file is missing, torn, or of another log, the last `TAIL` bytes of the log are read.
"""

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

from regard.storage.event_log import LOG, LONGEST, STATUS, Log, Sink, holed, is_count, parsed
from regard.storage.reading import opened, parse_json, read_file
from regard.storage.writing import replacing

SECONDS = 1.0  # from a report of a step to the next that is written down
LARGEST = 1 << 16  # bytes of a status.json
TAIL = LONGEST + 1  # bytes of a log: the end of a line that is not read, and the longest line
BESTS = 100  # that are kept, should training go back
SHOWN = 1000  # characters of a message


class Best(NamedTuple):
    """A validation that was better than all before it."""

    step: int
    loss: float | None
    bleu: float | None  # of what is judged by what it writes


@dataclass
class LogStatus:
    """What a log says of its run."""

    last: Mapping[str, Any] = field(default_factory=dict)  # the last event
    start: Mapping[str, Any] = field(default_factory=dict)  # the last of its kind
    step: int | None = None
    bests: list[Best] = field(default_factory=list)  # by their steps
    damage: str = ""

    @property
    def end(self) -> Mapping[str, Any]:
        """The event that ended the run, if that is the last."""
        return self.last if self.last.get("event") == "end" else {}

    @property
    def best(self) -> Best | None:
        return self.bests[-1] if self.bests else None

    def take(self, event: Mapping[str, Any]) -> None:
        """Add the next event; one that was taken already changes nothing."""
        self.last = event
        kind = event.get("event")
        step = whole(event.get("to" if kind == "back" else "step"))
        if kind == "start":
            self.start = event
        elif step is not None:
            self.step = step
        if kind in ("back", "resume") and step is not None:  # what came after has not happened
            self.bests = [best for best in self.bests if best.step <= step]
        elif kind == "validation" and event.get("best") is True:
            self.take_best(step, event.get("loss"), event.get("bleu"))
        elif kind == "end" and "best_step" in event:
            if not event["best_step"]:
                self.bests = []
            self.take_best(
                whole(event["best_step"]), event.get("best_loss"), event.get("best_bleu")
            )

    def take_best(self, step: int | None, loss: Any, bleu: Any) -> None:
        loss, bleu = _finite(loss), _finite(bleu)
        if step and (loss is not None or bleu is not None):
            earlier = [best for best in self.bests if best.step < step]
            found = Best(step, loss, bleu if loss is None else None)
            self.bests = [*earlier, found][-BESTS:]

    def spelled(self, place: int) -> str:
        """The content of status.json, where `place` is that of the last line in the log."""
        found = {
            "word": str(self.end.get("reason", "running")),
            "message": str(self.end.get("message", ""))[:SHOWN],
            "step": self.step,
            "steps": whole(self.start.get("steps")),
            "model": str(self.start.get("model", ""))[:SHOWN],
            "bests": self.bests,
            "log": place,
        }
        return json.dumps(found, allow_nan=False) + "\n"


class StatusFile(Sink):
    """Keeps status.json beside a log, to which each event goes first."""

    def __init__(self, log: Log) -> None:
        self.log, self.path = log, log.path.with_name(STATUS)
        self.status = log_status(log.path.parent)
        self._due = 0.0

    def write(self, event: Mapping[str, Any]) -> None:
        self.status.take(event)
        now = time.monotonic()
        if event.get("event") == "step" and now < self._due:
            return
        self._due = now + SECONDS
        with suppress(OSError):  # the log says it too
            if self.log.is_there:
                with replacing(self.path, lasting=False) as partial:
                    partial.write_text(self.status.spelled(self.log.place), encoding="ascii")

    def close(self) -> None:
        """Nothing is open between events."""


def log_status(folder: Path) -> LogStatus:
    """What the log in a folder says; little of it is read, whatever its size."""
    path = folder / LOG
    try:
        with opened(path) as file:
            status, damage = _read_on(file, *_noted(folder / STATUS))
    except FileNotFoundError:  # a link that leads nowhere is no log that has yet to be written
        status, damage = LogStatus(), "is no file" if os.path.islink(path) else ""
    except ValueError:
        status, damage = LogStatus(), "is no file"
    status.damage = f"{path} {damage}" if damage else ""
    return status


def _noted(path: Path) -> tuple[LogStatus, int]:
    """What a status.json holds, and where to read on in the log; -1 if it cannot be used."""
    try:
        found = parse_json(read_file(path, LARGEST))
        start = {"model": found["model"], "steps": found["steps"]}
        status, place = LogStatus(start=start, step=whole(found["step"])), whole(found["log"])
        for step, loss, bleu in found["bests"]:
            status.take_best(whole(step), loss, bleu)
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return LogStatus(), -1
    return status, -1 if place is None else place


def _read_on(file: IO[bytes], status: LogStatus, place: int) -> tuple[LogStatus, str]:
    """A status with what the log says from a place on, or by its last part; what is wrong there."""
    size = os.fstat(file.fileno()).st_size
    line = b""
    if 0 <= place < size <= place + TAIL:
        file.seek(place)
        line = file.readline(LONGEST)
    if parsed(line) is None:  # that is another log, or the file was written before it was cut off
        status, place = LogStatus(), max(0, size - TAIL)
        file.seek(place)
        if place:  # in the middle of a line
            file.readline(LONGEST)
        line = file.readline(LONGEST)
    known, damage = not place, ""
    while line:
        event, ended = parsed(line), line.endswith(b"\n")  # what a kill tears has no newline
        if event is not None:
            status.take(event)
            damage = ""
        elif ended and not holed(line):
            damage = "ends in a line that is no event"
        known |= ended or event is not None
        line = file.readline(LONGEST)
    return status, damage if known else "ends in a line that is too long to be an event"


def whole(value: Any) -> int | None:
    """The value if it is a count."""
    return value if is_count(value) else None


def _finite(value: Any) -> float | None:
    good = type(value) in (int, float) and abs(value) < 1e300  # a whole number may be larger
    return float(value) if good else None

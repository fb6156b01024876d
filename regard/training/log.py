"""Training is a stream of events, flat and small; who wants to know about it is a sink."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from regard.errors import RegardError

LOG = "log.jsonl"  # in the run's folder
MEASURED = (
    "step",
    "validation",
    "evaluation",
    "end",
)  # events with numbers; in others "nan" may be a word
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
    """A run's own record, one event a line in `log.jsonl`; a resumed run goes on in the file."""

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / LOG
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _mend(self.path)
            self._file = self.path.open("a", encoding="ascii", newline="\n")
        except OSError as error:
            raise RegardError(f"cannot write the log {self.path}: {error.strerror}") from None

    def write(self, event: Mapping[str, Any]) -> None:
        # ASCII, because a model may write half a surrogate pair, which UTF-8 cannot hold.
        plain = {key: _spelled(value) for key, value in event.items()}
        line = json.dumps(plain, allow_nan=False)
        try:
            self._file.write(line + "\n")
            self._file.flush()  # what a killed run has logged, it has logged
        except OSError as error:
            raise RegardError(f"cannot write the log {self.path}: {error.strerror}") from None

    def close(self) -> None:
        self._file.close()


def read(path: str | Path) -> list[dict[str, Any]]:
    """The events in a log, or in the log of a run's folder, without a last line torn by a kill."""
    path = Path(path)
    path = path / LOG if path.is_dir() else path
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise RegardError(f"cannot read the log {path}: {error.strerror}") from None
    events = []
    for number, line in enumerate(lines, start=1):
        event = _parsed(line)
        if event is not None:
            events.append(event)
        elif number < len(lines):  # every whole line ends with a newline
            raise RegardError(f"{path}, line {number}: not an event; remove the line to go on")
    return events


def _parsed(line: bytes) -> dict[str, Any] | None:
    """An event, or None for what is not a whole one; no beginning of an object is an object."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict):
        return None
    if event.get("event") in MEASURED:
        return {key: NOT_FINITE.get(v, v) if isinstance(v, str) else v for key, v in event.items()}
    return event


def _spelled(value: Any) -> Any:
    """JSON has no NaN and no infinity, so they go as the strings "nan", "inf" and "-inf"."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _mend(path: Path) -> None:
    """Take away a torn last line, so that what follows starts on a line of its own."""
    if not path.exists():
        return
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole == len(data):
        return
    if _parsed(data[whole:]) is None:
        with path.open("r+b") as file:
            file.truncate(whole)
    else:
        with path.open("ab") as file:
            file.write(b"\n")

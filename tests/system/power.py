"""The disks that a power cut may leave, by what a child did to its files (see power_recorder).

Only what was fsynced is sure: the content of a file when it was, the names in a folder when that
was. All else may be lost or kept, each for itself: a name that was given, moved or taken away; of a
content nothing, a beginning, zeros for the rest or for some blocks. A rename is one thing, as file
systems with a journal promise.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BLOCK = 512
Event = list[Any]


@dataclass
class Disk:
    """What is sure and what is not at some moment."""

    blobs: Path
    names: dict[int, dict[str, int]] = field(default_factory=lambda: {0: {}})  # sure, by folder
    pending: list[Event] = field(default_factory=list)  # changes of names that are not
    sure: dict[int, str] = field(default_factory=dict)  # contents, by hash
    now: dict[int, str] = field(default_factory=dict)
    last: int = -1  # what this event fsynced
    seen: dict[int, dict[str, int]] = field(default_factory=lambda: {0: {}})  # as processes see it

    def take(self, event: Event) -> None:
        kind, self.last = event[0], -1
        if kind == "begin":
            for number in [0, *self.names]:
                self._sync(number)
            self.sure = dict(self.now)
        elif kind == "content":
            self.now[event[1]] = event[2]
        elif kind == "sync":
            self.last = event[1]
            self._sync(event[1])
            if event[1] in self.now:
                self.sure[event[1]] = self.now[event[1]]
        else:
            if kind == "link" and event[4] == "folder":
                self.names[event[3]], self.seen[event[3]] = {}, {}
            self.pending.append(event)
            _apply(self.seen, event)

    def _sync(self, folder: int) -> None:
        mine = [event for event in self.pending if folder in _folders(event)]
        self.pending = [event for event in self.pending if event not in mine]
        for event in mine:
            _apply(self.names, event)

    def lost(self) -> bool:
        """Whether what was just fsynced has a name for good, but within what may be lost."""
        seen = {number for number, name in _reached(self.seen, 0, "") if "/." not in name}
        return self.last in seen and self.last not in dict(_reached(self.names, 0, ""))

    def left(self, rng: random.Random, into: Path) -> str:
        """Make one of the trees that may be left in an empty folder; how it was chosen."""
        names = {folder: dict(inner) for folder, inner in self.names.items()}
        how = rng.choice(["sure alone", "names alone", "all", "some", "some", "contents alone"])
        share = {"sure alone": 0.0, "contents alone": 0.0, "some": rng.random()}.get(how, 1.0)
        for event in self.pending:
            if rng.random() < share:
                _apply(names, event)
        whole = {"all": 1.0, "contents alone": 1.0, "some": rng.random()}.get(how, 0.0)
        self._make(names, 0, into, rng, whole)
        return how

    def _make(self, names: Any, folder: int, into: Path, rng: random.Random, whole: float) -> None:
        into.mkdir(parents=True, exist_ok=True)
        for name, number in names[folder].items():
            if number in names:
                self._make(names, number, into / name, rng, whole)
            else:
                (into / name).write_bytes(self._content(number, rng, whole))

    def _content(self, number: int, rng: random.Random, whole: float) -> bytes:
        old, new = self._read(self.sure.get(number)), self._read(self.now.get(number))
        if old == new or rng.random() < whole:
            return new
        # What was added to keeps its beginning, also where it was cut before.
        kept = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), None)
        kept = min(len(old), len(new)) if kept is None else kept
        cut = rng.randint(kept, len(new))
        zeros = bytes(len(new) - cut)
        torn = _torn(new, kept, rng)
        return rng.choice([old, new[:kept], new[:cut], new[:cut] + zeros, torn])

    def _read(self, name: str | None) -> bytes:
        return (self.blobs / name).read_bytes() if name else b""


def _reached(names: dict[int, dict[str, int]], folder: int, path: str) -> Iterator[tuple[int, str]]:
    """All files and folders that have a name, with it."""
    for name, number in names[folder].items():
        yield number, f"{path}/{name}"
        if number in names:
            yield from _reached(names, number, f"{path}/{name}")


def _folders(event: Event) -> list[int]:
    return [event[1], event[3]] if event[0] == "move" else [event[1]]


def _apply(names: dict[int, dict[str, int]], event: Event) -> None:
    """A change of names, if what it changes is there."""
    kind, folder, name = event[:3]
    if kind == "link":
        names[folder].setdefault(name, event[3])
    elif kind == "unlink":
        names[folder].pop(name, None)
    elif name in names[folder]:
        names[event[3]][event[4]] = names[folder].pop(name)


def _torn(new: bytes, kept: int, rng: random.Random) -> bytes:
    """Behind `kept` bytes some blocks are there, others are zeros."""
    blocks = [slice(at, min(at + BLOCK, len(new))) for at in range(kept, len(new), BLOCK)]
    return new[:kept] + b"".join(rng.choice([new[b], bytes(b.stop - b.start)]) for b in blocks)


def events(record: Path) -> list[Event]:
    return [json.loads(line) for line in (record / "events").read_text().splitlines()]


def cuts(record: Path) -> Iterator[tuple[int, Disk]]:
    """The disk behind each event since the child began; it changes with the next."""
    disk, begun = Disk(record), False
    for number, event in enumerate(events(record)):
        disk.take(event)
        begun = begun or event[0] == "begin"
        if begun:
            yield number, disk

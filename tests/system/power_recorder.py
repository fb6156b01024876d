"""What a child does to the files below a folder, in order: names, contents, and what it fsyncs.

A child calls `recorded` before it runs. Each function of `os` that changes names is watched, and
the folder looked at before and behind it; so what a library wrote unseen is found all the same.
Events are JSON lines in `OUT/events`, contents lie beside them by hash:

    ["link", folder, name, id, kind]    a new file or folder (they are numbered; the root is 0)
    ["move", folder, name, folder, name]
    ["unlink", folder, name]
    ["content", id, hash]
    ["sync", id]
"""

import hashlib
import json
import os
import stat
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

NAMING = ("replace", "rename", "unlink", "remove", "rmdir", "mkdir", "open", "truncate", "link")
RECENT = 50_000_000  # nanoseconds: clocks of files are coarse
OWN = (".out", ".operations")  # of the nursery

Place = tuple[int, str]  # number of a folder, name in it


class Recorder:
    """Finds what has changed below a folder since it was looked at last."""

    def __init__(self, root: str, out: str) -> None:
        self.root, self.out = root, Path(out)
        self.out.mkdir(parents=True)
        self.events = os.open(self.out / "events", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.numbers: dict[int, int] = {os.stat(root).st_ino: 0}  # inode: number
        self.count = 1
        self.names: dict[Place, int] = {}
        self.seen: dict[int, tuple[int, int]] = {}  # number: size, time of the last change
        self.hashes: dict[int, str] = {}
        self.lock, self.looking = threading.RLock(), False
        self.scandir, self.write = os.scandir, os.write

    def tell(self, *event: Any) -> None:
        self.write(self.events, json.dumps(event).encode() + b"\n")

    def look(self) -> None:
        if self.looking:
            return
        self.looking = True
        try:
            names: dict[Place, int] = {}
            fresh: dict[int, str] = {}
            files: list[tuple[int, str, os.stat_result]] = []
            self._walk(self.root, 0, names, fresh, files)
            self._tell_names(names, fresh)
            for number, path, found in files:
                self._tell_content(number, path, found)
        finally:
            self.looking = False

    def _walk(self, path: str, number: int, names: Any, fresh: Any, files: Any) -> None:
        for entry in sorted(self.scandir(path), key=lambda entry: entry.name):
            if not number and entry.name.startswith(OWN):
                continue
            try:
                found = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            inner = self.numbers.get(found.st_ino)
            if inner not in (*self.names.values(), *names.values()):
                inner = None  # its names went while another thread was looked at
            folder = stat.S_ISDIR(found.st_mode)
            if inner is None:
                inner, self.count = self.count, self.count + 1
                self.numbers[found.st_ino] = inner
                fresh[inner] = "folder" if folder else "file"
            names[number, entry.name] = inner
            if folder:
                self._walk(entry.path, inner, names, fresh, files)
            else:
                files.append((inner, entry.path, found))

    def _tell_names(self, names: dict[Place, int], fresh: dict[int, str]) -> None:
        """One function of `os` was called since the last time, or files were made beside."""
        gone = {n: place for place, n in self.names.items() if names.get(place) != n}
        new = {place: n for place, n in names.items() if self.names.get(place) != n}
        for place, number in new.items():
            if number in fresh:
                self.tell("link", *place, number, fresh[number])
            else:
                self.tell("move", *gone.pop(number), *place)
        for number, place in gone.items():
            if place not in names:
                self.tell("unlink", *place)
            for inode in [i for i, n in self.numbers.items() if n == number]:
                del self.numbers[inode]  # which another file may have next
        self.names = names

    def _tell_content(self, number: int, path: str, found: os.stat_result) -> None:
        key = (found.st_size, found.st_mtime_ns)
        if self.seen.get(number) == key and time.time_ns() - found.st_mtime_ns > RECENT:
            return
        self.seen[number] = key
        try:
            content = Path(path).read_bytes()
        except FileNotFoundError:
            return
        name = hashlib.blake2b(content, digest_size=16).hexdigest()
        if self.hashes.get(number) != name:
            self.hashes[number] = name
            if not (self.out / name).exists():
                (self.out / name).write_bytes(content)
            self.tell("content", number, name)

    def watched(self, found: Callable[..., Any]) -> Callable[..., Any]:
        def call(*values: Any, **named: Any) -> Any:
            if self.looking:
                return found(*values, **named)
            with self.lock:
                self.look()
                try:
                    return found(*values, **named)
                finally:
                    self.look()

        return call

    def synced(self, fsync: Callable[[int], None]) -> Callable[[int], None]:
        def call(descriptor: int) -> None:
            with self.lock:
                self.look()
                number = self.numbers.get(os.fstat(descriptor).st_ino)
                fsync(descriptor)
                if number is not None:
                    self.tell("sync", number)

        return call


def recorded(given: dict[str, str]) -> None:
    recorder = Recorder(given["folder"], given["out"])
    recorder.look()
    recorder.tell("begin")  # what is there by now is on the disk
    for name in NAMING:
        setattr(os, name, recorder.watched(getattr(os, name)))
    os.fsync = recorder.synced(os.fsync)

    def audit(event: str, values: tuple[Any, ...]) -> None:
        if event == "open" and not recorder.looking and recorder.lock.acquire(blocking=False):
            try:
                recorder.look()
            finally:
                recorder.lock.release()

    sys.addaudithook(audit)


def saved(given: dict[str, Any]) -> None:
    """A model is saved in the place of another one."""
    import torch

    import regard
    from regard.models.construction import build
    from regard.models.transformer.presets import preset

    def save(number: float, activation: str) -> None:
        sizes = {"vocabulary": 11, "width": 8, "heads": 2, "layers": 1, "context": 8, "hidden": 16}
        module = build(replace(preset("gpt2-tiny"), **sizes, activation=activation))
        with torch.no_grad():
            for weight in module.parameters():
                weight.fill_(number)
        regard.save(module, Path(given["folder"], "model"), given["shard"])

    save(1.0, "gelu-tanh")
    recorded(given)
    save(2.0, given["activation"])

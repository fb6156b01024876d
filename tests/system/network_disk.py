"""What network disks do that local ones do not, for children (see nursery); hooks take one value
that JSON can hold.

Python's calls are what is changed: libraries that open files themselves see the real disk.
"""

import builtins
import errno
import fcntl
import io
import os
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Given = dict[str, Any]
READS = ("stat", "lstat", "scandir", "listdir", "open", "read")
WRITES = ("fsync", "replace", "rename", "mkdir", "unlink", "create", "close", "truncate")
GAP = 0.003  # seconds without a name, while another takes its place
GRAIN = 2  # seconds


def named(target: Any) -> str:
    """The path that a function of `os` is called with, also by a descriptor."""
    try:
        if isinstance(target, int):
            return os.readlink(f"/proc/self/fd/{target}")
        return os.path.abspath(os.fsdecode(target))
    except (OSError, TypeError, ValueError):
        return ""


class Faults:
    """The `number`-th of the calls of these `kinds` whose path matches fails with an `error`."""

    def __init__(self, given: Given) -> None:
        self.match, self.kinds = re.compile(given["match"]), given["kinds"]
        self.error, self.left = given["error"], given["number"]
        self.told = given.get("told")
        self.busy = False

    def count(self, kind: str, target: Any) -> None:
        if kind not in self.kinds or self.busy:
            return
        self.busy = True
        path = named(target)
        self.busy = False
        if self.match.search(path):
            self.left -= 1
            if not self.left:
                if self.told:
                    Path(self.told).write_text(f"{kind} {path}")
                raise OSError(self.error, os.strerror(self.error), path)

    def before(self, name: str, kind: str) -> None:
        found = getattr(os, name)

        def call(target: Any, *values: Any, **more: Any) -> Any:
            self.count(kind, target)
            return found(target, *values, **more)

        setattr(os, name, call)


def failing(given: Given) -> None:
    """One call fails, as on a disk that is away for a moment, or says late that it is full."""
    faults = Faults(given)
    plain_open, plain = os.open, io.open
    for name in ("stat", "lstat", "scandir", "listdir", "fsync", "mkdir", "truncate"):
        faults.before(name, name)
    for name in ("replace", "rename", "unlink"):
        faults.before(name, name)

    def opened(path: Any, flags: int, *values: Any, **more: Any) -> int:
        writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        faults.count("create" if writes else "open", path)
        return plain_open(path, flags, *values, **more)

    def file(path: Any, mode: str = "r", *values: Any, **more: Any) -> Any:
        writes = bool(set(mode) & set("wax+"))
        faults.count("create" if writes else "open", path)
        made = plain(path, mode, *values, **more)
        if isinstance(path, int) or not faults.match.search(named(path)):
            return made
        return _Late(made, faults) if writes else _Stale(made, faults)

    os.open = opened
    io.open = builtins.open = file


class _Wrapped:
    """A file of which some calls may fail."""

    def __init__(self, file: Any, faults: Faults) -> None:
        self.file, self.faults = file, faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def __iter__(self) -> Any:
        return iter(self.file)

    def close(self) -> None:
        self.file.close()


class _Late(_Wrapped):
    """What was written turns out not to fit when the file is closed."""

    def close(self) -> None:
        if not self.file.closed:
            path = self.file.name
            self.file.close()
            self.faults.count("close", path)


class _Stale(_Wrapped):
    """The file is another one on the server by the time it is read."""

    def read(self, *values: Any) -> Any:
        self.faults.count("read", self.file.name)
        return self.file.read(*values)


def remote(given: Given) -> None:
    """No flock, no fsync of a folder, times in steps of two seconds, links that are not counted, a
    moment without a name while a file takes another's place, and files that are removed keep a name
    like `.nfs0001`, so that their folders stay."""
    replace, fsync, unlink, plain_stat, lstat = os.replace, os.fsync, os.unlink, os.stat, os.lstat
    count = 0

    def flock(*values: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    def slowly(source: Any, target: Any, **more: Any) -> None:
        if os.path.lexists(target):
            aside = f"{os.fspath(target)}.gap"
            replace(target, aside)
            time.sleep(GAP)
            replace(source, target)
            if stat.S_ISDIR(lstat(aside).st_mode):
                os.rmdir(aside)
            else:
                unlink(aside)
        else:
            replace(source, target)

    def synced(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        fsync(descriptor)

    def kept(path: Any, *, dir_fd: int | None = None) -> None:
        nonlocal count
        count += 1
        name = os.fspath(path)
        left = os.path.join(os.path.dirname(name), f".nfs{os.getpid():06x}{count:06x}")
        os.rename(name, left, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)

    def coarse(look: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
        def call(*values: Any, **more: Any) -> os.stat_result:
            found = look(*values, **more)
            whole = [*found[:10]]
            whole[3] = 7  # links
            whole[7:] = [int(t) // GRAIN * GRAIN for t in whole[7:]]
            times = {f"st_{n}time": float(whole[7 + i]) for i, n in enumerate("amc")}
            times |= {f"{name}_ns": int(t * 10**9) for name, t in times.items()}
            return os.stat_result(whole, times)

        return call

    fcntl.flock = flock
    os.replace, os.fsync, os.unlink, os.remove = slowly, synced, kept, kept
    os.stat, os.lstat = coarse(plain_stat), coarse(lstat)

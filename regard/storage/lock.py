"""One writer for a run: who trains it holds a lock on its folder, and loses it with the process.

The lock is `flock`'s on the file `.lock`: the kernel drops it however the process dies, so a file
that was left behind stops nobody. POSIX record locks (`lockf`) would not do: a process loses those
as soon as it closes any other descriptor of the file, as `holder` does.

Some network file systems have no `flock`. There the file itself is the lock: whoever could make it
holds it, and it can be inherited from a process of the same machine that is gone. What another
machine left cannot be judged, so the sentence then says what to remove. Refusing to train there
would cost more than this weaker promise.
"""

import errno
import fcntl
import json
import os
import platform
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from regard.errors import RegardError
from regard.storage import make_folder, sync
from regard.terminal import literal

LOCK = ".lock"  # in the run's folder
NO_FLOCK = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS)
READ = 4096  # bytes of the file that are looked at, whatever its size
TRIES, PAUSE = 10, 0.02  # `holder` takes the lock for an instant, which must refuse nobody
FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK  # a link leads elsewhere, and a pipe would wait for ever


@dataclass(frozen=True)
class Holder:
    """Who trains a run, as far as its lock tells."""

    host: str = ""
    process: int = 0
    since: datetime | None = None
    certain: bool = True  # the kernel says so, not only the file

    @property
    def words(self) -> str:
        if not self.process:
            return "another process"
        since = f" since {self.since:%Y-%m-%d %H:%M}" if self.since else ""
        return f"process {self.process} on host {self.host}{since}"


class Lock:
    """`with Lock(folder):` makes the folder if need be, and nobody else writes to it meanwhile."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / LOCK
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        try:
            make_folder(self.folder)
            self._descriptor = _patiently(self.path)
            sync(self.folder)  # by the lock a folder that is but half begun is known as ours
        except OSError as error:
            raise RegardError(f"cannot lock {self.folder}: {error.strerror}") from None
        if self._descriptor is None:
            raise RegardError(_refusal(self.folder))
        # A forked child shares the lock and would keep it when this process has been killed.
        forget = weakref.WeakMethod(self._forget)
        os.register_at_fork(after_in_child=lambda: (call := forget()) and call())
        return self

    def __exit__(self, *error: object) -> None:
        if self._descriptor is None:
            return
        # Closing alone would not free it where a library has forked unseen.
        with suppress(OSError):  # the folder may be gone, or be somebody else's by now
            if self.is_ours:
                self.path.unlink()
        self._forget()

    def seen(self) -> Self:
        """Know the lock that another process of the same job holds, where it can be seen."""
        with suppress(OSError):
            self._descriptor = os.open(self.path, os.O_RDONLY | FLAGS)
        return self

    def check(self) -> None:
        """Refuse to write into a folder that has taken the place of the one that was locked."""
        if self._descriptor is None:
            return
        try:
            there = _is_at(self.path, self._descriptor)
        except OSError as error:  # a network disk that is away
            raise RegardError(
                f"{self.folder} cannot be looked at: {error.strerror}; what was saved is whole, "
                "and the same command goes on from there"
            ) from None
        if not there:
            raise RegardError(self._moved(self._descriptor))

    @property
    def is_ours(self) -> bool:
        """Whether the lock in the folder is the one that was taken or seen; False if unknown."""
        with suppress(OSError):
            return self._descriptor is not None and _is_at(self.path, self._descriptor)
        return False

    def _moved(self, descriptor: int) -> str:
        """What became of the folder, as far as the system tells where an open file lies now."""
        there = Path()
        with suppress(OSError):
            there = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if there.name != LOCK:
            gone = f"{self.folder} or its {LOCK} was moved or removed while it was being trained"
            return f"{gone}; training stops, and nothing was written over"
        return (
            f"{self.folder} was moved to {there.parent} while it was being trained; what was saved "
            "is there, whole, and the same command with that as --out resumes it"
        )

    def _forget(self) -> None:
        """Close our descriptor; the lock stays as long as another process has one."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None


def holder(folder: Path) -> Holder | None:
    """Who holds the lock on a folder now; it is not taken."""
    with suppress(OSError), _reading(folder / LOCK) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _read(descriptor)
        except OSError:  # no flock here
            found = replace(_read(descriptor), certain=False)
            return None if _gone(found) else found
    return None


def signature(folder: Path) -> str:
    """The content of the lock's file, by which others know it again; empty if it is not there."""
    with suppress(OSError), _reading(folder / LOCK) as descriptor:  # it may be a pipe
        return os.pread(descriptor, READ, 0).decode(errors="replace")
    return ""


def check_free(folder: Path) -> None:
    """Refuse a folder that somebody holds, before the work that would be in vain."""
    if holder(folder):
        raise RegardError(_refusal(folder))


def _refusal(folder: Path) -> str:
    found = holder(folder) or Holder()
    gone = "" if found.certain else f" (or, if that is gone, remove {folder / LOCK})"
    return (
        f"{folder} is being trained by {found.words}; "
        f"wait for it, end it, or choose another --out{gone}"
    )


def _patiently(path: Path) -> int | None:
    """A descriptor that holds the lock; None when somebody else keeps it."""
    for _ in range(TRIES):
        if (descriptor := _taken(path)) is not None:
            return descriptor
        time.sleep(PAUSE)
    return None


def _taken(path: Path) -> int | None:
    """One try."""
    descriptor, new = _opened(path)
    if descriptor is None:
        return None
    flocked = _flocked(descriptor)
    # What was flocked may be a file that its holder has just removed.
    if new if flocked is None else flocked and _is_at(path, descriptor):
        _sign(descriptor)
        return descriptor
    os.close(descriptor)
    return _inherited(path) if flocked is None else None


def _flocked(descriptor: int) -> bool | None:
    """Whether the kernel gave us the lock; None where the file system has none to give."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in NO_FLOCK:
            return None
        os.close(descriptor)
        raise
    return True


def _opened(path: Path) -> tuple[int | None, bool]:
    """The file, and whether it is new."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | FLAGS, 0o666), True
    except FileExistsError:
        pass
    try:
        return os.open(path, os.O_RDWR | FLAGS), False
    except FileNotFoundError:  # removed in between
        return None, False


def _inherited(path: Path) -> int | None:
    """Without flock: the lock of a process that is gone, which only one of many can inherit.

    They all try to make a file of the same name, and who makes it looks once more: the lock may
    have been inherited before. Then that file takes the lock's place.
    """
    last = _signed(path)
    if last is None or not _gone(last):
        return None
    heir = path.with_name(f"{LOCK}.{last.process}")
    try:
        descriptor = os.open(heir, os.O_RDWR | os.O_CREAT | os.O_EXCL | FLAGS, 0o666)
    except FileExistsError:
        return None
    if _signed(path) == last:
        _sign(descriptor)
        os.replace(heir, path)
        return descriptor
    os.close(descriptor)
    heir.unlink()
    return None


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor))
    except (FileNotFoundError, NotADirectoryError):
        return False


def _gone(last: Holder) -> bool:
    """Whether a process of this machine is over; of another machine's nothing is known."""
    if not last.process or last.host != _host():
        return False
    try:
        os.kill(last.process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # another user's, and alive
        pass
    return False


# What stands in the file


def _host() -> str:
    return literal(platform.node())


def _sign(descriptor: int) -> None:
    now = datetime.now().astimezone().isoformat()
    if os.fstat(descriptor).st_nlink > 1:  # it is another file too, which stays as it is
        return
    signature = {"host": _host(), "process": os.getpid(), "since": now}
    with suppress(OSError):  # a full disk: the lock is held all the same
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(signature).encode() + b"\n", 0)


def _signed(path: Path) -> Holder | None:
    with suppress(OSError), _reading(path) as descriptor:
        return _read(descriptor)
    return None


@contextmanager
def _reading(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | FLAGS)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _read(descriptor: int) -> Holder:
    """What the file says; somebody unknown where it was damaged, or is being written."""
    try:
        found = json.loads(os.pread(descriptor, READ, 0))
        host, process = found["host"], found["process"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return Holder()
    if not isinstance(host, str) or type(process) is not int or not 0 < process < 1 << 31:
        return Holder()
    return Holder(literal(host[:255]).replace("\n", " "), process, _time(found.get("since")))


def _time(text: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, TypeError, OverflowError):
        return None

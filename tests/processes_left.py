"""Processes that a test leaves behind: found by what the kernel tells, and ended."""

import contextlib
import ctypes
import gc
import os
import signal
import sys
import time

ORPHANS_TO_ME = 36  # PR_SET_CHILD_SUBREAPER: who loses its parent is ours, not lost
GRACE = 20.0  # seconds for what is ending by itself, on a machine with much to do
SERVERS = (b"multiprocessing.forkserver", b"multiprocessing.resource_tracker")  # kept for all tests


def adopt() -> None:
    """Let orphans of all our processes be our children; nothing where there is no such thing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(ORPHANS_TO_ME, 1, 0, 0, 0)


def descendants(process: int | str = "self") -> set[int]:
    """All processes below one; none where the kernel does not tell."""
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{process}/task"):
            for child in _read(f"{process}/task/{thread}/children").split():
                found |= {int(child)} | descendants(int(child))
    return found


def left(before: set[int]) -> dict[int, bytes]:
    """The command lines of those that are new, still run, and do not end by themselves."""
    end = time.monotonic() + GRACE
    while found := _running(descendants() - before):
        gc.collect()  # what held them may be garbage that nobody has collected
        if time.monotonic() > end:
            break
        time.sleep(0.01)
    return found


def end(processes: dict[int, bytes]) -> None:
    """Kill them, and wait until they are dead."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    while _running(set(processes)):
        time.sleep(0.001)


def bury(before: set[int]) -> None:
    """Wait for orphans that have ended, which nobody else does."""
    for process in descendants() - before:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process, os.WNOHANG)


def _running(processes: set[int]) -> dict[int, bytes]:
    lines = {one: _read(f"{one}/cmdline") for one in processes if _lives(one)}
    return {one: line for one, line in lines.items() if not any(s in line for s in SERVERS)}


def _lives(process: int) -> bool:
    """Whether a process is neither gone nor dead and only not yet waited for."""
    state = _read(f"{process}/stat").rpartition(b")")[2].split()[:1]  # behind its name
    return state not in ([], [b"Z"], [b"X"])


def _read(name: str) -> bytes:
    try:
        with open(f"/proc/{name}", "rb") as file:
            return file.read()
    except OSError:  # it has just ended
        return b""

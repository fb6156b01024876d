"""`regard` in children of one process that has imported everything, so that each starts in no time.

A child may be killed with SIGKILL after some time, or at its n-th operation on a file below its
folder, which Python's audit events tell; nothing of this is known to the code that is killed.
"""

import contextlib
import gc
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

# What changes a disk, or is about to; files opened for reading too, which does no harm.
OPERATIONS = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate")
LIMIT = 120.0  # seconds for a child
APART = ("unshare", "--map-root-user", "--mount")


class Ended(NamedTuple):
    """How a child ended: its exit code, or minus the signal; what it printed; its operations."""

    code: int
    out: str
    operations: int


class Nursery:
    """Starts children one after the other; `begin` and `end` for some at the same time.

    `apart`: with mounts of their own, which nobody else sees but through `seen`.
    """

    def __init__(self, apart: bool = False) -> None:
        self.process = subprocess.Popen(
            [*(APART if apart else ()), sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def run(self, folder: Path, *arguments: str, **how: Any) -> Ended:
        """`regard ARGUMENTS` in a folder. `after`: seconds until it is killed; `at`: the operation
        it is killed at, `by`: with another signal; `setup`: the name of a function in `hooks`, a
        file of Python, to call first in the child with what is `given`."""
        return self.end(self.begin(folder, *arguments, **how))

    def begin(self, folder: Path, *arguments: str, **how: Any) -> int:
        """The same, without waiting for its end: the child's process id."""
        return self._told({"folder": str(folder), "arguments": arguments, **how})

    def end(self, child: int) -> Ended:
        return Ended(*self._told({"child": child}))

    def _told(self, asked: dict[str, Any]) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def mount(self, folder: Path, size: str) -> None:
        """Put an empty disk of this size at a folder, or make that which is there as large."""
        assert self._told({"mount": str(folder), "size": size}) == 0

    def seen(self, path: Path) -> Path:
        """What the children see at a path."""
        return Path(f"/proc/{self.process.pid}/root{path}")

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(LIMIT)


class _Child(NamedTuple):
    out: Path
    count: Path
    until: float  # when it is killed


def serve() -> None:
    """Read what to run or whom to wait for, a line each, and answer."""
    _prepare()
    children: dict[int, _Child] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        if "child" in asked:
            answer: Any = _ended(asked["child"], children.pop(asked["child"]))
        elif "mount" in asked:
            answer = _mounted(asked["mount"], asked["size"])
        else:
            answer, child = _born(asked)
            children[answer] = child
        print(json.dumps(answer), flush=True)
    for child in children:  # whoever asked for them is gone, or a test of theirs has failed
        os.kill(child, signal.SIGKILL)


def _mounted(folder: str, size: str) -> int:
    how = f"size={size},mode=755"  # as one user's, not as /tmp
    words = ["-o", f"remount,{how}"] if os.path.ismount(folder) else ["-t", "tmpfs", "-o", how]
    return subprocess.run(["mount", *words, "none", folder]).returncode


def _prepare() -> None:
    """What every child needs, once."""
    import numpy.ma  # noqa: F401
    import torch._dynamo  # noqa: F401 - a model without memory imports it, which takes a second

    import regard.cli
    from regard.training import throughput

    for command in regard.cli.COMMANDS.values():
        command.load()
    with contextlib.redirect_stdout(io.StringIO()):  # what parses and prints imports more
        regard.cli.main(["recipes"])
    throughput._fastest_product = lambda device, kind: 1e11  # else half a second for each child
    gc.collect()
    gc.freeze()  # or each child's first collection copies all that it shares with us


def _born(asked: dict[str, Any]) -> tuple[int, _Child]:
    folder = Path(asked["folder"])
    used = sum(1 for path in folder.iterdir() if path.name.startswith(".out"))
    out, count = folder / f".out{used}", folder / f".operations{used}"
    out.touch()
    count.write_text("0")
    child = os.fork()
    if child == 0:
        _live(asked, out, count)
    after = asked.get("after")
    return child, _Child(out, count, time.monotonic() + min(LIMIT, after or LIMIT))


def _ended(number: int, child: _Child) -> Ended:
    killed = False
    while True:
        found, status = os.waitpid(number, os.WNOHANG)
        if found:
            break
        if not killed and time.monotonic() > child.until:
            os.kill(number, signal.SIGKILL)
            killed = True
        time.sleep(0.001)
    code = os.waitstatus_to_exitcode(status)
    return Ended(code, child.out.read_text(errors="replace"), int(child.count.read_text() or 0))


def _live(asked: dict[str, Any], out: Path, count: Path) -> None:
    """All that a child does; it never returns."""
    code = 1
    watched = _Watched(asked["folder"], asked.get("at"), asked.get("by", signal.SIGKILL))
    try:
        with out.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(asked["folder"])
        os.environ["REGARD_CACHE"] = str(Path(asked["folder"], "cache"))
        os.environ.update(asked.get("environment") or {})
        if asked.get("hooks"):
            _call(asked["hooks"], asked["setup"], asked.get("given"))
        sys.addaudithook(watched)
        from regard.cli import main

        main(list(asked["arguments"]))
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        watched.over = True
        sys.stdout.flush()
        sys.stderr.flush()
        count.write_text(str(watched.seen))
        os._exit(code)


def _call(path: str, name: str, given: Any) -> None:
    import runpy

    runpy.run_path(path)[name](given)


class _Watched:
    """Counts operations on files below a folder, and kills the process at one of them."""

    def __init__(self, folder: str, at: int | None, by: int) -> None:
        self.folder, self.at, self.by = folder, at, by
        self.seen, self.over = 0, False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.over or event not in OPERATIONS or not arguments:
            return
        name = arguments[0]
        if not isinstance(name, str | os.PathLike):  # a descriptor, which was opened before
            return
        # A run's folder is named from where one stands.
        if not os.path.join(self.folder, name).startswith(self.folder):
            return
        self.seen += 1
        if self.seen == self.at:
            os.kill(os.getpid(), self.by)


if __name__ == "__main__":
    serve()

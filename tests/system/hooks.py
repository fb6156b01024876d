"""What tests do to a child before it runs: they wrap functions of the code, by "module:name".

Each hook takes one value that JSON can hold.
"""

import builtins
import errno
import importlib
import io
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

Given = dict[str, Any]
Function = Callable[..., Any]


def around(where: str, make: Callable[[Function], Function]) -> None:
    """Put what `make` makes of a function in its place."""
    module, _, names = where.partition(":")
    *path, name = names.split(".")
    owner: Any = importlib.import_module(module)
    for part in path:
        owner = getattr(owner, part)
    setattr(owner, name, make(getattr(owner, name)))


def before(where: str, what: Function) -> None:
    """Do something whenever a function is called, with what it is called with."""

    def made(found: Function) -> Function:
        def wrapped(*values: Any, **named: Any) -> Any:
            what(*values, **named)
            return found(*values, **named)

        return wrapped

    around(where, made)


def slowly(seconds: float) -> None:
    """Work that takes so long, of which Python does a little at a time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.005)


# Being asked to stop


class Stopping:
    """Sends `signals` when it is called for the `call`-th time, and takes some `seconds` then.

    Calls are counted from when the function `behind` was called. `again`: one more signal, at the
    n-th time that a file is made, moved or removed from then on.
    """

    def __init__(self, given: Given) -> None:
        self.given = given
        self.calls, self.counting = 0, True
        if given.get("behind"):
            self.counting = False
            before(given["behind"], self.count)

    def count(self, *values: Any, **named: Any) -> None:
        self.counting = True

    def __call__(self, *values: Any, **named: Any) -> None:
        self.calls += self.counting
        if self.calls == self.given.get("call", 1) and self.counting:
            self.counting = False
            if self.given.get("again"):
                _send_later(self.given["again"], self.given["signals"][-1])
            send(self.given["signals"])  # which may raise
            slowly(self.given.get("seconds", 0.0))


def send(signals: list[int]) -> None:
    for number in signals:
        os.kill(os.getpid(), number)
        time.sleep(0.02)  # two of a kind at the same time are one


def _send_later(operation: int, number: int) -> None:
    seen = 0

    def watch(event: str, values: tuple[Any, ...]) -> None:
        nonlocal seen
        if event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir"):
            seen += 1
            if seen == operation:
                os.kill(os.getpid(), number)

    sys.addaudithook(watch)


def stopped(given: Given) -> None:
    """Signals where a function begins."""
    before(given["where"], Stopping(given))


def stopped_in_the_background(given: Given) -> None:
    """The same where SIGINT is ignored from the start, as behind an `&` of a script."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stopped(given)


def stopped_while_compiling(given: Given) -> None:
    """Signals in the first call of what `torch.compile` gives, which compiles nothing here: that
    would take minutes."""
    stopping = Stopping(given)

    class Compiled(torch.nn.Module):
        def __init__(self, module: torch.nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, *values: Any) -> Any:
            stopping()
            return self.module(*values)

    torch.compile = Compiled


def stopped_while_saving(given: Given) -> None:
    """A signal in the third step, and another one while the checkpoint that it leads to is written,
    which then takes some `seconds`."""
    first, second = given["signals"]
    stopped({"where": "regard.training.loop:Loop._gradients", "call": 3, "signals": [first]})
    later = {"signals": [second], "seconds": given["seconds"]}
    stopped({"where": "regard.training.checkpoints.saving:write_json", **later})


# Being killed, and being waited for


def killed(given: Given) -> None:
    """SIGKILL in a `step` (its number, from 0 on) of a `turn`, when all checkpoints before it are
    whole."""

    def kill(loop: Any, number: int, ready: object) -> None:
        if (number, loop.place.turn) == (given["step"], given.get("turn", 0)):
            loop.checkpoints.wait()
            os.kill(os.getpid(), signal.SIGKILL)

    before("regard.training.loop:Loop._gradients", kill)


def held(given: Given) -> None:
    """In a `step` the file `there` is made, when nothing is written any more, and then `go` is
    waited for."""

    def hold(loop: Any, number: int, ready: object) -> None:
        if number == given["step"]:
            loop.checkpoints.wait()
            Path("there").touch()
            while not Path("go").exists():
                time.sleep(0.005)

    before("regard.training.loop:Loop._gradients", hold)


# A full disk


class Disk:
    """Of the files that `match` so many bytes can be written, `room`; then their disk is full."""

    def __init__(self, given: Given) -> None:
        self.match, self.room = given["match"], given.get("room", 1 << 62)
        self.left = given.get("number", 1 << 62)  # calls that succeed, and one
        self.plain = io.open

    def holds(self, path: Any) -> bool:
        return isinstance(path, str | Path) and self.match in os.path.abspath(path)

    def open(
        self, file: Any, mode: str = "r", buffering: int = -1, *more: Any, **named: Any
    ) -> Any:
        if not set(mode) & set("wax+") or not self.holds(file):
            return self.plain(file, mode, buffering, *more, **named)
        raw = File(self, file, mode.replace("b", ""))
        if buffering == 0:
            return raw
        buffered = io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, *more, **named)

    def counted(self, found: Function) -> Function:
        def wrapped(target: Any, *values: Any, **named: Any) -> Any:
            path = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else target
            self.left -= self.holds(path)
            if not self.left:
                raise self.full()
            return found(target, *values, **named)

        return wrapped

    def full(self) -> OSError:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class File(io.FileIO):
    """A file on such a disk; as on a real one, what still fits is written before it is full."""

    def __init__(self, disk: Disk, path: Any, mode: str) -> None:
        super().__init__(path, mode)
        self.disk = disk

    def write(self, content: Any) -> int:
        if not self.disk.room:
            raise self.disk.full()
        some = memoryview(content).cast("B")[: self.disk.room]
        self.disk.room -= len(some)
        return super().write(some)


def full_disk(given: Given) -> None:
    """No space is left on a disk, or at the `number`-th call of a function of `os` for it."""
    disk = Disk(given)
    if "call" in given:
        around(f"os:{given['call']}", disk.counted)
    io.open = builtins.open = disk.open


# Numbers that go wrong


def faulty(given: Given) -> None:
    """What `value` says goes wrong in some `steps` (their numbers, from 0 on) while the data is in
    its first order, or in `turns` others too; then what another `hook` is `given`."""
    now = False

    def look(loop: Any, number: int, ready: object) -> None:
        nonlocal now
        now = number in given["steps"] and loop.place.turn <= given.get("turns", 0)

    def wrong(found: Function) -> Function:
        def forward(answer: Any, batch: Any, state: Any = None) -> Any:
            loss = found(answer, batch, state)
            if not now:
                return loss
            if given["value"] == "gradient":
                loss.register_hook(lambda gradient: gradient * math.nan)
                return loss
            return loss * float(given["value"])

        return forward

    before("regard.training.loop:Loop._gradients", look)
    around("regard.training.job:Answer.forward", wrong)
    if "hook" in given:
        globals()[given["hook"]](given["given"])


def faulty_validation(call: int) -> None:
    """The n-th validation gives no number."""
    calls = 0

    def wrong(found: Function) -> Function:
        def measure(*values: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            scores = found(*values, **named)
            return replace(scores, loss=math.nan) if calls == call else scores

        return measure

    around("regard.training.loop:measure", wrong)


def judged(given: Given) -> None:
    """Validations find a loss that is lowest at the step `best`; then what another `hook` is
    `given`."""
    done = 0

    def look(loop: Any, number: int, ready: object) -> None:
        nonlocal done
        done = number + 1

    def far(found: Function) -> Function:
        def measure(*values: Any, **named: Any) -> Any:
            return replace(found(*values, **named), loss=1.0 + abs(given["best"] - done))

        return measure

    before("regard.training.loop:Loop._gradients", look)
    around("regard.training.loop:measure", far)
    if "hook" in given:
        globals()[given["hook"]](given["given"])

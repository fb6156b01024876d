"""Word vectors by two processes (M2): each has half of the columns of both layers.

Threads do not help: the products are so small that the second one waits for the interpreter. So the
same program runs twice. What a process reads and changes are its own columns; of each group it
hands over what its columns add to the scores, and from the sum of both halves each goes on by
itself. One process alone sums halves too, so the bits are the same. What a step does before it
needs the vectors, each process does for every other step, and lays it on a shelf for the other.

To share out places instead was tried: then each process changes rows that the other reads next,
and their caches send them to and fro for longer than the other half of the work took.

Whoever waits looks for a byte in a pipe, a little while without a pause, for mostly it comes within
microseconds; then it sleeps. The end of a pipe tells that the other is gone.
"""

import json
import math
import mmap
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.errors import RegardError
from regard.families.word_vectors.groups import Cut, Layers, halves, products
from regard.families.word_vectors.steps import Learned, VectorSteps, told
from regard.models.word_vectors.model import Word2VecConfig, WordVectors
from regard.training.memory.allocator import keep_freed

PATIENCE = 200  # looks for a byte before sleeping, about 1 µs each
ALIGNED = 64  # bytes
SHELF = 2  # times what a step takes that keeps all its words, for each of two
DTYPES = ("int64", "float32")

# `import regard` would bring the whole house. So a process begins with an empty package of that
# name, in which modules are found as ever.
PACKAGE = str(Path(__file__).parents[2])
SERVE = """import sys, types
regard = sys.modules["regard"] = types.ModuleType("regard")
regard.__path__ = [sys.argv[1]]
from regard.families.word_vectors.processes import serve
serve()"""

Plan = Mapping[str, tuple[str, Sequence[int]]]  # for each array its dtype and shape


class EndedError(Exception):
    """The other process has ended."""


class Line:
    """Bytes to and from the other process; each says that one has come to the next meeting."""

    def __init__(self, hear: int, tell: int) -> None:
        self.hear, self.tell = hear, tell
        os.set_blocking(hear, False)
        self.waiting = select.poll()
        self.waiting.register(hear, select.POLLIN)

    def heard(self) -> bool:
        """Whether a byte was there."""
        try:
            if not os.read(self.hear, 1):
                raise EndedError
        except BlockingIOError:
            return False
        return True

    def wait(self) -> None:
        """Return when a byte has come."""
        for _ in range(PATIENCE):
            if self.heard():
                return
        while not self.heard():
            self.waiting.poll()

    def say(self) -> None:
        """Send a byte."""
        try:
            os.write(self.tell, b".")
        except BrokenPipeError:
            raise EndedError from None

    def meet(self) -> None:
        """Return when both have come."""
        self.say()
        self.wait()


class Half:
    """One of the processes: takes steps with its half of the columns, both at the same time."""

    def __init__(
        self, steps: VectorSteps, arrays: Mapping[str, Tensor], number: int, line: Line
    ) -> None:
        self.steps, self.arrays, self.number, self.line = steps, arrays, number, line
        memory, labels = (arrays[name].numpy() for name in ("shelves", "labels"))
        self.shelves = [Shelf(*each) for each in zip(memory, labels, strict=True)]
        self.turn = 0

    def scores(self, hidden: Sequence[Tensor], rows: Sequence[Tensor]) -> Tensor:
        """The sum of both halves. Of two rooms one may be read while the other is filled."""
        rooms = self.arrays["scores"][self.turn]  # (halves, room)
        self.turn = 1 - self.turn
        mine, place = rooms[self.number], 0
        for h, r in zip(hidden, rows, strict=True):
            shape = (*h.shape[:2], r.shape[1])
            products(h, r, mine.narrow(0, place, math.prod(shape)).view(shape))
            place += math.prod(shape)
        self.line.meet()
        return rooms[0, :place] + rooms[1, :place]

    def mine(self, numbers: int) -> Sequence[slice]:
        """The loss is shared out too."""
        return [halves(numbers)[self.number]]

    def hand(self, step: int, last: int) -> None:
        """Let the other have the ids of two steps from this one on, if they are before the last."""
        for each in range(step, min(step + 2, last)):
            ids = self.steps.read(each)
            self.arrays["ids"][each % 4, : len(ids)] = torch.from_numpy(ids)
            self.arrays["lengths"][each % 4] = len(ids)

    def walk(self, layers: Layers, first: int, last: int) -> Generator[Learned, None, None]:
        """The steps; what they tell is right in the first process only.

        Of two steps, the one is arranged by the first process while the second arranges the other.
        """
        for pair in range(first, last, 2):
            if not self.number:
                self.hand(pair + 2, last)
            number = pair + self.number
            mine = self._arranged(number) if number < last else []
            self.shelves[self.number].put(mine)
            self.line.meet()
            for step in range(pair, min(pair + 2, last)):
                arrays = mine if step == number else self.shelves[1 - self.number].get()
                yield self._take(layers, step, arrays or self._arranged(step))

    def _arranged(self, step: int) -> list[np.ndarray]:
        length = int(self.arrays["lengths"][step % 4])
        return self.steps.arranged(step, self.arrays["ids"][step % 4, :length].numpy())

    def _take(self, layers: Layers, step: int, arrays: Sequence[np.ndarray]) -> Learned:
        ready = self.steps.ready(arrays)
        losses = torch.stack(self.steps.taken(layers, step, ready, self))  # (groups,)
        theirs = self.arrays["losses"][: len(losses)]
        if self.number:
            theirs.copy_(losses)
        self.line.meet()
        return told(torch.stack((losses, theirs), 1), ready.predictions)


class Shelf:
    """Where a process lays the arrays of a step for the other; too many for it are left out."""

    def __init__(self, memory: np.ndarray, labels: np.ndarray) -> None:
        """memory (bytes,); labels (arrays, 6): which dtype, how many axes, their lengths."""
        self.memory, self.labels = memory, labels

    def put(self, arrays: Sequence[np.ndarray]) -> None:
        """In place of what was there."""
        self.labels[:] = -1
        if sum(_room(each.nbytes) for each in arrays) > len(self.memory):
            return
        place = 0
        for label, each in zip(self.labels, arrays, strict=False):
            there = self.memory[place : place + each.nbytes].view(each.dtype)
            np.copyto(there.reshape(each.shape), each)
            label[: each.ndim + 2] = DTYPES.index(each.dtype.name), each.ndim, *each.shape
            place += _room(each.nbytes)

    def get(self) -> list[np.ndarray]:
        """What is there, not copied; nothing if it was too much."""
        found: list[np.ndarray] = []
        place = 0
        for dtype, axes, *lengths in self.labels.tolist():
            if dtype < 0:
                break
            kind, shape = np.dtype(DTYPES[dtype]), lengths[:axes]
            size = math.prod(shape) * kind.itemsize
            found.append(self.memory[place : place + size].view(kind).reshape(shape))
            place += _room(size)
        return found


def _room(size: int) -> int:
    """Bytes for so many, up to where the next may begin."""
    return -(-size // ALIGNED) * ALIGNED


# What both have in common.


def _planned(steps: VectorSteps, step: int) -> dict[str, Any]:
    """The arrays in common memory; the first group of a step shows how many scores there are."""
    arranged, (groups, blocks, places) = steps.arranged(step), steps.draw(step).left.shape
    most = steps.piece / (groups * blocks * places)  # times the places of that step
    scores = steps.loss.targets(steps.ready(arranged).groups[0]).weights.numel()
    config, cut = steps.config, steps.cut
    rows = config.vocabulary - (config.loss == "hierarchical")
    room = sum(_room(each.nbytes) for each in arranged) * max(most, 1.0)
    return {
        "input": ("float32", [config.vocabulary, config.width - config.width // 2]),
        "output": ("float32", [rows, config.width - config.width // 2]),
        "scores": ("float32", [2, 2, scores // blocks * cut.blocks]),
        "losses": ("float32", [steps.method.turns * -(-steps.piece // cut.places)]),  # at most
        "counts": ("float64", [config.vocabulary]),
        "ids": ("int64", [4, steps.piece]),
        "lengths": ("int64", [4]),
        "shelves": ("uint8", [2, int(SHELF * room)]),
        "labels": ("int64", [2, len(arranged), 6]),
        "steps": ("int64", [2]),  # from the one, up to the other
    }


def _arrays(memory: mmap.mmap | None, plan: Plan) -> tuple[dict[str, Tensor], int]:
    """The arrays, one behind the other, and how many bytes they take together."""
    found, place = {}, 0
    for name, (dtype, shape) in plan.items():
        count = int(np.prod(shape))
        if memory is not None:
            array = np.frombuffer(memory, dtype, count, place).reshape(shape)
            found[name] = torch.from_numpy(array)
        place += _room(count * np.dtype(dtype).itemsize)
    return found, place


def _memory(size: int) -> int:
    """A file that has no name, in memory where the system can."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("word vectors")
    else:
        with tempfile.TemporaryFile() as opened:
            file = os.dup(opened.fileno())
    os.truncate(file, size)
    return file


class Helper:
    """Another process that takes steps together with this one, once it is there."""

    def __init__(self, steps: VectorSteps, vectors: WordVectors, first: int) -> None:
        self.steps, self.vectors, self.middle = steps, vectors, steps.config.width // 2
        plan = _planned(steps, first)
        file = _memory(size := _arrays(None, plan)[1])
        try:
            self.arrays, _ = _arrays(mmap.mmap(file, size), plan)
            self.arrays["counts"].copy_(torch.from_numpy(steps.counts))
            self.process, self.hear = _started(file, _asked(steps, plan))
        finally:
            os.close(file)
        assert self.process.stdin is not None
        line = Line(self.hear, self.process.stdin.fileno())
        self.half = Half(steps, self.arrays, 0, line)
        self.there = self.gone = False
        self.layers: Layers | None = None  # this process' columns, while they are split

    def ready(self) -> bool:
        """Whether it is there. If it is gone, nothing is lost while this process goes alone."""
        try:
            self.there = self.there or self.half.line.heard()
        except EndedError:
            self.gone = True
        self.gone = self.gone or self.process.poll() is not None
        return self.there and not self.gone

    def walk(self, first: int, last: int) -> Generator[Learned, None, None]:
        """Take the steps from `first` up to `last`, both together; then or between, `settle`."""
        try:
            self._split()
            self.arrays["steps"].copy_(torch.tensor([first, last]))
            self.half.hand(first, last)
            self.half.line.say()
            assert self.layers is not None
            yield from self.half.walk(self.layers, first, last)
        except EndedError:
            raise self._ended() from None

    def _split(self) -> None:
        if self.layers is None:
            whole = Layers(self.vectors.input.data, self.vectors.output.data)
            self.layers = Layers(*(each[:, : self.middle].contiguous() for each in whole))
            self.arrays["input"].copy_(whole.input[:, self.middle :])
            self.arrays["output"].copy_(whole.output[:, self.middle :])

    def settle(self) -> None:
        """Put the columns of both into the vectors."""
        if self.layers is not None:
            for name, mine in self.layers._asdict().items():
                whole = getattr(self.vectors, name).data
                whole[:, : self.middle] = mine
                whole[:, self.middle :] = self.arrays[name]

    def leave(self) -> None:
        """Settle, for this process goes on alone."""
        self.settle()
        self.layers = None

    def _ended(self) -> RegardError:
        status, self.layers = self.close(), None
        return RegardError(
            f"the process that helped to make word vectors ended with status {status}; "
            "there may be too little memory: train again to go on, with OMP_NUM_THREADS=1 alone"
        )

    def close(self) -> int:
        """Let the other process end, and tell how it did."""
        with suppress(BrokenPipeError), self.process:
            pass  # leaving it closes its pipes and waits
        if self.hear >= 0:
            os.close(self.hear)
            self.hear = -1
        return self.process.returncode


def _asked(steps: VectorSteps, plan: Plan) -> dict[str, Any]:
    """All that another process must know to take the same steps."""
    settings = {
        "epochs": steps.epochs,
        "seed": steps.seed,
        "rate": steps.first_rate,
        "last_rate": steps.last_rate,
        "piece": steps.piece,
    }
    return {
        "config": asdict(steps.config),
        "tokens": len(steps.tokens),
        "cut": asdict(steps.cut),
        "settings": settings,
        "plan": plan,
    }


def _started(file: int, asked: dict[str, Any]) -> "tuple[subprocess.Popen[bytes], int]":
    """The process, and where it is heard: not where a library may print something."""
    hear, tell = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", SERVE, PACKAGE],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=(file, tell),
            process_group=0,  # Ctrl-C is for the first one
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    except BaseException:
        os.close(hear)
        raise
    finally:
        os.close(tell)
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # whoever waits for it will hear that it is gone
        process.stdin.write(json.dumps({**asked, "memory": file, "tell": tell}).encode() + b"\n")
        process.stdin.flush()
    return process, hear


class Elsewhere:
    """A text that the first process reads."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def __len__(self) -> int:
        return self.tokens

    def read(self, start: int, stop: int) -> np.ndarray:
        raise NotImplementedError


def serve() -> None:
    """What the other process does: it ends when the first one does, or wants no more of it."""
    for number in (signal.SIGTERM, signal.SIGINT):  # the first one is told too, and may save
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    keep_freed()
    asked = json.loads(sys.stdin.buffer.readline())
    file, plan = asked["memory"], asked["plan"]
    arrays, _ = _arrays(mmap.mmap(file, _arrays(None, plan)[1]), plan)
    os.close(file)
    config, cut = Word2VecConfig(**asked["config"]), Cut(**asked["cut"])
    counts, text = arrays["counts"].numpy(), Elsewhere(asked["tokens"])
    steps = VectorSteps(config, text, counts, cut=cut, **asked["settings"])
    half = Half(steps, arrays, 1, Line(sys.stdin.fileno(), asked["tell"]))
    layers = Layers(arrays["input"], arrays["output"])
    with suppress(EndedError):
        half.line.say()
        while True:
            half.line.wait()
            for _ in half.walk(layers, *arrays["steps"].tolist()):
                pass

"""How cost grows with length: operations counted on the module itself, seconds measured.

The counts are those of `regard cost` (1 multiply-add = 2; pairs that a mask hides are not counted).
A text is read by one pass over n tokens into a fresh state, with the logits of the last one; a step
writes one more token after n, from that state.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.costs import jobs
from regard.costs.jobs import Counted, Shape
from regard.costs.trace.fake_device import Kind
from regard.errors import RegardError
from regard.models.config import ModelConfig
from regard.models.kernels.attention import any_shape
from regard.models.network import SequenceModule
from regard.models.protocol import State
from regard.text.specials import SPECIALS

Job = Callable[[ModelConfig, Shape, Kind], Counted]
STEPS = 16  # written behind a prefix, whose mean is the time of one
ROUNDS, ENOUGH = 5, 1.0  # the best of so many, or of those in so many seconds: others may use the
#                          machine meanwhile


@dataclass(frozen=True)
class Growth:
    """What lengths cost one sequence; None where a model has nothing to count or no room."""

    lengths: list[int]
    flops: list[float | None]  # of reading so many tokens (pairs: a source and a target of them)
    seconds: list[float | None]
    step_flops: list[float | None]  # of one more token after so many
    step_seconds: list[float | None]
    state_bytes: list[int | None]  # that are kept for it


def growth(module: SequenceModule, lengths: Sequence[int]) -> Growth:
    """What each of the lengths costs; the module's weights do not matter."""
    found: dict[str, list[Any]] = {
        name: [] for name in ("flops", "seconds", "step_flops", "step_seconds", "state_bytes")
    }
    for length in lengths:
        reading = Reading.of(module, length)
        found["seconds"].append(_told(reading.seconds))
        found["step_seconds"].append(_told(reading.step_seconds))
        found["state_bytes"].append(_told(reading.state_bytes))
        found["flops"].append(flops(jobs.read, module.config, length))
        found["step_flops"].append(flops(jobs.step, module.config, length))
    return Growth(list(lengths), **found)


def flops(job: Job, config: ModelConfig, length: int, kind: Kind = "cuda") -> float | None:
    """The products of reading one text, or of a step after it, as `regard cost` counts them.

    They are the same on every device; a GPU has a kernel for each recurrence, which is one
    operation to count where a CPU takes some for every token (GRU, 1,024 tokens: 0.01 s, not 4).
    None where a model has no room for the length, or multiplies nothing.
    """
    counted = _told(lambda: job(config, Shape(1, length), kind))
    return None if counted is None else float(counted.total.products)


def _told(measure: Callable[[], Any]) -> Any:
    """A measurement, or None where the model has no room for such a length."""
    try:
        return measure()
    except RegardError:
        return None


@dataclass(frozen=True)
class Reading:
    """One text, or one pair, of some length before a model."""

    module: Any
    tokens: Tensor  # (1, length)

    @classmethod
    def of(cls, module: Any, length: int) -> "Reading":
        config: ModelConfig = module.config
        vocabulary = min(config.vocabulary, getattr(config, "source_vocabulary", 0) or 1 << 30)
        first = min(len(SPECIALS), vocabulary - 1)
        ids = first + np.random.default_rng(0).integers(0, vocabulary - first, (1, length))
        return cls(module, torch.from_numpy(ids).to(module.device))

    def begun(self, steps: int = 0) -> State:
        """The state after all tokens, read at once, with room for some steps."""
        state = self.module.start(batch_size=1, capacity=self.tokens.shape[1] + steps)
        self.module(self.tokens, self._memory(), state, last=True)
        return state

    def step(self, state: State) -> None:
        self.module(self.tokens[:, :1], None, state)

    def _memory(self) -> Any:
        reads = self.module.config.reads_text
        return self.module.encode(self.tokens) if reads else None

    def seconds(self) -> float:
        """Of one pass, the best of a few."""
        with torch.inference_mode(), any_shape():
            return _best(lambda: _timed(self.begun, self.module.device))

    def step_seconds(self) -> float:
        """Of one step behind the tokens, the best of a few means."""
        with torch.inference_mode(), any_shape():
            return _best(self._steps)

    def _steps(self) -> float:
        state = self.begun(STEPS + 1)
        self.step(state)

        def several() -> None:
            for _ in range(STEPS):
                self.step(state)

        return _timed(several, self.module.device) / STEPS

    def state_bytes(self) -> int:
        """What is kept between steps, of the source too."""
        with torch.inference_mode(), any_shape():
            return held_bytes(self.begun())


def held_bytes(state: Any) -> int:
    """The bytes of a state, and of what it keeps of a source."""
    source = getattr(state, "reading", None) or getattr(state, "source", None)
    return int(state.bytes + (source.bytes if source is not None else 0))


def _best(measure: Callable[[], float]) -> float:
    """The shortest time of a few, the first of which is forgotten where there are others."""
    measure()
    times, end = [measure()], time.perf_counter() + ENOUGH
    while len(times) < ROUNDS and time.perf_counter() < end:
        times.append(measure())
    return min(times)


def _timed(work: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    begin = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin


def slope(x: Sequence[float], y: Sequence[float | None]) -> float | None:
    """The power of growth: that of a straight line through the logarithms, upper half only.

    Short lengths pay for other things than length; None with fewer than two points.
    """
    points = [(a, b) for a, b in zip(x, y, strict=True) if b is not None and a > 0 and b > 0]
    points = points[len(points) // 2 :] if len(points) > 3 else points
    if len(points) < 2:
        return None
    logs = np.log(np.array(points))
    return float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0])

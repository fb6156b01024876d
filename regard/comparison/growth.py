"""How cost grows with length: operations counted on the module itself, seconds measured.

Counting runs the real module, where it can on the `meta` device, on which nothing is computed
(1 multiply-add = 2; attention's hidden pairs count too, as the plain kernel computes them). A text
is read by one pass over n tokens; a step writes one more token behind n, from the model's state.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from regard.errors import RegardError
from regard.models.config import ModelConfig
from regard.models.construction import build
from regard.models.counting.model import NGramConfig
from regard.models.kernels.attention import any_shape
from regard.models.network import SequenceModule
from regard.models.protocol import State
from regard.models.recurrent.config import RecurrentConfig
from regard.text.specials import SPECIALS

STEPS = 16  # written behind a prefix, whose mean is the time of one
ROUNDS, ENOUGH = 5, 1.0  # the best of so many, or of those in so many seconds: others may use the
#                          machine meanwhile


@dataclass(frozen=True)
class Growth:
    """What lengths cost one sequence; None where a model has nothing to count or no room."""

    lengths: list[int]
    flops: list[float | None]  # of reading so many tokens (pairs: a source and a target of them)
    seconds: list[float | None]
    step_flops: list[float | None]  # of one more token behind so many
    step_seconds: list[float | None]
    state_bytes: list[int | None]  # that are kept for it


def growth(module: SequenceModule, lengths: Sequence[int]) -> Growth:
    """What each of the lengths costs; the module's weights do not matter."""
    counted = shadow_of(module.config)
    found: dict[str, list[Any]] = {
        name: [] for name in ("flops", "seconds", "step_flops", "step_seconds", "state_bytes")
    }
    for length in lengths:
        reading = Reading.of(module, length)
        found["seconds"].append(_told(reading.seconds))
        found["step_seconds"].append(_told(reading.step_seconds))
        found["state_bytes"].append(_told(reading.state_bytes))
        shadow = None if counted is None else Reading.of(counted, length)
        found["flops"].append(shadow and _told(shadow.flops))
        found["step_flops"].append(shadow and _told(shadow.step_flops))
    return Growth(list(lengths), **found)


def shadow_of(config: ModelConfig) -> Any:
    """A module like it to count on, without its weights; None of counts, which multiply nothing.

    On the `meta` device each step of a recurrence goes through Python: 2,048 tokens of an LSTM took
    half a minute there, and a twentieth of that here, in float64, for which torch has no kernel
    whose inside could not be counted. The counts are the same.
    """
    if isinstance(config, NGramConfig):
        return None
    if isinstance(config, RecurrentConfig):
        return build(config, "cpu").double().eval()
    return build(config, "meta").eval()


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

    def read(self) -> None:
        """All positions at once, with the logits of each."""
        self.module(self.tokens, self._memory())

    def begun(self, steps: int = 1) -> State:
        """The state behind all tokens, with room for some steps."""
        state = self.module.start(batch_size=1, capacity=self.tokens.shape[1] + steps)
        self.module(self.tokens, self._memory(), state, last=True)
        return state

    def step(self, state: State) -> None:
        self.module(self.tokens[:, :1], None, state)

    def _memory(self) -> Any:
        pairs = self.module.config.kind == "encoder-decoder"
        return self.module.encode(self.tokens) if pairs else None

    def seconds(self) -> float:
        """Of one pass, the best of a few."""
        with torch.inference_mode(), any_shape():
            return _best(lambda: _timed(self.read, self.module.device))

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
            return held_bytes(self.begun(0))

    def flops(self) -> float:
        return _counted(self.read)

    def step_flops(self) -> float:
        with torch.no_grad():
            state = self.begun()
        return _counted(lambda: self.step(state))


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


def _counted(work: Callable[[], None]) -> float:
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        work()
    return float(counter.get_total_flops())


def _timed(work: Callable[[], None], device: torch.device) -> float:
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

"""What the steps of a run did: losses, tokens, time, memory; read now and then, not every step."""

import math
import resource
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from regard.data.batch import Batch, Feed
from regard.models.network import SequenceModule
from regard.training.throughput import Products


class Meter:
    """Counts what the steps since the last report did, without waiting for the device."""

    def __init__(
        self,
        module: SequenceModule,
        feed: Feed,
        steps: int,
        peak: float,
        products: Products | None = None,
    ) -> None:
        self.products = products  # None: nobody counted them
        self.feed, self.steps_in_all, self.peak = feed, steps, peak
        self.device = module.device
        self.tokens = 0  # read in all, sources too, padding not
        self.pauses = 0.0  # seconds in all
        self.taken = 0  # steps in all, since this process began
        self.paces: list[float] = []  # seconds of a step, of each report
        self._reset()

    def _reset(self) -> None:
        self.loss = torch.zeros((), device=self.device)  # summed over the steps that counted
        self.valid = torch.zeros((), dtype=torch.int64, device=self.device)  # their targets
        self.norm = torch.zeros((), device=self.device)
        self.steps = self.positions = self.real = 0
        self.computed: Counter[tuple[int, int, int]] = Counter()  # parts by their shapes
        self.stall = 0.0
        self.clock, self.away = time.perf_counter(), 0.0

    def add(
        self, total: Tensor, norm: Tensor, good: Tensor, parts: Sequence[Batch], valid: int
    ) -> None:
        """One step: its summed loss, the gradient's norm, and whether the update was made."""
        nothing = torch.zeros_like(total)
        self.loss = self.loss + torch.where(good, total, nothing)
        self.valid = self.valid + valid * good
        self.norm = norm
        self.steps += 1
        self.taken += 1
        for part in parts:
            self.computed[shape(part)] += 1
            self.positions += part.positions
            self.real += part.real_tokens
            self.tokens += part.real_tokens

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A stretch of time that is not training."""
        float(self.loss)  # waits: what was asked of the device before belongs to training
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.away += time.perf_counter() - begin
            self.pauses += time.perf_counter() - begin

    def stalled(self, seconds: float) -> None:
        """Training stood still so long while a checkpoint was copied; it counts as training."""
        self.stall += seconds

    def read(self, step: int) -> dict[str, Any]:
        """The figures since the last report, and forget them; waits for the device."""
        valid = float(self.valid)
        seconds = max(time.perf_counter() - self.clock - self.away, 1e-9)
        left = self.steps_in_all - step
        if self.steps:
            self.paces.append(seconds / self.steps)
        figures = {
            "loss": float(self.loss) / valid if valid else float("nan"),
            "gradient_norm": float(self.norm),
            "tokens": self.tokens,
            "tokens_per_second": self.real / seconds,
            "memory": memory(self.device),
            "epoch": round(self.feed.epoch(step), 4),
            "seconds_left": left
            * (seconds / max(self.steps, 1) + self.pauses / max(self.taken, 1)),
        }
        if math.isfinite(flops := self._flops()):
            figures["share_of_peak"] = flops / seconds / self.peak
        if self.stall:
            figures["stalled"] = round(self.stall, 4)
        if self.real < self.positions:
            figures["padding"] = 1 - self.real / self.positions
        self._reset()
        return figures

    def _flops(self) -> float:
        """The products of all parts since the last report; NaN where nobody counts them."""
        if not self.products:
            return math.nan
        return sum(times * self.products(*one) for one, times in self.computed.items())


def shape(part: Batch) -> tuple[int, int, int]:
    """Rows, their tokens, and the tokens of their sources; 0 where a source is none."""
    source = 0 if part.source is None or part.source.dim() != 2 else part.source.shape[1]
    return part.rows, part.tokens.shape[1], source


def memory(device: torch.device) -> int:
    """The most bytes held so far: the device's, or the process's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

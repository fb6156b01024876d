"""The one loop that trains every model.

A step takes the rows that the feed gives for its number, computes them in as many parts as memory
asks for, divides the summed loss by the valid targets of the whole step, and lets the optimizers
move the weights. Nothing waits for the device except when something is reported.
"""

import math
import resource
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from regard.data.batch import Batch, Feed
from regard.data.order import generator
from regard.errors import RegardError
from regard.models.blocks import Block
from regard.models.transformer import Transformer
from regard.training.averaging import RunningMean, mean
from regard.training.checkpoints import Checkpoints
from regard.training.evaluation import Scores, measure
from regard.training.log import Sink
from regard.training.objectives import Objective, loss
from regard.training.optimizers import Optimizers
from regard.training.precision import Precision, Weights, computing
from regard.training.schedules import factor
from regard.training.settings import Settings
from regard.training.throughput import Peak, work

AHEAD = 4  # steps of data prepared before they are needed
DROPOUT = 6  # what the seed is used for, beside order and masking


@dataclass(frozen=True)
class Job:
    """All that a run needs, made ready; every setting is resolved."""

    module: Transformer
    objective: Objective
    feed: Feed
    settings: Settings
    device: torch.device
    precision: Precision
    compiled: bool
    peak: Peak
    folder: Path
    sink: Sink
    valid_bytes: int = 0
    sample: Callable[[], Mapping[str, Any]] | None = None


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    reason: str  # finished, stopped early, interrupted
    step: int
    best_loss: float
    best_step: int
    seconds: float
    scores: Scores | None


class Loop:
    """Trains a job's module; `run` does it all."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.settings = job.settings.training
        self.weights = Weights(job.module, job.precision)
        self.optimizers = Optimizers(job.module, self.weights.masters, job.settings.optimizer)
        self.mean = RunningMean(self.weights, self.settings.ema) if self.settings.ema else None
        keep = max(self.settings.keep, self.settings.average)
        self.checkpoints = Checkpoints(job.folder, keep)
        self.loss = torch.compile(self._loss) if job.compiled else self._loss
        self.best_loss, self.best_step = math.inf, 0
        self.done, self.waited = 0, 0  # steps; validations without a new best
        self.begin = time.perf_counter()
        if self.settings.recompute:
            recompute(job.module)

    def _loss(self, batch: Batch) -> Tensor:
        logits = self.job.objective.logits(self.job.module, batch)
        return loss(logits, batch.targets, self.settings.label_smoothing)

    def run(self) -> Outcome:
        """Train until the steps are done, patience is over, or somebody interrupts."""
        meter = Meter(self.job)
        self.job.module.train()
        try:
            try:
                reason = self._train(meter)
            except KeyboardInterrupt:
                reason = "interrupted"
            return self._end(reason, meter)
        finally:
            self.checkpoints.close()

    def _train(self, meter: "Meter") -> str:
        """Step after step; why it ended."""
        settings = self.settings
        with prefetched(self.job.feed, settings, self.job.device) as batches:
            for number, (parts, valid) in enumerate(batches):
                meter.add(*self._step(number, parts, valid), parts, valid)
                self.done = step = number + 1
                if step % settings.log_every == 0 or step == settings.steps:
                    self._report(step, meter)
                if self._due(step) and self._pause(step, meter):
                    return "stopped early"
        return "finished"

    def _step(self, number: int, parts: list[Batch], valid: int) -> tuple[Tensor, Tensor]:
        """One optimizer step; the summed loss and the gradient's norm, still on the device."""
        # Dropout too is a function of the step alone, so that a run can go on from anywhere.
        torch.manual_seed(int(generator(self.settings.seed, DROPOUT, number).integers(1 << 62)))
        total = torch.zeros((), device=self.job.device)
        for part in parts:
            with computing(self.job.precision, self.job.device, self.job.objective.varied):
                value = self.loss(part)
            (value / max(valid, 1)).backward()
            total += value.detach()
        self.weights.gather()
        norm = self.optimizers.step(factor(self.job.settings.schedule, number, self.settings.steps))
        self.weights.publish()
        if self.mean:
            self.mean.update(number)
        return total, norm

    def _report(self, step: int, meter: "Meter") -> None:
        figures = meter.read(step)
        self._tell("step", step, **figures, learning_rate=self.optimizers.rate())
        self._check(step, figures["loss"], figures["gradient_norm"])

    def _check(self, step: int, loss: float, norm: float) -> None:
        """Stop where training broke down, so that no broken weights are kept."""
        if not (math.isfinite(loss) and math.isfinite(norm)):
            what, value = ("gradient", norm) if math.isfinite(loss) else ("loss", loss)
            raise RegardError(
                f"the {what} is {value} at step {step}; lower optimizer.peak or lengthen "
                f"schedule.warmup (the log and the checkpoints before it are in {self.job.folder})"
            )

    def _due(self, step: int) -> bool:
        every = (self.settings.validate_every, self.settings.checkpoint_every)
        sampled = self.settings.sample_every > 0 and step % self.settings.sample_every == 0
        return sampled or step == self.settings.steps or any(step % n == 0 for n in every)

    def _pause(self, step: int, meter: "Meter") -> bool:
        """Validate, sample and save where the step asks for it; whether it is time to stop."""
        settings, best, last = self.settings, False, step == self.settings.steps
        self._check(step, *meter.so_far())
        with meter.paused():
            if step % settings.validate_every == 0 or last:
                best = self._validate(step)
            if settings.sample_every > 0 and step % settings.sample_every == 0:
                self._sample(step)
        if best or last or step % settings.checkpoint_every == 0:
            self._save(step, best)
        return bool(settings.patience) and self.waited >= settings.patience

    def _validate(self, step: int) -> bool:
        """Measure on what was held out, if anything; whether this is the best so far."""
        with self._mean_in_place():
            scores = self.scores()
        if not scores.tokens:
            return False
        best = scores.loss < self.best_loss
        if best:
            self.best_loss, self.best_step = scores.loss, step
        self.waited = 0 if best else self.waited + 1
        self._tell("validation", step, **scores.figures(), best=best)
        return best

    def scores(self) -> Scores:
        """The figures of the held-out part with the weights as they are."""
        job = self.job
        batches = job.feed.held_out(2 * self.settings.rows)
        return measure(job.module, job.objective, batches, job.precision, job.valid_bytes)

    def _mean_in_place(self) -> AbstractContextManager[None]:
        return self.mean.in_place() if self.mean else nullcontext()

    def _sample(self, step: int) -> None:
        if self.job.sample:
            with self._mean_in_place():
                self._tell("sample", step, **self.job.sample())

    def _save(self, step: int, best: bool) -> None:
        weights = self.mean.means if self.mean else self.weights.masters
        remembered = self.optimizers.tensors()
        if self.mean:
            remembered |= {f"{name}/weights": w for name, w in self.weights.masters.items()}
        place = {"step": step, "best_loss": _finite(self.best_loss), "best_step": self.best_step}
        path = self.checkpoints.save(step, weights, remembered, place, best)
        self._tell("checkpoint", step, path=str(path))

    def _end(self, reason: str, meter: "Meter") -> Outcome:
        """Put the weights to keep in place: averaged, best, or last; and say how it went."""
        step = self.done
        if reason == "interrupted" and step:
            self._check(step, *meter.so_far())
            self._save(step, best=False)
        self.checkpoints.wait()
        if self.settings.average and self.checkpoints.steps:
            chosen = self.checkpoints.last(self.settings.average)
            self.weights.load(mean([self.checkpoints.weights(kept) for kept in chosen]))
        elif self.best_step:
            self.weights.load(dict(self.checkpoints.weights(self.best_step)))
        elif self.mean:
            self.weights.load(self.mean.means)
        scores = None if reason == "interrupted" else self.scores()
        seconds = time.perf_counter() - self.begin
        figures = {
            "best_loss": self.best_loss,
            "best_step": self.best_step,
            "seconds": seconds,
            "tokens_per_second": meter.tokens / max(seconds, 1e-9),
        }
        self._tell("end", step, reason=reason, **figures)
        return Outcome(reason, step, self.best_loss, self.best_step, seconds, scores)

    def _tell(self, event: str, step: int, **values: Any) -> None:
        now = time.perf_counter() - self.begin
        self.job.sink.write({"event": event, "step": step, "time": round(now, 3), **values})


class Meter:
    """Counts what the steps since the last report did, without waiting for the device."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.work = work(job.module)
        self.tokens = 0  # read in all, sources too, padding not
        self.pauses = 0.0  # seconds in all
        self._reset()

    def _reset(self) -> None:
        self.loss: Tensor | None = None
        self.norm: Tensor | None = None
        self.valid = self.steps = self.positions = self.real = 0
        self.flops = 0.0
        self.clock, self.away = time.perf_counter(), 0.0

    def add(self, total: Tensor, norm: Tensor, parts: list[Batch], valid: int) -> None:
        self.loss = total if self.loss is None else self.loss + total
        self.norm = norm
        self.valid += valid
        self.steps += 1
        for part in parts:
            self.flops += self._flops(part)
            self.positions += part.positions
            self.real += part.real_tokens
            self.tokens += part.real_tokens

    def _flops(self, part: Batch) -> float:
        tokens, width = part.tokens.numel(), part.tokens.shape[1]
        if part.source is None:
            return self.work.step(tokens, width)
        return self.work.step(tokens, width, part.source.numel(), part.source.shape[1])

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A stretch of time that is not training."""
        self.so_far()  # what was asked of the device before belongs to training
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.away += time.perf_counter() - begin
            self.pauses += time.perf_counter() - begin

    def so_far(self) -> tuple[float, float]:
        """The summed loss and the last gradient norm since the last report, zeros right behind it;
        waits for the device."""
        if self.loss is None or self.norm is None:
            return 0.0, 0.0
        return float(self.loss), float(self.norm)

    def read(self, step: int) -> dict[str, Any]:
        """The figures since the last report, and forget them."""
        assert self.loss is not None
        assert self.norm is not None
        value, norm = float(self.loss) / max(self.valid, 1), float(self.norm)  # waits here
        seconds = max(time.perf_counter() - self.clock - self.away, 1e-9)
        left = self.job.settings.training.steps - step
        figures = {
            "loss": value,
            "gradient_norm": norm,
            "tokens": self.tokens,
            "tokens_per_second": self.real / seconds,
            "share_of_peak": self.flops / seconds / self.job.peak.rate,
            "memory": memory(self.job.device),
            "epoch": round(self.job.feed.epoch(step), 4),
            "seconds_left": left * (seconds / max(self.steps, 1) + self.pauses / step),
        }
        if self.real < self.positions:
            figures["padding"] = 1 - self.real / self.positions
        self._reset()
        return figures


class prefetched:  # noqa: N801 - used as `with prefetched(...) as batches`
    """The batches of each step, prepared ahead by a thread and copied to the device."""

    def __init__(self, feed: Feed, settings: Any, device: torch.device) -> None:
        self.feed, self.settings, self.device = feed, settings, device
        self.pool = ThreadPoolExecutor(1)

    def __enter__(self) -> Iterator[tuple[list[Batch], int]]:
        return self._steps()

    def __exit__(self, *error: object) -> None:
        self.pool.shutdown(cancel_futures=True)

    def _steps(self) -> Iterator[tuple[list[Batch], int]]:
        waiting: deque[Future[tuple[list[Batch], int]]] = deque()
        for step in range(self.settings.steps):
            while len(waiting) < AHEAD and step + len(waiting) < self.settings.steps:
                waiting.append(self.pool.submit(self._prepare, step + len(waiting)))
            parts, valid = waiting.popleft().result()
            yield [part.to(self.device) for part in parts], valid

    def _prepare(self, step: int) -> tuple[list[Batch], int]:
        batch = self.feed.step(step)
        parts = batch.parts(self.settings.rows)
        if self.device.type == "cuda":
            parts = [part.pinned() for part in parts]
        return parts, batch.valid


def recompute(module: nn.Module) -> None:
    """Let each block forget its activations and compute them again for the backward pass."""
    for part in module.modules():
        if isinstance(part, Block):
            part.forward = partial(checkpoint, part.forward, use_reentrant=False)  # type: ignore[method-assign]


def memory(device: torch.device) -> int:
    """The most bytes held so far: the device's, or the process's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

"""What a run needs to be trained, how it ended, and its loss as one module."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from regard.data.batch import Batch, Feed
from regard.errors import RegardError
from regard.metrics.scores import Scores
from regard.models.network import BaseModel, Network, SequenceModule
from regard.models.protocol import State
from regard.models.transformer.blocks import Block
from regard.storage.event_log import Sink
from regard.storage.lock import Lock
from regard.training.checkpoints.reading import Checkpoint
from regard.training.checkpoints.saving import Checkpoints
from regard.training.distributed.processes import ALONE, Processes
from regard.training.objectives import PLAIN, Criterion, Objective, activation_penalty, loss
from regard.training.optimization.precision import Precision
from regard.training.r_drop import r_drop_loss
from regard.training.settings import RunSettings
from regard.training.signals import Stop
from regard.training.throughput import Peak, Products

Forward = Callable[..., Any]  # of a block


@dataclass(frozen=True)
class Job:
    """All that a run needs, made ready; every setting is resolved."""

    module: BaseModel
    objective: Objective
    feed: Feed
    settings: RunSettings
    device: torch.device
    precision: Precision
    compiled: bool
    peak: Peak
    folder: Path
    sink: Sink
    valid_bytes: int = 0
    sample: Callable[[], Mapping[str, Any]] | None = None
    through_time: Callable[[], Mapping[str, Any]] | None = None  # how far back gradients reach
    freely: Callable[[], Scores] | None = None  # judges by what is written, where a loss cannot
    products: Products | None = None  # of a part of a step, for the share of the peak
    processes: Processes = ALONE
    stop: Stop = field(default_factory=Stop)
    about: Mapping[str, Any] = field(default_factory=dict)  # what checkpoints are tied to
    found: Sequence[Checkpoint] = ()  # whole checkpoints to go on from, the last one last
    lock: Lock | None = None  # on the folder

    def checkpoints(self, keep: int) -> Checkpoints:
        """A writer of the run's checkpoints that keeps the last few."""
        return Checkpoints(
            self.folder, keep, self.processes, self.found, self.about, lock=self.lock
        )

    def sampled(self) -> tuple[str, Mapping[str, Any]]:
        """An event and its values; a text that cannot be written is no reason to lose a run."""
        assert self.sample is not None
        try:
            return "sample", self.sample()
        except RegardError as error:
            return "warning", {"message": f"no sample could be written: {error}"}


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    reason: str  # finished, stopped early, interrupted
    step: int
    best_loss: float
    best_step: int
    seconds: float
    tokens_per_second: float
    scores: Scores | None
    free: bool = False  # whether `best_loss` is the share of BLEU that is missing

    def told(self) -> dict[str, Any]:
        """What the last event of a run says."""
        names = ("reason", "best_loss", "best_step", "seconds", "tokens_per_second")
        found = {name: getattr(self, name) for name in names}
        if self.free:
            found["best_bleu"] = 100 * (1 - found.pop("best_loss")) if self.best_step else None
        return found


class Trainer(Protocol):
    """Whoever makes a job's model what it should be."""

    job: Job
    processes: Processes
    sharded: bool  # whether each process holds a part of the model

    @property
    def done(self) -> int:
        """Steps behind us."""

    def run(self) -> Outcome:
        """Train to the end, or until somebody asks to stop."""

    def final(self) -> dict[str, Tensor]:
        """What was learned, whole; all processes must ask."""

    def ended(self, outcome: Outcome) -> None:
        """Tell that all is done: the last event of a run."""


class Answer(nn.Module):
    """A model and what it is asked, as one module: a batch gives its summed loss."""

    def __init__(
        self, module: SequenceModule, objective: Objective, criterion: Criterion = PLAIN
    ) -> None:
        super().__init__()
        self.module, self.objective, self.criterion = module, objective, criterion

    def forward(self, batch: Batch, state: State | None = None) -> Tensor:
        smoothing, consistency = self.criterion.smoothing, self.criterion.r_drop
        if self.criterion.regularises:
            assert isinstance(self.module, Network)
            hidden = self.module.hidden(batch.tokens, state=state)
            found = loss(self.module.logits(hidden), batch.targets, smoothing)
            return found + activation_penalty(hidden, self.criterion)
        if not consistency:
            logits = self.objective.logits(self.module, batch, state)
            return loss(logits, batch.targets, smoothing)
        twice = batch.each(lambda tensor: torch.cat([tensor, tensor]))
        logits = self.objective.logits(self.module, twice)
        return r_drop_loss(logits, batch.targets, smoothing, consistency)


def recompute(
    module: nn.Module, wanted: bool = True, around: Callable[[Forward], Forward] = lambda f: f
) -> None:
    """Let each block forget its activations and compute them again for the backward pass.

    Not `wanted`: let them be kept again. `around` makes what is called both times.
    """
    for part in module.modules():
        if isinstance(part, Block):
            vars(part).pop("forward", None)
            if wanted:
                part.forward = partial(checkpoint, around(part.forward), use_reentrant=False)  # type: ignore[method-assign]

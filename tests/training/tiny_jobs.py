"""Jobs small enough to train in milliseconds, on batches made up from a seed."""

import signal
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from regard.data.batch import Batch, padded
from regard.data.feeds.masking import IGNORE, corrupt
from regard.data.feeds.order import turned_seed
from regard.families.settings import Settings
from regard.models.construction import build
from regard.models.transformer.config import TransformerConfig
from regard.models.transformer.model import Transformer
from regard.models.transformer.presets import preset
from regard.storage.event_log import Sink
from regard.text.specials import BOS, EOS, PAD
from regard.training.distributed.processes import ALONE
from regard.training.job import Job
from regard.training.loop import Loop
from regard.training.objectives import objective_for
from regard.training.optimization.optimizers import roles
from regard.training.optimization.precision import Precision
from regard.training.optimization.schedules import factor
from regard.training.prefetch import Ready
from regard.training.settings import Form
from regard.training.signals import Stop
from regard.training.throughput import Peak

VOCABULARY = 32
PRESETS = {"causal": "gpt2-tiny", "masked": "bert-tiny", "pairs": "transformer-tiny"}
KINDS = tuple(PRESETS)


def form_of(kind: str) -> Form:
    """The data that a model of this kind learns from."""
    return "pairs" if kind == "pairs" else "text"


def config_of(kind: str, **changes: object) -> TransformerConfig:
    """A model for text, text with gaps, or pairs; without dropout unless it is asked for."""
    tiny = {"vocabulary": VOCABULARY, "context": 24, "width": 16, "heads": 2, "hidden": 32}
    still = {"layers": 2, "dropout": 0.0, "attention_dropout": 0.0}
    return replace(preset(PRESETS[kind]), **{**tiny, **still, **changes})


def model_of(kind: str, seed: int = 0, **changes: object) -> Transformer:
    torch.manual_seed(seed)
    return build(config_of(kind, **changes))


def batch_of(kind: str, rows: int = 6, seed: int = 0, longest: int = 12) -> Batch:
    """Ragged rows: 2 to `longest` tokens each, so that parts differ in their valid targets."""
    rng = np.random.default_rng(seed)
    texts = [_text(rng, longest) for _ in range(rows)]
    tokens, lengths = padded([np.array([BOS, *text]) for text in texts])
    if kind == "masked":
        inputs, targets = corrupt(tokens.numpy(), rng, VOCABULARY, share=0.3)
        tokens, targets = torch.from_numpy(inputs), torch.from_numpy(targets)
        valid = int((targets != IGNORE).sum())
        return Batch(tokens, targets, valid, int(lengths.sum()), lengths)
    targets, _ = padded([np.array([*text, EOS]) for text in texts], IGNORE)
    real = int(lengths.sum())
    if kind == "causal":
        return Batch(tokens, targets, real, real, lengths)
    source, source_lengths = padded([np.array([*_text(rng, longest), EOS]) for _ in texts])
    everything = real + int(source_lengths.sum())
    return Batch(tokens, targets, real, everything, lengths, None, source, source_lengths)


def _text(rng: np.random.Generator, longest: int) -> np.ndarray:
    # Small ids more often than large ones: there is something to learn.
    size = int(rng.integers(2, longest))
    return 5 + np.minimum(rng.geometric(0.3, size), VOCABULARY - 6)


@dataclass(frozen=True)
class Made:
    """A feed of made-up batches; step s is the same whenever it is asked for.

    The numbers of its examples tell seed, step and row.
    """

    kind: str
    rows: int = 6
    seed: int = 0
    held: int = 8  # rows held out

    def step(self, step: int) -> Batch:
        place = 1000 * self.seed + step
        batch = batch_of(self.kind, self.rows, place)
        return replace(batch, examples=100 * place + np.arange(self.rows))

    def turned(self, turn: int) -> "Made":
        return replace(self, seed=turned_seed(self.seed, turn) % 10**6)

    def epoch(self, step: int) -> float:
        return step / 10

    def held_out(self, rows: int) -> Iterator[Batch]:
        if self.held:
            yield from batch_of(self.kind, self.held, 10**6).parts(rows)


@dataclass(frozen=True)
class Around:
    """A feed that is like another one; what a test wants otherwise, it overrides."""

    feed: Any

    def step(self, step: int) -> Batch:
        return self.feed.step(step)

    def turned(self, turn: int) -> "Around":
        return replace(self, feed=self.feed.turned(turn))

    def epoch(self, step: int) -> float:
        return self.feed.epoch(step)

    def held_out(self, rows: int) -> Iterator[Batch]:
        return self.feed.held_out(rows)


@dataclass(frozen=True)
class Worsening(Around):
    """A feed whose first steps teach and whose later ones teach the opposite."""

    turn: int = 0

    def step(self, step: int) -> Batch:
        batch = super().step(step)
        if step < self.turn:
            return batch
        wrong = torch.where(batch.targets == IGNORE, IGNORE, 36 - batch.targets.clamp(5, 31))
        return replace(batch, targets=wrong)


class Heard(Sink):
    """Remembers the events of a run."""

    def __init__(self) -> None:
        self.events = []

    def write(self, event):
        self.events.append(dict(event))

    def of(self, kind: str) -> list[dict]:
        return [event for event in self.events if event["event"] == kind]


class Stopping(Heard):
    """Somebody asks to stop when an event is told of a step."""

    def __init__(self, stop: Stop, kind: str, step: int) -> None:
        super().__init__()
        self.stop, self.at = stop, (kind, step)

    def write(self, event):
        super().write(event)
        if (event["event"], event["step"]) == self.at:
            self.stop.heard(signal.SIGTERM)


def job_of(
    folder: Path,
    kind: str = "causal",
    *,
    feed: object = None,
    module: Transformer | None = None,
    precision: Precision = "float32",
    optimizer: dict | None = None,
    schedule: dict | None = None,
    **training: object,
) -> Job:
    """A job with every setting resolved: a few steps, logged and checked at each."""
    usual = {
        "steps": 6,
        "rows": 4,
        "log_every": 1,
        "validate_every": 2,
        "checkpoint_every": 2,
        "sample_every": -1,
    }
    tables = {
        "training": {**usual, **training},
        "optimizer": {"peak": 3e-3, **(optimizer or {})},
        "schedule": {"warmup": 0, **(schedule or {})},
    }
    settings = Settings().changed(tables, "test")
    module = module or model_of(kind)
    return Job(
        module,
        objective_for(module.config, form_of(kind)),
        feed or Made(kind, seed=settings.training.seed),
        settings,
        torch.device("cpu"),
        precision,
        compiled=False,
        peak=Peak(1e12, "made up"),
        folder=folder,
        sink=Heard(),
    )


def trained(job: Job) -> tuple[Loop, object]:
    """The loop and its outcome, run as a command would run it."""
    torch.manual_seed(job.settings.training.seed)
    loop = Loop(job)
    return loop, loop.run()


def ready_of(batch: Batch, rows: int = 100) -> Ready:
    """A step of one batch, ready to be computed by one process."""
    parts = batch.parts(rows)
    return Ready(batch, parts, list(ALONE.dealt(parts)))


class Poisoned(nn.Module):
    """An answer of which something is wrong for some batches: the loss, or only its gradient."""

    def __init__(self, answer: nn.Module, what: str, when: Callable[[Batch], bool]) -> None:
        super().__init__()
        self.answer, self.what, self.when = answer, what, when

    def forward(self, batch: Batch, state: object = None) -> torch.Tensor:
        value = self.answer(batch, state)
        if not self.when(batch):
            return value
        if self.what == "gradient":
            value.register_hook(lambda gradient: gradient * torch.nan)
            return value
        return value * {"loss": torch.nan, "spike": 50.0}[self.what]


def by_hand(job: Job, steps: int, left_out: Container[int] = ()) -> tuple[list[float], dict]:
    """The same training with torch's AdamW on whole batches: losses and last weights.

    Steps that are left out (the first is 0) change nothing.
    """
    module = model_of(
        {"decoder": "causal", "encoder": "masked", "encoder-decoder": "pairs"}[
            job.module.config.kind
        ]
    )
    named, settings = dict(module.named_parameters()), job.settings.optimizer
    matrices = set(roles(module)["matrix"])
    groups = [
        {"params": [named[n] for n in named if (n in matrices) == decays], "weight_decay": decay}
        for decays, decay in ((True, settings.weight_decay), (False, 0.0))
    ]
    betas = settings.beta1, settings.beta2
    adamw = torch.optim.AdamW(groups, lr=1.0, betas=betas, eps=settings.epsilon)
    found = []
    for step in range(steps):
        batch = job.feed.step(step)
        answer = job.objective.logits(module, batch)
        smoothing = job.settings.training.label_smoothing
        value = F.cross_entropy(answer.transpose(1, 2), batch.targets, label_smoothing=smoothing)
        adamw.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), settings.clip)
        for group in adamw.param_groups:
            group["lr"] = settings.learning_rate * factor(job.settings.schedule, step, steps)
        if step not in left_out:
            adamw.step()
        found.append(value.item())
    return found, weights_of(module)


def weights_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in module.named_parameters()}


def gradients_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {n: w.grad.clone() for n, w in module.named_parameters() if w.grad is not None}


assert PAD == 0  # `padded` fills with it

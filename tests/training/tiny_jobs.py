"""Jobs small enough to train in milliseconds, on batches made up from a seed."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from regard.data.batch import Batch, padded
from regard.data.masking import IGNORE, corrupt
from regard.models.config import TransformerConfig
from regard.models.presets import preset
from regard.models.transformer import Transformer, build
from regard.text.specials import BOS, EOS, PAD
from regard.training.log import Sink
from regard.training.loop import Job, Loop
from regard.training.objectives import objective_for
from regard.training.precision import Precision
from regard.training.settings import Settings
from regard.training.throughput import Peak

VOCABULARY = 32
PRESETS = {"causal": "gpt2-tiny", "masked": "bert-tiny", "pairs": "transformer-tiny"}
KINDS = tuple(PRESETS)


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
    """A feed of made-up batches; step s is the same whenever it is asked for."""

    kind: str
    rows: int = 6
    seed: int = 0
    held: int = 8  # rows held out

    def step(self, step: int) -> Batch:
        return batch_of(self.kind, self.rows, 1000 * self.seed + step)

    def epoch(self, step: int) -> float:
        return step / 10

    def held_out(self, rows: int) -> Iterator[Batch]:
        if self.held:
            yield from batch_of(self.kind, self.held, 10**6).parts(rows)


class Heard(Sink):
    """Remembers the events of a run."""

    def __init__(self) -> None:
        self.events = []

    def write(self, event):
        self.events.append(dict(event))

    def of(self, kind: str) -> list[dict]:
        return [event for event in self.events if event["event"] == kind]


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
        objective_for(module.config, pairs=kind == "pairs"),
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


def weights_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in module.named_parameters()}


def gradients_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {n: w.grad.clone() for n, w in module.named_parameters() if w.grad is not None}


assert PAD == 0  # `padded` fills with it

"""How many rows of a step are computed at once: all, or as many as fit the memory."""

import torch
from torch import Tensor

from regard.data.batch import Batch, Feed
from regard.models.config import ModelConfig
from regard.models.construction import build
from regard.training.job import Answer, recompute
from regard.training.memory.micro_batch import rows_that_fit
from regard.training.objectives import Objective, criterion_of
from regard.training.optimization.precision import Precision, computing
from regard.training.settings import TrainingSettings


def rows_of_step(
    config: ModelConfig,
    objective: Objective,
    feed: Feed,
    training: TrainingSettings,
    device: torch.device,
    precision: Precision,
) -> int:
    """The rows that are computed at once, found by trying them."""
    module = build(config, device)
    if precision == "bf16-weights":
        module.to(torch.bfloat16)
    first = [feed.step(step) for step in range(feed.telling)]
    batch = _widest(first)
    answer = Answer(module, objective, criterion_of(training))
    beside: list[Tensor] = []
    if device.type == "cuda":  # elsewhere what a row keeps is counted, not tried
        if training.recompute:
            recompute(module)
        # Moments take their room from the start; so do masters and their gradients, and means.
        copies = 2 + 2 * (precision == "bf16-weights") + 2 * bool(training.ema)
        weights = [weight for weight in module.parameters() for _ in range(copies)]
        beside = [torch.empty_like(weight, dtype=torch.float32) for weight in weights]

    def attempt(rows: int) -> None:
        part = _repeated(batch, rows).to(device)
        with computing(precision, device, objective.varied):
            answer(part).backward()
        module.zero_grad(set_to_none=True)

    fitting = rows_that_fit(attempt, max(step.rows for step in first), device)
    del beside
    return fitting


def _widest(steps: list[Batch]) -> Batch:
    """One row as long as rows get, sources too."""
    batch = max(steps, key=lambda found: found.positions / found.rows)
    return batch.each(lambda tensor: tensor[:1])


def _repeated(batch: Batch, rows: int) -> Batch:
    return batch.each(lambda tensor: tensor.expand(rows, *tensor.shape[1:]).contiguous())

"""What a training step takes: its time, which a budget of minutes is divided by, and its memory."""

import statistics
import time
from collections.abc import Callable

import torch

from regard.costs.jobs import Shape
from regard.families.plan import Plan
from regard.training.job import recompute
from regard.training.meter import shape
from regard.training.objectives import criterion_of
from regard.training.optimization.precision import Weights
from regard.training.step import TrainingStep

TIMED, AGAIN = 6, 3  # steps that are timed, each so often: others may use the machine meanwhile


def stepping(made: Plan) -> Callable[[int], None]:
    """A function that takes a numbered step, without log and checkpoints; nothing is learned."""
    device, training = made.device, made.settings.training
    module = made.module().train()
    recompute(module, wanted=training.recompute)
    step = TrainingStep.of(
        Weights(module, made.precision),
        made.objective,
        made.settings.optimizer,
        made.precision,
        device,
        criterion_of(training),
    )

    def take(number: int) -> None:
        batch = made.feed.step(number)
        parts = (part.to(device) for part in batch.parts(training.micro_batch_size))
        step.take(number, parts, batch.valid, rate=0.0)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return take


def seconds_per_step(made: Plan) -> float:
    """The mean time of a few steps, of data and optimizer too; nothing is learned by them.

    Of each step the shortest of a few times: on a machine that others use too, models would
    otherwise have as many steps as the others happened to leave room for.
    """
    take = stepping(made)
    take(0)  # allocates

    def timed(number: int) -> float:
        begin = time.perf_counter()
        take(number)
        return time.perf_counter() - begin

    return statistics.fmean(min(timed(n) for _ in range(AGAIN)) for n in range(TIMED))


def memory_of_training(made: Plan) -> dict[str, int]:
    """Bytes of a step: weights, what the optimizer keeps with gradients, and what forward leaves.

    They are counted from a trace: the last are all tensors that the forward pass of the rows
    computed at once keeps for the backward pass. On a GPU there is the measured peak as well.
    """
    training, batch = made.settings.training, made.feed.step(0)
    rows = min(training.micro_batch_size, batch.rows)
    assert made.traces is not None
    counted = made.traces.of(Shape(rows, *shape(batch)[1:]))
    gradients = 4 * counted.parameters  # in float32 whatever the weights are
    found = {
        "weights": counted.weights,
        "optimizer": gradients + counted.memory["optimizer"],
        "activations": counted.kept,
        "rows": rows,
    }
    if made.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(made.device)
        stepping(made)(0)
        found["peak"] = torch.cuda.max_memory_allocated(made.device)
    return found

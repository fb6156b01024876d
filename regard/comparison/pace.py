"""What a training step takes: its time, which a budget of minutes is divided by, and its memory."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.data.batch import Batch
from regard.families.plan import Plan
from regard.models.construction import build
from regard.training.objectives import loss
from regard.training.optimization.optimizers import Optimizers
from regard.training.optimization.precision import Weights, computing

TIMED, AGAIN = 6, 3  # steps that are timed, each so often: others may use the machine meanwhile


@dataclass(frozen=True)
class Stepping:
    """The few lines of a training step, without data, log and checkpoints around them."""

    made: Plan
    module: Any
    weights: Weights
    optimizers: Optimizers

    @classmethod
    def of(cls, made: Plan) -> "Stepping":
        torch.manual_seed(0)
        module = build(made.config, made.device).train()
        weights = Weights(module, made.precision)
        chosen = made.settings.optimizer
        return cls(made, module, weights, Optimizers(module, weights.masters, chosen))

    def step(self, number: int) -> None:
        batch = self.made.feed.step(number)
        for part in batch.parts(self.made.settings.training.micro_batch_size):
            self.backward(part, batch.valid)
        self.weights.gather()
        norm = self.optimizers.norm()
        self.optimizers.step(0.0, norm, torch.ones((), dtype=torch.bool, device=self.made.device))
        self.weights.publish()

    def backward(self, part: Batch, valid: int) -> None:
        made, here = self.made, part.to(self.made.device)
        with computing(made.precision, made.device, made.objective.varied):
            value = loss(made.objective.logits(self.module, here), here.targets)
        (value / max(valid, 1)).backward()

    def wait(self) -> None:
        if self.made.device.type == "cuda":
            torch.cuda.synchronize(self.made.device)


def seconds_per_step(made: Plan) -> float:
    """The mean time of a few steps, of data and optimizer too; nothing is learned by them.

    Of each step the shortest of a few times: on a machine that others use too, models would
    otherwise have as many steps as the others happened to leave room for.
    """
    stepping = Stepping.of(made)
    stepping.step(0)  # allocates

    def timed(number: int) -> float:
        begin = time.perf_counter()
        stepping.step(number)
        stepping.wait()
        return time.perf_counter() - begin

    return statistics.fmean(min(timed(n) for _ in range(AGAIN)) for n in range(TIMED))


def memory_of_training(made: Plan) -> dict[str, int]:
    """Bytes of a step: weights, what the optimizer keeps with gradients, and what forward leaves.

    The last is counted: all tensors that the forward pass of the rows computed at once keeps for
    the backward pass. On a GPU there is the measured peak as well.
    """
    stepping, device = Stepping.of(made), made.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    stepping.step(0)  # makes the moments
    batch = made.feed.step(0)
    part = batch.parts(made.settings.training.micro_batch_size)[0]
    kept = kept_bytes(lambda: stepping.backward(part, batch.valid), stepping.module)
    weights = sum(weight.nbytes for weight in stepping.weights.masters.values())
    moments = sum(tensor.nbytes for tensor in stepping.optimizers.tensors().values())
    found = {"weights": weights, "optimizer": weights + moments, "activations": kept}
    found["rows"] = part.rows
    if device.type == "cuda":
        found["peak"] = torch.cuda.max_memory_allocated(device)
    return found


def kept_bytes(run: Callable[[], object], module: nn.Module) -> int:
    """Bytes of distinct tensors, weights apart, that forward keeps for its backward pass."""
    own = {weight.untyped_storage().data_ptr() for weight in module.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        run()
    return sum(kept.values())

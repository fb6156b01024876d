"""One step of training: forward and backward of each part of a batch, then one update.

The loop takes it, `regard cost` counts it on the meta device, `regard compare` times it, and the
search for the largest micro-batch tries its first half.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.data.batch import Batch
from regard.models.protocol import State
from regard.training.job import Answer
from regard.training.objectives import PLAIN, Criterion, Objective
from regard.training.optimization.faults import Guard
from regard.training.optimization.optimizers import Optimizers
from regard.training.optimization.precision import Precision, Weights, computing
from regard.training.settings import OptimizerSettings

Around = Callable[[], AbstractContextManager[Any]]
Phase = Callable[[str], AbstractContextManager[Any]]


def unmarked(name: str) -> AbstractContextManager[Any]:
    """Nothing around a phase of a step: nobody watches it."""
    return nullcontext()


def backward(
    answer: nn.Module,
    part: Batch,
    weight: float,
    mixed: Around,
    state: State | None = None,
    phase: Phase = unmarked,
) -> Tensor:
    """Add the gradients of `weight` times a part's summed loss; returns that loss, a scalar."""
    with phase("forward"), mixed():
        value: Tensor = answer(part, state)
    with phase("backward"):
        # Not `value.backward()`, under which a trace would not see what follows.
        torch.autograd.backward(value * weight)
    return value.detach()


class TrainingStep:
    """What a step of training needs: the loss as a module, the weights, and who changes them.

    `answer` gives the summed loss of a part of a batch, `mixed` is the precision that it is
    computed in, and `phase` is entered for forward, backward, gather and optimizer.
    """

    def __init__(
        self,
        answer: nn.Module,
        weights: Weights,
        optimizers: Optimizers,
        guard: Guard,
        mixed: Around,
        phase: Phase = unmarked,
    ) -> None:
        self.answer, self.weights, self.optimizers = answer, weights, optimizers
        self.guard, self.mixed, self.phase = guard, mixed, phase

    @classmethod
    def of(
        cls,
        weights: Weights,
        objective: Objective,
        optimizer: OptimizerSettings,
        precision: Precision,
        device: torch.device,
        criterion: Criterion = PLAIN,
    ) -> "TrainingStep":
        """A step of one process that leaves out no update but of numbers that are not finite."""
        module: Any = weights.module
        return cls(
            Answer(module, objective, criterion),
            weights,
            Optimizers(module, weights.masters, optimizer),
            Guard(device, 0.0, False),
            partial(computing, precision, device, objective.varied),
        )

    def take(self, number: int, parts: Iterable[Batch], valid: int, rate: float = 1.0) -> None:
        """All of a step: `parts` on the device, of a batch with so many valid targets."""
        total = torch.zeros((), device=self.guard.state.device)
        for part in parts:
            total += self.backward(part, 1 / max(valid, 1))
        self.update(rate, *self.judge(number, total, valid))

    def backward(self, part: Batch, weight: float, state: State | None = None) -> Tensor:
        """Add the gradients of `weight` times a part's summed loss; returns that loss, a scalar."""
        return backward(self.answer, part, weight, self.mixed, state, self.phase)

    def judge(self, number: int, total: Tensor, valid: int) -> tuple[Tensor, Tensor]:
        """The norm of all gradients, and whether the update may be made: both on the device."""
        with self.phase("gather"):
            self.weights.gather()
        with self.phase("optimizer"):
            norm = self.optimizers.norm()
            return norm, self.guard.judge(number, total / max(valid, 1), norm)

    def update(self, rate: float, norm: Tensor, good: Tensor) -> None:
        """Clip, change the weights at `rate` times the peak learning rates, and publish them."""
        with self.phase("optimizer"):
            self.optimizers.step(rate, norm, good)
            self.weights.publish()

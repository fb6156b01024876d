"""Means of weights, which often do better than the last ones: a running mean, or of checkpoints."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from regard.training.distributed.sharding import local
from regard.training.optimization.precision import Weights


class RunningMean:
    """An exponential moving average of all weights; early on it forgets faster."""

    def __init__(self, weights: Weights, decay: float) -> None:
        self.decay = decay
        self.weights = weights
        self.means = {name: w.detach().clone() for name, w in weights.masters.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after `step`; the mean spans at most a tenth of the run so far."""
        decay = min(self.decay, (1 + step) / (10 + step))
        means = [local(mean) for mean in self.means.values()]
        current = [local(self.weights.masters[name]) for name in self.means]
        torch._foreach_lerp_(means, current, 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The module computes with the means meanwhile."""
        kept = {name: w.detach().clone() for name, w in self.weights.masters.items()}
        self.weights.load(self.means)
        try:
            yield
        finally:
            self.weights.load(kept)


def mean(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of several sets of named tensors, each in float32."""
    total: dict[str, Tensor] = {}
    for state in states:  # one at a time: states may be read from disk
        for name in state:
            value = state[name].float()
            total[name] = total[name] + value if name in total else value.clone()
    return {name: value / len(states) for name, value in total.items()}

"""Traces of a model's training steps: each shape is counted once, all on one module.

A plan has them: they tell how many rows fit a CPU, what a run will cost before it begins, and its
share of the peak while it runs.
"""

from functools import cached_property
from typing import Any

import torch

from regard.costs import jobs
from regard.costs.jobs import Counted, Shape
from regard.costs.trace.fake_device import Kind
from regard.errors import RegardError
from regard.models.config import ModelConfig
from regard.training.objectives import criterion_of
from regard.training.optimization.precision import Precision
from regard.training.settings import RunSettings

UNCOUNTED = (RegardError, RuntimeError, NotImplementedError)  # no price is no reason to fail


class StepTraces:
    """Steps of one model as a run's settings ask for them."""

    def __init__(
        self, config: ModelConfig, settings: RunSettings, device: torch.device, precision: Precision
    ) -> None:
        self.config, self.precision = config, precision
        self.kind: Kind = "cuda" if device.type == "cuda" else "cpu"
        self.optimizer, self.recompute = settings.optimizer, settings.training.recompute
        self.criterion = criterion_of(settings.training)
        self._known: dict[Shape, Counted] = {}

    @cached_property
    def module(self) -> Any:
        """The module on the meta device."""
        return jobs.module_of(self.config)

    @cached_property
    def parameters(self) -> int:
        """Numbers that are learned."""
        return sum(weight.numel() for weight in self.module.parameters())

    def of(self, shape: Shape) -> Counted:
        """A step that computes so many rows at once."""
        if shape not in self._known:
            self._known[shape] = jobs.train_step(
                self.module,
                shape,
                self.kind,
                self.precision,
                self.optimizer,
                checkpointed=self.recompute,
                criterion=self.criterion,
            )
        return self._known[shape]

    def products_of_a_row(self, tokens: int) -> float:
        """Those of a row of so many tokens, there and back, from any trace of such rows."""
        known = (shape for shape in self._known if shape == Shape(shape.rows, tokens))
        shape = next(known, Shape(1, tokens))
        # What is computed again for the way back is not counted twice.
        counted = jobs.train_step(self.module, shape) if self.recompute else self.of(shape)
        phases = ("forward", "backward")
        found = sum(record.products for phase in phases for record in counted.of(phase))
        readings = 1 if self.recompute else self.criterion.readings
        return found / (shape.rows * readings)

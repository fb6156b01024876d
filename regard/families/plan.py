"""What reading the data gave, and a run that is ready to be started or described."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from regard.costs.step_traces import StepTraces
from regard.data.batch import Feed
from regard.families.settings import Settings
from regard.models.config import ModelConfig
from regard.models.construction import Prebuilt, build
from regard.text.tokenizer import Tokenizer
from regard.training.objectives import Objective
from regard.training.optimization.precision import Precision


@dataclass(frozen=True)
class PreparedData:
    """What reading the data gave."""

    settings: Settings
    config: ModelConfig
    feed: Callable[[int], Feed]  # by the tokens of a step
    tokenizers: Sequence[Tokenizer]
    data: Mapping[str, str]
    warnings: Sequence[str]
    train_tokens: int
    valid_tokens: int
    valid_bytes: int = 0
    digest: str = ""


@dataclass(frozen=True)
class Plan:
    """A run, ready to be started or described."""

    settings: Settings  # resolved
    config: ModelConfig
    objective: Objective
    feed: Feed
    tokenizers: Sequence[Tokenizer]  # the target's, and the source's where it is another
    device: torch.device
    precision: Precision
    compiled: bool
    data: Mapping[str, str]  # what was found, for people
    warnings: Sequence[str]
    valid_bytes: int
    train_tokens: int
    valid_tokens: int
    digest: str = ""  # of data and division
    unfit: str = ""  # why there is no memory for it; then it can only be described
    traces: StepTraces | None = None  # of its steps, where it has such
    built: Prebuilt | None = None  # what was tried to see how many rows fit

    def module(self) -> Any:
        """The module of a new run, by its seed: the one that was tried, or one built now."""
        torch.manual_seed(self.settings.training.seed)
        tried = self.built.take() if self.built else None
        return build(self.config, self.device) if tried is None else tried

    @property
    def model(self) -> str:
        """The model's name."""
        return self.settings.model.preset

"""What is peculiar to a family of models, and what all have in common by default.

A family's object (`FAMILY` in `families/NAME.py`) tells how its models are trained, judged, stored
and priced. Most families train by the loop and differ in little: they change a few of these
answers. What a model learns to do (generate, translate, …) is its task's (`families/tasks/`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from regard.costs.report import Asked, Report, report
from regard.errors import Problems, RegardError
from regard.families.plan import Plan, PreparedData
from regard.families.resolve import resolve
from regard.families.settings import Settings
from regard.families.tasks.base import Work
from regard.families.tasks.captions import Captions
from regard.families.tasks.pairs import Labels, Translation
from regard.families.tasks.text import Causal, Masked
from regard.families.weights import filled
from regard.formats import many
from regard.models.config import Ability, Form, ModelConfig, Task
from regard.models.network import BaseModel
from regard.training.job import Job, Trainer
from regard.training.loop import Loop
from regard.training.objectives import criterion_of
from regard.training.optimization.optimizers import GENTLE, learning_rate_for
from regard.training.settings import TrainingSettings

TOKENS: Mapping[Form, tuple[int, int]] = {  # of a step, on a CPU and on a GPU
    "text": (4096, 65536),
    "pairs": (4096, 8192),
    "images": (512, 4096),
}
ROW = 256  # tokens, where a model does not say


@dataclass(frozen=True)
class GivenOptions:
    """What was said on the command line of how long to train, and on what."""

    steps: bool = False
    epochs: bool = False
    valid: bool = False
    order: bool = False  # of n-grams


class Family:
    """A family that trains by the loop."""

    works: Mapping[Task, Work] = {
        "causal": Causal(),
        "masked": Masked(),
        "sequence-to-sequence": Translation(),
        "labels": Labels(),
        "captions": Captions(),
    }
    has_curve = True  # whether there are losses to plot
    only_learns = False  # whether training is all it does by itself
    predictable = True  # whether a step is products that can be priced before it is done

    def work(self, config: ModelConfig) -> Work:
        """What such a model learns to do."""
        return self.works[config.task]

    # Before the data is read

    def device(self, asked: torch.device) -> torch.device:
        """Where it is trained."""
        return asked

    def check_options(
        self, given: GivenOptions, config: ModelConfig | None, problems: Problems
    ) -> None:
        """Note options that mean nothing to such a model; None: it is not named."""
        if given.order:
            problems.add("--order is for n-gram models; give --model ngram")

    def check(self, settings: Settings, config: ModelConfig) -> None:
        """Refuse settings that mean nothing to such a model, before the data is read."""
        name, training, can = settings.model.preset, settings.training, config.abilities
        if settings.data.document_mask and Ability.MASK_DOCUMENTS not in can:
            raise RegardError(
                f"a model like {name} reads across documents; leave out data.document_mask"
            )
        if training.recompute and Ability.RECOMPUTE not in can:
            raise RegardError(
                f"a model like {name} keeps what it computed; leave out training.recompute"
            )
        if training.r_drop:
            _check_r_drop(name, config)
        if criterion_of(training).regularises and Ability.REGULARISE not in can:
            raise RegardError(
                f"the hidden vectors of a model like {name} are not regularised; leave out "
                "training.ar_alpha and training.tar_beta"
            )

    def sizes(
        self, settings: Settings, config: ModelConfig, gpu: bool, named: bool
    ) -> tuple[int, int]:
        """Tokens in a step and in a row, where the settings leave them open."""
        return TOKENS[config.form][gpu], ROW

    # The plan

    def resolve(self, prepared: PreparedData, device: torch.device) -> Plan:
        """Decide what depends on model, data and machine together."""
        return resolve(prepared, device, self.learning_rate, self.compiles)

    def learning_rate(self, config: ModelConfig, optimizer: str) -> float:
        """The usual one."""
        return GENTLE if optimizer == "sgd" else learning_rate_for(config.width)

    def compiles(self, config: ModelConfig) -> bool:
        """Whether torch.compile makes it faster."""
        return False

    def facts(self, plan: Plan) -> Mapping[str, str]:
        """What is known of a plan beside its data."""
        return {}

    def in_words(self, plan: Plan) -> str:
        """A plan's model in a few words."""
        config, layers = plan.config, getattr(plan.config, "layers", 0)
        assert plan.traces is not None
        deep = f", {layers} layers" if layers else ""
        return f"{config.kind}, {plan.traces.parameters:,} parameters{deep}, width {config.width}"

    # Training

    def trainer(self, job: Job, plan: Plan) -> Trainer:
        """Who trains it."""
        return Loop(job)

    def recorder(self, plan: Plan, module: BaseModel) -> Callable[[], dict[str, Any]] | None:
        """A measurement of gradients through time for the log, where there is one."""
        return None

    def start_facts(self, plan: Plan, module: BaseModel) -> Mapping[str, Any]:
        """What the log says of the training at its start."""
        training = plan.settings.training
        rows = plan.feed.step(0).rows
        return {
            **_parameters(module),
            "tokens_per_step": training.tokens_per_step,
            "rows": training.micro_batch_size,
            "accumulation": -(-rows // training.micro_batch_size),
            "precision": plan.precision,
        }

    def steps_in_words(self, plan: Plan) -> Mapping[str, str]:
        """How long it is trained, and for what."""
        training = plan.settings.training
        parts = -(-plan.feed.step(0).rows // training.micro_batch_size)
        size = many(training.micro_batch_size, "row")
        return {
            "objective": plan.objective.name,
            "steps": f"{training.steps:,} of up to {training.tokens_per_step:,} tokens, "
            f"{plan.feed.epoch(training.steps):,.3g} epochs"
            + (f", in {parts} parts of {size}" if parts > 1 else ""),
        }

    # What was trained

    def load(self, config: ModelConfig, folder: Path, device: torch.device) -> BaseModel:
        """The model with the weights of a folder."""
        return filled(config, folder, device)

    def anatomy(self, name: str, config: ModelConfig, folder: Path | None) -> list[str]:
        """Lines that describe a model in place of its modules; none: the modules do."""
        return []

    # Cost

    def priced(self, config: ModelConfig, asked: Asked, load: Callable[[], BaseModel]) -> Report:
        """What a job needs; `load` opens the run that was asked about, if there is one."""
        return report(config, asked)

    def tokens_priced(self, training: TrainingSettings) -> int:
        """Tokens of a row where nobody says; 0: as many as usual."""
        return 0

    def check_priced(self, options: Mapping[str, Any]) -> None:
        """Refuse options of `regard cost` that mean nothing to such a model."""


def _parameters(module: BaseModel) -> dict[str, int]:
    return {"parameters": sum(weight.numel() for weight in module.parameters())}


def _check_r_drop(name: str, config: ModelConfig) -> None:
    """Refuse to read rows twice where that is of no use."""
    leave = "leave out training.r_drop"
    if Ability.CARRY in config.abilities:
        raise RegardError(f"rows of a model like {name} go on from one another, once; {leave}")
    shares = [f.name for f in fields(config) if f.name.endswith("dropout")]
    if not any(getattr(config, share) for share in shares):
        more = f"; set model.{shares[0]}, or" if shares else ","
        raise RegardError(f"without dropout both readings of a row are the same{more} {leave}")

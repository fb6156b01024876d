"""The family of n-gram models (M3, M4), which count instead of being trained by steps."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from regard.costs.report import Asked, Report, of_counted
from regard.data.token_files import Tokens
from regard.errors import Problems, RegardError
from regard.families.base import Family, GivenOptions
from regard.families.counting.price import ngram
from regard.families.counting.trainer import Counting, counted_rules, measure_counts
from regard.families.plan import Plan, PreparedData
from regard.families.resolve import planned
from regard.families.tasks.base import Evaluation, Trained, Work
from regard.families.tasks.text import Causal, Reading
from regard.families.weights import WEIGHTS, check_fit
from regard.metrics.scores import Scores
from regard.models.config import ModelConfig, Task
from regard.models.counting.config import NGramConfig
from regard.models.counting.model import NGram, shapes_of, table_of
from regard.models.counting.table_check import TableCheck
from regard.models.network import BaseModel
from regard.storage.tensors import TensorFolder, verify
from regard.text.specials import BOS
from regard.training.job import Job, Trainer
from regard.training.validation import accounted


class Counts(Causal):
    """Each token with all that stands before it."""

    def measured(self, run: Trained, tokens: Tokens, asked: Evaluation) -> Scores:
        module = run.writer
        assert isinstance(module, NGram)
        scores = measure_counts(module, tokens, accounted(tokens, run.tokenizer))
        return replace(scores, rules=counted_rules(module))

    def finished(self, plan: Plan, module: Any, scores: Scores) -> Scores:
        return replace(scores, rules=counted_rules(module()))


class NGrams(Family):
    works: Mapping[Task, Work] = {"causal": Counts(Reading("word", lines=True, all_words=True))}
    has_curve = predictable = False

    def device(self, asked: torch.device) -> torch.device:
        return torch.device("cpu")  # where its tables are searched

    def check_options(
        self, given: GivenOptions, config: ModelConfig | None, problems: Problems
    ) -> None:
        assert isinstance(config, NGramConfig)
        if config.order != NGramConfig().order:  # a name such as bigram says it already
            super().check_options(given, config, problems)
        if given.steps or given.epochs:
            problems.add("an n-gram model counts its text once; leave out --steps and --epochs")

    def resolve(self, prepared: PreparedData, device: torch.device) -> Plan:
        """A plan without an optimizer: the data is read once, in a step for each length."""
        config = prepared.config
        assert isinstance(config, NGramConfig)
        training = replace(
            prepared.settings.training,
            steps=config.order,
            device="cpu",
            precision="float32",
            compile="no",
            micro_batch_size=1,
            log_every=1,
        )
        return planned(prepared, replace(prepared.settings, training=training), device)

    def in_words(self, plan: Plan) -> str:
        return _in_words(plan.config)

    def trainer(self, job: Job, plan: Plan) -> Trainer:
        return Counting(job)

    def start_facts(self, plan: Plan, module: BaseModel) -> Mapping[str, Any]:
        return {}

    def steps_in_words(self, plan: Plan) -> Mapping[str, str]:
        return {}

    def load(self, config: ModelConfig, folder: Path, device: torch.device) -> BaseModel:
        """A model whose tables stay on disk and are read where they are looked up."""
        assert isinstance(config, NGramConfig)
        tensors = TensorFolder(folder)
        sizes = _sizes(config, tensors)
        check_fit(shapes_of(sizes), tensors)
        verify(folder / WEIGHTS, TableCheck(sizes, config.vocabulary))
        return NGram(config, table_of(tensors, config, BOS))

    def anatomy(self, name: str, config: ModelConfig, folder: Path | None) -> list[str]:
        assert isinstance(config, NGramConfig)
        lines = [f"{name}  {_in_words(config)}"]
        if folder is not None and (folder / WEIGHTS).exists():
            sizes = _sizes(config, TensorFolder(folder))
            lines += [f"  {count:,} {n}-grams" for n, count in enumerate(sizes, 1)]
        return lines

    def priced(self, config: ModelConfig, asked: Asked, load: Callable[[], BaseModel]) -> Report:
        if asked.work == "train":
            raise RegardError("an n-gram model counts its text once; leave out --train")
        module = load()
        assert isinstance(module, NGram)
        return of_counted(ngram(module, asked.shape, asked.new), asked)


def _in_words(config: ModelConfig) -> str:
    assert isinstance(config, NGramConfig)
    return f"{config.order}-gram, {config.smoothing}"


def _sizes(config: NGramConfig, tensors: TensorFolder) -> list[int]:
    """How many n-grams of each length a table has."""
    shapes = [tensors.shapes.get(f"{n}.logprobs", (0,)) for n in range(2, config.order + 1)]
    return [config.vocabulary, *(shape[0] if len(shape) == 1 else 0 for shape in shapes)]


FAMILY = NGrams()

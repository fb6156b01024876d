"""The last step to a job: what depends on model, data and machine together."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from regard.cost.jobs import Shape
from regard.cost.step_traces import UNCOUNTED, StepTraces
from regard.data.batch import Feed
from regard.errors import RegardError
from regard.families.settings import Settings
from regard.models.bag.model import BagConfig
from regard.models.captioner.config import CaptionConfig
from regard.models.config import ModelConfig
from regard.models.construction import Prebuilt, build
from regard.models.convolution.config import ConvolutionConfig
from regard.models.counting.model import NGramConfig
from regard.models.recurrent.config import RecurrentConfig
from regard.models.transformer.config import TransformerConfig
from regard.models.word_vectors.model import Word2VecConfig
from regard.text.tokenizer import Tokenizer
from regard.training.memory.check import enough, unfit
from regard.training.memory.micro_batch import MOST_CPU, counted_rows, even, most_rows, tried_rows
from regard.training.objectives import Objective, objective_for
from regard.training.optimization.optimizers import GENTLE, STEEP, peak_for
from regard.training.optimization.precision import Precision, choose
from regard.training.optimization.schedules import warmup
from regard.training.word2vec.steps import RATES

OFTEN = 50  # steps between validations, at least: a pass over what is held out takes a while
EPOCHS = 5  # of word2vec, as its authors have it
LINEAR_RATE, PERCEPTRON_RATE = 0.1, 0.01  # of classifiers of bags of words
PICTURES = 3  # a Transformer's rate by this: the eye is deep
RECURRENT = 3  # times a Transformer's rate: bytes of Python, width 128, loss 2.40 instead of 2.57


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


def resolve(made: PreparedData, device: torch.device) -> Plan:
    """Decide what depends on model, data and machine together."""
    settings, config = made.settings, made.config
    training, optimizer = settings.training, settings.optimizer
    objective = objective_for(config, settings.data.form)
    if isinstance(config, NGramConfig):
        return _once(made, objective, config.order)
    if isinstance(config, Word2VecConfig):
        return _passes(made, config, objective, device)
    if settings.schedule.kind == "plateau" and not made.valid_tokens:
        raise RegardError(
            "schedule.kind plateau waits for what validation says, and nothing is held out; name "
            "--valid files, or choose another schedule"
        )
    precision = choose(training.precision, device)
    feed = made.feed(training.tokens_per_step)
    if training.epochs:
        training = replace(training, steps=_steps(feed, training.epochs))
        settings = replace(settings, training=training)
    traces = StepTraces(config, settings, device, precision)
    lacking = unfit(settings.model.preset, traces.parameters, settings, device, precision)
    rows, built = training.micro_batch_size or int(bool(lacking)), None
    if not rows and device.type != "cuda":
        rows = _rows(feed, traces)
    elif not rows:
        with enough(device):
            built = Prebuilt(config, device, training.seed)
            rows = tried_rows(built.module, objective, feed, settings, device, precision)
    steps = training.steps
    every = training.validate_every or min(steps, max(OFTEN, steps // 20))
    training = replace(
        training,
        device=str(device),
        precision=precision,
        compile="yes" if _compiled(settings, traces, device) else "no",
        validate_every=every,
        checkpoint_every=training.checkpoint_every or every,
        sample_every=training.sample_every or every,
        log_every=training.log_every or max(1, steps // 200),
        micro_batch_size=rows,
    )
    usual = _steep(config) if optimizer.kind == "sgd" else _peak(config)
    optimizer = replace(optimizer, learning_rate=optimizer.learning_rate or usual)
    schedule = replace(settings.schedule, warmup=warmup(settings.schedule, steps))
    settings = replace(settings, training=training, optimizer=optimizer, schedule=schedule)
    planned = _planned(made, settings, objective, device, feed)
    return replace(planned, unfit=lacking, traces=traces, built=built)


def _steep(config: ModelConfig) -> float:
    """SGD's."""
    return STEEP if isinstance(config, RecurrentConfig) and config.kind == "decoder" else GENTLE


def _peak(config: ModelConfig) -> float:
    if isinstance(config, BagConfig):
        return PERCEPTRON_RATE if config.layers else LINEAR_RATE
    if isinstance(config, RecurrentConfig) and config.kind == "decoder":
        return RECURRENT * peak_for(config.width)
    assert not isinstance(config, NGramConfig)
    return peak_for(config.width) / (PICTURES if isinstance(config, CaptionConfig) else 1)


def _steps(feed: Feed, epochs: float) -> int:
    """After how many steps the data has been seen so often."""
    most = 1
    while feed.epoch(most) < epochs:
        most *= 2
    return bisect_left(range(most), epochs, lo=1, key=feed.epoch)


def _passes(
    made: PreparedData, config: Word2VecConfig, objective: Objective, device: torch.device
) -> Plan:
    """A plan for word vectors, which are made in whole passes over the text."""
    settings = made.settings
    training = settings.training
    if training.epochs != int(training.epochs):
        raise RegardError(
            f"word vectors are made in whole passes over the text, not {training.epochs}; "
            "set training.epochs to a whole number"
        )
    epochs = int(training.epochs) or EPOCHS
    steps = epochs * -(-made.train_tokens // training.tokens_per_step)
    every = training.checkpoint_every or max(1, steps // 10)
    training = replace(
        training,
        steps=steps,
        epochs=float(epochs),
        device=str(device),
        precision="float32",
        compile="no",
        micro_batch_size=1,
        checkpoint_every=every,
        sample_every=training.sample_every or every,
        log_every=training.log_every or max(1, steps // 200),
    )
    peak = settings.optimizer.learning_rate or RATES[config.method]
    optimizer = replace(settings.optimizer, learning_rate=peak)
    settings = replace(settings, training=training, optimizer=optimizer)
    return _planned(made, settings, objective, device)


def _planned(
    made: PreparedData,
    settings: Settings,
    objective: Objective,
    device: torch.device,
    feed: Feed | None = None,
) -> Plan:
    """A plan whose settings are decided, and its feed if that was made already."""
    training = settings.training
    return Plan(
        settings,
        made.config,
        objective,
        feed or made.feed(training.tokens_per_step),
        made.tokenizers,
        device,
        choose(training.precision, device),
        training.compile == "yes",
        {**made.data, **_sight(made.config)},
        made.warnings,
        made.valid_bytes,
        made.train_tokens,
        made.valid_tokens,
        made.digest,
    )


def _sight(config: ModelConfig) -> dict[str, str]:
    """How far a convolution sees: by its settings alone, whatever it is trained on."""
    if not isinstance(config, ConvolutionConfig):
        return {}
    found = f"the last {config.reach:,} tokens"
    if config.kind == "encoder-decoder":
        found += f" of a target, {config.source_reach:,} around each one of a source"
    return {"sees": found}


def _once(made: PreparedData, objective: Objective, steps: int) -> Plan:
    """A plan without an optimizer: the data is read once, in so many steps."""
    training = replace(
        made.settings.training,
        steps=steps,
        device="cpu",
        precision="float32",
        compile="no",
        micro_batch_size=1,
        log_every=1,
    )
    settings = replace(made.settings, training=training)
    return _planned(made, settings, objective, torch.device("cpu"))


# FLOPs of a whole run from which compiling is tried: a minute of work at a third of an H200's peak.
# In a run of one minute that did little of it, compiling took 17 s and did not pay.
WORTH_COMPILING = 2e16


def _compiled(settings: Settings, traces: StepTraces, device: torch.device) -> bool:
    """Compiling pays on a GPU, for rows of one shape, when there is enough to do."""
    training = settings.training
    if training.compile == "auto" and not isinstance(traces.config, TransformerConfig):
        return False  # recurrence is one kernel already
    if training.compile == "auto":
        flops = 6.0 * traces.parameters * training.tokens_per_step * training.steps
        return device.type == "cuda" and not settings.data.pairs and flops > WORTH_COMPILING
    return training.compile == "yes"


def _rows(feed: Feed, traces: StepTraces) -> int:
    """How many rows to compute at once on a CPU."""

    def held(rows: int, tokens: int, source: int) -> tuple[int, int]:
        counted = traces.of(Shape(rows, tokens, source))
        gradients = 4 * counted.parameters
        there = counted.weights + gradients + counted.memory["optimizer"]
        return there, counted.memory["activations"]

    try:
        return counted_rows(feed, held)
    except UNCOUNTED:  # then it is something small
        return even(min(most_rows(feed), MOST_CPU), most_rows(feed))

"""What depends on model, data and machine together, for what is trained by the loop."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace

import torch

from regard.costs.jobs import Shape
from regard.costs.step_traces import UNCOUNTED, StepTraces
from regard.data.batch import Feed
from regard.errors import RegardError
from regard.families.plan import Plan, PreparedData
from regard.families.settings import Settings
from regard.models.config import ModelConfig
from regard.models.construction import Prebuilt
from regard.training.memory.check import enough, unfit
from regard.training.memory.micro_batch import MOST_CPU, counted_rows, even, most_rows, tried_rows
from regard.training.objectives import objective_for
from regard.training.optimization.precision import choose
from regard.training.optimization.schedules import warmup

OFTEN = 50  # steps between validations, at least: a pass over what is held out takes a while


def resolve(
    made: PreparedData,
    device: torch.device,
    learning_rate: Callable[[ModelConfig, str], float],
    compiles: Callable[[ModelConfig], bool],
) -> Plan:
    """Decide what was left open."""
    settings, config = made.settings, made.config
    training, optimizer = settings.training, settings.optimizer
    objective = objective_for(config, settings.data.form)
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
    compiled = _compiled(settings, traces, device, compiles(config))
    training = replace(
        training,
        device=str(device),
        precision=precision,
        compile="yes" if compiled else "no",
        validate_every=every,
        checkpoint_every=training.checkpoint_every or every,
        sample_every=training.sample_every or every,
        log_every=training.log_every or max(1, steps // 200),
        micro_batch_size=rows,
    )
    rate = optimizer.learning_rate or learning_rate(config, optimizer.kind)
    schedule = replace(settings.schedule, warmup=warmup(settings.schedule, steps))
    settings = replace(
        settings,
        training=training,
        optimizer=replace(optimizer, learning_rate=rate),
        schedule=schedule,
    )
    found = planned(made, settings, device, feed)
    return replace(found, unfit=lacking, traces=traces, built=built)


def planned(
    made: PreparedData, settings: Settings, device: torch.device, feed: Feed | None = None
) -> Plan:
    """A plan whose settings are decided, and its feed if that was made already."""
    training = settings.training
    return Plan(
        settings,
        made.config,
        objective_for(made.config, settings.data.form),
        feed or made.feed(training.tokens_per_step),
        made.tokenizers,
        device,
        choose(training.precision, device),
        training.compile == "yes",
        made.data,
        made.warnings,
        made.valid_bytes,
        made.train_tokens,
        made.valid_tokens,
        made.digest,
    )


def _steps(feed: Feed, epochs: float) -> int:
    """The steps after which the data has been seen so often."""
    most = 1
    while feed.epoch(most) < epochs:
        most *= 2
    return bisect_left(range(most), epochs, lo=1, key=feed.epoch)


# FLOPs of a whole run from which compiling is tried: a minute of work at a third of an H200's peak.
# In a run of one minute that did little of it, compiling took 17 s and did not pay.
WORTH_COMPILING = 2e16


def _compiled(settings: Settings, traces: StepTraces, device: torch.device, faster: bool) -> bool:
    """Compiling pays on a GPU, for rows of one shape, when there is enough to do."""
    training = settings.training
    if training.compile != "auto":
        return training.compile == "yes"
    if not faster or device.type != "cuda" or settings.data.pairs:
        return False
    flops = 6.0 * traces.parameters * training.tokens_per_step * training.steps
    return flops > WORTH_COMPILING


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

"""What depends on model, data and machine together, for what is trained by the loop."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace

import torch

from regard.data.batch import Feed
from regard.errors import RegardError
from regard.families.plan import Plan, PreparedData
from regard.families.settings import Settings
from regard.models.config import ModelConfig
from regard.models.construction import build
from regard.training.memory.check import enough, unfit
from regard.training.memory.trial import rows_of_step
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
    lacking = unfit(settings.model.preset, config, settings, device, precision)
    rows = training.micro_batch_size or int(bool(lacking))
    if not rows:
        with enough(device):
            rows = rows_of_step(config, objective, feed, training, device, precision)
    steps = training.steps
    every = training.validate_every or min(steps, max(OFTEN, steps // 20))
    compiled = _compiled(settings, config, device, compiles(config))
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
    return replace(planned(made, settings, device, feed), unfit=lacking)


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


def _compiled(settings: Settings, config: ModelConfig, device: torch.device, faster: bool) -> bool:
    """Compiling pays on a GPU, for rows of one shape, when there is enough to do."""
    training = settings.training
    if training.compile != "auto":
        return training.compile == "yes"
    if not faster or device.type != "cuda" or settings.data.pairs:
        return False
    weights = sum(weight.numel() for weight in build(config, "meta").parameters())
    return 6.0 * weights * training.tokens_per_step * training.steps > WORTH_COMPILING

"""What a run will cost, told before it begins, and beside what was measured when it has ended."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from statistics import median
from typing import Any

import torch

from regard.costs.device.ceilings import device_named
from regard.costs.in_parts import in_parts
from regard.costs.jobs import Counted, Model, Shape
from regard.costs.predict import step_seconds
from regard.costs.report import Asked, Report, report
from regard.costs.step_products import of_any_length
from regard.costs.step_traces import UNCOUNTED
from regard.errors import RegardError
from regard.families.plan import Plan
from regard.families.registry import family_of
from regard.formats import moment
from regard.training.job import Trainer
from regard.training.loop import Loop
from regard.training.meter import memory, shape
from regard.training.objectives import criterion_of
from regard.training.throughput import Products, crowding

CROWDED = 3  # times as long with all threads as with one: then they only wait for each other
SHORT = 100  # steps: to count what a shorter run costs takes longer than the run


@dataclass(frozen=True)
class StepForecast:
    """A step of a run as it was predicted."""

    asked: Asked
    counted: Counted
    parts: int
    seconds: float

    @property
    def bytes(self) -> int:
        return self.counted.peak + self.asked.device.fixed

    def event(self) -> dict[str, Any]:
        """What the log says before the first step."""
        steps, device = self.asked.steps, self.asked.device
        said = f"{moment(self.seconds)} a step predicted, {moment(self.seconds * steps)} in "
        said += f"all, {self.bytes / 1e9:.3g} GB ({device.name}: {device.source})"
        return {
            "event": "cost",
            "predicted_seconds": self.seconds,
            "predicted_memory": self.bytes,
            "operations": self.parts * self.counted.total.operations,
            "device": device.name,
            "message": said,
        }

    def beside(self, loop: Trainer) -> dict[str, Any] | None:
        """What the log says when all is done: the same, measured."""
        if not isinstance(loop, Loop) or not loop.meter.paces:
            return None
        measured = median(loop.meter.paces)
        held = memory(loop.job.device)
        error = self.seconds / measured - 1
        said = f"{moment(measured)} a step measured (median), {moment(self.seconds)} predicted "
        said += f"({error:+.0%}); {held / 1e9:.3g} GB held"
        if loop.job.device.type == "cpu":  # then it is not only what the step asks for
            said += f" by the whole process, {self.bytes / 1e9:.3g} GB predicted for tensors"
        else:
            said += f", {self.bytes / 1e9:.3g} GB predicted"
        return {
            "event": "cost",
            "measured_seconds": measured,
            "measured_memory": held,
            "predicted_seconds": self.seconds,
            "predicted_memory": self.bytes,
            "message": said,
        }


def asked_of(made: Plan, processes: int = 1) -> tuple[Asked, int] | None:
    """A step of a plan: what one process computes at once, and in how many parts."""
    if not family_of(made.config).predictable:
        return None
    try:
        device = device_named(made.device.type)
    except RegardError:  # a calibration of an older Regard, or a damaged one
        return None
    training, batch = made.settings.training, made.feed.step(0)
    rows = max(1, min(training.micro_batch_size, -(-batch.rows // processes)))
    parts = -(-batch.rows // (rows * processes))
    asked = Asked(
        "train",
        Shape(rows, *shape(batch)[1:]),
        device,
        made.precision,
        steps=training.steps,
        recompute=training.recompute,
        optimizer=made.settings.optimizer,
        criterion=criterion_of(training),
    )
    return asked, parts


def products_of(made: Plan) -> Products | None:
    """The products of any part of a step; none for what is trained otherwise, or only shortly.

    They are counted when they are first asked for, after the first steps. NaN says that it cannot
    be done: a run does not fail because its price is not known.
    """
    if made.settings.training.steps < SHORT or made.traces is None:
        return None
    if not family_of(made.config).predictable:
        return None
    count = cache(partial(_products, made))
    return lambda rows, tokens, sources: count()(rows, tokens, sources)


def _products(made: Plan) -> Products:
    assert made.traces is not None
    readings = made.traces.criterion.readings
    try:
        if made.config.form == "text":  # rows that are all of one length
            each = made.traces.products_of_a_row(made.feed.step(0).tokens.shape[1])
            return lambda rows, tokens, sources: readings * rows * each
        sources = made.config.reads_text
        of = of_any_length(made.traces.module, sources=sources)
        return lambda rows, tokens, sources: of(readings * rows, tokens, sources)
    except UNCOUNTED:
        return lambda rows, tokens, sources: math.nan


def forecast(made: Plan, processes: int = 1) -> StepForecast | None:
    """The prediction for a plan; none for what is not trained by steps, or only by few."""
    given = asked_of(made, processes) if made.settings.training.steps >= SHORT else None
    if given is None or made.traces is None:
        return None
    asked, parts = given
    try:
        counted = made.traces.of(asked.shape)
    except UNCOUNTED:
        return None
    return StepForecast(asked, counted, parts, step_seconds(counted, asked.device, parts))


def dry_report(made: Plan) -> tuple[Report, int] | None:
    """The whole report of a step, for a dry run, and in how many parts it is computed."""
    given = asked_of(made)
    if given is None:
        return None
    asked, parts = given
    return in_parts(report(_model(made), asked), parts), parts


def _model(made: Plan) -> Model:
    """What is counted: the module that was traced already, if there is one."""
    return made.traces.module if made.traces else made.config


def warned(made: Plan, told: StepForecast) -> Mapping[str, Any] | None:
    """A warning before a run that will not fit, with what would."""
    device = told.asked.device
    if told.bytes <= device.memory:
        return None
    rows = report(_model(made), told.asked).rows_that_fit
    would = f"training.micro_batch_size={rows} would fit"
    if not rows:
        would = "not one row would fit; choose a smaller model or a shorter training.context"
    return {
        "event": "warning",
        "message": f"a step is predicted to hold {told.bytes / 1e9:.3g} GB, and {device.name} has "
        f"{device.memory / 1e9:.3g}; {would}",
    }


def crowded(told: StepForecast) -> Mapping[str, Any] | None:
    """A warning before a run on a CPU whose cores others use."""
    threads = torch.get_num_threads()
    if told.asked.device.kind != "cpu" or threads == 1 or (longer := crowding()) < CROWDED:
        return None
    return {
        "event": "warning",
        "message": f"with {threads} threads an operation takes {longer:.0f} times as long as with "
        "one: other programs use the cores; OMP_NUM_THREADS=1 would be faster",
    }

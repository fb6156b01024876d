"""What the host takes to ask for operations, from models so small that they do little else, and
from some that do more.

Their steps are timed by phase, what the operations themselves take is taken off (on a GPU they run
beside), and the rest is divided among calls of torch, modules that are entered, tensors that are
handed over, and operations that more than one thread of a CPU is called to, so that all models come
out as right as can be.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch

from regard.costs import jobs, measured
from regard.costs.device.ceilings import Device
from regard.costs.jobs import Counted, Shape
from regard.costs.predict import How, host_counts, timed
from regard.models.config import ModelConfig
from regard.models.registry import named

# What may take time in each phase. Going back, no module is entered; an optimizer has few calls for
# many tensors, which are large.
CAUSES = {
    "forward": ("call", "module", "shared"),
    "backward": ("call", "shared"),
    "optimizer": ("call", "tensor", "byte"),
    "write": ("call", "module"),
}
TIMES = 300  # steps at most
THREADS = ("shared", "byte")  # what threads of a CPU take to share an operation


class Sample(NamedTuple):
    """What the host did in a phase of a model, how often, and the seconds that went to it."""

    counts: Mapping[str, int]
    host: float
    whole: float  # with what the operations themselves took


def small_models() -> list[ModelConfig]:
    """Ways to be small: none of them does anything that takes long."""
    narrow = {"vocabulary": 64, "width": 64}
    even = {**narrow, "dropout": 0.0}
    heads = {**even, "heads": 2, "hidden": 64}
    ways: list[tuple[str, dict[str, Any]]] = [
        ("gpt2-tiny", {**heads, "layers": 1, "attention_dropout": 0.0}),
        ("gpt2-tiny", {**heads, "layers": 4, "attention_dropout": 0.0}),
        ("regard-4", {**heads, "layers": 2, "context": 64}),
        ("transformer-base", {**heads, "layers": 2, "encoder_layers": 2}),
        ("lstm", {**even, "layers": 2, "hidden": 64}),
        ("conv", {**even, "layers": 3}),
        ("conv-pairs", {**even, "layers": 2, "encoder_layers": 2}),
        ("bahdanau", {**even, "hidden": 64}),
    ]
    return [replace(named(name), **changed) for name, changed in ways]


def larger_models() -> list[ModelConfig]:
    """Models that do work between calls, whose weights drive the host's own out of the caches.

    Predictions of writing from the small ones alone were 13 % short, in the middle of fourteen. In
    training, their operations are shared out to a CPU's threads, which those of small ones are not.
    """
    wide = {"vocabulary": 5000, "width": 192, "dropout": 0.0}
    heads = {**wide, "heads": 3, "hidden": 512}
    ways: list[tuple[str, dict[str, Any]]] = [
        ("gpt2-tiny", {**heads, "layers": 5, "context": 256, "attention_dropout": 0.0}),
        ("regard-4", {**heads, "layers": 3, "context": 256}),
        ("transformer-base", {**heads, "layers": 4, "encoder_layers": 1}),
        ("lstm", {**wide, "layers": 3, "hidden": 192}),
        ("conv", {**wide, "layers": 6}),
    ]
    return [replace(named(name), **changed) for name, changed in ways]


def models(larger: bool = True) -> list[tuple[ModelConfig, Shape]]:
    """All of them, and what they read; or the small ones only."""
    small = [(config, Shape(1, 4)) for config in small_models()]
    return small + [(config, Shape(4, 72)) for config in larger_models() if larger]


def launching(device: Device, where: torch.device, share: float = 1.0) -> dict[str, float]:
    """Seconds of each cause in each phase; `share` of the usual time is spent on it."""
    samples: dict[str, list[Sample]] = {phase: [] for phase in CAUSES}
    for config, shape in models(larger=device.kind == "cpu"):
        counted = jobs.train_step(config, shape, device.kind)
        for phase, seconds in _phases(config, shape, where, share).items():
            samples[phase].append(_host(counted, phase, "train", device, seconds))
    for config, shape in models():
        counted = jobs.step(config, shape, device.kind)
        seconds = measured.seconds(measured.writing(config, shape, where), where, share / 4)
        samples["write"].append(_host(counted, "forward", "write", device, seconds))
    found: dict[str, float] = {}
    for phase, causes in CAUSES.items():
        known = [cause for cause in causes if device.kind == "cpu" or cause not in THREADS]
        for cause, seconds in fitted(samples[phase], known).items():
            found[f"{phase} {cause}"] = seconds
    return found


def _phases(
    config: ModelConfig, shape: Shape, where: torch.device, share: float
) -> dict[str, float]:
    """Seconds of the host in each phase of a step, the median of many."""
    found: list[dict[str, float]] = []  # of each step; some phases are entered more than once

    @contextmanager
    def phase(name: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        found[-1][name] = found[-1].get(name, 0.0) + time.perf_counter() - begin

    run = measured.training(config, shape, where, phase=phase)

    def once() -> None:
        found.append({})
        run()

    _often(once, share / 2)
    middle = {name: median(taken[name] for taken in found) for name in found[0]}
    middle["optimizer"] += middle.pop("gather")
    return middle


def _often(run: Callable[[], object], budget: float) -> None:
    end = time.perf_counter() + budget
    for times in range(TIMES):
        run()
        if times >= 3 and time.perf_counter() > end:
            return


def _host(counted: Counted, phase: str, how: How, device: Device, seconds: float) -> Sample:
    """What the host had to do in a phase, and what that took."""
    counts: dict[str, int] = {}
    host = seconds
    for record, took in zip(counted.records, timed(counted.records, device, how), strict=True):
        if record.phase == phase:
            for cause, n in host_counts(record).items():
                counts[cause] = counts.get(cause, 0) + n
            if device.kind == "cpu":
                host -= took.seconds
    return Sample(counts, host, seconds)


def fitted(samples: Sequence[Sample], causes: Sequence[str]) -> dict[str, float]:
    """Seconds of each cause, none below 0, so that wholes are as right as can be, in percent."""
    left = list(causes)
    while left:
        table = np.array([[one.counts[cause] / one.whole for cause in left] for one in samples])
        wanted = np.array([one.host / one.whole for one in samples])
        found = np.linalg.lstsq(table, wanted, rcond=None)[0]
        if (found >= 0).all():
            return dict(zip(left, found.tolist(), strict=True))
        left.pop(int((found * table.mean(0)).argmin()))
    return {}

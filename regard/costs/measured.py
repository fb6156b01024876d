"""The same jobs with numbers, on a real device: what predictions are measured by."""

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch

from regard.costs.jobs import Shape, learning
from regard.data.batch import Batch
from regard.models.config import ModelConfig
from regard.models.construction import build
from regard.training.memory.allocator import keep_freed
from regard.training.optimization.precision import Precision, Weights, computing
from regard.training.step import Phase, unmarked

SPARE = 8  # tokens


def _ids(config: ModelConfig, rows: int, tokens: int, device: torch.device) -> torch.Tensor:
    return torch.randint(config.vocabulary, (rows, tokens), device=device)


def training(
    config: ModelConfig,
    shape: Shape,
    device: torch.device,
    precision: Precision = "float32",
    phase: Phase = unmarked,
) -> Callable[[], None]:
    """A function that takes one step of training; `phase` is entered for each part of it."""
    if device.type == "cpu":
        keep_freed()  # as the loop does
    step = learning(Weights(build(config, device).train(), precision), precision, device)
    step.phase = phase
    ids = _ids(config, shape.rows, shape.tokens, device)
    source = _source(config, shape, device) if config.reads else None
    batch = Batch(ids, ids, ids.numel(), ids.numel(), source=source)
    return partial(step.take, 0, [batch], batch.valid)


def _source(config: ModelConfig, shape: Shape, device: torch.device) -> torch.Tensor:
    """What is read: tokens (rows, positions), or pictures (rows, 3, size, size)."""
    if config.picture_shape:
        return torch.zeros(shape.rows, *config.picture_shape, dtype=torch.uint8, device=device)
    return _ids(config, shape.rows, shape.source or shape.tokens, device)


def writing(
    config: ModelConfig, shape: Shape, device: torch.device, precision: Precision = "float32"
) -> Callable[[], None]:
    """A function that writes one token behind `shape.tokens`, and forgets it again.

    A few are forgotten at a time: that takes time too, and is no part of writing.
    """
    module = build(config, device).eval()
    if precision == "bf16-weights":
        module = module.to(torch.bfloat16)
    rows, tokens = shape.rows, shape.tokens
    new = _ids(config, rows, 1, device)
    mixed = partial(computing, precision, device, True)
    with torch.no_grad(), mixed():
        state: Any = module.start(batch_size=rows, capacity=tokens + SPARE)
        memory = module.encode(_source(config, shape, device)) if config.reads else None
        module(_ids(config, rows, tokens, device), memory, state=state, last=True)
    undoes = hasattr(state, "layers")  # a cache that would run full
    written = 0

    @torch.no_grad()
    def write() -> None:
        nonlocal written
        with mixed():
            module(new, state=state, last=True)
        written += 1
        if undoes and written % SPARE == 0:
            state.rollback([SPARE] * rows)

    return write


def seconds(run: Callable[[], object], device: torch.device, budget: float = 0.5) -> float:
    """What one call takes: the median of as many as the budget allows, at least three."""
    run()
    found: list[float] = []
    end = time.perf_counter() + budget
    while len(found) < 3 or (time.perf_counter() < end and len(found) < 1000):
        found.append(_once(run, device))
    return median(found)


def _once(run: Callable[[], object], device: torch.device) -> float:
    if device.type != "cuda":
        begin = time.perf_counter()
        run()
        return time.perf_counter() - begin
    # Several in a row: events around a single short one would time the waiting for it.
    times = 5
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    first.record()
    for _ in range(times):
        run()
    last.record()
    torch.cuda.synchronize(device)
    return float(first.elapsed_time(last)) / 1e3 / times

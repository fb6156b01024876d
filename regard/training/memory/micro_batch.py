"""How many rows of a step are computed at once: as many as memory has room for.

On a GPU they are tried, with the run's own module, which is left as it was. On a CPU, where trying
too much ends the process, a trace of the step tells what they hold.
"""

import gc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from regard.data.batch import Batch, Feed
from regard.errors import RegardError
from regard.training.job import Answer, recompute
from regard.training.meter import shape
from regard.training.objectives import Objective, criterion_of
from regard.training.optimization.precision import Precision, Weights, computing
from regard.training.settings import RunSettings
from regard.training.step import backward

SHARE = 0.85  # of the free memory; allocators break memory into pieces, and shapes vary
MOST_CPU = 64  # rows at once on a CPU: more does not make it faster

# Bytes of a step of (rows, tokens, tokens of sources): what is there anyway, and what rows add.
Held = Callable[[int, int, int], tuple[int, int]]


def counted_rows(feed: Feed, held: Held) -> int:
    """Rows to compute at once on a CPU, by what a step of the longest rows holds."""
    most = most_rows(feed)
    rows = even(min(most, MOST_CPU), most)
    there, added = held(rows, *shape(_widest(feed))[1:])
    room = free_memory() * SHARE - there
    # A heap that keeps what is freed, and breaks it into pieces, takes more: twice is ample.
    return even(max(1, min(rows, int(room / max(2 * added / rows, 1)))), most)


def most_rows(feed: Feed) -> int:
    """The rows of a step."""
    return max(step.rows for step in _first_steps(feed))


def tried_rows(
    module: Any,
    objective: Objective,
    feed: Feed,
    settings: RunSettings,
    device: torch.device,
    precision: Precision,
) -> int:
    """Rows to compute at once on a GPU, found by computing some; the module is as new then."""
    training, batch = settings.training, _widest(feed)
    recompute(module, wanted=training.recompute)
    weights = Weights(module.train(), precision)
    masters = weights.masters is not weights.own
    answer = Answer(module, objective, criterion_of(training))
    mixed = partial(computing, precision, device, objective.varied)
    # Moments take their room from the start; so do gradients of masters, and means.
    copies = 2 + masters + 2 * bool(training.ema)
    listed = [weight for weight in module.parameters() for _ in range(copies)]
    beside = [torch.empty_like(weight, dtype=torch.float32) for weight in listed]

    def attempt(rows: int) -> None:
        try:
            backward(answer, _repeated(batch, rows).to(device), 1.0, mixed)
        finally:
            module.zero_grad(set_to_none=True)

    try:
        return rows_that_fit(attempt, most_rows(feed), device)
    finally:
        del beside
        recompute(module, wanted=False)
        if masters:
            module.to(torch.float32)
            weights.publish()


def _first_steps(feed: Feed) -> list[Batch]:
    """Enough steps to see how rows vary."""
    return [feed.step(step) for step in range(feed.telling)]


def _widest(feed: Feed) -> Batch:
    """One row as long as rows get, sources too."""
    batch = max(_first_steps(feed), key=lambda found: found.positions / found.rows)
    return batch.each(lambda tensor: tensor[:1])


def _repeated(batch: Batch, rows: int) -> Batch:
    return batch.each(lambda tensor: tensor.expand(rows, *tensor.shape[1:]).contiguous())


def rows_that_fit(attempt: Callable[[int], object], most: int, device: torch.device) -> int:
    """How many of up to `most` rows `attempt` can compute at once on a GPU, there and back.

    The peak memory of one and of two rows gives a first guess, which is then tried, and halved
    until it works.
    """
    first = _peak(attempt, 1, device)  # workspaces and lazily loaded kernels come with it
    one = None if first is None else _peak(attempt, 1, device)
    if one is None:
        raise RegardError("not even one row fits the GPU; choose a smaller model or context")
    two = _peak(attempt, min(2, most), device)
    rows = most
    if two is not None and two > one:
        free, _ = torch.cuda.mem_get_info(device)
        spare = free + torch.cuda.memory_reserved(device) - one
        rows = min(most, 1 + int(SHARE * spare / (two - one)))
    while rows > 1 and _peak(attempt, rows, device) is None:
        rows //= 2
    return even(rows, most)


def even(rows: int, most: int) -> int:
    """Not more than `rows`, such that parts of `most` rows come out equal in size."""
    parts = -(-most // max(rows, 1))
    return -(-most // parts)


def _peak(attempt: Callable[[int], object], rows: int, device: torch.device) -> int | None:
    """The most bytes held while `rows` are computed; None if they do not fit."""
    torch.cuda.reset_peak_memory_stats(device)
    try:
        attempt(rows)
        torch.cuda.synchronize(device)
    except torch.OutOfMemoryError:
        return None
    finally:
        gc.collect()
        torch.cuda.empty_cache()
    return torch.cuda.max_memory_allocated(device)


def free_memory() -> int:
    """Bytes of main memory that can still be had."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 2 << 30  # not told here: assume little

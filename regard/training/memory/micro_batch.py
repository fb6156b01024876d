"""The largest batch that fits, found by trying rather than by a formula."""

import gc
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from regard.errors import RegardError

SHARE = 0.85  # of the free memory; allocators break memory into pieces, and shapes vary
MOST_CPU = 64  # rows at once on a CPU: more does not make it faster


def rows_that_fit(attempt: Callable[[int], object], most: int, device: torch.device) -> int:
    """How many of up to `most` rows `attempt` can compute at once, forward and backward.

    On a GPU the peak memory of one and of two rows gives a first guess, which is then tried, and
    halved until it works. On a CPU, where trying too much ends the process, what a row keeps for
    the backward pass is counted and set against the memory that is free.
    """
    if device.type == "cuda":
        return _by_trying(attempt, most, device)
    kept = _kept_bytes(lambda: attempt(1))
    room = free_memory() * SHARE
    # Gradients and temporaries of the widest layers come on top of what is kept: twice is ample.
    return even(max(1, min(most, MOST_CPU, int(room / max(2 * kept, 1)))), most)


def _by_trying(attempt: Callable[[int], object], most: int, device: torch.device) -> int:
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


def _kept_bytes(run: Callable[[], object]) -> int:
    """Bytes of distinct tensors that a forward pass keeps for its backward pass."""
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        run()
    return sum(kept.values())


def free_memory() -> int:
    """Bytes of main memory that can still be had."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 2 << 30  # not told here: assume little

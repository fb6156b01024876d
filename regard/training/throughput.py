"""How close a run comes to what its machine can do.

The share is that of the products of a step, forward and backward, which `regard.costs` counts from
the module itself (1 multiply-add = 2 FLOPs; hidden pairs are not counted). The peak is the
datasheet's where the device is known, else the fastest matrix product measured here.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

import torch

from regard.models.kernels.linear import product
from regard.models.kernels.threads import one_thread
from regard.training.datasheets import SHEETS, named_in
from regard.training.optimization.precision import Precision

# FLOPs of the products of a part of a step: of rows, their tokens, and those of their sources.
Products = Callable[[int, int, int], float]

SHARED = 1 << 17  # numbers, enough for torch to share an operation out


@dataclass(frozen=True)
class Peak:
    """The most FLOP/s to be had, and how that is known."""

    rate: float
    source: str

    def words(self) -> str:
        return f"{self.rate / 1e12:.3g} TFLOP/s {self.source}"


NO_PEAK = Peak(math.inf, "")  # where nobody asks


def peak(device: torch.device, precision: Precision) -> Peak:
    """The device's peak for matrix products in this precision."""
    kind = torch.float32 if precision == "float32" else torch.bfloat16
    if device.type == "cuda" and kind == torch.bfloat16:
        known = named_in(torch.cuda.get_device_name(device))
        if known:
            return Peak(SHEETS[known].half, "bf16 by the datasheet")
    return Peak(_fastest_product(device, kind), f"{str(kind)[6:]} matrix product, measured here")


def crowding() -> float:
    """How many times as long an operation takes on all threads of a CPU as on one of them.

    Less than 1 if they help. Where other programs keep a core busy, each operation waits for the
    thread that is there: of two threads, a whole step then took 50 times as long as of one.
    """
    several = fmean(_seconds(0.1))  # many turns of whoever else is there
    with one_thread():
        return several / min(_seconds(0.02))


def _seconds(budget: float) -> list[float]:
    """What each of some operations takes that torch shares out."""
    numbers = torch.ones(SHARED)
    ends = [time.perf_counter()]
    while ends[-1] - ends[0] < budget or len(ends) < 4:
        numbers.mul_(1.0)
        ends.append(time.perf_counter())
    return [last - first for first, last in pairwise(ends)][1:]


def _fastest_product(device: torch.device, kind: torch.dtype) -> float:
    size = 4096 if device.type == "cuda" else 512
    a, b = (torch.randn(size, size, device=device, dtype=kind) for _ in range(2))
    best, end = float("inf"), time.perf_counter() + 0.5
    with torch.no_grad():
        while time.perf_counter() < end:  # the best of many: others may use the machine meanwhile
            begin = time.perf_counter()
            product(a, b)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            best = min(best, time.perf_counter() - begin)
    return 2 * size**3 / best

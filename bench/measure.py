"""How every benchmark here measures: peers in turn in one process, medians, ratios."""

import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import torch


@dataclass(frozen=True)
class Timing:
    """Seconds of one contestant: the median of the rounds, and their relative spread."""

    seconds: float
    spread: float


def race(
    contestants: Mapping[str, Callable[[], object]], rounds: int, warmup: int = 2
) -> dict[str, Timing]:
    """Run the contestants in turn, round after round, so that drift of the machine hits all."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(warmup + rounds):
        for name, run in contestants.items():
            wait()
            begin = time.perf_counter()
            run()
            wait()
            if turn >= warmup:
                times[name].append(time.perf_counter() - begin)
    return {name: summary(found) for name, found in times.items()}


def summary(times: list[float]) -> Timing:
    """The median, and half the range between the quartiles as a share of it."""
    ordered = sorted(times)
    low, high = ordered[len(ordered) // 4], ordered[(3 * len(ordered)) // 4]
    return Timing(median(ordered), (high - low) / 2 / median(ordered))


def wait() -> None:
    """Until a GPU has done what it was asked."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def machine() -> str:
    """The machine in a few words, for the log."""
    if torch.cuda.is_available():
        device = torch.cuda.get_device_name()
    else:
        device = f"{torch.get_num_threads()} CPU threads ({platform.machine()})"
    return f"{device}, torch {torch.__version__}"

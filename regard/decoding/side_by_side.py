"""Batches worked on at the same time on a CPU, each by a thread of its own.

A search does much between its products that no other core can help with, and threads that share
every product wait for each other at each of them. So two cores with a batch each write 1.15 times
as many tokens as two that share one (docs/measurements.md), and the answers are the same.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from threading import Event
from typing import TypeVar

import torch

from regard.models.families import Writer
from regard.models.linear import watched

MOST = 4  # batches at once: each has a cache of its own, and Python runs in one thread at a time

Part = TypeVar("Part")
Result = TypeVar("Result")


class GivenUp(Exception):  # noqa: N818  (nothing went wrong)
    """Nobody waits for the answer any more."""


def side_by_side(
    work: Callable[[Part, Event], Result], parts: Sequence[Part], module: Writer
) -> Iterator[tuple[Part, Result]]:
    """Each part with what `work` makes of it, as they come, if possible several at once.

    `work` is also given what is set when nobody waits any more; it may raise `GivenUp` then. Parts
    that would leave a thread without one come last, one by one with all threads: the shortest, if
    the longest are first.
    """
    threads = torch.get_num_threads()
    crew = min(MOST, threads, len(parts)) if _undisturbed(module) else 1
    together = len(parts) - len(parts) % crew if crew > 1 else 0
    if together:
        yield from _by_several(work, parts[:together], crew, threads)
    for part in parts[together:]:
        yield part, work(part, Event())


def _by_several(
    work: Callable[[Part, Event], Result], parts: Sequence[Part], crew: int, threads: int
) -> Iterator[tuple[Part, Result]]:
    """The same by a crew that shares the threads."""
    over = Event()

    def one(part: Part) -> Result:
        torch.set_num_threads(threads // crew)  # of this thread; for MKL of all
        return work(part, over)

    with ThreadPoolExecutor(crew) as pool:
        try:
            begun = {pool.submit(one, part): part for part in parts}
            for done in as_completed(begun):
                yield begun[done], done.result()
        finally:
            over.set()
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(threads)


def _undisturbed(module: Writer) -> bool:
    """Whether the model computes on a CPU, and nobody looks on who sees one thread only."""
    heard = any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
    return module.device.type == "cpu" and not heard and not watched()

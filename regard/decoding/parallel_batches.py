"""Batches worked on at the same time on a CPU, each by a thread of its own.

A search does much between its products that no other core can help with, and threads that share
every product wait for each other at each of them. So two cores with a batch each write 1.25 times
as many tokens as two that share one (docs/measurements.md), and the answers are the same.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from threading import Barrier, BrokenBarrierError, Event, Lock
from typing import TypeVar

import torch
from torch import nn

from regard.models.kernels.linear import watched
from regard.models.network import SequenceModule

MOST = 4  # batches at once: each has a cache of its own, and Python runs in one thread at a time

_free = Lock()  # for one crew in a process: others meanwhile work in their own thread

Part = TypeVar("Part")
Result = TypeVar("Result")


class GivenUp(Exception):  # noqa: N818  (nothing went wrong)
    """Nobody waits for the answer any more."""


def side_by_side(
    work: Callable[[Part, Event], Result], parts: Sequence[Part], module: SequenceModule
) -> Iterator[tuple[Part, Result]]:
    """Each part with what `work` makes of it, as they come, if possible several at once.

    `work` is also given what is set when nobody waits any more; it may raise `GivenUp` then. Parts
    that would leave a thread without one come last, one by one with all threads: the shortest, if
    the longest are first.
    """
    threads, together = torch.get_num_threads(), 0
    crew = min(MOST, threads, len(parts))
    if crew > 1 and _undisturbed(module) and _free.acquire(blocking=False):
        try:
            together = len(parts) - len(parts) % crew
            yield from _by_several(work, parts[:together], crew, threads)
        finally:
            _free.release()
    for part in parts[together:]:
        yield part, work(part, Event())


def _by_several(
    work: Callable[[Part, Event], Result], parts: Sequence[Part], crew: int, threads: int
) -> Iterator[tuple[Part, Result]]:
    """The same by a crew that shares the threads."""
    shares = [threads // crew + (member < threads % crew) for member in range(crew)]
    over, begun = Event(), Barrier(crew + 1)

    def begin() -> None:
        torch.get_num_threads()  # at its first question a thread takes what others set last
        torch.set_num_threads(shares.pop())  # of this thread, and of all that begin from now on
        try:
            begun.wait()
        except BrokenBarrierError:  # given up before it began: others have all threads
            torch.set_num_threads(threads)

    with ThreadPoolExecutor(crew, initializer=begin) as pool:
        try:
            try:
                given = {pool.submit(work, part, over): part for part in parts}
                begun.wait()
            finally:
                torch.set_num_threads(threads)  # of the others again
            for done in as_completed(given):
                yield given[done], done.result()
        finally:
            begun.abort()
            over.set()
            pool.shutdown(cancel_futures=True)


def _undisturbed(module: SequenceModule) -> bool:
    """Whether the model computes on a CPU, and nobody looks on who sees one thread only."""
    hooks = [nn.modules.module._global_forward_hooks, nn.modules.module._global_forward_pre_hooks]
    for part in module.modules():
        hooks += [part._forward_hooks, part._forward_pre_hooks]
    seen = torch._C._autograd._profiler_enabled() or torch._C._len_torch_function_stack() > 0
    return module.device.type == "cpu" and not (any(hooks) or seen or watched())

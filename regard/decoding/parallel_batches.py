"""Batches worked on at the same time on a CPU, each by a thread of its own.

A search does much between its products that no other core can help with, and threads that share
every product wait for each other at each of them. So two cores with a batch each write 1.25 times
as many tokens as two that share one (docs/measurements.md), and the answers are the same.
"""

from collections.abc import Callable, Iterator, Sequence
from threading import Event, Lock

from regard.models.kernels.hooks import undisturbed
from regard.models.kernels.threads import Part, Result, by_several, most_at_once
from regard.models.network import SequenceModule

MOST = 4  # batches at once: each has a cache of its own, and Python runs in one thread at a time

_free = Lock()  # for one crew in a process: others meanwhile work in their own thread


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
    crew, together = min(MOST, most_at_once(), len(parts)), 0
    alone = module.device.type == "cpu" and undisturbed(module)
    if crew > 1 and alone and _free.acquire(blocking=False):
        try:
            together = len(parts) - len(parts) % crew
            yield from by_several(work, parts[:together], crew)
        finally:
            _free.release()
    for part in parts[together:]:
        yield part, work(part, Event())

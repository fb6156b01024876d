"""How many threads torch's operations take, which it keeps for a whole process."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from threading import Barrier, BrokenBarrierError, Event
from typing import TypeVar

import torch

from regard.models.kernels.switches import PLAIN

Part = TypeVar("Part")
Result = TypeVar("Result")


@contextmanager
def one_thread() -> Iterator[None]:
    """Operations on this thread alone, for those so small that others wait longer than they work.

    On a busy machine two threads took up to ten times as long as one; see docs/measurements.md.
    Where threads share out a row of numbers, the ends of their parts have other bits besides.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def most_at_once() -> int:
    """How many threads may each work on something of their own."""
    return 1 if PLAIN else torch.get_num_threads()


def by_several(
    work: Callable[[Part, Event], Result], parts: Sequence[Part], crew: int
) -> Iterator[tuple[Part, Result]]:
    """Each part with what `work` makes of it, as they come, by a crew that shares the threads.

    `work` is also given what is set when nobody waits any more.
    """
    threads = torch.get_num_threads()
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

"""Batches made ready before they are needed."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import torch

from regard.data.batch import Batch, Feed
from regard.training.distributed.processes import Dealt, Processes

AHEAD = 4  # steps of data prepared before they are needed


class Ready(NamedTuple):
    """What one step computes: the whole of it, and the parts that are this process's."""

    whole: Batch
    parts: list[Batch]  # of the whole, in order
    mine: list[Dealt[Batch]]  # of the parts, on the device


class prefetched:  # noqa: N801 - used as `with prefetched(...) as batches`
    """The batches of each step from `first` on, prepared by a thread and copied to the device."""

    def __init__(
        self,
        feed: Feed,
        steps: range,
        rows: int,
        device: torch.device,
        processes: Processes,
    ) -> None:
        self.feed, self.steps, self.rows, self.device = feed, steps, rows, device
        self.processes = processes
        self.pool = ThreadPoolExecutor(1)

    def __enter__(self) -> Iterator[tuple[int, Ready]]:
        return self._ready()

    def __exit__(self, *error: object) -> None:
        self.pool.shutdown(cancel_futures=True)

    def _ready(self) -> Iterator[tuple[int, Ready]]:
        waiting: deque[Future[Ready]] = deque()
        coming = iter(self.steps)
        for step in self.steps:
            while len(waiting) < AHEAD and (later := next(coming, None)) is not None:
                waiting.append(self.pool.submit(self._prepare, later))
            ready = waiting.popleft().result()
            mine = [part._replace(item=part.item.to(self.device)) for part in ready.mine]
            yield step, ready._replace(mine=mine)

    def _prepare(self, step: int) -> Ready:
        whole = self.feed.step(step)
        share = -(-whole.rows // self.processes.count)  # so that there is a part for each process
        parts = whole.parts(min(self.rows, share))
        mine = list(self.processes.dealt(parts))
        if self.device.type == "cuda":
            mine = [part._replace(item=part.item.pinned()) for part in mine]
        return Ready(whole, parts, mine)

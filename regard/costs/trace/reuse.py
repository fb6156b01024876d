"""How far back what an operation touches was touched before: whether a cache still holds it.

The distance is in bytes that were moved in between. What was moved a megabyte ago is still near;
weights that are used once a step come from main memory if the step moves more than caches hold.
A trace tells it exactly for what lives on; what is made anew lies where something of the same size
has gone, as allocators have it.
"""

import math
from collections.abc import Iterator, Sequence

from regard.costs.trace.tracer import Record

Touched = tuple[int, float]  # bytes, and their distance


class Heap:
    """Storages in blocks of memory, each with the time of its last use."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.now = 0
        self.sizes: dict[int, int] = {}
        self.last: dict[int, int] = {}  # the operation that uses a storage last
        made: set[int] = set()
        self.lasting: set[int] = set()  # what was there before
        for i, record in enumerate(records):
            for place in (*record.reads, *record.writes):
                self.sizes[place.storage] = max(self.sizes.get(place.storage, 0), place.bytes)
                self.last[place.storage] = i
            self.lasting |= {p.storage for p in record.reads} - made
            made |= {p.storage for p in record.writes}
        self.ends: dict[int, list[int]] = {}
        for storage, i in self.last.items():
            if storage not in self.lasting:
                self.ends.setdefault(i, []).append(storage)
        self._block: dict[int, int] = {}  # where a storage lies
        self._used: dict[int, int] = {}  # by block
        self._free: dict[int, list[int]] = {}  # by size; what has gone last is taken first

    def touch(self, storage: int) -> float:
        """How far back it was touched."""
        if storage not in self._block:
            new = storage not in self.lasting
            free = self._free.get(self.sizes[storage]) if new else None
            self._block[storage] = free.pop() if free else len(self._used)
        block = self._block[storage]
        before = self._used.get(block)
        self._used[block] = self.now
        return math.inf if before is None else self.now - before

    def end(self, i: int) -> None:
        """Give back what operation `i` was the last to use."""
        for storage in self.ends.get(i, ()):
            self._free.setdefault(self.sizes[storage], []).append(self._block.pop(storage))


def touched(records: Sequence[Record]) -> list[list[Touched]]:
    """What each operation touches, in a job that is done again and again."""
    heap = Heap(records)
    for _ in _through(records, heap):  # what the time before has left
        pass
    return list(_through(records, heap))


def _through(records: Sequence[Record], heap: Heap) -> Iterator[list[Touched]]:
    for i, record in enumerate(records):
        heap.now += record.read + record.written
        yield [(p.bytes, heap.touch(p.storage)) for p in (*record.reads, *record.writes)]
        heap.end(i)

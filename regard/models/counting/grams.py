"""Counting n-grams (M4) of corpora larger than memory: sorts of chunks, merged.

The n-grams of one length are numbered in the order of their keys, which are the number of the
context, one level below, · vocabulary + token. With the number of the n-gram that ends at each
token, level after level is one sort of numbers. A corpus longer than a chunk is sorted chunk by
chunk into runs on disk; merging them gives each n-gram its number. Everything is read in order.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from regard.errors import RegardError
from regard.models.counting.scratch import Room, pieces
from regard.models.counting.table import behind, checked, in_order


class Source(Protocol):
    """Token ids, wherever they are: `begin` stands before each sequence."""

    def __len__(self) -> int: ...

    def read(self, start: int, stop: int) -> np.ndarray:
        """The ids from `start` up to `stop` or the end; (tokens,)."""
        ...


class Row:
    """An array as a source."""

    def __init__(self, ids: np.ndarray) -> None:
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, start: int, stop: int) -> np.ndarray:
        return self.ids[start:stop]


@dataclass(frozen=True)
class Grams:
    """All n-grams of one length, in the order of their keys."""

    keys: np.ndarray  # (grams,) int64, place of the context one level below · vocabulary + token
    counts: np.ndarray  # (grams,) int64, how often each stood there
    suffixes: np.ndarray  # (grams,) int64, the place, one level below, without its first token
    first: np.ndarray  # (grams,) bool, True where it begins a sequence

    def __len__(self) -> int:
        return len(self.keys)

    @classmethod
    def empty(cls, length: int, room: Room) -> "Grams":
        keys, counts, suffixes = (room.array(length, np.int64) for _ in range(3))
        return cls(keys, counts, suffixes, room.array(length, bool))

    def __getitem__(self, part: slice) -> "Grams":
        return Grams(self.keys[part], self.counts[part], self.suffixes[part], self.first[part])

    def put(self, at: int, other: "Grams") -> slice:
        part = slice(at, at + len(other))
        self.keys[part], self.counts[part] = other.keys, other.counts
        self.suffixes[part], self.first[part] = other.suffixes, other.first
        return part


class Chunk(NamedTuple):
    """Some of a corpus."""

    part: slice
    ids: np.ndarray  # (tokens,)
    behind: np.ndarray  # (tokens,) how many of its own sequence stand before each


@dataclass
class Counter:
    """Counts a source level by level."""

    source: Source
    vocabulary: int
    begin: int
    room: Room
    chunk: int  # tokens, or n-grams, in memory at a time

    def chunks(self) -> Iterator[Chunk]:
        before = 0
        for part in pieces(len(self.source), self.chunk):
            ids = checked(self.source.read(part.start, part.stop), self.vocabulary)
            if len(ids) != part.stop - part.start:
                raise RegardError(f"the text has fewer tokens than the {len(self.source):,} it had")
            there = behind(ids, self.begin, before)
            before = int(there[-1]) + 1
            yield Chunk(part, ids, there)

    def tokens(self) -> tuple[np.ndarray, np.ndarray]:
        """How often each token is there (vocabulary,), and the ids as places (tokens,)."""
        counts = np.zeros(self.vocabulary, np.int64)
        places = self.room.array(len(self.source), np.int64)
        for chunk in self.chunks():
            counts += np.bincount(chunk.ids, minlength=self.vocabulary)
            places[chunk.part] = chunk.ids
        return counts, places

    def levels(self, order: int, places: np.ndarray) -> list[Grams]:
        """All n-grams of 2 to `order` tokens, none of which reaches over a `begin`."""
        found = []
        for n in range(2, order + 1):
            grams, places = self._level(n, places, last=n == order)
            found.append(grams)
        return found

    def _level(self, n: int, below: np.ndarray, last: bool) -> tuple[Grams, np.ndarray]:
        """The n-grams, and of each token (tokens,) the place of the one it ends; else -1.

        `below` has those places one level below. The last level needs none.
        """
        several = len(self.source) > self.chunk
        runs: list[slice] = []
        places = np.empty(0, np.int64) if last else self.room.array(len(below), np.int64)
        sorted_runs = Grams.empty(len(below) if several else 0, self.room)
        for chunk in self.chunks():
            grams = self._run(n, chunk, below, places)
            if not several:
                return grams, places
            runs.append(sorted_runs.put(runs[-1].stop if runs else 0, grams))
        merged, renumbered = self._merged(sorted_runs, runs)
        for part, run in zip(pieces(len(places), self.chunk), runs, strict=False):
            local = places[part]
            known = local >= 0
            local[known] = renumbered[run][local[known]]
        return merged, places

    def _run(self, n: int, chunk: Chunk, below: np.ndarray, places: np.ndarray) -> Grams:
        """The different n-grams that end in a chunk; which of them ends at each token: `places`."""
        start = chunk.part.start
        here = np.flatnonzero(chunk.behind >= n - 1)
        keys = below[start + here - 1]
        keys *= self.vocabulary
        keys += chunk.ids[here]
        keys, order = in_order(keys)
        new = changes(keys)
        firsts = here[order[new]]
        counts = np.diff(np.flatnonzero(new), append=len(keys))
        if len(places):
            here += start
            places[chunk.part] = -1
            places[here[order]] = np.cumsum(new) - 1
        return Grams(keys[new], counts, below[chunk.part][firsts], chunk.behind[firsts] == n - 1)

    def _merged(self, found: Grams, runs: list[slice]) -> tuple[Grams, np.ndarray]:
        """Sorted runs as one, and the place there of each n-gram of each run."""
        merged = Grams.empty(len(found), self.room)
        renumbered = self.room.array(len(found), np.int64)
        size = 0
        for parts in _fronts(found.keys, runs, max(self.chunk // len(runs), 1)):
            keys, counts, suffixes, first = (
                np.concatenate([field[part] for part in parts])
                for field in (found.keys, found.counts, found.suffixes, found.first)
            )
            keys, order = in_order(keys)
            new = changes(keys)
            counts = np.add.reduceat(counts[order], np.flatnonzero(new))
            firsts = order[new]
            inverse = np.empty(len(keys), np.int64)
            inverse[order] = np.cumsum(new) + (size - 1)
            ends = np.cumsum([part.stop - part.start for part in parts])
            for part, numbers in zip(parts, np.split(inverse, ends[:-1]), strict=True):
                renumbered[part] = numbers
            block = Grams(keys[new], counts, suffixes[firsts], first[firsts])
            size = merged.put(size, block).stop
        return merged[:size], renumbered


def changes(keys: np.ndarray) -> np.ndarray:
    """True where sorted keys (any,) have another than before."""
    new = np.ones(len(keys), bool)
    np.not_equal(keys[1:], keys[:-1], out=new[1:])
    return new


def _fronts(keys: np.ndarray, runs: list[slice], size: int) -> Iterator[list[slice]]:
    """Of all runs together the smallest keys, then the next, about `size` of each at a time."""
    at = [run.start for run in runs]
    while any(place < run.stop for place, run in zip(at, runs, strict=True)):
        ends = [min(place + size, run.stop) for place, run in zip(at, runs, strict=True)]
        more = [keys[end - 1] for end, run in zip(ends, runs, strict=True) if end < run.stop]
        if more:  # nothing beyond what is at hand may be smaller than what is handed out
            bound = min(more)
            ends = [
                place + int(np.searchsorted(keys[place:end], bound, side="right"))
                for place, end in zip(at, ends, strict=True)
            ]
        yield [slice(place, end) for place, end in zip(at, ends, strict=True) if place < end]
        at = ends

"""Arrays that may be larger than memory: files without a name, mapped, which go when unused."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from regard.errors import RegardError


class Room:
    """Where arrays are made: in memory, or in files of a folder."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder

    def array(self, length: int, dtype: DTypeLike) -> np.ndarray:
        """An array (length,) of anything; a file has no name, so it goes with the array."""
        if self.folder is None or not length:
            return np.empty(length, dtype)
        size = length * np.dtype(dtype).itemsize
        try:
            with tempfile.TemporaryFile(dir=self.folder) as file:
                # A full disk is an error now, rather than a signal that kills when it is written.
                if hasattr(os, "posix_fallocate"):  # not on macOS
                    os.posix_fallocate(file.fileno(), 0, size)
                return np.asarray(np.memmap(file, dtype, "r+", shape=(length,)))
        except OSError as error:
            raise RegardError(
                f"cannot keep {size / 1e6:,.0f} MB of counts in {self.folder}: {error.strerror}; "
                "name a folder with room"
            ) from None


def pieces(length: int, size: int) -> Iterator[slice]:
    """0 to length in slices of at most `size`."""
    for low in range(0, length, size):
        yield slice(low, min(low + size, length))


WINDOW = 4  # as many times the numbers of a piece are held at once: each needs but eight bytes


def gather(values: np.ndarray, places: np.ndarray, room: Room, size: int) -> np.ndarray:
    """values[places], of which pieces of `size` are in memory at a time, and read in order."""
    if max(len(values), len(places)) <= size:
        return values[places]
    found = room.array(len(places), values.dtype)
    for window in pieces(len(values), WINDOW * size):
        held = np.array(values[window])
        for piece in pieces(len(places), size):
            wanted = places[piece] - window.start
            inside = np.flatnonzero((wanted >= 0) & (wanted < len(held)))
            found[piece][inside] = held[wanted[inside]]
    return found


def tally(places: np.ndarray, length: int, room: Room, size: int) -> np.ndarray:
    """How often each of 0 to length - 1 is in places, as int64; as sparing as `gather`."""
    if max(len(places), length) <= size:
        return np.bincount(places, minlength=length)
    found = room.array(length, np.int64)
    for window in pieces(length, WINDOW * size):
        found[window] = 0
        for piece in pieces(len(places), size):
            wanted = places[piece] - window.start
            inside = wanted[(wanted >= 0) & (wanted < window.stop - window.start)]
            found[window] += np.bincount(inside, minlength=window.stop - window.start)
    return found

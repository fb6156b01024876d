"""A history of any length in a line or two of block characters."""

import math
from collections.abc import Sequence
from itertools import pairwise

BLOCKS = " ▁▂▃▄▅▆▇█"


class History:
    """All that a number has been, in at most `room` cells, each the mean of as many values."""

    def __init__(self, room: int = 1024) -> None:
        self.room = room
        self.cells: list[float] = []
        self._waiting: list[float] = []
        self._values_in_cell = 1

    def add(self, value: float) -> None:
        self._waiting.append(value)
        if len(self._waiting) < self._values_in_cell:
            return
        self.cells.append(mean(self._waiting))
        self._waiting.clear()
        if len(self.cells) >= self.room:
            self.cells = [mean(self.cells[i : i + 2]) for i in range(0, self.room, 2)]
            self._values_in_cell *= 2


def mean(values: Sequence[float]) -> float:
    """The mean of those that are finite; NaN when none is."""
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan


def sparkline(values: Sequence[float], width: int, height: int) -> list[str]:
    """A curve in lines of blocks with its highest and lowest value; × where it was not finite."""
    known = [value for value in values[len(values) // 10 :] if math.isfinite(value)]
    if not known:  # also when the curve is all beginning
        return []
    # The first tenth does not stretch the scale, else a fall from 11 to 3 hides the way to 2.9.
    low, high = min(known), max(known)
    labels = [f"{high:.3g}", *[""] * (height - 2), f"{low:.3g}"][-height:]
    margin = max(map(len, labels)) + 1
    width = min(len(values), max(1, width - margin))
    edges = [i * len(values) // width for i in range(width + 1)]
    columns = [mean(values[a:b]) for a, b in pairwise(edges)]
    lines = [f"{label:>{margin - 1}} " for label in labels]
    for value in columns:
        share = (min(max(value, low), high) - low) / (high - low) if high > low else 0.0
        filled = 1 + share * (8 * height - 1) if math.isfinite(value) else 0  # eighths of a line
        for row in range(height):
            level = min(8, max(0, round(filled) - 8 * (height - 1 - row)))
            lost = not math.isfinite(value) and row == height - 1
            lines[row] += "×" if lost else BLOCKS[level]
    return lines

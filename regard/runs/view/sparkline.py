"""A history of any length in a line or two of block characters."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCKS = " ▁▂▃▄▅▆▇█"


def mean(values: Sequence[float] | NDArray[Any]) -> float:
    """The mean of those that are finite; NaN when none is."""
    finite = np.asarray(values)[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else math.nan


def sparkline(values: Sequence[float], width: int, height: int) -> list[str]:
    """A curve in lines of blocks with its highest and lowest value; × where it was not finite."""
    whole = np.array(values, dtype=np.float64)
    # The first tenth does not stretch the scale, else a fall from 11 to 3 hides the way to 2.9.
    later = whole[len(whole) // 10 :]
    known = later[np.isfinite(later)]
    if not len(known):  # also when the curve is all beginning
        return []
    low, high = float(known.min()), float(known.max())
    labels = [f"{high:.3g}", *[""] * (height - 2), f"{low:.3g}"][-height:]
    margin = max(map(len, labels)) + 1
    lines = [f"{label:>{margin - 1}} " for label in labels]
    for part in np.array_split(whole, min(len(whole), max(1, width - margin))):
        value = mean(part)
        share = (min(max(value, low), high) - low) / (high - low) if high > low else 0.0
        filled = 1 + share * (8 * height - 1) if math.isfinite(value) else 0  # eighths of a line
        for row in range(height):
            level = min(8, max(0, round(filled) - 8 * (height - 1 - row)))
            lost = not math.isfinite(value) and row == height - 1
            lines[row] += "×" if lost else BLOCKS[level]
    return lines

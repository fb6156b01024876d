"""The roofline: what a part can reach, by how many operations it does for each byte."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from regard.costs.device.ceilings import COPY
from regard.costs.report import Part, Report
from regard.errors import RegardError
from regard.inspection.drawing import drawing

SHOWN = 12  # parts with a name; the others would lie on top of one another
# Told apart by the colour-blind.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKS = ("o", "s", "^")
LARGE = 1 << 28  # bytes, more than caches hold


def roofline(report: Report, path: Path) -> None:
    """Draw the device's roof and the model's parts under it; PNG, SVG or PDF by the suffix."""
    device = report.asked.device
    kind = "float32" if report.asked.precision == "float32" else "bfloat16"
    grid = device.products.get(kind) or next(iter(device.products.values()))
    top, slope = grid.best, device.traffic[COPY].at(LARGE)
    parts = [part for part in report.apart or report.parts if part.products and part.seconds]
    if not parts:
        raise RegardError("nothing is multiplied here, so there is no roofline to draw")
    with drawing(path, (10, 5)) as figure:
        axes = figure.subplots()
        low = min(0.1, min(part.intensity for part in parts) / 2)
        high = max(top / slope * 10, max(part.intensity for part in parts) * 2)
        ridge = top / slope
        axes.plot([low, ridge, high], [low * slope, top, top], color="#000000", linewidth=1.5)
        write = partial(axes.annotate, textcoords="offset points", fontsize=7)
        write(f"{top:.3g} operations/s", (high, top), (0, 4), ha="right")
        write(f"{slope:.3g} bytes/s", (low, low * slope), (12, 2))  # beside the slope
        _draw(axes, parts)
        figure.legend(loc="outside right upper", fontsize=7, markerscale=0.5, frameon=False)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("operations for each byte moved")
        axes.set_ylabel("operations a second")
        axes.set_title(f"{device.name} ({device.source}), {kind}", fontsize=9)
        axes.grid(color="#e6e6e6", linewidth=0.7)
        axes.spines[["top", "right"]].set_visible(False)


def _draw(axes: Any, parts: Sequence[Part]) -> None:
    """A dot for each part, as large as its share of the time."""
    whole = sum(part.seconds for part in parts)
    for number, part in enumerate(parts):
        rate = part.products / part.seconds
        axes.scatter(
            [part.intensity],
            [rate],
            s=20 + 400 * part.seconds / whole,
            color=COLOURS[number % len(COLOURS)],
            marker=MARKS[number // len(COLOURS) % len(MARKS)],
            alpha=0.6,
            label=part.place if number < SHOWN else None,
        )

"""Matrices as pictures (M24): in a file, and as coloured text for a terminal."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.text import Text
from torch import Tensor

from regard.errors import RegardError
from regard.inspection.drawing import drawing

SHADES = (  # from this share of the largest value on
    (0.8, "██", "blue"),
    (0.5, "▓▓", "blue"),
    (0.25, "▒▒", "blue"),
    (0.1, "░░", "blue"),
    (-math.inf, "· ", "dim"),
)

NARROW = 2  # cells of a terminal; wider names of columns are written downwards
POINTS = 10  # of labels, or fewer where there are many


def heatmap(
    matrix: Tensor,
    path: str | Path,
    *,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    title: str = "",
    side: str = "",
) -> None:
    """Draw a matrix (rows, columns) to a PNG, SVG or PDF file, dark where it is large."""
    table = _checked(matrix, rows, columns)
    height, width = table.shape
    cell = min(0.35, 12 / max(height, width))
    points = min(POINTS, 60 * cell)
    upright = any(len(label) > NARROW for label in columns)
    beside, above = (max(map(len, labels), default=0) for labels in (rows, columns))
    margins = beside * points / 110, upright * above * points / 110  # inches, of 72 points
    sides = 1.6 + cell * width + margins[0], 1.2 + cell * height + margins[1]
    with drawing(Path(path), sides) as figure:
        axes = figure.add_subplot()
        image = axes.imshow(table.numpy(), cmap="Blues", vmin=min(0.0, float(table.min())))
        look: dict[str, Any] = {"fontsize": points, "parse_math": False}  # a word may be "$"
        axes.set_xticks(range(len(columns)), columns, rotation=90 * upright, **look)
        axes.set_yticks(range(len(rows)), rows, **look)
        axes.set_xlabel(title)
        axes.set_ylabel(side)
        axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
        axes.spines[:].set_visible(False)
        figure.colorbar(image, shrink=0.8, aspect=30)


def heat_text(
    matrix: Tensor, rows: Sequence[str] = (), columns: Sequence[str] = (), top: float = 0.0
) -> Text:
    """A matrix (rows, columns) as shaded blocks with labels, for a terminal.

    The darkest shade is for `top`, or for the largest value.
    """
    table = _checked(matrix, rows, columns)
    top = max(top or float(table.max()), 1e-9)
    margin = max(map(cell_len, rows), default=0)
    text = Text("".join(f"{' ' * (margin + 1)}{line}\n" for line in _header(columns)))
    for i, line in enumerate(table.tolist()):
        label = rows[i] if rows else ""
        text.append(" " * (margin - cell_len(label)) + label + " ")
        for value in line:
            text.append(*next(shade[1:] for shade in SHADES if value / top >= shade[0]))
        text.append("\n")
    return text


def _header(columns: Sequence[str]) -> list[str]:
    """The names of columns of two cells: in one line, or each written downwards."""
    if all(cell_len(label) <= NARROW for label in columns):
        return ["".join(map(_in_cell, columns))]
    high = max(map(len, columns))
    upright = (label.rjust(high) for label in columns)
    return ["".join(map(_in_cell, line)) for line in zip(*upright, strict=True)]


def _in_cell(label: str) -> str:
    return label + " " * (NARROW - cell_len(label))


def _checked(matrix: Tensor, rows: Sequence[str], columns: Sequence[str]) -> Tensor:
    if matrix.dim() != 2 or not matrix.numel():
        shape = tuple(matrix.shape)
        raise RegardError(
            f"a picture needs a matrix (rows, columns), not a tensor of shape {shape}"
        )
    if (rows and len(rows) != matrix.shape[0]) or (columns and len(columns) != matrix.shape[1]):
        raise RegardError(
            f"a matrix of shape {tuple(matrix.shape)} needs as many labels, "
            f"not {len(rows)} and {len(columns)}"
        )
    return matrix.detach().float().cpu()

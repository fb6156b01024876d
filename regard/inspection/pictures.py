"""Matrices as pictures (M24): in a file, and as coloured text for a terminal."""

import math
from collections.abc import Sequence
from pathlib import Path

from rich.text import Text
from torch import Tensor

from regard.errors import RegardError

SHADES = (  # from this share of the largest value on
    (0.8, "██", "blue"),
    (0.5, "▓▓", "blue"),
    (0.25, "▒▒", "blue"),
    (0.1, "░░", "blue"),
    (-math.inf, "· ", "dim"),
)


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
    from matplotlib.figure import Figure  # a second to import, and only pictures need it

    table = _checked(matrix, rows, columns)
    height, width = table.shape
    cell = min(0.35, 12 / max(height, width))
    figure = Figure(figsize=(1.6 + cell * width, 1.2 + cell * height), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(table.numpy(), cmap="Blues", vmin=min(0.0, float(table.min())))
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_xlabel(title)
    axes.set_ylabel(side)
    axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.spines[:].set_visible(False)
    figure.colorbar(image, shrink=0.8, aspect=30)
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise RegardError(f"cannot draw to {path}: {error}") from None


def heat_text(matrix: Tensor, rows: Sequence[str] = (), columns: Sequence[str] = ()) -> Text:
    """A matrix (rows, columns) as shaded blocks with labels, for a terminal."""
    table = _checked(matrix, rows, columns)
    top = max(float(table.max()), 1e-9)
    margin = max((len(label) for label in rows), default=0)
    text = Text(" " * (margin + 1) + "".join(f"{label[:2]:<2}" for label in columns) + "\n")
    for i, line in enumerate(table.tolist()):
        text.append(f"{rows[i] if rows else '':>{margin}} ")
        for value in line:
            text.append(*next(shade[1:] for shade in SHADES if value / top >= shade[0]))
        text.append("\n")
    return text


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

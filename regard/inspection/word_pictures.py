"""Words as points in a picture, and their analogies as arrows (M2).

The plane is that of the chosen words' own principal components, so it shows as much of how they
differ as two axes can, and says how much that is. Nothing is bent to make arrows look parallel.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.errors import Problems, RegardError
from regard.formats import percent
from regard.inspection.curves import COLOURS, GREY, STYLE
from regard.inspection.drawing import check_kind, drawing
from regard.inspection.word_table import WordTable

Numbers = NDArray[np.float64]
Pair = tuple[str, str]

MOST = 500  # words in a picture; more cannot be read
START, END = COLOURS[0], COLOURS[1]  # of arrows
DARK = "#333333"
DOT = 4.5  # points across
# Where a label may stand beside its dot, the best first: right, left or amid; above, below or amid.
SIDES = ((1, 1), (1, -1), (-1, 1), (-1, -1), (0, 1), (0, -1), (1, 0), (-1, 0))
DISTANCES = (3.0, 9.0, 17.0)  # points between a label and its dot
SWEEPS = 4  # how often each label may move away from the others
SAMPLES = 48  # places on an arrow that a label had better not cover


class Plane(NamedTuple):
    """Where the two directions of greatest variance put some vectors."""

    points: Numbers  # (vectors, 2)
    shares: Numbers  # (2,) of all variance


def principal(vectors: NDArray[Any], arrows: Sequence[tuple[int, int]] = ()) -> Plane:
    """The first two principal components of vectors (vectors, width), their signs settled.

    A component's sign is arbitrary: here most of the way that arrows (from, to) go is positive, or
    without any the coordinate that is farthest out.
    """
    centred = vectors.astype(np.float64) - vectors.mean(0, dtype=np.float64)
    left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    points = np.zeros((len(vectors), 2))
    shares = np.zeros(2)
    there = min(2, len(sizes))
    points[:, :there] = (left * sizes)[:, :there]
    total = (sizes**2).sum()
    if total:
        shares[:there] = (sizes**2)[:there] / total
    ways = np.array([points[to] - points[start] for start, to in arrows]).reshape(-1, 2).sum(0)
    farthest = points[np.abs(points).argmax(0), [0, 1]]
    signs = np.where(np.abs(ways) > 1e-9, ways, farthest)
    return Plane(points * np.where(signs < 0, -1.0, 1.0), shares)


def plot(
    table: WordTable, words: Sequence[str], out: str | Path, *, pairs: Sequence[Pair] = ()
) -> None:
    """Draw words, and an arrow from the first to the second of each pair, to a PNG, SVG or PDF."""
    out = Path(out)
    check_kind(out)
    chosen = list(dict.fromkeys([*words, *(word for pair in pairs for word in pair)]))
    _check(table, chosen)
    arrows = [(chosen.index(start), chosen.index(end)) for start, end in pairs]
    plane = principal(table.units[[table.place(word) for word in chosen]], arrows)
    with drawing(out, _sides(plane.points), STYLE, dpi=200) as figure:
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        FigureCanvasAgg(figure)  # which can measure text
        _draw(figure, chosen, plane, arrows)


def _sides(points: Numbers) -> tuple[float, float]:
    """The figure's inches: larger for many words, and as high as the points lie, within reason."""
    width = 7.2 + 3.6 * min(1.0, len(points) / 60)
    across, up = np.ptp(points, axis=0)
    return width, 0.8 + width * float(np.clip(up / across if across else 1.0, 0.4, 1.0))


def _check(table: WordTable, chosen: Sequence[str]) -> None:
    if not 2 <= len(chosen) <= MOST:
        raise RegardError(f"a picture needs 2 to {MOST} words, not {len(chosen)}")
    problems = Problems("words")
    for word in chosen:
        try:
            table.place(word)
        except RegardError as error:
            problems.add(str(error))
    problems.report()


def _draw(
    figure: Any, words: Sequence[str], plane: Plane, arrows: Sequence[tuple[int, int]]
) -> None:
    axes = figure.subplots()
    starts, ends = ({arrow[side] for arrow in arrows} for side in (0, 1))
    colours = [START if i in starts else END if i in ends else DARK for i in range(len(words))]
    x, y = plane.points.T
    axes.scatter(x, y, s=DOT**2, c=colours, zorder=3, linewidths=0)
    for start, end in arrows:
        axes.annotate(
            "",
            plane.points[end],
            plane.points[start],
            arrowprops={
                "arrowstyle": "-|>",
                "color": GREY,
                "linewidth": 0.9,
                "shrinkA": 3,
                "shrinkB": 3,
            },
            zorder=2,
        )
    axes.set_aspect("equal", adjustable="datalim")  # so that equal differences look equal
    axes.margins(0.12)
    for which, share in zip(("first", "second"), plane.shares, strict=True):
        label = f"{which} principal component, {percent(float(share))} of the variance"
        (axes.set_xlabel if which == "first" else axes.set_ylabel)(label)
    axes.tick_params(labelbottom=False, labelleft=False, length=0)  # only differences mean anything
    axes.set_title(_title(len(words), len(arrows)), fontsize=10, color=DARK, loc="left")
    _label(figure, axes, words, plane.points, arrows, colours)


def _title(words: int, arrows: int) -> str:
    with_arrows = f" and {arrows} pair{'s' * (arrows != 1)}" if arrows else ""
    return f"{words} words{with_arrows}, seen along their own principal components"


# Labels


def _label(
    figure: Any,
    axes: Any,
    words: Sequence[str],
    points: Numbers,
    arrows: Sequence[tuple[int, int]],
    colours: Sequence[str],
) -> None:
    """Write each word beside its dot, where it covers least of the others."""
    labels = [
        axes.annotate(
            word,
            point,
            xytext=(0, 0),
            textcoords="offset points",
            fontsize=9,
            color=colour,
            parse_math=False,  # a word may be a dollar sign
            annotation_clip=False,
            zorder=4,
        )
        for word, point, colour in zip(words, points, colours, strict=True)
    ]
    for label in labels:
        label.set_in_layout(False)
    figure.draw_without_rendering()  # settles where the axes are
    renderer, pixels = figure.canvas.get_renderer(), figure.dpi / 72
    dots = axes.transData.transform(points)  # (words, 2)
    sizes = np.array([_size(label, renderer) for label in labels])  # (words, 2)
    marks = np.concatenate([dots, *(_along(dots[a], dots[b]) for a, b in arrows)])
    frame = axes.get_window_extent(renderer)
    inside = np.array([frame.x0, frame.y0, frame.x1, frame.y1])
    boxes = _candidates(dots, sizes, pixels)  # (words, places, 4)
    for label, corner in zip(labels, _placed(boxes, marks, inside)[:, :2] - dots, strict=True):
        label.xyann = tuple(corner / pixels)


def _size(label: Any, renderer: Any) -> tuple[float, float]:
    box = label.get_window_extent(renderer)
    return box.width, box.height


def _along(start: Numbers, end: Numbers) -> Numbers:
    return start + (end - start) * np.linspace(0.03, 0.97, SAMPLES)[:, None]  # (samples, 2)


def _candidates(dots: Numbers, sizes: Numbers, pixels: float) -> Numbers:
    """The boxes (words, places, left bottom right top) where each label may stand."""
    places = []
    for distance in DISTANCES:
        for side in SIDES:
            away = np.array(side) * (distance if 0 in side else distance * 0.7) * pixels
            corner = dots + away + sizes * (np.array(side) - 1) / 2
            places.append(np.concatenate([corner, corner + sizes], axis=1))
    return np.stack(places, axis=1)


def _placed(boxes: Numbers, marks: Numbers, inside: Numbers) -> Numbers:
    """The best box for each label (words, 4): it hides few marks and no label, and is inside."""
    words, places, _ = boxes.shape
    height = (boxes[..., 3] - boxes[..., 1]).mean()
    x, y = marks.T
    left, low, right, high = np.moveaxis(boxes, -1, 0)[..., None]  # (words, places, 1) each
    air = height / 10
    across = (left - air < x) & (x < right + air)
    covered = (across & (low - air < y) & (y < high + air)).sum(-1)  # (words, places)
    outside = (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])
    outside = outside - _overlap(boxes, inside)
    fixed = covered * height**2 * 0.5 + outside * 4 + np.arange(places) * height * 0.4
    chosen = fixed.argmin(1)  # (words,)
    for _ in range(SWEEPS):
        before = chosen.copy()
        for word in range(words):
            others = np.delete(boxes[np.arange(words), chosen], word, axis=0)  # (others, 4)
            hidden = _overlap(boxes[word][:, None], others).sum(1)  # (places,)
            chosen[word] = (fixed[word] + 2 * hidden).argmin()
        if (chosen == before).all():
            break
    return boxes[np.arange(words), chosen]


def _overlap(a: Numbers, b: Numbers) -> Numbers:
    """The area that boxes (…, 4) share."""
    width = np.minimum(a[..., 2], b[..., 2]) - np.maximum(a[..., 0], b[..., 0])
    height = np.minimum(a[..., 3], b[..., 3]) - np.maximum(a[..., 1], b[..., 1])
    return np.clip(width, 0, None) * np.clip(height, 0, None)

"""Charts of the report: drawn by matplotlib, coloured by the page, so they suit light and dark."""

import math
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from regard.comparison.results import Line
from regard.inspection.drawing import svg
from regard.terminal import cut, literal

MARKS = {"o": "●", "s": "■", "^": "▲", "D": "◆", "P": "✚"}  # matplotlib's names, and in text
MODELS = 7  # colours of models; from there on they come round, with other marks
# Colours are variables of the page's style sheet. Matplotlib draws with a number for each.
VARIABLES = (*(f"--c{i}" for i in range(MODELS)), "--ink", "--soft", "--rule", "--card")
NUMBERED = tuple(f"#c000{i:02x}" for i in range(len(VARIABLES)))
INK, SOFT, RULE, CARD = NUMBERED[MODELS:]
WIDTH, HEIGHT = 7.2, 4.1  # inches, 72 units of the SVG each
NAME = 24  # characters of a model's name in a chart
MANY = 24  # points of a line: from there on they are small
STYLE = {
    "svg.fonttype": "none",  # letters stay letters; the style sheet gives them the page's font
    "text.parse_math": False,
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 11,
    "axes.labelsize": 12,
    "axes.labelpad": 6,
    "axes.labelcolor": SOFT,
    "axes.edgecolor": SOFT,
    "axes.axisbelow": True,
    **{f"axes.spines.{side}": False for side in ("left", "right", "top")},
    "grid.color": RULE,
    "grid.linewidth": 1,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "ytick.left": False,
    "lines.linewidth": 2,
    "lines.markeredgecolor": CARD,
    "lines.markeredgewidth": 0.7,
    "patch.linewidth": 0,
}
Shown = Callable[[float], str]


@dataclass(frozen=True)
class Series:
    """One model's line; where a figure is NaN it has a gap."""

    name: str
    number: int  # which colour and mark
    line: Line


@dataclass(frozen=True)
class Figure:
    """A chart as SVG, and the models in it."""

    title: str
    drawn: str
    names: Sequence[str] = ()
    note: str = ""


@dataclass(frozen=True)
class Axis:
    """The label of an axis, its scale, and how its figures are written."""

    label: str
    log: bool = False
    base: int = 10  # of the ticks of a logarithmic axis
    shown: Shown = "{:g}".format
    names: Sequence[str] = ()  # of buckets, at 0, 1, 2, …

    def known(self, values: Sequence[float]) -> list[float]:
        """The figures, NaN in place of those that the axis cannot show."""
        return [math.nan if self.log and value <= 0 else value for value in values]

    def spelled(self, value: float) -> str:
        return self.names[round(value)] if self.names else self.shown(value)

    def apply(self, axes: Any, which: str) -> None:
        """Give label, scale and ticks to matplotlib's x or y axis."""
        axis = getattr(axes, f"{which}axis")
        axis.set_label_text(self.label)
        if self.names:
            axis.set_ticks(range(len(self.names)), self.names)
            axes.set(**{f"{which}lim": (-0.5, len(self.names) - 0.5)})
            return
        if self.log and math.isfinite(axes.dataLim.minpos["xy".index(which)]):
            from matplotlib.ticker import LogLocator

            getattr(axes, f"set_{which}scale")("log", base=self.base)
            within = (1, 2, 5) if self.base == 10 else (1,)
            axis.set_major_locator(LogLocator(self.base, within, numticks=8))
            axis.set_ticks([], minor=True)
        # Ticks are at round figures: 100M and not 100.0M.
        axis.set_major_formatter(lambda value, _: re.sub(r"\.0(?=\D|$)", "", self.shown(value)))


def chart(
    title: str,
    series: Sequence[Series],
    x: Axis,
    y: Axis,
    border: float | None = None,
    note: str = "",
) -> Figure:
    """Lines with a dot at each figure; a dashed line is drawn at `border` of x."""
    words: list[list[str]] = []  # of each dot of each line

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        axes.grid(axis="y")
        if border is not None:
            axes.axvline(border, color=SOFT, linewidth=1.2, dashes=(4, 4))
        for i, one in enumerate(series):
            across, up = x.known(one.line.x), y.known(one.line.y)
            look = _look(one.number)
            axes.plot(across, up, color=look["color"])
            if any(one.line.deviation):
                pairs = list(zip(up, one.line.deviation, strict=True))
                ends = [b - spread for b, spread in pairs], [b + spread for b, spread in pairs]
                axes.fill_between(across, *ends, color=look["color"], alpha=0.16)
            points = [(a, b) for a, b in zip(across, up, strict=True) if math.isfinite(a + b)]
            size = 5 if len(points) > MANY else 8
            places = [a for a, _ in points], [b for _, b in points]
            axes.plot(*places, **look, markersize=size, gid=f"dots {i}")
            words.append([f"{y.spelled(b)} at {x.spelled(a)}" for a, b in points])
        x.apply(axes, "x")
        y.apply(axes, "y")

    drawn = svg((WIDTH, HEIGHT), {**STYLE, "svg.hashsalt": title}, draw)
    names = [one.name for one in series]
    return Figure(title, _inline(drawn, title, names, words), names, note)


def dots(title: str, rows: Sequence[tuple[str, int, Sequence[float], float]], x: Axis) -> Figure:
    """A row for each model: a faint dot for each seed, their mean, and how far they spread."""
    names = [name for name, *_ in rows]
    means = [x.shown(statistics.fmean(seeds)) for _, _, seeds, _ in rows]

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        axes.grid(axis="x")
        axes.spines["bottom"].set_visible(False)
        x.apply(axes, "x")
        Axis("", names=[cut(literal(name), NAME) for name in names]).apply(axes, "y")
        axes.invert_yaxis()
        axes.tick_params(axis="x", bottom=False)
        axes.tick_params(axis="y", labelsize=12, labelcolor=INK, pad=10)
        for i, (_, number, seeds, spread) in enumerate(rows):
            mean, look = statistics.fmean(seeds), _look(number)
            axes.plot([mean - spread, mean + spread], [i, i], color=look["color"])
            axes.plot(seeds, [i] * len(seeds), "o", color=look["color"], ms=6, mew=0, alpha=0.45)
            axes.plot([mean], [i], **look, markersize=10, gid=f"dots {i}")
            place = axes.get_yaxis_transform()  # x in widths of the axes
            axes.text(1.02, i, means[i], transform=place, va="center", color=INK)

    size = WIDTH, 0.9 + 0.47 * len(rows)
    drawn = svg(size, {**STYLE, "svg.hashsalt": title}, draw)
    return Figure(title, _inline(drawn, title, names, [[mean] for mean in means]))


def _look(number: int) -> dict[str, Any]:
    """A model's mark in its colour."""
    marker, colour = list(MARKS)[number % len(MARKS)], NUMBERED[number % MODELS]
    return {"marker": marker, "color": colour, "linestyle": "none"}


def _inline(document: str, title: str, names: Sequence[str], words: Sequence[Sequence[str]]) -> str:
    """An SVG document as an element of the page: in its colours, with words for each dot.

    A screen reader is given where each line begins and ends.
    """
    bare = re.sub(r' xmlns(:\w+)?="[^"]*"', "", document).replace("xlink:", "")  # HTML needs none
    coloured = re.sub("#c000(0[0-9a])", lambda found: f"var({VARIABLES[int(found[1], 16)]})", bare)
    root = ElementTree.fromstring(coloured)
    groups = {group.attrib.pop("id", ""): group for group in root.iter("g")}
    for i, (name, each) in enumerate(zip(names, words, strict=True)):
        for dot, word in zip(groups[f"dots {i}"].iter("use"), each, strict=True):
            ElementTree.SubElement(dot, "title").text = f"{name}: {word}"
    lines = (
        f"{name} {', '.join(dict.fromkeys((each[0], each[-1])))}"
        for name, each in zip(names, words, strict=True)
        if each
    )
    label = f"{title}: {'; '.join(lines)}"
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": label}
    return ElementTree.tostring(root, encoding="unicode")

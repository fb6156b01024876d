"""Charts as SVG that stands in a page: colours and text follow the page, light or dark.

Nothing but lines, dots and text; each dot says its figures when pointed at.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 520, 300
LEFT, RIGHT, TOP, BOTTOM = 72, 14, 12, 46
MARKS = ("circle", "square", "diamond", "triangle", "cross")
COLOURS = 7  # the page has so many, then they come round with other marks
TICKS = 6  # about so many on an axis
Shown = Callable[[float], str]


@dataclass(frozen=True)
class Series:
    """One model's line."""

    name: str
    number: int  # which colour and mark
    x: Sequence[float]
    y: Sequence[float | None]
    spread: Sequence[float] = ()


@dataclass(frozen=True)
class Axis:
    """A scale from figures to places."""

    label: str
    log: bool = False
    base: int = 10  # of the marks of a logarithmic axis
    shown: Shown = "{:g}".format
    names: Sequence[str] = ()  # of buckets, at 0, 1, 2, …

    def scale(self, values: Sequence[float], low: float, high: float) -> "Scale":
        """The places from `low` to `high` for such figures."""
        there = [v for v in values if math.isfinite(v) and (v > 0 or not self.log)]
        least, most = (min(there), max(there)) if there else (0.0, 1.0)
        if self.names:
            least, most = -0.5, len(self.names) - 0.5
        elif self.log:
            least, most = (least, most) if least < most else (least / 2, most * 2)
        else:
            margin = 0.06 * (most - least) or abs(most) * 0.1 or 1.0
            least, most = least - margin, most + margin
        return Scale(self, least, most, low, high)


@dataclass(frozen=True)
class Scale:
    """An axis with its ends."""

    axis: Axis
    least: float
    most: float
    low: float
    high: float

    def at(self, value: float) -> float:
        if self.axis.log:
            share = math.log(value / self.least) / math.log(self.most / self.least)
        else:
            share = (value - self.least) / (self.most - self.least)
        return self.low + share * (self.high - self.low)

    def ticks(self) -> list[tuple[float, str]]:
        """Places and words of the marks of an axis."""
        if self.axis.names:
            return [(self.at(i), name) for i, name in enumerate(self.axis.names)]
        ends = self.least, self.most
        values = _powers(*ends, self.axis.base) if self.axis.log else _round(*ends)
        return [(self.at(value), _short(self.axis.shown(value))) for value in values]


def _short(words: str) -> str:
    """100.0M as 100M: marks stand at round figures."""
    return re.sub(r"\.0(?=\D|$)", "", words)


def _powers(least: float, most: float, base: int) -> list[float]:
    """Powers of two; or of ten, with 2 and 5 between them where those are few."""
    first = math.floor(math.log(least, base)) - 1
    last = math.ceil(math.log(most, base)) + 1
    whole = [float(base) ** i for i in range(first, last + 1)]
    inner = [m * power for power in whole for m in (1, 2, 5)] if base == 10 else whole
    for values in (inner, whole):
        there = [value for value in values if least * 0.999 <= value <= most * 1.001]
        if len(there) <= TICKS + 3:
            return there
    return there[:: -(-len(there) // (TICKS + 3))]


def _round(least: float, most: float) -> list[float]:
    """Round numbers within, about as many as one reads."""
    raw = (most - least) / TICKS
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * m for m in (1, 2, 2.5, 5, 10) if unit * m >= raw * 0.999)
    first = math.ceil(least / step - 1e-9)
    return [i * step for i in range(first, math.floor(most / step + 1e-9) + 1)]


def look(number: int) -> str:
    """The class that gives a model its colour."""
    return f"c{number % COLOURS}"


def mark(number: int, x: float, y: float, title: str = "", r: float = 4.0) -> str:
    """A dot in a model's colour and shape, with words for who points at it."""
    words = f"<title>{escape(title)}</title>" if title else ""
    kind = MARKS[number % len(MARKS)]
    if kind == "circle":
        shape = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r:.1f}"'
    elif kind == "square":
        side = 1.8 * r
        shape = (
            f'<rect x="{x - side / 2:.1f}" y="{y - side / 2:.1f}" width="{side:.1f}" '
            f'height="{side:.1f}"'
        )
    else:
        corners = {
            "diamond": ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
            "triangle": ((0, -1.2), (1.15, 0.9), (-1.15, 0.9)),
            "cross": _plus(0.42, 1.25),
        }[kind]
        points = " ".join(f"{x + a * r:.1f},{y + b * r:.1f}" for a, b in corners)
        shape = f'<polygon points="{points}"'
    return f'{shape} class="{look(number)} dot">{words}</{shape[1:].split()[0]}>'


def _plus(thin: float, long: float) -> tuple[tuple[float, float], ...]:
    """The corners of a plus sign."""
    arm = ((-thin, -long), (thin, -long), (thin, -thin), (long, -thin), (long, thin), (thin, thin))
    return (*arm, *((-a, -b) for a, b in arm))


def chart(series: Sequence[Series], x: Axis, y: Axis, alt: str, line: float | None = None) -> str:
    """Lines with dots along an axis; `line` is drawn upright, where something changes."""
    points = [(a, b) for one in series for a, b in zip(one.x, one.y, strict=False) if b is not None]
    across = x.scale([a for a, _ in points], LEFT + 6, WIDTH - RIGHT - 6)
    up = y.scale(_heights(series, y), HEIGHT - BOTTOM, TOP)
    parts = [_frame(across, up)]
    if line is not None and across.least <= line <= across.most:
        parts.append(_upright(across.at(line)))
    parts += [_line(one, across, up) for one in series]
    return _svg("".join(parts), alt)


def _heights(series: Sequence[Series], y: Axis) -> list[float]:
    found = []
    for one in series:
        for i, value in enumerate(one.y):
            if value is not None:
                spread = one.spread[i] if i < len(one.spread) and not y.log else 0.0
                found += [value - spread, value + spread]
    return found


def _svg(inner: str, alt: str, height: float = HEIGHT) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(alt)}">'
        f"{inner}</svg>"
    )


def _frame(across: Scale, up: Scale) -> str:
    parts = []
    for place, word in up.ticks():
        parts.append(_rule(LEFT, place, WIDTH - RIGHT, place, "grid"))
        parts.append(_text(LEFT - 7, place + 3.5, word, "end"))
    floor = HEIGHT - BOTTOM
    for place, word in across.ticks():
        parts.append(_rule(place, floor, place, floor + 4, "axis"))
        parts.append(_text(place, floor + 17, word, "middle"))
    parts.append(_rule(LEFT, floor, WIDTH - RIGHT, floor, "axis"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, across.axis.label, "middle", "name"))
    middle = (TOP + floor) / 2
    label = escape(up.axis.label)
    parts.append(
        f'<text x="14" y="{middle:.1f}" text-anchor="middle" class="name" '
        f'transform="rotate(-90 14 {middle:.1f})">{label}</text>'
    )
    return "".join(parts)


def _rule(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def _upright(x: float) -> str:
    return _rule(x, TOP, x, HEIGHT - BOTTOM, "border")


def _text(x: float, y: float, words: str, anchor: str, kind: str = "tick") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} class="{kind}">{escape(words)}</text>'


def _line(one: Series, across: Scale, up: Scale) -> str:
    """A band of the spread, the line, and a dot at each figure."""
    known = [
        (i, across.at(a), b)
        for i, (a, b) in enumerate(zip(one.x, one.y, strict=False))
        if b is not None and (b > 0 or not up.axis.log)
    ]
    if not known:
        return ""
    parts = []
    if any(one.spread):
        above = [f"{x:.1f},{up.at(b + one.spread[i]):.1f}" for i, x, b in known]
        below = [f"{x:.1f},{up.at(max(b - one.spread[i], up.least)):.1f}" for i, x, b in known]
        band = " ".join([*above, *below[::-1]])
        parts.append(f'<polygon points="{band}" class="{look(one.number)} band"/>')
    path = " ".join(f"{x:.1f},{up.at(b):.1f}" for _, x, b in known)
    parts.append(f'<polyline points="{path}" class="{look(one.number)} line"/>')
    for i, x, b in known:
        where = across.axis.names[i] if across.axis.names else across.axis.shown(one.x[i])
        title = f"{one.name}: {up.axis.shown(b)} at {where}"
        parts.append(mark(one.number, x, up.at(b), title, 3.4 if len(known) < 24 else 2.2))
    return "".join(parts)


def dots(rows: Sequence[tuple[str, int, Sequence[float], float]], x: Axis, alt: str) -> str:
    """A row for each model: a faint dot for each seed, the mean, and how far they spread."""
    gap, left = 34, 130
    height = TOP + gap * len(rows) + BOTTOM
    floor = height - BOTTOM
    values = [v for _, _, seeds, spread in rows for m in seeds for v in (m - spread, m + spread)]
    across = x.scale(values, left + 8, WIDTH - 60)
    parts = []
    for place, word in across.ticks():
        parts.append(_rule(place, TOP, place, floor, "grid"))
        parts.append(_text(place, floor + 17, word, "middle"))
    parts.append(_text((left + WIDTH - 60) / 2, height - 8, x.label, "middle", "name"))
    for i, (name, number, seeds, spread) in enumerate(rows):
        y = TOP + gap * (i + 0.5)
        mean = sum(seeds) / len(seeds)
        parts.append(_text(left - 12, y + 4, name, "end", "who"))
        if spread:
            ends = across.at(mean - spread), across.at(mean + spread)
            parts.append(
                f'<line x1="{ends[0]:.1f}" y1="{y:.1f}" x2="{ends[1]:.1f}" y2="{y:.1f}" '
                f'class="{look(number)} line"/>'
            )
        for value in seeds if len(seeds) > 1 else ():
            parts.append(
                f'<circle cx="{across.at(value):.1f}" cy="{y:.1f}" r="3" '
                f'class="{look(number)} faint"/>'
            )
        parts.append(mark(number, across.at(mean), y, f"{name}: {x.shown(mean)}", 5.5))
        parts.append(_text(WIDTH - 4, y + 4, x.shown(mean), "end", "value"))
    return _svg("".join(parts), alt, height)

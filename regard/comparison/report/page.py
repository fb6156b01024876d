"""A comparison as one page that opens from disk: the tables and charts of `page.html.jinja`.

The template escapes whatever it is given, and the page forbids itself scripts and the network.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from regard.comparison.report.charts import MARKS, MODELS, Axis, Figure, Series, chart, dots
from regard.comparison.report.summary import named, summary
from regard.comparison.results import Comparison, Line, Result, Spread
from regard.formats import count, duration, rate
from regard.metrics.scores import FIGURES
from regard.storage import size

NONE = "–"
SCORES = {one.key: (one.words.replace(" per ", "/"), one.beside) for one in FIGURES}
NUMBER, TWO_DIGITS = "{:,.0f}".format, "{:.2f}".format
Column = Callable[[Result], str]


@dataclass(frozen=True)
class Table:
    """A row for each model, and how the cell below each heading is made."""

    caption: str
    results: Sequence[Result]
    columns: Mapping[str, Column]
    words: Collection[str] = ()  # headings above words; above all others are figures
    best: Collection[tuple[str, str]] = ()  # a model's name and a heading: what stands out


@dataclass(frozen=True)
class Section:
    """The table and the charts of one kind of measurement."""

    table: Table
    figures: Sequence[Figure] = ()
    border: str = ""  # whose training rows end at the dashed line


def page(comparison: Comparison) -> str:
    """The whole report as HTML."""
    names = [one.name for one in comparison.results]
    html = _template().render(
        comparison=comparison,
        summary=summary(comparison),
        colour={name: f"c{i % MODELS}" for i, name in enumerate(names)},
        mark={name: list(MARKS.values())[i % len(MARKS)] for i, name in enumerate(names)},
        quality=_quality(comparison),
        speed=_speed(comparison),
        lengths=_lengths(comparison),
        context=_context(comparison),
        cost=_cost(comparison),
        models=_models(comparison),
    )
    return html.encode("utf-8", "replace").decode("utf-8")  # a model may write half a character


@cache
def _template() -> Template:
    folder = FileSystemLoader(Path(__file__).parent)
    environment = Environment(
        loader=folder,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.jinja")


def _series(comparison: Comparison, line: Callable[[Result], Line | None]) -> list[Series]:
    """The lines there are, each with the number that its model has in every chart."""
    found = ((one, i, line(one)) for i, one in enumerate(comparison.results) if not one.failed)
    return [Series(one.name, i, drawn) for one, i, drawn in found if drawn is not None]


def _shown(value: float | None, shown: Callable[[float], str]) -> str:
    return NONE if value is None else shown(value)


def _mean(spread: Spread | None, shown: Callable[[float], str]) -> str:
    return NONE if spread is None else shown(spread.mean)


def _quality(comparison: Comparison) -> Section | None:
    metric, ranked = comparison.metric, comparison.ranked
    if not ranked:
        return None
    columns: dict[str, Column] = {
        heading: partial(_score, key=key, digits=digits)
        for key, (heading, digits) in SCORES.items()
        if any(key in one.scores for one in ranked)
    }
    seeds = max(len(one.seeds) for one in ranked)
    spread = f"mean and standard deviation of {seeds} seeds" if seeds > 1 else "one seed each"
    if metric.key == "bleu" and seeds == 1:
        spread += "; the lines are the 95 % intervals of resampled test sets"
    best = (ranked[0].name, SCORES[metric.key][0])
    table = Table(f"The best first; {spread}.", ranked, columns, best=[best])
    label = f"{metric.name} ({'more' if metric.better > 0 else 'less'} is better)"
    numbers = {one.name: i for i, one in enumerate(comparison.results)}
    ranking = dots(
        f"{metric.name}, the best first",
        [
            (one.name, numbers[one.name], one.scores[metric.key].values, _doubt(one, metric.key))
            for one in ranked
        ],
        Axis(label, shown=metric.shown),
    )
    return Section(table, [ranking, *_curves(comparison)])


def _score(one: Result, key: str, digits: int) -> str:
    return one.scores[key].shown(digits) if key in one.scores else NONE


def _doubt(one: Result, key: str) -> float:
    if len(one.scores[key].values) == 1 and key == "bleu":
        return one.margin or 0.0
    return one.scores[key].deviation


def _curves(comparison: Comparison) -> list[Figure]:
    series = _series(comparison, _curve)
    if not series:
        return []
    drawn = chart(
        "Held-out loss while they train",
        series,
        Axis("minutes", shown="{:.3g}".format),
        Axis("loss, nats per token", shown=TWO_DIGITS),
        note="The first seed of each, validations and all included in the time.",
    )
    return [drawn]


def _curve(one: Result) -> Line | None:
    return one.curve and Line(tuple(x / 60 for x in one.curve.x), one.curve.y)


def _speed(comparison: Comparison) -> Section | None:
    if not comparison.good:
        return None
    texts = next((one.decoding for one in comparison.good if one.decoding), {})
    columns: dict[str, Column] = {
        "trains, tokens/s": lambda one: _mean(one.pace, rate),
        "whole training": lambda one: _mean(one.seconds, duration),
        **{
            f"writes {n} text{'s' * (n != '1')} at once, tokens/s": partial(_pace, texts=n)
            for n in texts
        },
        "weights": lambda one: _shown(one.memory.get("weights"), size),
        "kept for backward": lambda one: _shown(one.memory.get("activations"), size),
        "a step in all": _step_bytes,
    }
    if any("peak" in one.memory for one in comparison.good):
        columns["measured peak"] = lambda one: size(one.memory.get("peak", 0))
    caption = "Of one run each; an n-gram's pace is that of counting."
    return Section(Table(caption, comparison.good, columns))


def _pace(one: Result, texts: str) -> str:
    return _shown(one.decoding.get(texts), rate)


def _step_bytes(one: Result) -> str:
    parts = ("weights", "optimizer", "activations")
    return size(sum(one.memory.get(name, 0) for name in parts)) if one.memory else NONE


def _lengths(comparison: Comparison) -> Section | None:
    series = _series(comparison, lambda one: one.lengths)
    if not series:
        return None
    labels, border, who = comparison.labels, None, ""
    if comparison.pairs:
        what, across, digits = "BLEU", "tokens of the source", 1
    else:
        what, across, digits = "nats per token", "position in the row", 2
        border, who = _border(comparison)
    drawn = chart(
        f"{what} by {across}",
        series,
        Axis(across, names=labels),
        Axis(what, shown=f"{{:.{digits}f}}".format),
        border,
    )
    columns: dict[str, Column] = {
        label: partial(_at, line="lengths", place=i, digits=digits + 1)
        for i, label in enumerate(labels)
    }
    return Section(Table(f"{what} by {across}.", comparison.good, columns), [drawn], who)


def _border(comparison: Comparison) -> tuple[float | None, str]:
    """Between which buckets the shortest of the rows trained on end, and for whom, in words."""
    rows = min((one.trained_on for one in comparison.good if one.trained_on), default=0)
    ends = [last for _, last in comparison.buckets[:-1]]
    if rows not in ends:
        return None, ""
    return ends.index(rows) + 0.5, named([o for o in comparison.good if o.trained_on == rows])


def _at(one: Result, line: str, place: int, digits: int) -> str:
    found: Line | None = getattr(one, line)
    if found is None or place >= len(found.y):
        return NONE
    return f"{found.y[place]:.{digits}f}"


def _context(comparison: Comparison) -> Section | None:
    series = _series(comparison, lambda one: one.context)
    if not series:
        return None
    what = "source that are shown" if comparison.pairs else "context that are given"
    across = f"tokens of {'the ' * comparison.pairs}{what}"
    drawn = chart(
        f"Loss by {across}",
        series,
        Axis(across, log=True, base=2, shown=NUMBER),
        Axis("nats per token", shown=TWO_DIGITS),
    )
    given = max((one.line.x for one in series), key=len)
    columns: dict[str, Column] = {"uses about": lambda one: _shown(one.used, NUMBER)}
    for i, n in enumerate(given):
        columns[NUMBER(n)] = partial(_at, line="context", place=i, digits=2)
    table = Table(
        "Nats per token; uses about: as many tokens as give 95 % of the whole gain.",
        comparison.good,
        columns,
        best=[(one.name, "uses about") for one in comparison.good],
    )
    return Section(table, [drawn])


def _cost(comparison: Comparison) -> Section | None:
    there = [one for one in comparison.good if one.cost]
    if not there:
        return None
    kinds: dict[str, tuple[str, str, Callable[[float], str]]] = {
        "flops": ("Reading n tokens, counted", "operations", count),
        "seconds": ("Reading n tokens, measured", "seconds", _seconds),
        "step_flops": ("Writing one token after n, counted", "operations", count),
        "step_seconds": ("Writing one token after n, measured", "seconds", _seconds),
        "state_bytes": ("Kept for one text after n tokens", "bytes", size),
    }
    figures = []
    for key, (title, unit, shown) in kinds.items():
        if series := _series(comparison, partial(_costs, key=key)):
            x, y = Axis("n", log=True, base=2, shown=NUMBER), Axis(unit, log=True, shown=shown)
            figures.append(chart(title, series, x, y))
    columns: dict[str, Column] = {
        "reads, counted": partial(_power, key="flops"),
        "reads, measured": partial(_power, key="seconds"),
        "a step, counted": partial(_power, key="step_flops"),
        "a step, measured": partial(_power, key="step_seconds"),
        "keeps": _kept,
    }
    caption = (
        "The power of n through the longer half of the lengths; bytes kept after the fewest and "
        "the most tokens."
    )
    return Section(Table(caption, there, columns), figures)


def _costs(one: Result, key: str) -> Line | None:
    """One kind of cost as a line, with gaps at lengths that a model has no room for."""
    values = [value or math.nan for value in one.cost.get(key, ())]
    known = any(map(math.isfinite, values))
    return Line(tuple(one.cost["lengths"]), tuple(values)) if known else None


def _power(one: Result, key: str) -> str:
    value = one.powers.get(key)
    sign = "−" * (value is not None and value <= -0.005)
    return _shown(value, lambda power: f"n^{sign}{abs(power):.2f}")


def _kept(one: Result) -> str:
    known = [value for value in one.cost.get("state_bytes", ()) if value is not None]
    if not known:
        return NONE
    if known[0] == known[-1]:
        return f"{size(known[0])}, always"
    return f"{size(known[0])} to {size(known[-1])}"


def _seconds(value: float) -> str:
    """12 µs, 3.4 ms, 1.2 s."""
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if value * scale >= 0.9995:
            return f"{value * scale:.3g} {unit}"
    return f"{value * 1e6:.3g} µs"


def _models(comparison: Comparison) -> Section:
    columns: dict[str, Column] = {
        "what it is": lambda one: f"{one.preset}: {one.about}",
        "parameters": lambda one: f"{one.parameters:,}" if one.parameters else "none",
        "size": lambda one: one.matched,
        "steps": lambda one: NONE if one.counts or not one.steps else f"{one.steps:,}",
        "tokens read": lambda one: _shown(one.tokens or None, count),
        "how its loss was counted": lambda one: (
            f"failed: {one.failed}" if one.failed else one.rules
        ),
    }
    words = ("what it is", "size", "how its loss was counted")
    return Section(Table("All models.", comparison.results, columns, words))

"""A comparison as one page that opens from disk: tables, charts and words, nothing to load.

Everything that comes from data is escaped, and the page forbids itself scripts and the network.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape

from regard.comparison.report.charts import Axis, Series, chart, dots
from regard.comparison.report.parts import (
    NONE,
    Cell,
    figure,
    grid,
    icon,
    lines_of,
    looks_of,
    plain,
    section,
    table,
)
from regard.comparison.report.style import COLOURED, STYLE
from regard.comparison.report.summary import named, summary
from regard.comparison.results import Comparison, Line, Result
from regard.formats import count, duration, rate
from regard.storage import size

HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
"""


def page(comparison: Comparison) -> str:
    """The whole report as HTML."""
    title = f"{len(comparison.results)} models on {comparison.title}"
    body = "".join(
        (
            f"<header><h1>{escape(title)}</h1>{_facts(comparison.facts)}</header>",
            "<main>",
            _summary(comparison),
            _quality(comparison),
            _speed(comparison),
            _lengths(comparison),
            _context(comparison),
            _cost(comparison),
            _samples(comparison),
            _models(comparison),
            "</main>",
            _footer(),
        )
    )
    html = (
        f"{HEAD}<title>{escape(title)}</title>\n<style>{STYLE}{COLOURED}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )
    return html.encode("utf-8", "replace").decode("utf-8")  # a model may write half a character


def _facts(facts: Mapping[str, str]) -> str:
    lines = (f"<dt>{escape(name)}</dt><dd>{escape(fact)}</dd>" for name, fact in facts.items())
    return f"<dl>{''.join(lines)}</dl>"


def _summary(comparison: Comparison) -> str:
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in summary(comparison))
    return f'<section class="card" aria-label="Summary"><ul>{items}</ul></section>'


# Sections


def _quality(comparison: Comparison) -> str:
    metric, ranked = comparison.metric, comparison.ranked
    if not ranked:
        return ""
    numbers = looks_of(comparison)
    keys = {
        "bits_per_byte": ("bits/byte", 3),
        "bleu": ("BLEU", 2),
        "chrf": ("chrF", 2),
        "exact": ("exact", 3),
        "perplexity": ("perplexity", 2),
        "loss": ("nats/token", 3),
    }
    there = [key for key in keys if any(key in one.scores for one in ranked)]
    best = ranked[0].name
    rows = [
        (
            one,
            [
                Cell(
                    one.scores[key].shown(keys[key][1]) if key in one.scores else NONE,
                    best=key == metric.key and one.name == best,
                )
                for key in there
            ],
        )
        for one in ranked
    ]
    spreads = [
        (one.name, numbers[one.name], one.scores[metric.key].values, _doubt(one, metric.key))
        for one in ranked
    ]
    better = "more" if metric.better > 0 else "less"
    label = f"{metric.name} ({better} is better)"
    alt = "; ".join(f"{one.name} {metric.shown(one.scores[metric.key].mean)}" for one in ranked)
    drawn = dots(spreads, Axis(label, shown=metric.shown), f"{metric.name}: {alt}")
    seeds = max(len(one.seeds) for one in ranked)
    spread = f"mean and standard deviation of {seeds} seeds" if seeds > 1 else "one seed each"
    if metric.key == "bleu" and seeds == 1:
        spread += "; the lines are the 95 % intervals of resampled test sets"
    return section(
        "How good they are",
        "On what was held out, as regard evaluate measures it.",
        table(comparison, f"The best first; {spread}.", [keys[key][0] for key in there], rows),
        grid(plain(f"{metric.name}, the best first", drawn), _curves(comparison)),
    )


def _doubt(one: Result, key: str) -> float:
    if len(one.scores[key].values) == 1 and key == "bleu":
        return one.margin or 0.0
    return one.scores[key].deviation


def _curves(comparison: Comparison) -> str:
    series = lines_of(comparison, lambda one: one.curve)
    if not series:
        return ""
    drawn = chart(
        [Series(s.name, s.number, [x / 60 for x in s.x], s.y) for s in series],
        Axis("minutes", shown="{:.3g}".format),
        Axis("loss, nats per token", shown="{:.2f}".format),
        "Loss on what was held out, by the time since training began.",
    )
    note = "The first seed of each, validations and all included in the time."
    return figure("Held-out loss while they train", series, drawn, note)


def _speed(comparison: Comparison) -> str:
    if not comparison.good:
        return ""
    rows = []
    texts = list(next((one.decoding for one in comparison.good if one.decoding), {}))
    measured = any("peak" in one.memory for one in comparison.good)
    for one in comparison.good:
        memory = one.memory
        whole = sum(memory.get(name, 0) for name in ("weights", "optimizer", "activations"))
        cells = [
            Cell(NONE if one.pace is None else rate(one.pace.mean)),
            Cell(NONE if one.seconds is None else duration(one.seconds.mean)),
            *(Cell(rate(one.decoding[n]) if n in one.decoding else NONE) for n in texts),
            Cell(size(memory["weights"]) if memory else NONE),
            Cell(size(memory["activations"]) if memory else NONE),
            Cell(size(whole) if memory else NONE),
        ]
        rows.append((one, cells + [Cell(size(memory.get("peak", 0)))] * measured))
    writes = [f"writes {n} text{'s' * (n != '1')} at once, tokens/s" for n in texts]
    peak = ["measured peak"] * measured
    return section(
        "How fast, and in how much memory",
        "Training: the median over the log's steps, sources and targets counted. Writing: drawn "
        "token by token from the model's state, each text to the same length. Memory of a training "
        "step: weights, gradients and the optimizer's moments, and all tensors that forward keeps "
        "for backward, counted.",
        table(
            comparison,
            "Of one run each; an n-gram's pace is that of counting.",
            [
                "trains, tokens/s",
                "whole training",
                *writes,
                "weights",
                "kept for backward",
                "a step in all",
                *peak,
            ],
            rows,
        ),
    )


def _lengths(comparison: Comparison) -> str:
    series = lines_of(comparison, lambda one: one.lengths)
    if not series:
        return ""
    labels = comparison.labels
    if comparison.pairs:
        about = "Translations of sources of about one length, as many in each bucket."
        what, across, digits = "BLEU", "tokens of the source", 1
        border = None
    else:
        about = (
            "The loss by position in rows that begin anew. Each bucket has other tokens; the next "
            "section asks for the same ones."
        )
        what, across, digits = "nats per token", "position in the row", 2
        border, words = _border(comparison)
        about += words
    drawn = chart(
        series,
        Axis(across, names=labels),
        Axis(what, shown=f"{{:.{digits}f}}".format),
        f"{what} by {across}; the table has the figures.",
        border,
    )
    rows = [
        (one, [Cell(_at(one.lengths, i, digits + 1)) for i in range(len(labels))])
        for one in comparison.good
    ]
    caption = f"{what} by {across}."
    return section(
        "How quality changes with length",
        about,
        figure(caption[:-1], series, drawn),
        table(comparison, caption, labels, rows),
    )


def _border(comparison: Comparison) -> tuple[float | None, str]:
    """Between which buckets the shortest of the rows trained on end, and for whom, in words."""
    rows = min((one.trained_on for one in comparison.good if one.trained_on), default=0)
    ends = [last for _, last in comparison.buckets[:-1]]
    if rows not in ends:
        return None, ""
    who = [one for one in comparison.good if one.trained_on == rows]
    words = f" Behind the dashed line rows are longer than {named(who)} had in training."
    return ends.index(rows) + 0.5, words


def _at(line: Line | None, place: int, digits: int) -> str:
    if line is None or place >= len(line.y):
        return NONE
    return f"{line.y[place]:.{digits}f}"


def _context(comparison: Comparison) -> str:
    series = lines_of(comparison, lambda one: one.context)
    if not series:
        return ""
    if comparison.pairs:
        about = (
            "The loss of the same whole targets, given their own beginnings and only the first n "
            "tokens of the source: how much of a source a model makes use of. These are the pairs "
            "with the longest sources."
        )
        across = "tokens of the source that are shown"
    else:
        about = (
            "The loss of the same target tokens, given the last n tokens before each and nothing "
            "else. Where a line becomes level, the model makes nothing of what lies farther back. "
            "Recurrent models begin with <s>, as they learnt to."
        )
        across = "tokens of context that are given"
    shown = "{:,.0f}".format
    drawn = chart(
        series,
        Axis(across, log=True, base=2, shown=shown),
        Axis("nats per token", shown="{:.2f}".format),
        f"Loss by {across}; the table has the figures.",
    )
    given = max((one.context.x for one in comparison.good if one.context), key=len)
    rows = [
        (
            one,
            [
                Cell(NONE if one.used is None else shown(one.used), best=True),
                *(Cell(_at(one.context, i, 2)) for i in range(len(given))),
            ],
        )
        for one in comparison.good
    ]
    heads = ["uses about", *(shown(n) for n in given)]
    caption = "Nats per token; uses about: as many tokens as give 95 % of the whole gain."
    title = "How much of the source they use" if comparison.pairs else "How far back they look"
    return section(
        title,
        about,
        figure(f"Loss by {across}", series, drawn),
        table(comparison, caption, heads, rows),
    )


def _cost(comparison: Comparison) -> str:
    there = [one for one in comparison.good if one.cost]
    if not there:
        return ""
    kinds: dict[str, tuple[str, str, Callable[[float], str]]] = {
        "flops": ("Reading n tokens, counted", "operations", count),
        "seconds": ("Reading n tokens, measured", "seconds", _seconds),
        "step_flops": ("Writing one token behind n, counted", "operations", count),
        "step_seconds": ("Writing one token behind n, measured", "seconds", _seconds),
        "state_bytes": ("Kept for one text behind n tokens", "bytes", size),
    }
    figures = []
    for key, (title, unit, shown) in kinds.items():
        series = lines_of(comparison, partial(_costs, key=key))
        if series:
            across = Axis("n", log=True, base=2, shown="{:,.0f}".format)
            drawn = chart(
                series, across, Axis(unit, log=True, shown=shown), _told(title, series, shown)
            )
            figures.append(figure(title, series, drawn))
    powers = ("flops", "seconds", "step_flops", "step_seconds")
    rows = [
        (
            one,
            [
                *(Cell(_power(one.powers.get(key))) for key in powers),
                Cell(_ends(one.cost.get("state_bytes", ()))),
            ],
        )
        for one in there
    ]
    heads = ["reads, counted", "reads, measured", "a step, counted", "a step, measured", "keeps"]
    both = "For pairs n is the length of the source and of the target. " * comparison.pairs
    return section(
        "How cost grows with length",
        f"{both}Counted: multiplications and additions of the module itself (attention's hidden "
        "pairs too). Measured: one text at a time, the best of a few passes. Both axes are "
        "logarithmic: a straight line is a power of n.",
        grid(*figures),
        table(
            comparison,
            "The power of n through the longer half of the lengths; bytes kept behind the fewest "
            "and the most tokens.",
            heads,
            rows,
        ),
    )


def _told(title: str, series: Sequence[Series], shown: Callable[[float], str]) -> str:
    """A chart in words, for who cannot see it: where each line begins and ends."""
    lines = (
        f"{s.name} {shown(s.y[0] or 0)} at {s.x[0]:,.0f}, {shown(s.y[-1] or 0)} at {s.x[-1]:,.0f}"
        for s in series
    )
    return f"{title}: {'; '.join(lines)}"


def _costs(one: Result, key: str) -> Line | None:
    """One kind of cost as a line, without the lengths that a model has no room for."""
    points = zip(one.cost.get("lengths", ()), one.cost.get(key, ()), strict=False)
    known = [(x, y) for x, y in points if y]
    if not known:
        return None
    x, y = zip(*known, strict=True)
    return Line(tuple(x), tuple(y))


def _power(value: float | None) -> str:
    if value is None:
        return NONE
    sign = "−" * (value <= -0.005)
    return f"n^{sign}{abs(value):.2f}"


def _ends(values: Sequence[int | None]) -> str:
    known = [value for value in values if value is not None]
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


def _samples(comparison: Comparison) -> str:
    if not comparison.given:
        return ""
    numbers, cards = looks_of(comparison), []
    for i, given in enumerate(comparison.given):
        lines = []
        if comparison.gold:
            lines.append(f'<tr><th scope="row">reference</th>{_said(comparison.gold[i])}</tr>')
        for one in comparison.good:
            if i < len(one.samples):
                head = f'<th scope="row">{icon(numbers[one.name])}{escape(one.name)}</th>'
                lines.append(f"<tr>{head}{_said(one.samples[i])}</tr>")
        what = "Source" if comparison.pairs else "Beginning"
        cards.append(
            f'<div class="card"><p class="given"><b>{what}:</b> <span class="text">'
            f'{escape(given)}</span></p><table class="samples"><tbody>{"".join(lines)}</tbody>'
            "</table></div>"
        )
    about = (
        "Sources from short to long; the most probable word at each step."
        if comparison.pairs
        else "The same beginnings from the held-out text, the same seed, temperature 0.8."
    )
    return section("What they write", about, *cards)


def _said(text: str) -> str:
    return f'<td class="text">{escape(text)}</td>'


def _models(comparison: Comparison) -> str:
    rows = []
    for one in comparison.results:
        how = f"failed: {one.failed}" if one.failed else one.rules
        rows.append(
            (
                one,
                [
                    Cell(f"{one.preset}: {one.about}", number=False),
                    Cell(f"{one.parameters:,}" if one.parameters else "none"),
                    Cell(one.matched, number=False),
                    Cell(NONE if one.counts or not one.steps else f"{one.steps:,}"),
                    Cell(NONE if not one.tokens else count(one.tokens)),
                    Cell(how, number=False),
                ],
            )
        )
    heads = ["what it is", "parameters", "size", "steps", "tokens read", "how its loss was counted"]
    return section("Who was compared", "", table(comparison, "All models.", heads, rows))


def _footer() -> str:
    return (
        '<footer class="soft">Made by <b>regard compare</b>. All figures of this page are in '
        "report.json beside it; the runs are in runs/, each a run like any other.</footer>"
    )

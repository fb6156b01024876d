"""What a report is built of: sections, tables with a row for each model, figures with their key."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from regard.comparison.report.charts import Series, mark
from regard.comparison.results import Comparison, Line, Result

NONE = "–"


@dataclass(frozen=True)
class Cell:
    """A cell of a table: words, or a figure, which stands on the right."""

    words: str
    number: bool = True
    best: bool = False


def section(title: str, about: str, *parts: str) -> str:
    words = f'<p class="soft">{escape(about)}</p>' if about else ""
    return f"<section><h2>{escape(title)}</h2>{words}{''.join(parts)}</section>"


def icon(number: int) -> str:
    return f'<svg viewBox="0 0 14 14" aria-hidden="true">{mark(number, 7, 7, r=5)}</svg>'


def table(
    comparison: Comparison,
    caption: str,
    headings: Sequence[str],
    rows: Sequence[tuple[Result, Sequence[Cell]]],
) -> str:
    """A row for each model, named and marked as in the charts."""
    numbers = looks_of(comparison)
    lines = []
    for one, cells in rows:
        found = (
            f'<td class="{"n" * c.number}{" best" * c.best}">{escape(c.words)}</td>' for c in cells
        )
        head = f'<th scope="row">{icon(numbers[one.name])}{escape(one.name)}</th>'
        lines.append(f"<tr>{head}{''.join(found)}</tr>")
    kinds = [cell.number for cell in rows[0][1]] if rows else []
    heads = "".join(
        f'<th scope="col" class="{"n" * number}">{escape(heading)}</th>'
        for heading, number in zip(headings, kinds, strict=True)
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">'
        f"<table><caption>{escape(caption)}</caption><thead><tr>"
        f'<th scope="col">model</th>{heads}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def looks_of(comparison: Comparison) -> dict[str, int]:
    """Which colour and mark a model has, in every chart and table."""
    return {one.name: i for i, one in enumerate(comparison.results)}


def figure(title: str, lines: Sequence[Series], drawn: str, note: str = "") -> str:
    """A chart with a key of the lines in it."""
    keys = "".join(f"<span>{icon(one.number)}{escape(one.name)}</span>" for one in lines)
    words = f"<figcaption>{escape(note)}</figcaption>" if note else ""
    return (
        f'<figure class="card"><h3>{escape(title)}</h3><div class="key">{keys}</div>{drawn}{words}'
        "</figure>"
    )


def grid(*figures: str) -> str:
    return f'<div class="grid">{"".join(figures)}</div>'


def lines_of(comparison: Comparison, line: Callable[[Result], Line | None]) -> list[Series]:
    numbers = looks_of(comparison)
    found = [(one.name, line(one)) for one in comparison.good]
    return [
        Series(name, numbers[name], drawn.x, drawn.y, drawn.deviation)
        for name, drawn in found
        if drawn is not None
    ]


def plain(title: str, drawn: str) -> str:
    return f'<figure class="card"><h3>{escape(title)}</h3>{drawn}</figure>'

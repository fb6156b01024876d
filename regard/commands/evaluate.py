"""`regard evaluate`: the figures of a run on some data."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.commands.arguments import check_writable, option
from regard.commands.printing import as_note, errors
from regard.decoding.settings import Beam
from regard.errors import Problems
from regard.families.tasks.base import Evaluation
from regard.metrics.scores import FIGURES, Bucket, Scores
from regard.runs.data_names import readable
from regard.runs.evaluate import evaluate
from regard.runs.plan import device_for
from regard.runs.stored_run import Run, open_run

Names = tuple[str, ...]
NONE = "–"


@dataclass(frozen=True)
class Evaluate:
    """Measure a run on whole texts, pairs or images: always the same figures.

    $ regard evaluate runs/notes                   what the run itself held out
    $ regard evaluate runs/notes other.txt --json
    $ regard evaluate runs/en-de en.txt de.txt --beam 5 --by-length
    $ regard evaluate runs/scenes scenes           scenes arranged as none before
    """

    path: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """A run's folder."""
    data: Annotated[
        tyro.conf.Positional[Names],
        tyro.conf.arg(
            metavar="DATA…",
            help="Text files, folders or globs, or - for standard input; for pairs a source and a "
            "target file, one .tsv or .jsonl file, or a built-in task; for images a folder or a "
            "list of captions, or `scenes`; `python` is its held-out part.",
            help_behavior_hint="(default: what the run held out)",
        ),
    ] = ()
    pairs: Annotated[Names, tyro.conf.arg(metavar="FILE…", help_behavior_hint="")] = ()
    """The same as DATA, for pairs."""
    beam: Annotated[int, tyro.conf.arg(metavar="N")] = 1
    """Hypotheses kept while translating or describing; 1 is greedy."""
    length_penalty: Annotated[float, tyro.conf.arg(metavar="X")] = 1.0
    """Hypotheses are ranked by log-probability / tokens ** X."""
    by_length: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """For pairs: BLEU and exact match by the source's tokens, too; about as many pairs a line."""
    int8: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """A Transformer's weights in eight bits; what that does to the perplexity is told."""
    tokenised: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """The text is tokenised already: BLEU counts what stands between blanks."""
    written: Annotated[str, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = ""
    """A file to write the translations or captions to."""
    device: Annotated[str, tyro.conf.arg(metavar="NAME")] = "auto"
    """cpu, cuda, or what there is."""
    json: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """Print one JSON object and nothing else."""

    def run(self, console: Console) -> None:
        run = open_run(Path(self.path), device_for(self.device))
        self._check(run)
        scores, warnings = evaluate(run, self._asked(), self.int8)
        notes = errors() if self.json else console
        for warning in warnings:
            notes.print(as_note(warning), soft_wrap=self.json)
        if self.json:
            print(json.dumps(figures(scores), allow_nan=False))
        else:
            show(scores, " ".join(self.data or self.pairs) or "held out", console)

    def _check(self, run: Run) -> None:
        """Refuse what does not suit the run, before the work."""
        problems = Problems("evaluate")
        problems.require(not (self.data and self.pairs), "give DATA or --pairs, not both")
        if self.pairs and run.config.form != "pairs":
            problems.add(f"--pairs is for runs on pairs; {self.path} is on {run.config.form}")
        problems.require(self.beam > 0, f"--beam must be at least 1, not {self.beam}")
        problems.report()
        if self.written:
            check_writable(Path(self.written), *(self.data or self.pairs))

    def _asked(self) -> Evaluation:
        return Evaluation(
            readable(self.data or self.pairs),
            Beam(beams=self.beam, length_penalty=self.length_penalty, named=option),
            self.by_length,
            self.tokenised,
            Path(self.written) if self.written else None,
        )


def figures(scores: Scores) -> dict[str, Any]:
    """The scores as JSON can hold them: null for what has no meaning or no end."""
    found = scores.figures()
    found.setdefault("bits_per_byte", None)
    if "exact" in found:
        found.setdefault("bleu", None)
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in found.items()
    }


def _bleu(scores: Scores | Bucket) -> str:
    if scores.bleu is None:
        return NONE
    margin = "" if scores.bleu_margin is None else f" ± {scores.bleu_margin:.2f}"
    return f"{scores.bleu:.2f}{margin}"


def _on_boxes(scores: Scores) -> str:
    assert scores.on_boxes is not None
    assert scores.boxes is not None
    return f"{scores.on_boxes:.1%}, {scores.on_boxes / scores.boxes:.1f}× chance"


def _lengths(buckets: Sequence[Bucket]) -> Table:
    """A line for each bucket of lengths."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("source tokens", style="cyan")
    judged = any(one.bleu is not None for one in buckets)
    for name in ("pairs", *["BLEU"] * judged, "exact"):
        table.add_column(name, justify="right")
    for one in buckets:
        span = f"{one.first}–{one.last}" if one.first < one.last else f"{one.first}"
        table.add_row(span, f"{one.pairs:,}", *[_bleu(one)] * judged, f"{one.exact:.1%}")
    return table


def show(scores: Scores, title: str, console: Console) -> None:
    """A small table of figures, and below it how they were counted."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    found = ((figure, getattr(scores, figure.key)) for figure in FIGURES)
    there = {one.name: one.shown(value) for one, value in found if value is not None}
    if scores.bleu_margin is not None:
        there["BLEU"] = _bleu(scores)
    if scores.on_boxes is not None:
        there["on boxes"] = _on_boxes(scores)
    there["tokens"] = f"{scores.tokens:,}"
    table.add_column(title, style="cyan")
    for name in there:
        table.add_column(name, justify="right")
    table.add_row("", *there.values())
    console.print(table)
    if scores.by_length:
        console.print(_lengths(scores.by_length))
    for line in (scores.rules, scores.signature):
        if line:
            console.print(Text(line, "dim"))

"""`regard evaluate`: the figures of a run on some data."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.data import tasks
from regard.data.buckets import Buckets
from regard.data.pairs import (
    Counts,
    Pair,
    clean,
    encode_pairs,
    gather_pairs,
    read_pairs,
    task_pairs,
)
from regard.data.stream import MaskedStream, Stream
from regard.data.texts import gather
from regard.data.tokens import prepare
from regard.errors import RegardError
from regard.training.evaluation import Scores, compare, measure, rules, translations
from regard.training.objectives import objective_for
from regard.training.precision import Precision
from regard.training.runs import Run, open_run
from regard.training.setup import device_for

Names = tuple[str, ...]
ROWS = 32  # computed at once


@dataclass(frozen=True)
class Evaluate:
    """Measure a run on whole texts or pairs: always the same figures.

    Without data, the part that the run itself held out.
    """

    path: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """A run's folder."""
    data: Annotated[tyro.conf.Positional[Names], tyro.conf.arg(metavar="DATA")] = ()
    """Text files, folders or globs; for pairs a source and a target file, a .tsv, a .jsonl or a
    built-in task; `python` is its held-out part."""
    pairs: Names = ()
    """The same as DATA, for pairs."""
    beam: int = 1
    """Hypotheses kept while translating; 1 is greedy."""
    tokenised: bool = False
    """The text is tokenised already: BLEU counts what stands between blanks."""
    written: str = ""
    """A file to write the translations to."""
    device: str = "auto"
    """cpu, cuda, or what there is."""
    json: bool = False
    """Print one JSON object and nothing else."""

    def run(self, console: Console) -> None:
        run = open_run(Path(self.path), device_for(self.device))
        given = self.data or self.pairs
        scores, warnings = (
            self._pairs(run, given) if run.settings.data.pairs else evaluate_text(run, given)
        )
        if self.json:
            print(json.dumps(scores.figures()))
            return
        for warning in warnings:
            console.print(Text(f"note: {warning}", "yellow"))
        show(scores, " ".join(given) or "held out", console)

    def _pairs(self, run: Run, given: Names) -> tuple[Scores, list[str]]:
        texts, counts = _pair_texts(run, given)
        if not texts:
            raise RegardError(f"there are no pairs in {' and '.join(given)}")
        pairs = encode_pairs(texts, run.source_tokenizer, run.tokenizer, run.config.context - 1)
        if not len(pairs):
            raise RegardError(f"every pair is longer than the model's context {run.config.context}")
        objective = objective_for(run.config, pairs=True)
        feed = Buckets(pairs, pairs, tokens=1 << 30)
        scores = measure(run.module, objective, feed.held_out(ROWS))
        written = translations(run.module, pairs, run.tokenizer, beams=self.beam, rows=ROWS)
        if self.written:
            lines = "".join(" ".join(line.split("\n")) + "\n" for line in written)
            Path(self.written).write_text(lines, encoding="utf-8")
        scores = compare(scores, written, [pair.target for pair in pairs.texts], self.tokenised)
        how = f"beam {self.beam}" if self.beam > 1 else "greedy"
        scores = replace(scores, rules=f"{rules(objective, 0)}; translations: {how}")
        return scores, [
            *counts.sentences(),
            *pairs.counts.sentences(run.config.context - 1),
        ]


def _pair_texts(run: Run, given: Names) -> tuple[list[Pair], Counts]:
    """The pairs asked for, or those that the run held out."""
    data = run.settings.data
    if not given:
        texts = gather_pairs(
            data.train, data.valid, data.held_out / 2, data.examples, run.settings.training.seed
        )
        return list(texts.valid), Counts()
    if len(given) == 1 and given[0] in tasks.TASKS:
        return task_pairs(given[0], 1000, 0, "test"), Counts()
    counts = Counts()
    return list(clean(read_pairs(given), counts)), counts


def evaluate_text(
    run: Run, given: Names, precision: Precision = "float32"
) -> tuple[Scores, list[str]]:
    """A run's figures over all of some text, or over what it held out."""
    data, context = run.settings.data, run.settings.training.context
    own = not given or list(given) == ["python"]
    if own:
        texts = gather(given or data.train, () if given else data.valid, data.held_out)
    else:
        texts = gather(given, held_out=0.0)
    parts = prepare(texts, run.tokenizer)
    tokens = parts["valid" if own else "train"]
    if not len(tokens):
        raise RegardError("the run held nothing out; name some text to evaluate it on")
    objective = objective_for(run.config, pairs=False)
    feed: Stream
    if objective.name == "masked":
        feed = MaskedStream(
            tokens,
            tokens,
            context,
            1,
            vocabulary=run.config.vocabulary,
            share=run.settings.training.masked,
        )
    else:
        feed = Stream(tokens, tokens, context, 1, isolate=data.isolate)
    size = tokens.stock.bytes if objective.name == "causal" else 0
    scores = measure(run.module, objective, feed.held_out(ROWS), precision, size)
    warnings = list(texts.warnings)
    if tokens.stock.unknown:
        warnings.append(f"{tokens.stock.unknown:,} of {len(tokens):,} tokens are unknown")
    return replace(scores, rules=rules(objective, context)), warnings


def show(scores: Scores, title: str, console: Console) -> None:
    """A small table of figures, and below it how they were counted."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    facts = {
        "loss": f"{scores.loss:.4f}",
        "perplexity": f"{scores.perplexity:,.2f}",
        "bits/byte": None if scores.bits_per_byte is None else f"{scores.bits_per_byte:.4f}",
        "accuracy": None if scores.accuracy is None else f"{scores.accuracy:.1%}",
        "BLEU": None if scores.bleu is None else f"{scores.bleu:.2f}",
        "chrF": None if scores.chrf is None else f"{scores.chrf:.2f}",
        "exact": None if scores.exact is None else f"{scores.exact:.1%}",
        "tokens": f"{scores.tokens:,}",
    }
    there = {name: fact for name, fact in facts.items() if fact is not None}
    table.add_column(title, style="cyan")
    for name in there:
        table.add_column(name, justify="right")
    table.add_row("", *there.values())
    console.print(table)
    for line in (scores.rules, scores.signature):
        if line:
            console.print(Text(line, "dim"))

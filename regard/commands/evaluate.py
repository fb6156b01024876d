"""`regard evaluate`: the figures of a run on some data."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.commands.names import check_writable, readable
from regard.data import tasks
from regard.data.buckets import Buckets
from regard.data.labels import Labels, check_labels, strange_labels
from regard.data.pairs import (
    Counts,
    EncodedPairs,
    Pair,
    clean,
    encode_pairs,
    read_pairs,
    task_pairs,
)
from regard.data.texts import gather
from regard.data.tokens import prepare
from regard.decoding.settings import Beam
from regard.errors import Problems, RegardError
from regard.models.bag import BagConfig
from regard.models.int8 import quantise
from regard.models.ngram import NGram
from regard.models.recurrent import Recurrent
from regard.models.transformer import Transformer
from regard.training.evaluation import (
    Bucket,
    Scores,
    accounted,
    by_length,
    compare,
    counted_rules,
    judge,
    measure,
    measure_counts,
    rules,
    translations,
)
from regard.training.objectives import Objective, objective_for
from regard.training.precision import Precision
from regard.training.runs import Run, check_data, open_run
from regard.training.setup import device_for, pairs_of, stream, unknown_in_pairs

Names = tuple[str, ...]
ROWS = 32  # computed at once
RESAMPLES = 1000  # test sets drawn anew, for the interval of BLEU


@dataclass(frozen=True)
class Evaluate:
    """Measure a run on whole texts or pairs: always the same figures.

    $ regard evaluate runs/notes                   what the run itself held out
    $ regard evaluate runs/notes other.txt --json
    $ regard evaluate runs/en-de en.txt de.txt --beam 5 --by-length
    """

    path: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """A run's folder."""
    data: Annotated[
        tyro.conf.Positional[Names],
        tyro.conf.arg(
            metavar="DATA…",
            help="Text files, folders or globs, or - for standard input; for pairs a source and a "
            "target file, one .tsv or .jsonl file, or a built-in task; `python` is its held-out "
            "part.",
            help_behavior_hint="(default: what the run held out)",
        ),
    ] = ()
    pairs: Annotated[Names, tyro.conf.arg(metavar="FILE…", help_behavior_hint="")] = ()
    """The same as DATA, for pairs."""
    beam: Annotated[int, tyro.conf.arg(metavar="N")] = 1
    """Hypotheses kept while translating; 1 is greedy."""
    length_penalty: Annotated[float, tyro.conf.arg(metavar="X")] = 1.0
    """Hypotheses are ranked by log-probability / tokens ** X."""
    by_length: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """For pairs: BLEU and exact match by the length of the source, too."""
    int8: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """Weights in eight bits; the perplexity is compared with that of the weights as they are."""
    tokenised: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """The text is tokenised already: BLEU counts what stands between blanks."""
    written: Annotated[str, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = ""
    """A file to write the translations to."""
    device: Annotated[str, tyro.conf.arg(metavar="NAME")] = "auto"
    """cpu, cuda, or what there is."""
    json: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """Print one JSON object and nothing else."""

    def run(self, console: Console) -> None:
        run = open_run(Path(self.path), device_for(self.device))
        given = self._given(run)
        plain = self._loss(run, given) if self.int8 else None
        if self.int8:
            assert isinstance(run.module, Transformer)
            run = replace(run, module=quantise(run.module))
        scores, warnings = (
            self._pairs(run, given) if run.settings.data.pairs else evaluate_text(run, given)
        )
        if plain is not None:
            how = f"{scores.rules}; int8 weights: {change(plain, scores)}"
            scores = replace(scores, rules=how, plain_perplexity=plain.perplexity)
        notes = Console(stderr=True) if self.json else console
        for warning in warnings:
            notes.print(Text(f"note: {warning}", "yellow"), soft_wrap=self.json)
        if self.json:
            print(json.dumps(figures(scores), allow_nan=False))
        else:
            show(scores, " ".join(self.data or self.pairs) or "held out", console)

    def _loss(self, run: Run, given: Names) -> Scores:
        """The run's loss with its weights as they are."""
        if not run.settings.data.pairs:
            return evaluate_text(run, given)[0]
        pairs = self._encoded(run, given)[0]
        return _measured(run, pairs)

    def _given(self, run: Run) -> Names:
        """The data to evaluate on, if any; what does not suit the run is told before the work."""
        problems = Problems("evaluate")
        problems.require(not (self.data and self.pairs), "give DATA or --pairs, not both")
        if not run.settings.data.pairs:
            for name in ("pairs", "tokenised", "written", "by_length"):
                option = name.replace("_", "-")
                problems.require(
                    not getattr(self, name),
                    f"--{option} is for runs on pairs; {self.path} is on text",
                )
        if self.int8 and not isinstance(run.module, Transformer):
            problems.add("--int8 is for Transformers; this model is none")
        if isinstance(run.config, BagConfig) and (self.beam != 1 or self.by_length):
            problems.add("--beam and --by-length are for translations; a label is one word")
        problems.require(self.beam > 0, f"--beam must be at least 1, not {self.beam}")
        problems.report()
        if self.written:
            check_writable(Path(self.written))
        return readable(self.data or self.pairs)

    def _encoded(self, run: Run, given: Names) -> tuple[EncodedPairs, Counts]:
        """The pairs to evaluate on."""
        texts, counts = _pair_texts(run, given)
        if not texts and not given:
            raise RegardError("the run held nothing out; name some pairs to evaluate it on")
        if not texts:
            raise RegardError(f"there are no pairs in {' and '.join(given)}")
        pairs = encode_pairs(texts, run.source_tokenizer, run.tokenizer, run.config.context - 1)
        if isinstance(run.config, BagConfig):
            check_labels(pairs, "line")
        if not len(pairs):
            raise RegardError(f"every pair is longer than the model's context {run.config.context}")
        return pairs, counts

    def _pairs(self, run: Run, given: Names) -> tuple[Scores, list[str]]:
        pairs, counts = self._encoded(run, given)
        scores = _measured(run, pairs)
        beam = Beam(beams=self.beam, length_penalty=self.length_penalty)
        written = translations(run.writer, pairs, run.tokenizer, beam=beam, rows=ROWS)
        if self.written:
            _write(Path(self.written), written)
        gold = [pair.target for pair in pairs.texts]
        objective = objective_for(run.config, pairs=True)
        if objective.name == "labels":
            scores = judge(scores, written, gold)
        else:
            scores = compare(scores, written, gold, self.tokenised, RESAMPLES)
        if self.by_length:
            lengths = [len(source) - 1 for source in pairs.sources]  # without </s>
            scores = replace(scores, by_length=by_length(lengths, written, gold, self.tokenised))
        scores = replace(scores, rules=pair_rules(objective, self.beam))
        return scores, [
            *counts.sentences(),
            *pairs.counts.sentences(run.config.context - 1),
            *(
                strange_labels(pairs)
                if objective.name == "labels"
                else unknown_in_pairs(pairs, "evaluated")
            ),
        ]


def _measured(run: Run, pairs: EncodedPairs) -> Scores:
    objective = objective_for(run.config, pairs=True)
    kind = Labels if objective.name == "labels" else Buckets
    feed = kind(pairs, pairs, tokens=1 << 30)
    return measure(run.writer, objective, feed.held_out(ROWS))


def change(before: Scores, after: Scores) -> str:
    """What became of the perplexity."""
    return (
        f"perplexity {before.perplexity:,.4f} -> {after.perplexity:,.4f} "
        f"({after.perplexity / before.perplexity - 1:+.3%})"
    )


def _write(path: Path, lines: Sequence[str]) -> None:
    """One line for each text, whatever is in it."""
    whole = "".join(" ".join(line.split("\n")) + "\n" for line in lines)
    path.write_text(whole, encoding="utf-8", errors="replace")


def pair_rules(objective: Objective, beams: int) -> str:
    """How figures on pairs were counted."""
    if objective.name == "labels":
        return rules(objective, 0)
    how = f"beam {beams}" if beams > 1 else "greedy"
    return f"{rules(objective, 0)}; translations: {how}"


def figures(scores: Scores) -> dict[str, Any]:
    """The scores as JSON can hold them: null for what has no meaning or no end."""
    found = scores.figures()
    found.setdefault("bits_per_byte", None)
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in found.items()
    }


def _pair_texts(run: Run, given: Names) -> tuple[list[Pair], Counts]:
    """The pairs asked for, or those that the run held out."""
    if not given:
        texts = pairs_of(run.settings)
        check_data(run.folder, texts.digest)
        return list(texts.valid), Counts()
    if len(given) == 1 and given[0] in tasks.TASKS:
        return task_pairs(given[0], 1000, 0, "test"), Counts()
    counts = Counts()
    return list(clean(read_pairs(given), counts)), counts


def evaluate_text(
    run: Run, given: Names, precision: Precision = "float32"
) -> tuple[Scores, list[str]]:
    """A run's figures over all of some text, or over what it held out."""
    writer, data, context = run.writer, run.settings.data, run.settings.training.context
    own = not given or list(given) == ["python"]
    if own:
        texts = gather(given or data.train, () if given else data.valid, data.held_out)
    else:
        texts = gather(given, held_out=0.0)
    if not given:
        check_data(run.folder, texts.digest)
    parts = prepare(texts, run.tokenizer, lines=data.lines == "yes")
    tokens = parts["valid" if own else "train"]
    if not len(tokens):
        raise RegardError("the run held nothing out; name some text to evaluate it on")
    objective = objective_for(run.config, pairs=False)
    size = accounted(tokens, run.tokenizer) if objective.name == "causal" else 0
    if isinstance(writer, NGram):
        scores = measure_counts(writer, tokens, size)
    else:
        feed = stream(tokens, tokens, run.config, run.settings, context)
        scores = measure(writer, objective, feed.held_out(ROWS), precision, size)
    warnings = list(texts.warnings)
    if tokens.stock.unknown:
        warnings.append(f"{tokens.stock.unknown:,} of {len(tokens):,} tokens are unknown")
    how = rules(objective, context, carried=isinstance(writer, Recurrent))
    if isinstance(writer, NGram):
        how = counted_rules(writer)
    return replace(scores, rules=how), warnings


def _bleu(scores: Scores) -> str:
    margin = "" if scores.bleu_margin is None else f" ± {scores.bleu_margin:.2f}"
    return f"{scores.bleu:.2f}{margin}"


def _lengths(buckets: Sequence[Bucket]) -> Table:
    """A line for each bucket of lengths."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("source tokens", style="cyan")
    for name in ("pairs", "BLEU", "exact"):
        table.add_column(name, justify="right")
    for one in buckets:
        span = f"{one.first}–{one.last}" if one.first < one.last else f"{one.first}"
        table.add_row(span, f"{one.pairs:,}", f"{one.bleu:.2f}", f"{one.exact:.1%}")
    return table


def show(scores: Scores, title: str, console: Console) -> None:
    """A small table of figures, and below it how they were counted."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    facts = {
        "loss": f"{scores.loss:.4f}",
        "perplexity": f"{scores.perplexity:,.2f}",
        "bits/byte": None if scores.bits_per_byte is None else f"{scores.bits_per_byte:.4f}",
        "accuracy": None if scores.accuracy is None else f"{scores.accuracy:.1%}",
        "BLEU": None if scores.bleu is None else _bleu(scores),
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
    if scores.by_length:
        console.print(_lengths(scores.by_length))
    for line in (scores.rules, scores.signature):
        if line:
            console.print(Text(line, "dim"))

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

from regard.commands.arguments import check_writable, option, readable
from regard.commands.printing import as_note, errors
from regard.data.builtin import tasks
from regard.data.feeds.images import ImageFeed, Pictures, workers_for
from regard.data.feeds.labels import LabelBatches, check_labels, strange_labels
from regard.data.feeds.pair_batches import PairBatches
from regard.data.readers.captions import CaptionTexts, encode_firsts, gather_captions
from regard.data.readers.pairs import (
    EncodedPairs,
    Pair,
    PairCounts,
    clean,
    encode_pairs,
    read_pairs,
    task_pairs,
)
from regard.data.readers.texts import gather
from regard.data.token_files import prepare
from regard.decoding.settings import Beam
from regard.errors import Problems, RegardError
from regard.families.data.images import SCENES, decodable, images_of, kept_scenes
from regard.inspection.grounding import grounded
from regard.loading import text_model_of
from regard.models.bag.model import BagConfig
from regard.models.captioner.config import CaptionConfig
from regard.models.counting.model import NGram
from regard.models.kernels.int8 import quantise
from regard.models.recurrent.model import Recurrent
from regard.models.transformer.model import Transformer
from regard.runs.plan import device_for, pairs_of, stream, unknown_in_pairs
from regard.runs.run_folder import RUN
from regard.runs.stored_run import Run, check_data, open_run
from regard.training.caption_scores import compared, described, free_rules
from regard.training.objectives import Objective, objective_for
from regard.training.optimization.precision import Precision
from regard.training.validation import (
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

Names = tuple[str, ...]
ROWS = 32  # computed at once
TEST_SCENES = 1000  # of which none is arranged as one to learn from
NONE = "–"
RESAMPLES = 1000  # test sets drawn anew, for the interval of BLEU


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
        given = self._given(run)
        plain = self._loss(run, given) if self.int8 else None
        if self.int8:
            assert isinstance(run.module, Transformer)
            run = replace(run, module=quantise(run.module, keep=False))
        scores, warnings = self._measured(run, given)
        if scores.tokens and scores.loss is not None and math.isnan(scores.loss):
            raise RegardError(f"{self.path} gives no numbers (NaN); its weights are damaged")
        if plain is not None:
            how = f"{scores.rules}; int8 weights: {change(plain, scores)}"
            scores = replace(scores, rules=how, plain_perplexity=plain.perplexity)
        notes = errors() if self.json else console
        for warning in warnings:
            notes.print(as_note(warning), soft_wrap=self.json)
        if self.json:
            print(json.dumps(figures(scores), allow_nan=False))
        else:
            show(scores, " ".join(self.data or self.pairs) or "held out", console)

    def _measured(self, run: Run, given: Names) -> tuple[Scores, list[str]]:
        """The figures, and what was odd about the data."""
        form = run.settings.data.form
        if form == "pairs":
            return self._pairs(run, given)
        if form == "images":
            beam = Beam(beams=self.beam, length_penalty=self.length_penalty, named=option)
            return evaluate_images(run, given, beam, Path(self.written) if self.written else None)
        return evaluate_text(run, given)

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
        form = run.settings.data.form
        for name in ("pairs", "tokenised", "written", "by_length"):
            told = name == "written" and form == "images"
            problems.require(
                form == "pairs" or told or not getattr(self, name),
                f"--{name.replace('_', '-')} is for runs on pairs; {self.path} is on {form}",
            )
        if self.int8 and not isinstance(run.module, Transformer):
            problems.add("--int8 is for Transformers; this model is none")
        if isinstance(run.config, BagConfig) and (self.beam != 1 or self.by_length):
            problems.add("--beam and --by-length are for translations; a label is one word")
        problems.require(self.beam > 0, f"--beam must be at least 1, not {self.beam}")
        problems.report()
        if self.written:
            check_writable(Path(self.written), *(self.data or self.pairs))
        return readable(self.data or self.pairs)

    def _encoded(self, run: Run, given: Names) -> tuple[EncodedPairs, PairCounts]:
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
        beam = Beam(beams=self.beam, length_penalty=self.length_penalty, named=option)
        written = translations(run.writer, pairs, run.tokenizer, beam=beam, rows=ROWS)
        if self.written:
            _write(Path(self.written), written)
        gold = [pair.target for pair in pairs.texts]
        objective = objective_for(run.config, "pairs")
        if objective.name == "labels":
            scores = judge(scores, written, gold)
        else:
            scores = compare(scores, written, gold, self.tokenised, RESAMPLES)
        if self.by_length:
            lengths = [len(source) - 1 for source in pairs.sources]  # without </s>
            buckets = by_length(lengths, written, gold, self.tokenised, RESAMPLES)
            scores = replace(scores, by_length=buckets)
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
    objective = objective_for(run.config, "pairs")
    kind = LabelBatches if objective.name == "labels" else PairBatches
    feed = kind(pairs, pairs, tokens=1 << 30)
    return measure(run.writer, objective, feed.held_out(ROWS))


def change(before: Scores, after: Scores) -> str:
    """What became of the perplexity."""
    first, then = before.perplexity, after.perplexity
    assert first is not None
    assert then is not None
    return f"perplexity {first:,.4f} -> {then:,.4f} ({then / first - 1:+.3%})"


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
    if "exact" in found:
        found.setdefault("bleu", None)
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in found.items()
    }


def _pair_texts(run: Run, given: Names) -> tuple[list[Pair], PairCounts]:
    """The pairs asked for, or those that the run held out."""
    if not given:
        texts = pairs_of(run.settings)
        check_data(run.folder, texts.digest)
        return list(texts.valid), PairCounts()
    if len(given) == 1 and given[0] in tasks.TASKS:
        return task_pairs(given[0], 1000, 0, "test"), PairCounts()
    counts = PairCounts()
    return list(clean(read_pairs(given), counts)), counts


def evaluate_text(
    run: Run, given: Names, precision: Precision = "float32"
) -> tuple[Scores, list[str]]:
    """A run's figures over all of some text, or over what it held out."""
    writer, data, context = run.writer, run.settings.data, run.settings.training.context
    if not context:  # 0 leaves it open, and a run.toml is written when all is decided
        raise RegardError(
            f"{run.folder / RUN}: [training] context must be at least 1; put back what was written"
        )
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
    objective = objective_for(run.config, "text")
    size = accounted(tokens, run.tokenizer) if objective.name == "causal" else 0
    if isinstance(writer, NGram):
        scores = measure_counts(writer, tokens, size)
    else:
        feed = stream(tokens, tokens, run.config, run.settings, context)
        scores = measure(writer, objective, feed.held_out(ROWS), precision, size)
    warnings = [*texts.warnings, *tokens.stock.lacking(f"{len(tokens):,} tokens")]
    how = rules(objective, context, carried=isinstance(writer, Recurrent))
    if isinstance(writer, NGram):
        how = counted_rules(writer)
    return replace(scores, rules=how), warnings


def evaluate_images(
    run: Run, given: Names, beam: Beam, written: Path | None = None
) -> tuple[Scores, list[str]]:
    """A run's figures over images: what it writes about each, and where it looks meanwhile."""
    config, tokenizer = run.config, run.tokenizer
    assert isinstance(config, CaptionConfig)
    texts = _image_texts(run, given)
    told = texts.train if given else texts.valid
    if not told:
        raise RegardError("the run held nothing out; name some images to evaluate it on")
    pictures = Pictures(config.picture, workers_for(len(told)))
    told = decodable(told, pictures, texts.counts)
    if not told:
        first = texts.counts.first["unusable"]
        raise RegardError(f"none of the images can be decoded; the first: {first}")
    shown = encode_firsts(told, tokenizer)
    batches = ImageFeed(shown, shown, pictures, ROWS).held_out(ROWS)
    found = described(text_model_of(run), batches, replace(beam, attention=True))
    if written:
        _write(written, [one.text for one in found])
    scores = replace(compared(found, told), rules=free_rules(beam.beams))
    seen = grounded(found, told, tokenizer)
    if seen is not None:
        where = f"; on boxes: attention while {seen.names:,} names of right captions were written"
        how = scores.rules + where
        scores = replace(scores, on_boxes=seen.share, boxes=seen.chance, rules=how)
    return scores, texts.counts.sentences()


def _image_texts(run: Run, given: Names) -> CaptionTexts:
    """The images asked for, or those of the run."""
    if given == (SCENES,):
        config = run.config
        assert isinstance(config, CaptionConfig)
        return gather_captions(kept_scenes(TEST_SCENES, 0, "test", config.picture), held_out=0.0)
    if given:
        if len(given) > 1:
            raise RegardError(f"give one folder of images or one list, not {len(given)}")
        return gather_captions(given[0], held_out=0.0)
    texts = images_of(run.settings)
    check_data(run.folder, texts.digest)
    return texts


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
    facts = {
        "loss": None if scores.loss is None else f"{scores.loss:.4f}",
        "perplexity": None if scores.perplexity is None else f"{scores.perplexity:,.2f}",
        "bits/byte": None if scores.bits_per_byte is None else f"{scores.bits_per_byte:.4f}",
        "accuracy": None if scores.accuracy is None else f"{scores.accuracy:.1%}",
        "BLEU": None if scores.bleu is None else _bleu(scores),
        "chrF": None if scores.chrf is None else f"{scores.chrf:.2f}",
        "exact": None if scores.exact is None else f"{scores.exact:.1%}",
        "on boxes": None if scores.on_boxes is None else _on_boxes(scores),
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

"""`regard align`: which source words a translation looked at, and how often that is right."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.commands.arguments import check_writable
from regard.commands.printing import note, note_unknown, put
from regard.data.builtin import tasks
from regard.data.readers.pairs import Pair, read_pairs
from regard.decoding.settings import Beam
from regard.decoding.text_model import TextModel
from regard.decoding.translation import translated
from regard.errors import Problems, RegardError
from regard.inspection.alignment import (
    Alignment,
    By,
    Heads,
    PairAttention,
    check_watchable,
    unit_spans,
    watched,
    watched_pair,
)
from regard.inspection.drawing import KINDS
from regard.inspection.heatmap import heat_text, heatmap
from regard.loading import text_model_of
from regard.metrics.alignment_errors import Gold, Tally, compare, gold_of, read_gold
from regard.runs.plan import device_for
from regard.runs.run_folder import is_run
from regard.runs.stored_run import open_run, settings_of
from regard.terminal import literal
from regard.text.invalid_utf8 import replace_invalid_utf8

PICTURE = "alignment.png"
EXAMPLES = 1000  # of a task
BEAM = Beam(beams=5)
NONE = "–"
LONGEST = 20  # characters of a word that are shown


@dataclass(frozen=True)
class Align:
    """Show which source words each target word looked at, or how often that is right.

    $ regard align runs/en-de "a dog runs"               translated first
    $ regard align runs/en-de "a dog runs" "ein hund läuft" -o dog.png
    $ regard align runs/en-de --pairs en.txt de.txt > links.txt
    $ regard align runs/en-de --pairs en.txt de.txt --gold gold.txt --each
    $ regard align runs/reverse reverse                  a task knows what is right
    """

    path: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """A run's folder."""
    texts: Annotated[
        tyro.conf.Positional[tuple[str, ...]],
        tyro.conf.arg(
            metavar="TEXT…",
            help="A source and its target, or a source alone, which is translated (beam 5); or "
            f"the built-in task of the run: {EXAMPLES:,} examples that no run is trained on.",
            help_behavior_hint="",
        ),
    ] = ()
    pairs: Annotated[
        tuple[str, ...],
        tyro.conf.arg(
            metavar="FILE…",
            help="A source and a target file, one .tsv or .jsonl file, or any built-in task; of "
            "files for each pair a line of links SOURCE-TARGET, counted from 0.",
            help_behavior_hint="",
        ),
    ] = ()
    gold: Annotated[str, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = ""
    """The right links of --pairs, a line for each: i-j is sure, i?j or ipj possible."""
    one_based: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """The links of --gold are counted from 1."""
    each: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """With --gold or a task: the error rate of every layer and head."""
    layer: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="")] = None
    """Only this layer of the decoder, from 0; by default the upper half of them."""
    head: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="")] = None
    """Only this head of the layer, from 0."""
    by: Literal["auto", "words", "characters"] = "auto"
    """What is aligned; auto: characters for built-in tasks, else what stands between blanks."""
    out: Annotated[
        str,
        tyro.conf.arg(
            aliases=["-o"],
            metavar="FILE",
            help_behavior_hint=f"(default: {PICTURE}; with --json none)",
        ),
    ] = ""
    """The picture of one pair: PNG, SVG or PDF by its suffix."""
    device: Annotated[str, tyro.conf.arg(metavar="NAME")] = "auto"
    """cpu, cuda, or what there is."""
    json: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """A JSON object for each pair, with tokens, units, both matrices and links; or the figures."""

    def run(self, console: Console) -> None:
        self._check()
        speaker = text_model_of(open_run(Path(self.path), device_for(self.device)))
        check_watchable(speaker)
        if not self._task and not self.pairs:
            self._note_task()
            self._show(speaker, self._units, console)
            return
        pairs, gold = self._set()
        if gold is None:
            self._print_links(speaker, pairs, self._units)
        else:
            self._judge(speaker, pairs, gold, self._units, console)

    @property
    def _heads(self) -> Heads:
        return Heads(self.layer, self.head)

    @cached_property
    def _trained_on(self) -> str:
        """The built-in task that the run was trained on, if any."""
        folder = Path(self.path)
        trained = settings_of(folder).data.train if is_run(folder) else ()
        return trained[0] if len(trained) == 1 and trained[0] in tasks.TASKS else ""

    @property
    def _task(self) -> str:
        """The built-in task that is meant, if any: to a run on others its name is a text."""
        named = self.pairs or self.texts
        known = tasks.TASKS if self.pairs else (self._trained_on,)
        return named[0] if len(named) == 1 and named[0] in known else ""

    def _note_task(self) -> None:
        source, *target = self.texts
        if source in tasks.TASKS and not target:
            note(
                f"{source!r} is read as a text: the run was not trained on the task of this name; "
                f"--pairs {source} takes the task"
            )

    def _check(self) -> None:
        """What cannot be meant, before anything is loaded."""
        problems, judged = Problems("align"), bool(self.gold or self._task)
        one = not self.pairs and not self._task
        problems.require(not (self.texts and self.pairs), "give texts or --pairs, not both")
        problems.require(
            bool(self.texts or self.pairs), "give a source text, --pairs, or the run's task"
        )
        problems.require(len(self.texts) <= 2, f"give a source and a target, not {self.texts}")
        for name, text in zip(("source", "target"), self.texts, strict=False):
            problems.require(bool(text.strip()), f"the {name} is empty")
        problems.require(not self.gold or bool(self.pairs), "--gold is for --pairs; give them too")
        problems.require(
            not (self.gold and self._task), "a task has its own gold; leave out --gold"
        )
        problems.require(bool(self.gold) or not self.one_based, "--one-based is for --gold")
        problems.require(judged or not self.each, "--each needs --gold, or a built-in task")
        problems.require(
            not self.each or self._heads == Heads(),
            "--each shows all layers and heads; leave out --layer and --head",
        )
        problems.require(
            not self._task or self.by != "words", "a task's gold is for characters, not words"
        )
        problems.require(one or not self.out, "--out is the picture of one pair; here are many")
        problems.require(
            not self.out or Path(self.out).suffix.lower() in KINDS,
            f"cannot draw to {self.out}: its name must end in one of {', '.join(KINDS)}",
        )
        problems.report()
        if one and (self.out or not self.json):
            check_writable(Path(self.out or PICTURE))

    @property
    def _units(self) -> By:
        if self.by != "auto":
            return self.by
        return "characters" if self._task or self._trained_on else "words"

    # One pair

    def _show(self, speaker: TextModel, by: By, console: Console) -> None:
        source, *given = (replace_invalid_utf8(text).strip() for text in self.texts)
        target = given[0] if given else _translation(speaker, source)
        seen = watched_pair(speaker, Pair(source, target), by)
        for name, side in (("source", seen.source), ("target", seen.target)):
            note_unknown(side.unknown, f"the {name}'s {len(side.spans):,} tokens")
        found = seen.by(self._heads)
        title = "" if seen.shape == (1, 1) else self._heads.of(*seen.shape)
        out = self.out or ("" if self.json else PICTURE)
        if out:
            rows, columns = (_labels(side.units) for side in (found.target, found.source))
            heatmap(found.matrix, out, rows=rows, columns=columns, title=title)
        if self.json:
            put(json.dumps(_facts(found, by, self._heads), ensure_ascii=False) + "\n")
            return
        if not given:
            console.print(Text(literal(target)), soft_wrap=True)
        for block in _blocks(found, console.width):
            console.print(block, soft_wrap=True, end="")
        put(f"{_pharaoh(found)}\n")
        console.print(Text(f"wrote {out}"), soft_wrap=True)

    # Many pairs

    def _set(self) -> tuple[list[Pair], list[Gold] | None]:
        """The pairs, and what is right about them if that is known."""
        if self._task:
            examples = list(tasks.pairs(self._task, EXAMPLES, 0, "test"))
            return [Pair(e.source, e.target) for e in examples], [gold_of(e) for e in examples]
        pairs = [
            Pair(*(replace_invalid_utf8(t).strip() for t in pair))
            for pair in read_pairs(self.pairs)
        ]
        if not pairs:
            raise RegardError(f"there are no pairs in {' and '.join(self.pairs)}")
        if not self.gold:
            return pairs, None
        by = self._units
        sizes = [(len(unit_spans(s, by)), len(unit_spans(t, by))) for s, t in pairs]
        return pairs, read_gold(self.gold, sizes, one_based=self.one_based)

    def _print_links(self, speaker: TextModel, pairs: Sequence[Pair], by: By) -> None:
        """A line for each pair; what cannot be read has an empty one."""
        for number, found in enumerate(_told(watched(speaker, pairs, by), len(pairs)), 1):
            aligned = None if found is None else found.by(self._heads)
            if self.json:
                facts = {} if aligned is None else _facts(aligned, by, self._heads)
                put(json.dumps({"line": number, **facts}, ensure_ascii=False) + "\n")
            else:
                put("\n" if aligned is None else f"{_pharaoh(aligned)}\n")

    def _judge(
        self,
        speaker: TextModel,
        pairs: Sequence[Pair],
        gold: Sequence[Gold],
        by: By,
        console: Console,
    ) -> None:
        tallies: dict[Heads, Tally] = {}
        shape = 0, 0
        looks = _told(watched(speaker, pairs, by), len(pairs))
        for found, right in zip(looks, gold, strict=True):
            if found is None:
                continue
            shape = found.shape
            for heads in (*(found.each if self.each else ()), self._heads):
                tally = compare(found.by(heads).links, right)
                tallies[heads] = tallies.get(heads, Tally()) + tally
        if not tallies:
            raise RegardError("none of the pairs can be read by this model")
        whole = tallies[self._heads]
        if self.json:
            facts = {"by": by, **_figures(self._heads, whole)}
            if self.each:
                facts["each"] = [_figures(heads, tally) for heads, tally in tallies.items()]
            put(json.dumps(facts) + "\n")
            return
        console.print(_summary(self._task or " ".join(self.pairs), whole))
        if self.each:
            console.print(_table(tallies))
            best = min(tallies, key=lambda heads: tallies[heads].error).of(*shape)
            console.print(Text(f"* the best on these pairs: {best}"), soft_wrap=True)
        rule = f"links of {by}: {self._heads.of(*shape)}; possible links count the sure ones too"
        console.print(Text(rule, "dim"), soft_wrap=True)


def _translation(speaker: TextModel, source: str) -> str:
    ((best, *_),) = translated(speaker, [source], BEAM)
    if not best.text.strip():
        raise RegardError("the source was translated to nothing; give a target too")
    return best.text.strip()


def _told(looks: Iterator[PairAttention | str], count: int) -> Iterator[PairAttention | None]:
    """What could be read; what could not, and how much of it is unknown, is told behind."""
    left_out: list[str] = []
    unknown = tokens = 0
    for number, found in enumerate(looks, 1):
        if isinstance(found, str):
            left_out.append(f"line {number:,}: {found}")
            yield None
            continue
        unknown += found.source.unknown + found.target.unknown
        tokens += len(found.source.spans) + len(found.target.spans)
        yield found
    note_unknown(unknown, f"the {tokens:,} tokens")
    if left_out:
        note(f"{len(left_out):,} of {count:,} pairs were left out; {left_out[0]}")


# What is printed


def _pharaoh(found: Alignment) -> str:
    return " ".join(f"{source}-{target}" for source, target in found.links)


def _labels(units: Sequence[str]) -> list[str]:
    """Words as they can be shown; a blank is a sign, and the end of a long word three dots."""
    whole = (literal(unit.replace("\n", "↵")) if unit.strip() else "·" for unit in units)
    return [one if len(one) <= LONGEST else f"{one[: LONGEST - 1]}…" for one in whole]


def _blocks(found: Alignment, width: int) -> Iterator[Text]:
    """The matrix as text, in parts that are no wider than a terminal."""
    rows, columns = (_numbered(side.units) for side in (found.target, found.source))
    fit = max(1, (width - 1 - max(map(cell_len, rows))) // 2)
    top = float(found.matrix.max())
    for first in range(0, len(columns), fit):
        part = slice(first, first + fit)
        yield heat_text(found.matrix[:, part], rows, columns[part], top)


def _numbered(units: Sequence[str]) -> list[str]:
    digits = len(str(len(units) - 1))
    return [f"{label} {i:>{digits}}" for i, label in enumerate(_labels(units))]


def _facts(found: Alignment, by: By, heads: Heads) -> dict[str, Any]:
    """An alignment as JSON tells it."""
    return {
        "source": found.source.text,
        "target": found.target.text,
        **asdict(heads),
        "by": by,
        "source_tokens": found.source.pieces,
        "target_tokens": found.target.pieces,
        "attention": found.tokens.tolist(),
        "source_units": found.source.units,
        "target_units": found.target.units,
        "matrix": found.matrix.tolist(),
        "links": found.links,
    }


def _figures(heads: Heads, tally: Tally) -> dict[str, Any]:
    """Figures as JSON can hold them: null for what has no meaning."""
    rates = {"aer": tally.error, "precision": tally.precision, "recall": tally.recall}
    known = {name: None if math.isnan(rate) else rate for name, rate in rates.items()}
    return {**asdict(heads), **known, **asdict(tally)}


def _summary(title: str, tally: Tally) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(title, style="cyan")
    rates = {"AER": tally.error, "precision": tally.precision, "recall": tally.recall}
    counts = {
        "pairs": tally.pairs,
        "links": tally.links,
        "sure": tally.sure,
        "possible": tally.possible,
    }
    for name in (*rates, *counts):
        table.add_column(name, justify="right")
    shown = (*map(_rate, rates.values()), *(f"{n:,}" for n in counts.values()))
    table.add_row("", *shown)
    return table


def _rate(rate: float) -> str:
    return NONE if math.isnan(rate) else f"{rate:.1%}"


def _table(tallies: dict[Heads, Tally]) -> Table:
    """The error rate of each head and of whole layers, the least marked."""
    least = min(tally.error for tally in tallies.values())
    heads = 1 + max(one.head for one in tallies if one.head is not None)
    layers = 1 + max(one.layer for one in tallies if one.layer is not None)
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("AER", style="cyan")
    for name in (*(f"head {head}" for head in range(heads)), "all heads"):
        table.add_column(name, justify="right")
    for layer in range(layers):
        rates = [tallies[Heads(layer, head)].error for head in (*range(heads), None)]
        cells = [
            Text(f"*{_rate(rate)}", "bold") if rate == least else Text(_rate(rate))
            for rate in rates
        ]
        table.add_row(f"layer {layer}", *cells)
    if layers > 1:
        table.add_row("upper half", *[""] * heads, _rate(tallies[Heads()].error))
    return table

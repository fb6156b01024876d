"""`regard cost`: what a model needs for a job, before anything is run."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.commands.arguments import check_writable
from regard.costs.device.roofline import roofline
from regard.costs.lecture_table import markdown, sections
from regard.costs.report import Asked, Report, advice
from regard.errors import Problems
from regard.formats import many, moment
from regard.runs.cost_request import CostRequest
from regard.runs.cost_target import PricedJob

OPEN = "the vocabulary is that of the preset; the data decides"


@dataclass(frozen=True)
class Cost:
    """Tell what a model needs for a job: operations, memory, time; does it fit?

    $ regard cost gpt2 --batch-size 8 --tokens 1024 --train
    $ regard cost llama-3-8b --tokens 2048 --generate 256 --device h200
    $ regard cost runs/notes --train --plot roof.png
    $ regard cost --table                   the lectures' table, from traces
    """

    model: Annotated[
        tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL", help_behavior_hint="")
    ] = ""
    """A model that `regard models` lists, a recipe, a run, or a Hugging Face folder."""
    batch_size: Annotated[
        int | None,
        tyro.conf.arg(metavar="ROWS", help_behavior_hint="(default: those of a recipe or run; 1)"),
    ] = None
    """Rows at once."""
    tokens: Annotated[
        int | None,
        tyro.conf.arg(metavar="N", help_behavior_hint="(default: of a recipe or run; up to 128)"),
    ] = None
    """Tokens of a row; of a prompt, with --generate."""
    source: Annotated[
        int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: as many)")
    ] = None
    """Tokens of a source, for models that read one."""
    train: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """A step of training: forward, backward, optimizer. Else: reading the tokens once."""
    generate: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="")] = None
    """Reading the tokens, then writing N more, one by one."""
    steps: Annotated[
        int | None,
        tyro.conf.arg(metavar="N", help_behavior_hint="(default: those of a recipe or run; 1)"),
    ] = None
    """Steps of training, for the time in all."""
    device: Annotated[str, tyro.conf.arg(metavar="NAME")] = "auto"
    """A device by name (cpu, h200, …), or the file that `regard calibrate` wrote."""
    precision: Literal["auto", "float32", "bf16", "bf16-weights"] = "auto"
    """As in training; auto: bf16 on GPUs."""
    processes: Annotated[int, tyro.conf.arg(metavar="N")] = 1
    """Processes that share the rows of a step, each with a copy of the model."""
    recompute: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """Blocks are computed again going back."""
    plot: Annotated[str, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = ""
    """Draw the roofline with the model's parts: PNG, SVG or PDF."""
    json: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """Everything as JSON."""
    table: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """Print the lectures' table, found from traces, as Markdown."""

    def run(self, console: Console) -> None:
        self._check()
        if self.plot:
            check_writable(Path(self.plot))
        if self.table:
            print(markdown(sections()), end="")
            return
        found, parts, job = self._request.priced()
        if self.plot:
            roofline(found, Path(self.plot))
        if self.json:
            json.dump(_as_json(found, parts, job), sys.stdout, indent=2)
            print()
            return
        show(self.model, found, parts, console)
        if job.open_vocabulary:
            console.print(Text(f"note: {OPEN}", "yellow"), soft_wrap=True)
        if self.plot:
            console.print(Text(f"wrote {self.plot}", "dim"), soft_wrap=True)

    def _check(self) -> None:
        problems = Problems("cost")
        problems.require(bool(self.model) or self.table, "name a model, or ask for --table")
        problems.require(
            not (self.model and self.table), "--table is of many models; leave out MODEL"
        )
        problems.report()

    @property
    def _request(self) -> CostRequest:
        return CostRequest(
            self.model,
            self.batch_size,
            self.tokens,
            self.source,
            self.train,
            self.generate,
            self.steps,
            self.device,
            self.precision,
            self.processes,
            self.recompute,
        )


def _as_json(found: Report, parts: int, job: PricedJob) -> dict[str, Any]:
    """The report's numbers, and what they are of."""
    more: dict[str, Any] = {"parts_of_a_step": parts, "vocabulary": job.config.vocabulary}
    if found.asked.processes > 1:
        more["counted_for"] = _each(found.asked)
    if job.open_vocabulary:
        more["note"] = OPEN
    return found.to_json() | more


def _each(asked: Asked) -> str:
    return f"each of {asked.processes} processes"


UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def amount(value: float, unit: str = "") -> str:
    """A number in the unit that makes it short: 1.23 G."""
    for size, letter in UNITS:
        if value >= size:
            return f"{short(value / size)} {letter}{unit}"
    return f"{short(value)} {unit}".rstrip()


def short(value: float) -> str:
    """Three digits of a number, or all before its point, never an exponent of ten above one."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def show(name: str, found: Report, parts: int, console: Console) -> None:
    """The report for people, of a step in so many parts."""
    asked, total = found.asked, found.total
    table = Table.grid(padding=(0, 2))

    def add(what: str, said: str) -> None:
        table.add_row(Text(what, "bold"), Text(said))

    shape = asked.shape
    doing = {"train": "a step of training", "read": "reading once"}.get(
        asked.work, f"reading, then writing {many(asked.new, 'token')}"
    )
    source = f" from sources of {shape.source:,}" if shape.source else ""
    each = f"{parts:,} parts of " if parts > 1 else ""
    rows = f"{each}{many(shape.rows, 'row')} of {many(shape.tokens, 'token')}"
    add("job", f"{name}: {doing}, {rows}{source}")
    shared = f", {asked.processes} processes" if asked.processes > 1 else ""
    add("device", f"{asked.device.name}, {asked.precision}{shared}: {asked.device.source}")
    if asked.processes > 1:
        add("counted", f"what follows is for {_each(asked)}, {many(asked.share.rows, 'row')} each")
    add("parameters", f"{found.counted.parameters:,} ({amount(found.counted.weights, 'B')})")
    add("operations", f"{amount(total.operations)}, of which {amount(total.products)} in products")
    moved, least = total.read + total.written, total.least_read + total.least_written
    add(
        "traffic",
        f"{amount(total.read, 'B')} read, {amount(total.written, 'B')} written; "
        f"at least {amount(least, 'B')} if all were one kernel",
    )
    add("intensity", f"{short(total.products / max(moved, 1))} operations for each byte")
    uses = [*found.counted.memory.items(), ("libraries", asked.device.fixed)]
    held = ", ".join(f"{use} {amount(size, 'B')}" for use, size in uses if size)
    add(
        "memory",
        f"{amount(found.memory, 'B')} of {amount(asked.device.memory, 'B')} at the peak: {held}",
    )
    if found.counted.state:
        add("cache", f"{amount(found.counted.state, 'B')} held between steps")
    add(
        "time",
        f"{moment(found.seconds)}, {found.tokens / found.seconds:,.0f} tokens/s, "
        f"bound by {found.bound}" + _in_all(found),
    )
    console.print(table, soft_wrap=True)
    console.print(_parts(found))
    _show_fit(found, console)


def _in_all(found: Report) -> str:
    steps = found.asked.steps
    return f"; {moment(found.seconds * steps)} for {steps:,} steps" if steps > 1 else ""


def _parts(found: Report, shown: int = 8) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("part", style="cyan")
    for heading in ("products", "moved", "per byte", "time"):
        table.add_column(heading, justify="right")
    whole = sum(part.seconds for part in found.parts) or 1.0
    for part in found.parts[:shown]:
        share = f"{part.seconds / whole:.0%}"
        cells = amount(part.products), amount(part.moved, "B"), short(part.intensity), share
        table.add_row(Text(part.place), *cells)
    return table


def _show_fit(found: Report, console: Console) -> None:
    """Whether it fits, and what would."""
    asked = found.asked
    shape = asked.shape
    guessed = found.fitting.rows_extrapolated, found.fitting.tokens_extrapolated
    largest = (found.rows_that_fit, shape.tokens), (shape.rows, found.tokens_that_fit)
    others = [
        f"{'about ' if about else ''}{many(rows, 'row')} of {many(tokens, 'token')}"
        for (rows, tokens), about in zip(largest, guessed, strict=True)
        if rows and tokens and (rows, tokens) != (shape.rows, shape.tokens)
    ]
    style = "" if found.fits else "bold red"
    said = f"it fits; so would {', or '.join(others)}" if others else "it fits"
    if not found.fits:
        said = f"it does not fit; {', or '.join(others) or 'not a single token of a row'} would"
    console.print(Text(said, style), soft_wrap=True)
    console.print(Text(f"first: {advice(found)}"), soft_wrap=True)

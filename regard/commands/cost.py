"""`regard cost`: what a model needs for a job, before anything is run."""

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.commands.arguments import check_writable
from regard.commands.cost_target import PricedJob, job_of
from regard.cost.device.ceilings import Device, device_named
from regard.cost.device.roofline import roofline
from regard.cost.in_parts import in_parts
from regard.cost.jobs import Shape
from regard.cost.lecture_table import markdown, sections
from regard.cost.report import Asked, Report, Work, advice, report
from regard.errors import Problems, RegardError
from regard.families.registry import family_of
from regard.families.settings import Settings
from regard.formats import moment
from regard.models.config import ModelConfig
from regard.models.network import BaseModel
from regard.runs.run_folder import is_run
from regard.runs.stored_run import open_run
from regard.training.memory.micro_batch import even
from regard.training.optimization.precision import Precision

OPEN = "the vocabulary is that of the preset; the data decides"


@dataclass(frozen=True)
class Cost:
    """Tell what a model needs for a job: operations, memory, time; does it fit?

    $ regard cost gpt2 --batch 8 --tokens 1024 --train
    $ regard cost llama-3-8b --tokens 2048 --generate 256 --device h200
    $ regard cost runs/notes --train --plot roof.png
    $ regard cost --table                   the lectures' table, from traces
    """

    model: Annotated[
        tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL", help_behavior_hint="")
    ] = ""
    """A model that `regard models` lists, a recipe, a run, or a Hugging Face folder."""
    batch: Annotated[
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
        job = job_of(self.model)
        found, parts = self._priced(job)
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
        writes = self.generate is not None
        problems.require(not (self.train and writes), "give --train or --generate, not both")
        for name in ("batch", "tokens", "source", "generate", "steps", "processes"):
            value = getattr(self, name)
            said = f"--{name} must be at least 1, not {value}"
            problems.require(value is None or value >= 1, said)
        for name, given in {"steps": self.steps is not None, "recompute": self.recompute}.items():
            said = f"--{name} is for training; give --train too, or leave it out"
            problems.require(self.train or not given, said)
        problems.report()

    def _priced(self, job: PricedJob) -> tuple[Report, int]:
        """What is asked for, counted and predicted, and in how many parts a step is computed."""
        device = device_named(self.device)
        learns = self.train or family_of(job.config).only_learns
        work: Work = "train" if learns else "generate" if self.generate else "read"
        config, new = job.config, self.generate or 0
        family = family_of(config)
        family.check_priced(vars(self))
        tokens = self.tokens or family.tokens_priced(job.training) or job.tokens(new)
        self._check_fit(config, tokens, new)
        alone = not self.train or self.batch or not family.predictable
        rows, parts = (self.batch or 1, 1) if alone else job.rows(tokens)
        if self.processes > rows:
            raise RegardError(
                f"{self.processes} processes cannot share {many(rows, 'row')}; raise --batch"
            )
        asked = Asked(
            work,
            Shape(rows, tokens, self.source or 0),
            device,
            self._precision(device, job.settings),
            new,
            (self.steps or job.steps) if learns else 1,
            self.processes,
            self.recompute or (self.train and job.training.recompute),
            job.optimizer,
            job.criterion,
        )
        found = family.priced(config, asked, self._opened)
        left_open = self.train and not self.batch and not job.training.micro_batch_size
        left_open = left_open and family.predictable
        if left_open and not found.fits and found.rows_that_fit:  # training would choose so too
            some = even(found.rows_that_fit, rows)
            parts = -(-rows // some)
            found = report(config, replace(asked, shape=replace(asked.shape, rows=some)))
        return in_parts(found, parts), parts

    def _check_fit(self, config: ModelConfig, tokens: int, new: int) -> None:
        """Refuse what a model like this does not do, or not at such a length."""
        problems = Problems("cost")
        if self.source is not None and not config.reads_text:
            problems.add(f"{self.model} reads no source text; leave out --source")
        if config.task == "masked" and new:
            problems.add("an encoder generates nothing; leave out --generate")
        longest = max(tokens + new, self.source or 0)
        if not config.unlimited and longest > config.context:
            problems.add(
                f"{self.model} has a context of {many(config.context, 'token')}, which "
                f"{longest:,} do not fit into; lower --tokens, --source or --generate"
            )
        problems.report()

    def _precision(self, device: Device, settings: Settings | None) -> Precision:
        if self.precision != "auto":
            return self.precision
        if settings is not None and settings.training.precision != "auto":
            return settings.training.precision
        return "bf16" if device.kind == "cuda" else "float32"

    def _opened(self) -> BaseModel:
        """The run that was asked about."""
        if not is_run(Path(self.model)):
            raise RegardError(
                "what an n-gram model costs depends on the text it has counted; give a trained run"
            )
        return open_run(Path(self.model), "cpu").module


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


def many(count: int, what: str) -> str:
    """1 row, 2 rows."""
    return f"{count:,} {what}" + "s" * (count != 1)


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

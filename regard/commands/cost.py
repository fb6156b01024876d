"""`regard cost`: what a model needs for a job, before anything is run."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.commands.priced import config_for
from regard.cost import lookups
from regard.cost.device import Device, device_named
from regard.cost.jobs import Shape
from regard.cost.report import Asked, Report, Work, advice, of_counted, report
from regard.cost.roofline import roofline
from regard.cost.table import markdown, sections
from regard.errors import Problems, RegardError
from regard.models.families import Config
from regard.models.ngram import NGram, NGramConfig
from regard.models.word2vec import Word2VecConfig
from regard.training.formats import moment
from regard.training.precision import Precision
from regard.training.runs import is_run, open_run
from regard.training.settings import Settings

TOKENS = 128  # where neither the model nor anybody says how many
TEXT = 4096  # tokens that a step of word vectors reads here


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
    batch: Annotated[int, tyro.conf.arg(metavar="ROWS")] = 1
    """Rows at once."""
    tokens: Annotated[
        int, tyro.conf.arg(metavar="N", help_behavior_hint="(default: up to 128)")
    ] = 0
    """Tokens of a row; of a prompt, with --generate."""
    source: Annotated[int, tyro.conf.arg(metavar="N", help_behavior_hint="(default: as many)")] = 0
    """Tokens of a source, for models that read one."""
    train: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """A step of training: forward, backward, optimizer. Else: reading the tokens once."""
    generate: Annotated[int, tyro.conf.arg(metavar="N", help_behavior_hint="")] = 0
    """Reading the tokens, then writing N more, one by one."""
    steps: Annotated[int, tyro.conf.arg(metavar="N")] = 1
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
        if self.table:
            print(markdown(sections()), end="")
            return
        self._check()
        found = self.report()
        if self.plot:
            roofline(found, Path(self.plot))
        if self.json:
            json.dump(found.to_json(), sys.stdout, indent=2)
            print()
            return
        show(self.model, found, 1, console)
        if self.plot:
            console.print(Text(f"wrote {self.plot}", "dim"), soft_wrap=True)

    def _check(self) -> None:
        problems = Problems("cost")
        problems.require(bool(self.model), "name a model, or ask for --table")
        problems.require(not (self.train and self.generate), "give --train or --generate, not both")
        counts = {"batch": self.batch, "steps": self.steps, "processes": self.processes}
        for name, value in counts.items():
            problems.require(value >= 1, f"--{name} must be at least 1, not {value}")
        for name, value in {"tokens": self.tokens, "source": self.source}.items():
            problems.require(value >= 0, f"--{name} must not be negative, not {value}")
        problems.require(self.generate >= 0, f"--generate must be at least 1, not {self.generate}")
        problems.report()

    def report(self) -> Report:
        """What is asked for, counted and predicted."""
        config, settings = config_for(self.model)
        device = device_named(self.device)
        work: Work = "train" if self.train else "generate" if self.generate else "read"
        tokens = self.tokens or min(TOKENS, max(1, config.context - self.generate))
        asked = Asked(
            work,
            Shape(self.batch, tokens, self.source),
            device,
            self._precision(device, settings),
            self.generate,
            self.steps,
            self.processes,
            self.recompute or (settings is not None and settings.training.recompute),
            settings.optimizer if settings and settings.optimizer.peak else None,
        )
        if isinstance(config, NGramConfig | Word2VecConfig):
            return self._looked_up(config, asked)
        if config.kind == "encoder" and work == "generate":
            raise RegardError("an encoder writes nothing; leave out --generate")
        return report(config, asked)

    def _precision(self, device: Device, settings: Settings | None) -> Precision:
        if self.precision != "auto":
            return self.precision
        if settings is not None and settings.training.precision != "auto":
            return settings.training.precision
        return "bf16" if device.kind == "cuda" else "float32"

    def _looked_up(self, config: Config, asked: Asked) -> Report:
        if isinstance(config, Word2VecConfig):
            if asked.work == "generate":
                raise RegardError("word vectors write nothing; leave out --generate")
            counted = lookups.vectors(config, self.tokens or TEXT, asked.device.kind)
            return of_counted(counted, asked)
        if asked.work == "train":
            raise RegardError("an n-gram model counts its text once; leave out --train")
        if not is_run(Path(self.model)):
            raise RegardError(
                "what an n-gram model costs depends on the text it has counted; give a trained run"
            )
        module = open_run(Path(self.model), "cpu").module
        assert isinstance(module, NGram)
        return of_counted(lookups.ngram(module, asked.shape, self.generate), asked)


def many(count: int, what: str) -> str:
    """1 row, 2 rows."""
    return f"{count:,} {what}" + "s" * (count != 1)


UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def amount(value: float, unit: str = "") -> str:
    """A number in the unit that makes it short: 1.23 G."""
    for size, letter in UNITS:
        if value >= size:
            return f"{value / size:,.3g} {letter}{unit}"
    return f"{value:,.3g} {unit}".rstrip()


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
    add("parameters", f"{found.counted.parameters:,} ({amount(found.counted.weights, 'B')})")
    add("operations", f"{amount(total.operations)}, of which {amount(total.products)} in products")
    moved, least = total.read + total.written, total.least_read + total.least_written
    add(
        "traffic",
        f"{amount(total.read, 'B')} read, {amount(total.written, 'B')} written; "
        f"at least {amount(least, 'B')} if all were one kernel",
    )
    add("intensity", f"{total.products / max(moved, 1):,.3g} operations for each byte")
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
        cells = amount(part.products), amount(part.moved, "B"), f"{part.intensity:,.3g}", share
        table.add_row(Text(part.place), *cells)
    return table


def _show_fit(found: Report, console: Console) -> None:
    """Whether it fits, and what would."""
    asked = found.asked
    shape = asked.shape
    largest = (found.rows_that_fit, shape.tokens), (shape.rows, found.tokens_that_fit)
    others = [
        f"{many(rows, 'row')} of {many(tokens, 'token')}"
        for rows, tokens in largest
        if rows and tokens and (rows, tokens) != (shape.rows, shape.tokens)
    ]
    style = "" if found.fits else "bold red"
    said = f"it fits; so would {', or '.join(others)}" if others else "it fits"
    if not found.fits:
        said = f"it does not fit; {', or '.join(others) or 'not a single token of a row'} would"
    console.print(Text(said, style), soft_wrap=True)
    console.print(Text(f"first: {advice(found)}"), soft_wrap=True)

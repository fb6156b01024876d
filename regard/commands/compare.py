"""`regard compare`: several models on the same data, and one report of them."""

import json
import os
import re
import sys
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from signal import Signals
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.commands.printing import errors
from regard.comparison.compare_runs import MEASURED, NOTES, Comparing, Wanted, models_in
from regard.comparison.contestants import USUAL, chosen, shared
from regard.comparison.report.page import page
from regard.comparison.report.summary import summary
from regard.comparison.results import Comparison
from regard.data.builtin.tasks import TASKS
from regard.errors import Problems, RegardError, nearest
from regard.families.settings import ModelSettings, Settings
from regard.formats import count, rate
from regard.runs.data_names import lasting
from regard.runs.plan import device_for
from regard.runs.request import TrainingRequest
from regard.runs.run_folder import check_place
from regard.storage import write_together
from regard.training.signals import WORDS, StoppedError, listening

Names = tuple[str, ...]
REPORT, FIGURES = "report.html", "report.json"
UNITS = {"": 1, "k": 1000, "m": 10**6, "b": 10**9}
BUDGET = "1M"


@dataclass(frozen=True)
class Compare:
    """Train several models on the same data, measure them, and write one report.

    $ regard compare notes.txt                       from n-grams to a Transformer
    $ regard compare notes.txt --models lstm,conv,transformer --seeds 3
    $ regard compare --pairs de.txt en.txt --minutes 5 --out compared/de-en
    $ regard compare notes.txt --parameters 5M --set lstm:model.layers=1
    """

    data: Annotated[
        tyro.conf.Positional[Names], tyro.conf.arg(metavar="DATA…", help_behavior_hint="")
    ] = ()
    """Files, folders, globs (.gz and .jsonl too), - for standard input, or a built-in name."""
    pairs: Annotated[Names, tyro.conf.arg(metavar="FILE…", help_behavior_hint="")] = ()
    """A source and a target file, aligned line by line; or one .tsv or .jsonl file."""
    valid: Annotated[
        tyro.conf.UseAppendAction[tuple[Names, ...]],
        tyro.conf.arg(metavar="FILE…", help_behavior_hint="(default: a part of the data)"),
    ] = ()
    """Held-out files."""
    models: Annotated[
        str,
        tyro.conf.arg(
            metavar="A,B,…",
            help_behavior_hint=f"(default: {','.join(USUAL[False])}; "
            f"for pairs {','.join(USUAL[True])})",
        ),
    ] = ""
    """Models that `regard models` lists; `transformer` and `conv` stand for what fits the data."""
    seeds: Annotated[int, tyro.conf.arg(metavar="N")] = 1
    """Each model is trained so many times; figures are means with their spread."""
    parameters: Annotated[str, tyro.conf.arg(metavar="N")] = BUDGET
    """About so many for each, by its width (5M, 300k); 0 leaves models as their names have them."""
    minutes: Annotated[float | None, tyro.conf.arg(metavar="X", help_behavior_hint="")] = None
    """Each trains so long, in as many steps as a short measurement says, instead of --steps."""
    steps: Annotated[
        int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: 1000)")
    ] = None
    """Optimizer steps of each."""
    epochs: Annotated[float | None, tyro.conf.arg(metavar="X", help_behavior_hint="")] = None
    """Passes over the data, instead of steps."""
    out: Annotated[
        str,
        tyro.conf.arg(
            metavar="FOLDER", help_behavior_hint="(default: compared/ and the data's name)"
        ),
    ] = ""
    """Where runs, measurements and report.html go; there the same command goes on."""
    tokenizer: Annotated[
        Literal["auto", "bpe", "byte", "char", "word"],
        tyro.conf.arg(help_behavior_hint="(default: bpe; char for built-in tasks)"),
    ] = "auto"
    """How text is cut into tokens, for all models alike."""
    recipe: Annotated[str, tyro.conf.arg(metavar="NAME", help_behavior_hint="")] = ""
    """Settings by name or from a TOML file, for all models; their own stay what they are."""
    set: Annotated[
        tyro.conf.UseAppendAction[tuple[Names, ...]],
        tyro.conf.arg(
            metavar="[MODEL:]TABLE.KEY=VALUE…",
            help="Any setting, of all models or of one, e.g. training.device=cpu "
            "lstm:model.dropout=0.",
            help_behavior_hint="",
        ),
    ] = ()
    json: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """Print all figures as one JSON object; progress goes to standard error."""

    def run(self, console: Console) -> None:
        wanted = self.wanted()
        told = errors() if self.json else console
        with listening() as stop:
            try:
                comparison = Comparing.begin(wanted, told, stop).run()
            except StoppedError as error:
                word = WORDS[Signals(error.number)]
                told.print(Text(f"\n{word}; the same command goes on", "yellow"))
                sys.exit(128 + error.number)
        write(comparison, wanted.out)
        if self.json:
            print(json.dumps(_figures(comparison), allow_nan=False))
        else:
            show(comparison, wanted.out / REPORT, console)
        if not comparison.good:
            raise RegardError("no model could be trained and measured; the report says why")

    def wanted(self) -> Wanted:
        """What the command line asks for, checked before anything is read."""
        self._check()
        task = len(self.data) == 1 and self.data[0] in TASKS
        return replace(
            self,
            data=lasting(self.data),  # standard input is read once
            pairs=lasting(self.pairs),
            valid=tuple(lasting(names) for names in self.valid),
        )._wanted(pairs=bool(self.pairs) or task)

    def _wanted(self, pairs: bool) -> Wanted:
        presets = chosen(self.models, pairs)
        general, own = self._changes(presets)
        models = {
            name: self._settings(name, preset, [*general, *own[name]], pairs)
            for name, preset in presets.items()
        }
        first = next(iter(models.values()))
        title = " and ".join(Path(name).name for name in first.data.train)
        out = Path(self.out or Path("compared") / _stem(first.data.train))
        check_place(out)
        _check_ours(out)
        minutes = self.minutes or 0.0
        return Wanted(models, out, self.seeds, _number(self.parameters), minutes, title)

    def _check(self) -> None:
        problems = Problems("compare")
        problems.require(bool(self.data or self.pairs), "give text to train on, or --pairs")
        problems.require(not (self.data and self.pairs), "give --pairs or text, not both")
        problems.require(self.seeds > 0, f"--seeds must be at least 1, not {self.seeds}")
        given = [n for n in ("steps", "epochs", "minutes") if getattr(self, n) is not None]
        problems.require(len(given) < 2, f"give one of --{' and --'.join(given)}, not both")
        fine = self.steps is None or self.steps > 0
        problems.require(fine, f"--steps must be at least 1, not {self.steps}")
        fine = self.epochs is None or self.epochs > 0
        problems.require(fine, f"--epochs must be more than 0, not {self.epochs:g}")
        minutes = self.minutes
        fine = minutes is None or 0 < minutes < 1e6
        alone = os.environ.get("WORLD_SIZE", "1") == "1"
        problems.require(alone, "one process compares; start it without torchrun")
        problems.require(fine, f"--minutes must be more than 0, not {minutes:g}")
        problems.report()

    def _changes(self, presets: dict[str, str]) -> tuple[list[str], dict[str, list[str]]]:
        """What --set says of all models, and of single ones."""
        general, own = [], {name: list[str]() for name in presets}
        for change in chain(*self.set):
            name, colon, rest = change.partition(":")
            if not colon or "=" in name:
                general.append(change)
            elif name in own:
                own[name].append(rest)
            else:
                raise RegardError(f"--set {change}: {name!r} is not compared; {nearest(name, own)}")
        return general, own

    def _settings(self, name: str, preset: str, changes: list[str], pairs: bool) -> Settings:
        """One model's settings, as `regard train` has them."""
        counts = not ModelSettings(preset).by_steps
        request = TrainingRequest(
            data=self.data,
            pairs=self.pairs,
            valid=tuple(chain(*self.valid)),
            recipe=self.recipe,
            model=preset,
            steps=None if counts else self.steps,
            epochs=None if counts else self.epochs,
            tokenizer=self.tokenizer,
            changes=tuple(changes),
        )
        try:
            settings = request.settings()
        except RegardError as error:
            hint = "; `--set MODEL:TABLE.KEY=VALUE` is for one model alone" if changes else ""
            raise RegardError(f"{name}: {error}{hint}") from None
        device = device_for(settings.training.device).type
        return shared(settings, pairs, device)


def _number(text: str) -> int:
    """2M, 300k, 1.5m or 1,000,000 as a number."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmb]?)", text.strip().lower().replace(",", ""))
    if not found:
        raise RegardError(f"--parameters {text}: write a number such as 300k, 2M or 1000000")
    number = float(found[1]) * UNITS[found[2]]
    if 0 < number < 1:
        raise RegardError(f"--parameters {text} is less than one; write 300k or 2M, or 0 for as is")
    return round(number)


def _check_ours(out: Path) -> None:
    """A report that no comparison wrote is not written over."""
    if out.exists() and not out.is_dir():
        raise RegardError(f"{out} is no folder; choose another --out")
    there = [name for name in (REPORT, FIGURES, MEASURED) if os.path.lexists(out / name)]
    if there and not (out / NOTES).exists():
        raise RegardError(
            f"{out / there[0]} is there, but {NOTES} is not: no comparison wrote it; choose "
            "another --out"
        )
    if os.path.islink(out / MEASURED):
        raise RegardError(
            f"{out / MEASURED} is a link, and figures would be written to where it leads; put what "
            "it leads to in its place, or choose another --out"
        )
    if os.path.lexists(out / NOTES):
        models_in(out / NOTES)


def _stem(names: Names) -> str:
    stems = [Path(name).name.lstrip(".").split(".")[0] or "data" for name in names[:2]]
    return "-".join(dict.fromkeys(stems)).replace("*", "all")


def _figures(comparison: Comparison) -> dict[str, Any]:
    """All that the report says."""
    return {"summary": summary(comparison), **comparison.figures()}


def write(comparison: Comparison, out: Path) -> None:
    """The report and all its figures, both or neither."""
    figures = json.dumps(_figures(comparison), indent=2, allow_nan=False)
    write_together({out / REPORT: page(comparison), out / FIGURES: figures + "\n"})


def show(comparison: Comparison, report: Path, console: Console) -> None:
    """A small table, the summary, and where the report is."""
    metric = comparison.metric
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("model", style="cyan")
    for name in ("parameters", metric.name, "trains, tok/s", "writes, tok/s", "uses context"):
        table.add_column(name, justify="right")
    for one in comparison.ranked:
        table.add_row(
            one.name,
            "counts" if one.counts else count(one.parameters),
            one.scores[metric.key].shown(metric.digits),
            "" if one.pace is None else rate(one.pace.mean),
            rate(one.decoding["1"]),
            "" if one.used is None else f"{one.used:,.0f}",
        )
    console.print(table)
    for sentence in summary(comparison):
        console.print(Text(f"· {sentence}"), soft_wrap=not console.is_terminal)
    console.print(Text(f"\nreport: {report}", "bold"), soft_wrap=True)

"""`regard train`: from data to a run."""

import json
import shlex
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.commands.cost import show as show_cost
from regard.commands.evaluate import show
from regard.commands.printing import Output, as_note
from regard.commands.recipes import toml
from regard.data.progress import Progress
from regard.families.plan import Plan
from regard.families.registry import family_of
from regard.families.settings import ModelSettings, Settings
from regard.runs.forecast import dry_report
from regard.runs.plan import device_for
from regard.runs.request import TrainingRequest
from regard.runs.resume_or_new import resume_or_new
from regard.runs.resuming import begun, noted
from regard.runs.status import state
from regard.runs.train_run import told_by_one, train_run
from regard.terminal import in_one_line
from regard.training.distributed.joining import joined
from regard.training.distributed.processes import ALONE, Processes
from regard.training.job import Outcome
from regard.training.signals import Stop, listening

Names = tuple[str, ...]


@dataclass(frozen=True)
class Train:
    """Train a model on text, on pairs of texts, or on images with captions.

    $ regard train notes.txt                learns to write like notes.txt
    $ regard train 'books/*.txt' --steps 5000 --model regard-8 --out runs/books
    $ regard train --pairs en.txt de.txt    learns to translate line by line
    $ regard train --images photos          learns to describe images
    $ regard train reverse                  a built-in task, as copy, sort, dates
    $ regard train scenes                   coloured shapes to be described
    $ regard train python                   the standard library's own source
    $ regard train notes.txt --model ngram --order 5 --tokenizer word
    $ regard train --recipe runs/books --seed 1    that run with another seed
    """

    data: Annotated[
        tyro.conf.Positional[Names], tyro.conf.arg(metavar="DATA…", help_behavior_hint="")
    ] = ()
    """Files, folders, globs (.gz and .jsonl too), - for standard input, or a built-in name."""
    pairs: Annotated[Names, tyro.conf.arg(metavar="FILE…", help_behavior_hint="")] = ()
    """A source and a target file, aligned line by line; or one .tsv or .jsonl file."""
    images: Annotated[str, tyro.conf.arg(metavar="DATA", help_behavior_hint="")] = ""
    """A folder of PNG and JPEG images with a list in it, or the list: .jsonl or .tsv."""
    valid: Annotated[
        tyro.conf.UseAppendAction[tuple[Names, ...]],
        tyro.conf.arg(metavar="FILE…", help_behavior_hint="(default: a part of the data)"),
    ] = ()
    """Held-out files."""
    out: Annotated[
        str,
        tyro.conf.arg(metavar="RUN", help_behavior_hint="(default: runs/ and the data's name)"),
    ] = ""
    """The run's folder."""
    recipe: Annotated[str, tyro.conf.arg(metavar="NAME", help_behavior_hint="")] = ""
    """Settings by name (`regard recipes` lists them), from a TOML file, or from another run."""
    model: Annotated[
        str,
        tyro.conf.arg(
            metavar="NAME", help_behavior_hint="(default: one that suits data and machine)"
        ),
    ] = ""
    """A model that `regard models` lists."""
    order: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: 5)")] = (
        None
    )
    """Of an n-gram model: the tokens of its longest n-grams."""
    steps: Annotated[
        int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: 1000)")
    ] = None
    """Optimizer steps."""
    epochs: Annotated[float | None, tyro.conf.arg(metavar="X", help_behavior_hint="")] = None
    """Passes over the data, instead of steps."""
    tokenizer: Annotated[
        Literal["auto", "bpe", "byte", "char", "word"],
        tyro.conf.arg(help_behavior_hint="(default: bpe; char for built-in tasks)"),
    ] = "auto"
    """How text is cut into tokens."""
    seed: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: 0)")] = (
        None
    )
    """What all that is random follows from."""
    set: Annotated[
        tyro.conf.UseAppendAction[tuple[Names, ...]],
        tyro.conf.arg(
            metavar="TABLE.KEY=VALUE…",
            help="Any setting, e.g. optimizer.kind=muon; `regard recipes --settings` lists them.",
            help_behavior_hint="",
        ),
    ] = ()
    dry_run: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """Print model, data and all settings, and train nothing."""
    tensorboard: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """Write TensorBoard files into the run's folder too."""

    def run(self, console: Console) -> None:
        with listening() as stop, told_by_one() as met:
            settings = self.request.settings()
            kind = device_for(settings.training.device).type
            patience = timedelta(minutes=settings.training.timeout)
            with joined(kind, patience) as processes:
                met.append(processes)
                if not processes.first:
                    console = Output(quiet=True)
                self._agree(settings, processes)
                reason = self._carried_out(settings, console, stop, processes)
        if reason == "interrupted":
            sys.exit(stop.code)

    def _agree(self, settings: Settings, processes: Processes) -> None:
        """Refuse processes that were asked for something else; where data lies may differ."""
        asked = replace(settings, data=replace(settings.data, train=(), valid=()))
        processes.agreement(json.dumps([self.out, self.dry_run, asked.tables()]))

    def _carried_out(
        self, settings: Settings, console: Console, stop: Stop, processes: Processes
    ) -> str:
        """Train what is asked for, or go on with it; why it ended."""
        stages = Progress(console)
        named = self.request.named
        made, folder = resume_or_new(
            settings, self.out, stages, processes, self.dry_run, named=named
        )
        if made is None:
            _show_finished(folder, console)
            return "finished"
        describe(made, folder, console, full=self.dry_run)
        if self.dry_run:
            return "described"
        given = noted(begun(folder), settings)
        return train(made, folder, console, given=given, stop=stop, processes=processes).reason

    @property
    def request(self) -> TrainingRequest:
        """What is asked for."""
        return TrainingRequest(
            self.data,
            self.pairs,
            self.images,
            tuple(chain(*self.valid)),
            self.out,
            self.recipe,
            self.model,
            self.order,
            self.steps,
            self.epochs,
            self.tokenizer,
            self.seed,
            self.tensorboard,
            tuple(chain(*self.set)),
        )


def describe(made: Plan, folder: Path, console: Console, full: bool) -> None:
    """Print the data; `full`: the model and every setting too, which a view tells at its start."""
    family = family_of(made.config)
    facts = {**made.data, **family.facts(made)}
    if full:
        facts["model"] = f"{made.model}: {family.in_words(made)}"
        facts |= family.steps_in_words(made)
        facts |= {
            "machine": f"{made.device}, {made.precision}" + ", compiled" * made.compiled,
            "run": f"{folder} (not written)",
        }
    table = Table.grid(padding=(0, 2))
    for name, fact in facts.items():
        table.add_row(Text(name, "bold"), Text(fact))
    console.print(table)
    if full:
        priced = dry_report(made)
        if priced is not None:
            console.print("")
            show_cost(made.settings.model.preset, *priced, console)
        for warning in filter(None, (made.unfit, *made.warnings)):
            console.print(as_note(warning))
        for name, values in made.settings.tables().items():
            console.print(Text(f"\n[{name}]", "bold"))
            for key, value in values.items():
                console.print(Text(f"{key} = {toml(value)}"), soft_wrap=True)


def train(
    made: Plan,
    folder: Path,
    console: Console,
    hints: bool = True,
    *,
    given: Mapping[str, Any] | None = None,
    stop: Stop | None = None,
    processes: Processes = ALONE,
) -> Outcome:
    """Carry out a plan, show how good it is, and say what next (`hints`)."""
    with listening() if stop is None else nullcontext(stop) as stop:
        outcome, scores = train_run(
            made, folder, console, asked=given, stop=stop, processes=processes
        )
    if outcome.reason == "interrupted":
        mean = bool(made.settings.training.average)
        _show_interrupted(outcome, folder, stop.word, mean, console)
    else:
        if scores is not None:
            show(scores, "held out", console)
        if hints:
            _show_next(made, folder, console)
    return outcome


def _show_interrupted(
    outcome: Outcome, folder: Path, word: str, mean: bool, console: Console
) -> None:
    """Say what there is; `mean`: of the last checkpoints' weights, not those of one step."""
    words = f"{word} before the first step; nothing was kept"
    if outcome.step:
        of_one = f"the weights of step {outcome.best_step or outcome.step:,}"
        held = "the mean of its last checkpoints" if mean else of_one
        words = (
            f"{word} at step {outcome.step:,}; {folder} holds {held}, ready to use; "
            "the same command goes on"
        )
    console.print(Text(words, "yellow"), soft_wrap=True)


def _show_finished(folder: Path, console: Console) -> None:
    found = state(folder)
    words = f"{folder} is {found.word} at step {found.step:,}; raise --steps to train it further"
    if found.model and not ModelSettings(found.model).by_steps:
        words = f"{folder} is {found.word}; choose another --out to train anew"
    console.print(Text(words), soft_wrap=True)


def _show_next(made: Plan, folder: Path, console: Console) -> None:
    run, family = shlex.quote(str(folder)), family_of(made.config)
    lines = [f"next: {family.work(made.config).use(made, run)}"]
    if family.has_curve:
        lines.append(f"      regard plot {run}")
    console.print()
    for line in lines:
        console.print(Text(in_one_line(line), "dim"), soft_wrap=True)

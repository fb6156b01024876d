"""`regard train`: from data to a run."""

import glob
import os
import shlex
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Literal

import torch
import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.commands.evaluate import pair_rules, show
from regard.commands.names import STREAM, check_writable, lasting
from regard.commands.recipes import toml
from regard.data.buckets import Buckets
from regard.errors import RegardError
from regard.models.transformer import Transformer, build
from regard.training import recipes, runs
from regard.training.evaluation import Scores, compare, rules, translations
from regard.training.log import Log, Sink, Sinks
from regard.training.loop import Job, Loop, Outcome
from regard.training.samples import sampler
from regard.training.settings import Settings
from regard.training.setup import Plan, plan
from regard.training.stages import Stages
from regard.training.tensorboard import TensorBoard
from regard.training.throughput import peak
from regard.training.view import view

Names = tuple[str, ...]
UNSAID = -(1 << 62)  # a number that nobody gives


@dataclass(frozen=True)
class Train:
    """Train a model on text or on pairs of texts.

    $ regard train notes.txt                learns to write like notes.txt
    $ regard train 'books/*.txt' --steps 5000 --model regard-8 --out runs/books
    $ regard train --pairs en.txt de.txt    learns to translate line by line
    $ regard train reverse                  a built-in task, as copy, sort, dates
    $ regard train python                   the standard library's own source
    $ regard train --recipe runs/books --seed 1    that run with another seed
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
    steps: Annotated[int, tyro.conf.arg(metavar="N", help_behavior_hint="(default: 1000)")] = UNSAID
    """Optimizer steps."""
    tokenizer: Annotated[
        Literal["auto", "bpe", "byte", "char", "word"],
        tyro.conf.arg(help_behavior_hint="(default: bpe; char for built-in tasks)"),
    ] = "auto"
    """How text is cut into tokens."""
    seed: Annotated[int, tyro.conf.arg(metavar="N", help_behavior_hint="(default: 0)")] = UNSAID
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
        if self.out and not self.dry_run:
            _check_free(Path(self.out))
        settings = self.settings()
        made = plan(settings, Stages(console))
        folder = Path(self.out) if self.out else fresh(made, streamed=STREAM in self.data)
        describe(made, folder, console, full=self.dry_run)
        if self.dry_run:
            return
        if train(made, folder, console).reason == "interrupted":
            sys.exit(130)

    def settings(self) -> Settings:
        """The recipe's settings with what the command line says."""
        if self.pairs and self.data:
            raise RegardError("give --pairs or text to train on, not both")
        changes = list(chain(*self.set))
        settings = recipes.load(self.recipe) if self.recipe else Settings()
        named = self.model or any(c.partition("=")[0].strip() == "model.preset" for c in changes)
        if named:  # another model than the recipe's: its changes are not meant
            settings = replace(settings, model=replace(settings.model, changes={}))
        settings = recipes.override(settings, changes)
        return settings.changed(self._said(), "command line")

    def _said(self) -> dict[str, dict[str, Any]]:
        """What the options change, by table; nothing for those that were not given."""
        given, valid = self.pairs or self.data, tuple(chain(*self.valid))
        said: dict[str, dict[str, Any]] = {name: {} for name in ("data", "model", "tokenizer")}
        training = {"steps": self.steps, "seed": self.seed}
        said["training"] = {key: value for key, value in training.items() if value != UNSAID}
        if given:  # and what a recipe holds out is not of this data
            said["data"] |= {"train": lasting(given), "valid": lasting(valid)}
        elif valid:
            said["data"]["valid"] = lasting(valid)
        if self.pairs:
            said["data"]["pairs"] = True
        if self.model:
            said["model"]["preset"] = self.model
        if self.tokenizer != "auto":
            said["tokenizer"]["kind"] = self.tokenizer
        if self.tensorboard:
            said["training"]["tensorboard"] = True
        return said


def _check_free(folder: Path) -> None:
    """Whether a run can be written there; said before minutes of reading."""
    if os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir())):
        raise RegardError(f"{folder} is already there; choose another --out, or remove it")
    check_writable(folder)


def fresh(made: Plan, streamed: bool = False) -> Path:
    """A folder in runs/ named after the data that is not there yet."""
    data = made.settings.data
    stems = [_stem(Path(given)) for given in data.train[: 2 if data.pairs else 1]]
    name = "stdin" if streamed else "-".join(dict.fromkeys(stems))
    folder, number = Path("runs") / name, 1
    while folder.exists():
        number += 1
        folder = Path("runs") / f"{name}-{number}"
    return folder


def _stem(path: Path) -> str:
    """What a file or folder is about; of a pattern, the folder it stands in."""
    while glob.has_magic(path.name):
        path = path.parent
    return path.name.lstrip(".").split(".")[0] or "run"


def describe(made: Plan, folder: Path, console: Console, full: bool) -> None:
    """Print the data; `full`: the model and every setting too, which a view tells at its start."""
    config, training = made.config, made.settings.training
    facts = dict(made.data)
    if full:
        count = sum(weight.numel() for weight in build(config, "meta").parameters())
        parts = -(-made.feed.step(0).rows // training.rows)
        facts |= {
            "model": f"{made.settings.model.preset}: {config.kind}, {count:,} parameters, "
            f"{config.layers} layers, width {config.width}",
            "objective": made.objective.name,
            "steps": f"{training.steps:,} of up to {training.tokens_per_step:,} tokens, "
            f"{made.feed.epoch(training.steps):,.3g} epochs"
            + (f", in {parts} parts of {training.rows} rows" if parts > 1 else ""),
            "machine": f"{made.device}, {made.precision}" + ", compiled" * made.compiled,
            "run": f"{folder} (not written)",
        }
    table = Table.grid(padding=(0, 2))
    for name, fact in facts.items():
        table.add_row(Text(name, "bold"), Text(fact))
    console.print(table)
    if full:
        for warning in made.warnings:
            console.print(Text(f"note: {warning}", "yellow"))
        for name, values in made.settings.tables().items():
            console.print(Text(f"\n[{name}]", "bold"))
            for key, value in values.items():
                console.print(Text(f"{key} = {toml(value)}"), soft_wrap=True)


def train(made: Plan, folder: Path, console: Console, hints: bool = True) -> Outcome:
    """Carry out a plan: write the run's folder, train, evaluate, and say what next (`hints`)."""
    _check_free(folder)
    torch.manual_seed(made.settings.training.seed)
    module = build(made.config, made.device)
    with one_interrupt(), _kept_if_begun(folder) as begun:
        tokenizers = list(made.tokenizers)
        runs.write_run(folder, made.settings, made.config, tokenizers, made.digest)
        sink = Sinks([])
        try:
            sink.sinks += _listening(made, folder, console)
            job = _job(made, module, folder, sink)
            sink.write(_start(job, made, folder))
            for warning in made.warnings:
                sink.write({"event": "warning", "step": 0, "time": 0.0, "message": warning})
            loop = Loop(job)
            begun.append(loop)
            outcome = loop.run()
            if outcome.step:
                runs.write_weights(folder, loop.weights.masters)
            scores = _final(made, module, outcome, sink)
        finally:
            sink.close()
    if outcome.reason == "interrupted":
        _show_interrupted(outcome, folder, console)
    else:
        if scores is not None:
            show(scores, "held out", console)
        if hints:
            _show_next(made, folder, console)
    return outcome


@contextmanager
def one_interrupt() -> Iterator[None]:
    """The first Ctrl-C is heard; more are not, so that what it asked for, saving, can be done."""
    before = signal.getsignal(signal.SIGINT)
    alone = threading.current_thread() is threading.main_thread()
    if not alone or before is not signal.default_int_handler:  # somebody else decides
        yield
        return

    def heard(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, heard)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _kept_if_begun(folder: Path) -> Iterator[list[Loop]]:
    """A new folder goes again if no step of the loop was done: the next try finds it free."""
    there, begun = folder.is_dir(), list[Loop]()
    try:
        yield begun
    finally:
        if not any(loop.done for loop in begun):
            shutil.rmtree(folder, ignore_errors=True)
            if there:
                folder.mkdir()


def _listening(made: Plan, folder: Path, console: Console) -> Iterator[Sink]:
    yield Log(folder)
    if made.settings.training.tensorboard:
        yield TensorBoard(folder / "tensorboard")
    yield view(console, made.settings.training.log_every)  # the last one, which may be gone


def _job(made: Plan, module: Transformer, folder: Path, sink: Sink) -> Job:
    return Job(
        module,
        made.objective,
        made.feed,
        made.settings,
        made.device,
        made.precision,
        made.compiled,
        peak(made.device, made.precision),
        folder,
        sink,
        made.valid_bytes,
        sampler(made, module),
    )


def _start(job: Job, made: Plan, folder: Path) -> dict[str, Any]:
    training = made.settings.training
    rows = made.feed.step(0).rows
    return {
        "event": "start",
        "step": 0,
        "time": 0.0,
        "run": str(folder),
        "model": made.settings.model.preset,
        "parameters": sum(weight.numel() for weight in job.module.parameters()),
        "steps": training.steps,
        "tokens_per_step": training.tokens_per_step,
        "rows": training.rows,
        "accumulation": -(-rows // training.rows),
        "device": str(made.device),
        "precision": made.precision,
        "objective": made.objective.name,
        "train_tokens": made.train_tokens,
        "valid_tokens": made.valid_tokens,
        "peak": job.peak.words(),
    }


def _final(made: Plan, module: Transformer, outcome: Outcome, sink: Sink) -> Scores | None:
    """The figures of the weights that are kept, over the held-out part; logged as `evaluation`."""
    scores = outcome.scores
    if scores is None or not scores.tokens:
        return None
    how = rules(made.objective, made.settings.training.context)
    if isinstance(made.feed, Buckets):
        pairs = made.feed.valid
        written = translations(module, pairs, made.tokenizers[0], precision=made.precision)
        scores = compare(scores, written, [pair.target for pair in pairs.texts], tokenised=False)
        how = pair_rules(made.objective, 1)
    scores = replace(scores, rules=how)
    sink.write(
        {
            "event": "evaluation",
            "step": outcome.step,
            "time": round(outcome.seconds, 3),
            **scores.figures(),
        }
    )
    return scores


def _show_interrupted(outcome: Outcome, folder: Path, console: Console) -> None:
    words = "interrupted before the first step; nothing was kept"
    if outcome.step:
        words = (
            f"interrupted at step {outcome.step:,}; {folder} holds the weights of step "
            f"{outcome.best_step or outcome.step:,}, ready to use"
        )
    console.print(Text(words, "yellow"))


def _show_next(made: Plan, folder: Path, console: Console) -> None:
    prompts = {"causal": "Once", "masked": "Once <mask> a time"}
    prompt = prompts.get(made.objective.name, "a text")
    if isinstance(made.feed, Buckets) and len(made.feed.valid):
        prompt = made.feed.valid.texts[0].source
    run = shlex.quote(str(folder))
    for line in (
        f"\nnext: regard generate {run} {shlex.quote(prompt)}",
        f"      regard plot {run}",
    ):
        console.print(Text(line, "dim"), soft_wrap=True)

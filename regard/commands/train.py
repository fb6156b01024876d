"""`regard train`: from data to a run."""

import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.commands.evaluate import show
from regard.data.buckets import Buckets
from regard.data.tokens import cache_folder
from regard.errors import RegardError
from regard.models.transformer import Transformer, build
from regard.text.sources import spool
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


@dataclass(frozen=True)
class Train:
    """Train a model on text or on pairs of texts.

    `regard train notes.txt` learns to write like notes.txt; `regard train --pairs en.txt de.txt`
    learns to translate line by line. `python`, `reverse`, `copy`, `sort` and `dates` are built in.
    """

    data: Annotated[tyro.conf.Positional[Names], tyro.conf.arg(metavar="DATA")] = ()
    """Files, folders, globs (.gz and .jsonl too), - for standard input, or a built-in name."""
    pairs: Names = ()
    """A source and a target file, aligned line by line; or one .tsv or .jsonl file."""
    valid: Names = ()
    """Held-out files; without them, a part of the data is held out."""
    out: str = ""
    """The run's folder (default: runs/ and the name of the data)."""
    recipe: str = ""
    """Settings by name (`regard recipes` lists them), from a TOML file, or from another run."""
    model: str = ""
    """A model that `regard models` lists (default: one that suits data and machine)."""
    steps: int = 0
    """Optimizer steps (default 1000)."""
    tokenizer: Literal["", "bpe", "byte", "char", "word"] = ""
    """How text is cut into tokens (default: bpe; char for built-in tasks)."""
    seed: int = -1
    """What all that is random follows from (default 0)."""
    set: Names = ()
    """Any setting, as table.key=value, e.g. optimizer.kind=muon; `regard recipes --settings` lists
    them."""
    dry_run: bool = False
    """Print the model, the data and all settings, and do not train."""
    tensorboard: bool = False
    """Write TensorBoard files into the run's folder too."""

    def run(self, console: Console) -> None:
        settings = self.settings()
        made = plan(settings, Stages(console))
        folder = self._folder(made)
        describe(made, folder, console, full=self.dry_run)
        if self.dry_run:
            return
        outcome = train(made, folder, console)
        if outcome.reason == "interrupted":
            sys.exit(130)

    def settings(self) -> Settings:
        """The recipe's settings with what the command line says."""
        settings = recipes.load(self.recipe) if self.recipe else Settings()
        settings = recipes.override(settings, self.set)
        given = self.pairs or self.data
        if self.pairs and self.data:
            raise RegardError("give --pairs or text to train on, not both")
        changes: dict[str, dict[str, Any]] = {
            "data": {"train": [_spooled(name) for name in given], "valid": list(self.valid)},
            "model": {"preset": self.model},
            "tokenizer": {"kind": self.tokenizer},
            "training": {"steps": self.steps, "tensorboard": self.tensorboard},
        }
        said = {
            table: {key: value for key, value in keys.items() if value}
            for table, keys in changes.items()
        }
        if self.seed >= 0:
            said["training"]["seed"] = self.seed
        if given:
            said["data"]["pairs"] = bool(self.pairs)
        if self.model:  # another model than the recipe's: its changes are not meant
            settings = replace(settings, model=replace(settings.model, changes={}))
            settings = recipes.override(settings, [s for s in self.set if s.startswith("model.")])
        return settings.changed(said, "command line")

    def _folder(self, made: Plan) -> Path:
        folder = Path(self.out) if self.out else _fresh(made)
        if not self.dry_run and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise RegardError(f"{folder} is already there; choose another --out, or remove it")
        return folder


def _spooled(name: str) -> str:
    """Standard input as a file; any other name as it is."""
    return str(spool(sys.stdin.buffer, cache_folder() / "streams")) if name == "-" else name


def _fresh(made: Plan) -> Path:
    """A folder in runs/ named after the data that is not there yet."""
    name = Path(made.settings.data.train[0]).name.split(".")[0] or "run"
    folder, number = Path("runs") / name, 1
    while folder.exists():
        number += 1
        folder = Path("runs") / f"{name}-{number}"
    return folder


def describe(made: Plan, folder: Path, console: Console, full: bool) -> None:
    """Print what is going to be trained; `full`: every setting too."""
    config, training = made.config, made.settings.training
    module = build(config, "meta")
    count = sum(weight.numel() for weight in module.parameters())
    parts = -(-made.feed.step(0).rows // training.rows)
    facts = {
        **made.data,
        "model": f"{made.settings.model.preset}: {config.kind}, {count:,} parameters, "
        f"{config.layers} layers, width {config.width}",
        "objective": made.objective.name,
        "steps": f"{training.steps:,} of up to {training.tokens_per_step:,} tokens, "
        f"{made.feed.epoch(training.steps):.3g} epochs"
        + (f", in {parts} parts of {training.rows} rows" if parts > 1 else ""),
        "machine": f"{made.device}, {made.precision}" + (", compiled" if made.compiled else ""),
        "run": str(folder),
    }
    table = Table.grid(padding=(0, 2))
    for name, fact in facts.items():
        table.add_row(Text(name, "bold"), Text(fact))
    console.print(table)
    for warning in made.warnings:
        console.print(Text(f"note: {warning}", "yellow"))
    if full:
        console.print()
        for name, values in made.settings.tables().items():
            console.print(Text(f"[{name}]", "bold"))
            for key, value in values.items():
                console.print(Text(f"  {key} = {value!r}"))


def train(made: Plan, folder: Path, console: Console, hints: bool = True) -> Outcome:
    """Carry out a plan: write the run's folder, train, evaluate, and say what next (`hints`)."""
    torch.manual_seed(made.settings.training.seed)
    module = build(made.config, made.device)
    runs.write_run(folder, made.settings, made.config, list(made.tokenizers))
    listening: list[Sink] = [Log(folder), view(console, made.settings.training.log_every)]
    if made.settings.training.tensorboard:
        listening.append(TensorBoard(folder / "tensorboard"))
    sink = Sinks(listening)
    job = Job(
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
    try:
        sink.write(_start(job, made, folder))
        for warning in made.warnings:
            sink.write({"event": "warning", "step": 0, "time": 0.0, "message": warning})
        outcome = Loop(job).run()
        if outcome.step:
            runs.write_weights(folder, module)
    finally:
        sink.close()
    if outcome.scores is not None:
        _show_scores(made, module, outcome.scores, console)
        if hints:
            _show_next(made, folder, console)
    return outcome


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


def _show_scores(made: Plan, module: Transformer, scores: Scores, console: Console) -> None:
    """The final figures over the held-out part."""
    if isinstance(made.feed, Buckets) and len(made.feed.valid):
        pairs = made.feed.valid
        written = translations(module, pairs, made.tokenizers[0], precision=made.precision)
        scores = compare(scores, written, [pair.target for pair in pairs.texts], tokenised=False)
    if scores.tokens:
        context = made.settings.training.context
        show(replace(scores, rules=rules(made.objective, context)), "held out", console)


def _show_next(made: Plan, folder: Path, console: Console) -> None:
    prompts = {"causal": "Once", "masked": "Once <mask> a time"}
    prompt = prompts.get(made.objective.name, "a text")
    if isinstance(made.feed, Buckets) and len(made.feed.valid):
        prompt = made.feed.valid.texts[0].source
    console.print(Text(f"\nnext: regard generate {folder} {shlex.quote(prompt)}", "dim"))
    console.print(Text(f"      regard plot {folder}", "dim"))

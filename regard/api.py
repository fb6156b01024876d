"""What the commands do, from Python: `regard.train`, `evaluate`, `compare`, `cost`.

run = regard.train("notes.txt", model="lstm", steps=500)
run.generate("Once")
run.evaluate().bits_per_byte
run.plot()
"""

import json
import math
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from regard.commands.printing import Output
from regard.comparison.compare_runs import Comparing
from regard.comparison.report.write import REPORT, write_report
from regard.comparison.request import BUDGET, CompareRequest
from regard.comparison.results import Comparison
from regard.costs.report import Report
from regard.data.progress import Progress
from regard.decoding.settings import Beam
from regard.errors import RegardError
from regard.families.tasks.base import Evaluation
from regard.inspection import curves
from regard.loading import Model, load
from regard.metrics.scores import Scores
from regard.runs import evaluate as evaluating
from regard.runs.cost_request import CostRequest
from regard.runs.data_names import lasting
from regard.runs.plan import device_for
from regard.runs.request import TrainingRequest
from regard.runs.resume_or_new import resume_or_new
from regard.runs.resuming import begun, noted
from regard.runs.status import RunState, state
from regard.runs.stored_run import open_run
from regard.runs.train_run import train_run
from regard.storage import event_log
from regard.training.distributed.processes import ALONE
from regard.training.signals import listening

Path_ = str | os.PathLike[str]
Paths = Path_ | Sequence[Path_]
Settings = Mapping[str, Any]  # "training.tokens_per_step": 512
USED = ("generate", "stream", "translate", "translations", "caption", "score", "fill", "embed")


class Picture:
    """A picture in a file, which notebooks show."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"<picture {self.path}>"

    def _repr_png_(self) -> bytes | None:
        return self.path.read_bytes() if self.path.suffix == ".png" else None


class TrainedRun:
    """A run's folder in hand: what it learned, how well, and how it went.

    All that a `Model` does it does too: `generate`, `stream`, `translate`, `caption`, `score`,
    `fill`, `embed`.
    """

    def __init__(self, folder: Path_) -> None:
        self.folder = Path(folder)

    @cached_property
    def model(self) -> Model:
        """The model with the weights that were kept, on the CPU."""
        return load(self.folder)

    def __getattr__(self, name: str) -> Any:
        if name in USED:
            return getattr(self.model, name)
        raise AttributeError(f"a run has no {name!r}")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *USED})

    @property
    def state(self) -> RunState:
        """How it stands: finished, interrupted, …; at which step; its best loss."""
        return state(self.folder)

    @property
    def log(self) -> list[Mapping[str, Any]]:
        """Its events, the oldest first."""
        return list(event_log.read(self.folder / event_log.LOG))

    def evaluate(self, *data: Path_, **asked: Any) -> Scores:
        """Its figures on some data, or on what it held out; see `regard.evaluate`."""
        return evaluate(self.folder, *data, **asked)

    def plot(self, out: Path_ = "") -> Picture:
        """The curves of its losses and learning rates, in a file or as a picture in a notebook."""
        named = Path(out) if out else Path(tempfile.mkdtemp(prefix="regard-")) / "curves.png"
        curves.plot([self.folder], named)
        return Picture(named)

    def __repr__(self) -> str:
        found = self.state
        steps = f" of {found.steps:,}" if found.steps else ""
        best = "" if found.best_loss is None else f", best loss {found.best_loss:.4g}"
        return (
            f"<run {self.folder}: {found.model}, {found.word} at step {found.step:,}{steps}{best}>"
        )


def train(
    data: Paths = (),
    *,
    pairs: Paths = (),
    images: Path_ = "",
    valid: Paths = (),
    out: Path_ = "",
    model: str = "",
    recipe: str = "",
    steps: int | None = None,
    epochs: float | None = None,
    tokenizer: Literal["auto", "bpe", "byte", "char", "word"] = "auto",
    seed: int | None = None,
    settings: Settings | None = None,
    quiet: bool = False,
) -> TrainedRun:
    """Train a model, or resume the run that the same call began; Ctrl-C stops it cleanly.

    `data` are files, folders or globs of text, or a built-in name; `pairs` a source and a target
    file; `images` a folder of images with captions. `settings` are any others by name, such as
    `{"optimizer.learning_rate": 3e-4}`.
    """
    request = TrainingRequest(
        _names(data),
        _names(pairs),
        str(images),
        _names(valid),
        str(out),
        recipe,
        model,
        steps=steps,
        epochs=epochs,
        tokenizer=tokenizer,
        seed=seed,
        changes=_changes(settings),
    )
    wanted, console = request.settings(), Output(quiet=quiet)
    with listening(leaves=False) as stop:
        progress = Progress(console)
        plan, folder = resume_or_new(
            wanted, str(out), progress, ALONE, dry=False, named=request.named
        )
        if plan is not None:
            given = noted(begun(folder), wanted)
            train_run(plan, folder, console, asked=given, stop=stop)
    return TrainedRun(folder)


def evaluate(
    run: TrainedRun | Path_,
    *data: Paths,
    beam: int = 1,
    length_penalty: float = 1.0,
    by_length: bool = False,
    tokenised: bool = False,
    int8: bool = False,
    device: str = "auto",
) -> Scores:
    """The figures of a run on some data, or on what it held out: always the same ones."""
    folder = run.folder if isinstance(run, TrainedRun) else Path(run)
    asked = Evaluation(
        lasting(_names(data[0] if len(data) == 1 else data)),
        Beam(beams=beam, length_penalty=length_penalty),
        by_length,
        tokenised,
    )
    return evaluating.evaluate(open_run(folder, device_for(device)), asked, int8)[0]


def compare(
    data: Paths = (),
    *,
    pairs: Paths = (),
    valid: Paths = (),
    models: str | Iterable[str] = "",
    seeds: int = 1,
    parameters: int | str = BUDGET,
    minutes: float | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    out: Path_ = "",
    settings: Settings | None = None,
    quiet: bool = False,
) -> Comparison:
    """Several models trained on the same data and measured; the report is in its folder."""
    request = CompareRequest(
        _names(data),
        _names(pairs),
        _names(valid),
        models if isinstance(models, str) else ",".join(models),
        seeds,
        str(parameters),
        minutes,
        steps,
        epochs,
        str(out),
        changes=_changes(settings),
    )
    wanted, console = request.wanted(), Output(quiet=quiet)
    with listening(leaves=False) as stop:
        found = Comparing.begin(wanted, console, stop).run()
    write_report(found, wanted.out)
    if not found.good:
        raise RegardError(f"no model could be trained and measured; {wanted.out / REPORT} says why")
    return found


def cost(
    model: TrainedRun | Path_,
    *,
    batch_size: int | None = None,
    tokens: int | None = None,
    source: int | None = None,
    train: bool = False,
    generate: int | None = None,
    steps: int | None = None,
    device: str = "auto",
    precision: Literal["auto", "float32", "bf16", "bf16-weights"] = "auto",
    processes: int = 1,
    recompute: bool = False,
) -> Report:
    """What a model needs for a job, before anything is run: operations, memory, time."""
    # A run may have the name of a model, which would be priced in its place.
    named = model.folder.absolute() if isinstance(model, TrainedRun) else model
    request = CostRequest(
        str(named),
        batch_size,
        tokens,
        source,
        train,
        generate,
        steps,
        device,
        precision,
        processes,
        recompute,
    )
    return request.priced()[0]


def _names(given: Any) -> tuple[str, ...]:
    """One name, or several."""
    if isinstance(given, str | os.PathLike):
        return (str(given),) if str(given) else ()
    return tuple(str(one) for one in given)


def _changes(settings: Settings | None) -> tuple[str, ...]:
    """Settings as the command line spells them."""
    if not isinstance(settings, Mapping | None):
        raise RegardError(f"settings are a table of names and values, not {settings!r:.60}")
    return tuple(f"{name}={_toml(name, value)}" for name, value in (settings or {}).items())


def _toml(name: str, value: Any) -> str:
    """A value as TOML spells it."""
    if value is None:
        return "false"  # TOML has no none
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    try:
        return json.dumps(value, ensure_ascii=False)
    except TypeError:
        raise RegardError(f"{name} cannot be {value!r:.60}") from None

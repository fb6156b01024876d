"""Carrying out a comparison: every model trained and measured in turn, going on where it was.

FOLDER/compare.json       what was asked and decided: sizes and steps of each model
FOLDER/runs/NAME-SEED/    runs like any other
FOLDER/measured/          one small file for each thing that was measured
FOLDER/report.html, report.json
"""

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from signal import SIGINT
from typing import Any

import torch
from rich.console import Console
from rich.text import Text

from regard.comparison import measuring
from regard.comparison.contestants import Contestant, about, sized
from regard.comparison.measuring import FOR_EACH_SEED, FOR_ONE, Figures, Material, Measurement
from regard.comparison.pace import memory_of_training, seconds_per_step
from regard.comparison.results import Comparison, Result, buckets_of, result
from regard.data.feeds.pair_batches import PairBatches
from regard.data.feeds.stream import TextFeed
from regard.data.progress import Progress
from regard.errors import Problems, RegardError
from regard.families.plan import Plan
from regard.families.settings import ModelSettings, Settings
from regard.formats import duration
from regard.runs.plan import device_for, plan
from regard.runs.resume_or_new import resume_or_new
from regard.runs.resuming import asked, begun, flat, noted
from regard.runs.stored_run import open_run
from regard.runs.train_run import train_run
from regard.storage import make_folder, read_json, write_json
from regard.terminal import message
from regard.training.distributed.processes import ALONE
from regard.training.signals import Stop, StoppedError

NOTES, MEASURED = "compare.json", "measured"
DATA = "compare.data"  # what the data hold, among what was asked


@dataclass(frozen=True)
class Wanted:
    """What is to be compared."""

    models: Mapping[str, Settings]  # by name
    out: Path
    seeds: int = 1
    budget: int = 0  # parameters; 0: as the names have it
    minutes: float = 0.0  # of training, each; 0: by the settings' steps
    title: str = ""

    @property
    def pairs(self) -> bool:
        return self._first.data.pairs

    @property
    def device(self) -> torch.device:
        return device_for(self._first.training.device)

    @property
    def _first(self) -> Settings:
        return next(iter(self.models.values()))


@dataclass
class Comparing:
    """A comparison on its way; `run` does it all."""

    wanted: Wanted
    console: Console
    stop: Stop
    survey: Plan  # the data as all see it
    contestants: list[Contestant]
    material: Material
    failed: dict[str, str] = field(default_factory=dict)  # by name

    @classmethod
    def begin(cls, wanted: Wanted, console: Console, stop: Stop) -> "Comparing":
        """Read the data, learn its tokens once, and choose sizes; nothing is trained yet."""
        first = next(iter(wanted.models.values()))
        if not wanted.pairs:  # the plan of an n-gram is made without trying how much fits
            first = replace(first, model=ModelSettings("ngram"))
        survey = plan(first, Progress(console))
        contestants = [
            sized(name, settings, survey.tokenizers, wanted.budget)
            for name, settings in wanted.models.items()
        ]
        valid = survey.feed.valid if isinstance(survey.feed, PairBatches | TextFeed) else None
        assert valid is not None
        contexts = _contexts(contestants, survey)
        found = measuring.material(valid, contexts, survey.digest)
        return cls(wanted, console, stop, survey, contestants, found)

    def run(self) -> Comparison:
        """Train and measure what is not yet; a model that fails is told, and left out."""
        self._decide()
        seeds, known = range(self.wanted.seeds), len(self.contestants)
        for seed in seeds:
            for number, one in enumerate(self.contestants, 1):
                if one.name not in self.failed:
                    self._say(f"{one.name}, seed {seed} (model {number} of {known})")
                    self._tried(one, self._run, one, seed)
        return self._comparison()

    # What is decided before

    def _decide(self) -> None:
        """Steps for each model, as they were decided before or by how long a step takes now."""
        path = self.wanted.out / NOTES
        before = models_in(path) if path.exists() else {}
        self._check(before)
        for place, one in enumerate(self.contestants):
            told = before.get(one.name, {})
            steps = told.get("steps")
            if self.wanted.minutes and not one.counts and steps is None:
                self._tried(one, self._calibrate, place)
            elif isinstance(steps, int):
                self.contestants[place] = one.trained_for(steps)
        make_folder(self.wanted.out)
        write_json({"models": before | self._notes()}, path)

    def _calibrate(self, place: int) -> None:
        one = self.contestants[place]
        with Progress(self.console).stage(f"timing {one.name}"):
            made = plan(one.settings, known=self.survey.tokenizers)
            seconds = seconds_per_step(made)
        steps = max(1, round(60 * self.wanted.minutes / seconds))
        self._say(f"{one.name}: {seconds * 1000:,.0f} ms a step, {steps:,} steps")
        self.contestants[place] = one.trained_for(steps)

    def _notes(self) -> dict[str, Any]:
        """What the next start must agree with."""
        notes = {}
        for one in self.contestants:
            if one.name in self.failed:
                continue
            timed = self.wanted.minutes and not one.counts
            steps = {"steps": one.settings.training.steps} if timed else {}
            notes[one.name] = {"asked": self._asked(one.name), **steps}
        return notes

    def _asked(self, name: str) -> dict[str, Any]:
        tables = asked(self.wanted.models[name])
        tables.get("data", {}).pop("train", None)  # judged by what it holds
        tables.get("data", {}).pop("valid", None)
        mine = {"budget": self.wanted.budget, "minutes": self.wanted.minutes}
        return {**tables, "compare": {**mine, "data": self.survey.digest}}

    def _check(self, before: Mapping[str, Any]) -> None:
        """Refuse a folder of another comparison; more models and more seeds are welcome."""
        problems = Problems(f"{self.wanted.out} was begun with other settings")
        moved = False
        for name in self.wanted.models:
            if name in before:
                then, now = flat(before[name].get("asked", {})), flat(self._asked(name))
                moved |= then.pop(DATA, None) != now.pop(DATA)
                for key in sorted(then.keys() | now.keys()):
                    if then.get(key) != now.get(key):
                        problems.add(f"{name}: {key} is {now.get(key)!r}, was {then.get(key)!r}")
        if moved and not problems.found:  # settings may be why other parts are held out
            raise RegardError(
                f"{self.wanted.out} was begun with other data; give what it was begun with, or "
                "choose another --out"
            )
        if problems.found:
            problems.found[-1] += "; give what it was begun with, or choose another --out"
        problems.report()

    # Every run

    def _run(self, one: Contestant, seed: int) -> None:
        folder = self._folder(one, seed)
        settings = one.seeded(seed)
        stages = Progress(self.console)
        known = self.survey.tokenizers
        made, _ = resume_or_new(settings, str(folder), stages, ALONE, False, known)
        if made is not None:
            given = noted(begun(folder), settings)
            outcome, _ = train_run(made, folder, self.console, asked=given, stop=self.stop)
            if outcome.reason == "interrupted":
                raise StoppedError(self.stop.asked or SIGINT)
        self._measure(one, seed)

    def _measure(self, one: Contestant, seed: int) -> None:
        folder = self._folder(one, seed)
        key = measuring.key_of(folder, self.material.key)
        wanted = (*FOR_EACH_SEED, *(FOR_ONE if seed == 0 else ()))
        missing = [n for n in wanted if measuring.known(self._path(one, seed, n), key) is None]
        if missing:
            run = open_run(folder, "cpu" if one.counts else self.wanted.device)
            measurement = Measurement(run, self.material)
            for name in missing:
                with Progress(self.console).stage(f"measuring {one.name}: {name}"):
                    make: Callable[[], Figures] = getattr(measurement, name)
                    measuring.kept(self._path(one, seed, name), key, make)
        if seed == 0 and not one.counts:
            measuring.kept(self._path(one, seed, "memory"), key, lambda: self._memory(one))

    def _memory(self, one: Contestant) -> Figures:
        made = plan(one.settings, known=self.survey.tokenizers)
        return dict(memory_of_training(made))

    def _tried(self, one: Contestant, work: Callable[..., None], *given: Any) -> None:
        """Do some work for one model; if it cannot be done, the others go on."""
        try:
            work(*given)
        except (RegardError, torch.OutOfMemoryError) as error:
            self.failed[one.name] = str(error)
            self._say(f"{one.name} failed: {error}", "red")

    def _folder(self, one: Contestant, seed: int) -> Path:
        return self.wanted.out / "runs" / f"{one.name}-{seed}"

    def _path(self, one: Contestant, seed: int, name: str) -> Path:
        return self.wanted.out / MEASURED / f"{one.name}-{seed}" / f"{name}.json"

    def _say(self, sentence: str, style: str = "bold") -> None:
        self.console.print(Text(message(sentence), style), soft_wrap=True)

    # All together

    def _comparison(self) -> Comparison:
        found = [self._result(one) for one in self.contestants]
        good = [one for one in self.contestants if one.name not in self.failed]
        shown: Figures = self._figures(good[0], 0, "samples") if good else {}
        # a learned table of positions has an end, so some models may have fewer
        buckets = max(map(self._buckets, good), key=len, default=())
        return Comparison(
            self.wanted.title,
            self.wanted.pairs,
            self._facts(),
            tuple(found),
            tuple(shown.get("given", ())),
            tuple(shown.get("gold", ())),
            buckets,
        )

    def _buckets(self, one: Contestant) -> tuple[tuple[int, int], ...]:
        return buckets_of(*(self._figures(one, 0, name) for name in ("quality", "lengths")))

    def _result(self, one: Contestant) -> Result:
        preset = one.settings.model.preset
        words = self.failed.get(one.name, "")
        base = Result(
            one.name,
            preset,
            about(preset),
            one.parameters,
            one.matched,
            words,
            trained_on=one.in_rows_of,
        )
        if base.failed:
            return base
        seeds = range(self.wanted.seeds)
        return result(
            base,
            {seed: measuring.trained(self._folder(one, seed)) for seed in seeds},
            {seed: {n: self._figures(one, seed, n) for n in FOR_EACH_SEED} for seed in seeds},
            {name: self._figures(one, 0, name) for name in FOR_ONE},
            {} if one.counts else self._figures(one, 0, "memory"),
        )

    def _figures(self, one: Contestant, seed: int, name: str) -> Figures:
        return dict(read_json(self._path(one, seed, name))["figures"])

    def _facts(self) -> dict[str, str]:
        """What all have in common, for people."""
        budget = self.wanted.budget
        sizes = f"about {budget:,} parameters each" if budget else "as their names have them"
        step = self.survey.settings.training.tokens_per_step
        if self.wanted.minutes:
            length = f"{duration(60 * self.wanted.minutes)} each, validations not counted"
        else:
            trained = [one for one in self.contestants if not one.counts]
            steps = {one.settings.training.steps for one in trained}
            epochs = {one.settings.training.epochs for one in trained}
            length = (
                f"{min(epochs):g} epochs" if any(epochs) else f"{max(steps, default=0):,} steps"
            )
        return {
            **self.survey.data,
            "sizes": sizes,
            "training": f"{length}, up to {step:,} tokens a step",
            "seeds": f"{self.wanted.seeds}",
            "machine": machine(self.wanted.device),
            "made": f"{date.today().isoformat()}, torch {torch.__version__}",
        }


def models_in(path: Path) -> dict[str, Any]:
    """What was decided for each model before."""
    found = read_json(path)
    models = found.pop("models", None)
    if found or not isinstance(models, dict) or not all(map(_is_noted, models.values())):
        raise RegardError(f"{path} is damaged or not ours; put it back, or choose another --out")
    return models


def _is_noted(model: Any) -> bool:
    return isinstance(model, dict) and isinstance(model.get("asked"), dict)


def _contexts(contestants: Sequence[Contestant], survey: Plan) -> list[int]:
    """How many tokens each model reads at once; recurrent ones any number."""
    if survey.settings.data.pairs:
        return [one.settings.model.config().context for one in contestants]
    rows = [one.in_rows_of for one in contestants if one.in_rows_of]
    return [*rows, survey.settings.training.context]


def machine(device: torch.device) -> str:
    """What the figures of time were taken on."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"CPU ({platform.machine()}), {threads} thread{'s' * (threads > 1)}"

"""A comparison as it is asked for on a command line or from Python."""

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from regard.comparison.compare_runs import MEASURED, NOTES, Wanted, models_in
from regard.comparison.contestants import chosen, shared
from regard.comparison.report.write import FIGURES, REPORT
from regard.data.builtin.tasks import TASKS
from regard.errors import Problems, RegardError, nearest
from regard.families.settings import ModelSettings, Settings
from regard.runs.data_names import lasting
from regard.runs.plan import device_for
from regard.runs.request import TrainingRequest
from regard.runs.run_folder import check_place

Names = tuple[str, ...]
UNITS = {"": 1, "k": 1000, "m": 10**6, "b": 10**9}
BUDGET = "1M"


@dataclass(frozen=True)
class CompareRequest:
    """Models that somebody wants compared on the same data."""

    data: Names = ()
    pairs: Names = ()
    valid: Names = ()
    models: str = ""  # names with commas
    seeds: int = 1
    parameters: str = BUDGET
    minutes: float | None = None
    steps: int | None = None
    epochs: float | None = None
    out: str = ""
    tokenizer: str = "auto"
    recipe: str = ""
    changes: Names = ()  # any setting: [MODEL:]TABLE.KEY=VALUE

    def wanted(self) -> Wanted:
        """The models to compare with their settings, checked before anything is read."""
        self._check()
        task = len(self.data) == 1 and self.data[0] in TASKS
        return replace(
            self,
            data=lasting(self.data),  # standard input is read once
            pairs=lasting(self.pairs),
            valid=lasting(self.valid),
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
        alone = os.environ.get("WORLD_SIZE", "1") == "1"
        problems.require(alone, "one process compares; start it without torchrun")
        if self.steps is not None and self.steps < 1:
            problems.add(f"--steps must be at least 1, not {self.steps}")
        if self.epochs is not None and not self.epochs > 0:
            problems.add(f"--epochs must be more than 0, not {self.epochs:g}")
        if self.minutes is not None and not 0 < self.minutes < 1e6:
            problems.add(f"--minutes must be more than 0, not {self.minutes:g}")
        problems.report()

    def _changes(self, presets: dict[str, str]) -> tuple[list[str], dict[str, list[str]]]:
        """What --set says of all models, and of single ones."""
        general, own = [], {name: list[str]() for name in presets}
        for change in self.changes:
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
            valid=self.valid,
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

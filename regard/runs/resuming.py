"""Going on with a run that was begun: what must agree, and what may change."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.errors import Problems, RegardError
from regard.families.settings import Settings, renamed
from regard.runs import recipes
from regard.runs.run_folder import RUN, WEIGHTS, is_run
from regard.runs.stored_run import settings_of
from regard.training.checkpoints.reading import Checkpoint, damaged_steps, stored_steps

Flat = dict[str, Any]  # "table.key": value
STEPS = "training.steps"
DATA = ("data.train", "data.valid")  # judged by what they hold, not by where it lies
# What changes neither the weights nor the data, or only where a fault would end the run, so that it
# may go on with other values.
FREE = (
    "training.device",
    "training.distribution",
    "training.keep",
    "training.log_every",
    "training.on_fault",
    "training.sample_every",
    "training.spike",
    "training.tensorboard",
    "training.timeout",
)


@dataclass(frozen=True)
class Begun:
    """A run's folder that holds something to go on from."""

    folder: Path
    settings: Settings  # as they were resolved
    asked: Settings | None  # as they were given; None: an older run does not say
    data: str = ""  # its digest; "": an older run does not say

    @property
    def given(self) -> Settings:
        """What to give again, to go on as it was begun."""
        return self.asked or self.settings


def begun(folder: Path) -> Begun | None:
    """A run that was begun, if there is one with anything to go on from or to lose."""
    if not is_run(folder):
        return None
    if not stored_steps(folder) and not (folder / WEIGHTS).exists():
        return None  # killed before the first checkpoint
    beside = recipes.beside(str(folder / RUN))
    tables, versions = beside.get("asked"), beside.get("versions")
    if not versions:  # every version of ours says what it is
        raise RegardError(
            f"{folder / RUN} is damaged or not ours; put it back, or choose another --out"
        )
    given = None
    if isinstance(tables, Mapping):
        given = Settings().changed(tables, f"{folder / RUN} [asked]")
    data = versions.get("data", "") if isinstance(versions, Mapping) else ""
    return Begun(folder, settings_of(folder), given, data)


def flat(tables: Mapping[str, Any]) -> Flat:
    """Nested tables as one, lists as tuples."""
    return {
        f"{name}.{key}": tuple(value) if isinstance(value, list) else value
        for name, table in tables.items()
        if isinstance(table, Mapping)
        for key, value in table.items()
    }


def asked(settings: Settings) -> dict[str, dict[str, Any]]:
    """The tables of some settings with what is not the default."""
    usual = Settings().tables()
    said = {
        name: {key: value for key, value in table.items() if value != usual[name].get(key)}
        for name, table in settings.tables().items()
    }
    return {name: table for name, table in said.items() if table}


def noted(run: Begun | None, settings: Settings) -> dict[str, dict[str, Any]] | None:
    """The tables that a run keeps of what was asked for; an older one goes on without."""
    return None if run and run.asked is None else asked(settings)


def agreed(run: Begun, settings: Settings, named: Collection[str] = ()) -> Settings:
    """The settings to go on with: the run's own, with what may change as it is given now.

    A default counts as given if the setting was `named`. All other differences are reported
    together.
    """
    given = flat(asked(settings))
    problems = Problems(f"{run.folder} was begun with other settings")
    wanted, steps = settings.training.steps, run.settings.training.steps
    if not run.settings.model.by_steps or settings.training.epochs:  # the data says how many
        wanted = steps
    problems.require(
        wanted >= steps, f"{STEPS} is {wanted} here and {steps} there; it can only be raised"
    )
    for key in sorted(_differing(given, run)):
        if not _may_change(key):
            here, there = _shown(given, key), _shown(flat(run.given.tables()), key)
            problems.add(f"{key} is {here} here and {there} there")
    if problems.found:
        problems.found[-1] += "; give what it was begun with, or choose another --out"
    problems.report()
    values = flat(settings.tables())
    changes = {key: values[key] for key in FREE if key in given or key in named} | {STEPS: wanted}
    changes.setdefault("training.device", settings.training.device)
    tables = {"training": {key.partition(".")[2]: value for key, value in changes.items()}}
    # The data may lie elsewhere now; what it holds is compared when it is read.
    tables["data"] = {"train": settings.data.train, "valid": settings.data.valid}
    return run.settings.changed(tables, "command line")


def _may_change(key: str) -> bool:
    return key in (STEPS, *DATA, *FREE)


def _differing(given: Flat, run: Begun) -> set[str]:
    if run.asked is None:  # what is not said is not compared
        there = flat(run.settings.tables())
        return {key for key, value in given.items() if there.get(key) != value}
    there = flat(asked(run.asked))
    return {key for key in given.keys() | there.keys() if given.get(key) != there.get(key)}


def _shown(values: Flat, key: str) -> str:
    usual = flat(Settings().tables())
    return repr(values[key]) if key in values else repr(usual.get(key, "not given"))


def check_place(stored: Checkpoint, about: Mapping[str, Any]) -> None:
    """Refuse to go on from a checkpoint of other settings, data or tokens than the run's now."""
    problems = Problems(f"{stored.path} does not fit its run")
    then, now = stored.about, about
    problems.require(then.get("data") == now.get("data"), OTHER_DATA)
    if then.get("tokenizers") != now.get("tokenizers"):
        problems.add("the tokenizer is another; put back the tokenizer.json that it was begun with")
    _compare(_settings_in(then), _settings_in(now), problems)
    problems.report()


def check_begun(run: Begun, about: Mapping[str, Any]) -> None:
    """The same where a run has no checkpoint left, before its weights make room for others."""
    problems = Problems(f"{run.folder} is another run")
    problems.require(run.data in ("", about.get("data")), OTHER_DATA)
    _compare(flat(run.settings.tables()), _settings_in(about), problems)
    problems.report()


OTHER_DATA = "the data has changed since; give what the run was begun with"


def _compare(before: Flat, after: Flat, problems: Problems) -> None:
    # A setting that an older version did not know had no effect then, as its usual value has none.
    then = {**flat(Settings().tables()), **before} if before else before
    for key in sorted(then.keys() | after.keys()):
        if then.get(key) != after.get(key) and not _may_change(key):
            problems.add(f"{key} was {then.get(key)!r} and is {after.get(key)!r} now")


def _settings_in(about: Mapping[str, Any]) -> Flat:
    found = about.get("settings")
    return flat(renamed(found)) if isinstance(found, Mapping) else {}


def to_go_on_from(found: Sequence[Checkpoint], folder: Path, average: bool) -> list[Checkpoint]:
    """The checkpoints up to the one to go on from: the last, unless one before it is missed.

    What the final weights need, the best checkpoint or all that are averaged, is made again from an
    earlier one if it was damaged, as long as there is an earlier one.
    """
    kept = list(found)
    steps = {one.place.step for one in kept}
    damaged = [step for step in damaged_steps(folder) if step not in steps]
    while kept:
        last = kept[-1].place
        missed = [s for s in damaged if s <= last.step and (average or s == last.best_step)]
        earlier = [one for one in kept if one.place.step < min(missed, default=0)]
        if not earlier:
            break
        kept = earlier
    return kept

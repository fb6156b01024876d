"""Everything that decides a run, as frozen values; 0, "" and "auto" mean "what fits".

The same names are the tables and keys of recipes and of `run.toml`, and what `--set` changes.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Self

from regard.errors import Problems, nearest
from regard.models.config import ModelConfig
from regard.models.registry import find, named, names, settings_of
from regard.training.settings import (
    DataSettings,
    OptimizerSettings,
    ScheduleSettings,
    TokenizerSettings,
    TrainingSettings,
    changed_section,
    check_sections,
)

FORMER: dict[str, dict[str, str]] = {  # table: names of settings as they once were, and as they are
    "data": {"isolate": "document_mask", "spread": "length_jitter"},
    "tokenizer": {"least": "min_frequency"},
    "model": {
        "feeding": "input_feeding",
        "growth": "dilation_growth",
        "cycle": "dilation_cycle",
        "eye": "encoder",
        "hand": "decoder",
    },
    "optimizer": {"peak": "learning_rate", "muon_peak": "muon_learning_rate"},
    "schedule": {"decay": "decay_fraction", "floor": "min_lr_ratio"},
    "training": {
        "rows": "micro_batch_size",
        "consistency": "r_drop",
        "activation": "ar_alpha",
        "slowness": "tar_beta",
    },
}


def renamed(tables: Mapping[str, Any], problems: Problems | None = None) -> dict[str, Any]:
    """Tables of settings by today's names: recipes and runs of before still load.

    A table with both names of one setting is one of the `problems`.
    """
    return {
        name: _renamed(name, table, problems) if isinstance(table, Mapping) else table
        for name, table in tables.items()
    }


def _renamed(name: str, table: Mapping[str, Any], problems: Problems | None) -> dict[str, Any]:
    former = FORMER.get(name, {})
    if problems is not None:
        for old in sorted(former.keys() & table.keys()):
            problems.require(
                former[old] not in table,
                f"[{name}] {old} is the former name of {former[old]}; give only {former[old]}",
            )
    return {former.get(key, key): value for key, value in table.items()}


@dataclass(frozen=True)
class ModelSettings:
    """A named model and what is changed in it; vocabularies come from the tokenizer."""

    preset: str = ""  # "": by the data and the machine
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def by_steps(self) -> bool:
        """Whether it is for people to say how many steps such a model is trained."""
        config = find(self.preset)
        return config is None or config.by_steps

    def config(self, **more: Any) -> ModelConfig:
        """The model that is meant, checked; `more` are changes too, where it has such settings."""
        base = named(self.preset)
        known = [f.name for f in fields(base)]
        problems = Problems("model settings")
        for key in self.changes:
            said = f"a model like {self.preset} has no {key!r}; {nearest(key, known)}"
            problems.require(key in known, said)
        problems.report()
        changes = {**self.changes, **{key: more[key] for key in more if key in known}}
        return replace(base, **base.parsed(changes))


@dataclass(frozen=True)
class Settings:
    """A whole run."""

    data: DataSettings = field(default_factory=DataSettings)
    tokenizer: TokenizerSettings = field(default_factory=TokenizerSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)

    def __post_init__(self) -> None:
        problems = Problems("settings")
        check_sections({f.name: getattr(self, f.name) for f in fields(self)}, problems)
        problems.report()

    def changed(self, tables: Mapping[str, Any], where: str) -> Self:
        """The same with what some tables say; every key that is unknown (with the nearest known
        one), of a wrong type or out of its range is reported, all of them together."""
        problems = Problems(where)
        sections: dict[str, Any] = {}
        known = [f.name for f in fields(self)]
        for name, table in renamed(tables, problems).items():
            if name not in known:
                problems.add(f"there is no table [{name}]; {nearest(name, known)}")
            elif not isinstance(table, Mapping):
                problems.add(f"{name} must be a table, [{name}]")
            elif name == "model":
                sections[name] = _model(self.model, table, problems)
            else:
                sections[name] = changed_section(getattr(self, name), name, table, problems)
        check_sections(sections, problems)
        problems.report()
        return replace(self, **sections)

    def tables(self) -> dict[str, dict[str, Any]]:
        """What `changed` reads: nested tables of plain values, the model's changes inline."""
        tables = {f.name: asdict(getattr(self, f.name)) for f in fields(self) if f.name != "model"}
        model = {"preset": self.model.preset, **self.model.changes}
        return {"data": tables.pop("data"), "model": model, **tables}


def _model(model: ModelSettings, table: Mapping[str, Any], problems: Problems) -> ModelSettings:
    learned = ("vocabulary", "source_vocabulary")
    name = table.get("preset", model.preset)
    if not isinstance(name, str):
        problems.add(f"[model] preset must be a text, not {name!r}")
        name = model.preset
    if name and find(name) is None and table.keys() - {"preset"}:  # what would its keys mean?
        problems.add(f"no model is called {name!r}; {nearest(name, list(names()))}")
        return ModelSettings(name, model.changes)
    known = ["preset", *(key for key in settings_of(name) if key not in learned)]
    changes = dict(model.changes)
    for key, value in table.items():
        if key in learned:
            problems.add(f"[model] {key} is the tokenizer's; set [tokenizer] vocabulary")
        elif key not in known:
            problems.add(f"[model] has no key {key!r}; {nearest(key, known)}")
        elif key != "preset":
            changes[key] = value
    return ModelSettings(name, changes)

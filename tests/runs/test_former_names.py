"""Settings by the names they once had: in a recipe, with --set and in a run they mean the same."""

import json
import tomllib

import pytest
import tomli_w

from regard.errors import RegardError
from regard.families.settings import FORMER, Settings
from regard.models.config import ModelConfig
from regard.models.registry import names, settings_of
from regard.runs import recipes
from regard.runs.resuming import begun, check_begun
from regard.runs.stored_run import RUN, TOKENIZER, _digest, write_run
from regard.text.learning import learn

TEXT = "the cat sat on the mat"
MODELS = {
    "feeding": "luong",
    "growth": "conv",
    "cycle": "conv",
    "eye": "captioner",
    "hand": "captioner",
}
VALUES = {  # none is the default, nor what the preset says
    ("data", "isolate"): True,
    ("data", "spread"): 6,
    ("tokenizer", "least"): 3,
    ("model", "feeding"): False,
    ("model", "growth"): 3,
    ("model", "cycle"): 5,
    ("model", "eye"): "patches",
    ("model", "hand"): "lstm",
    ("optimizer", "peak"): 0.5,
    ("optimizer", "muon_peak"): 0.3,
    ("schedule", "decay"): 0.3,
    ("schedule", "floor"): 0.2,
    ("training", "rows"): 7,
    ("training", "consistency"): 1.5,
    ("training", "activation"): 2.0,
    ("training", "slowness"): 1.25,
}
every = pytest.mark.parametrize(("table", "old"), VALUES)


def base(old: str) -> Settings:
    """Settings of a model that has such a setting."""
    return Settings().changed({"model": {"preset": MODELS.get(old, "gpt2-tiny")}}, "")


def by_todays_name(table: str, old: str) -> Settings:
    return base(old).changed({table: {FORMER[table][old]: VALUES[table, old]}}, "")


def value_of(settings: Settings, table: str, name: str) -> object:
    return settings.tables()[table][name]


def backwards(tables: dict) -> dict:
    """Tables of settings as they were written under the former names."""
    former = {
        table: {new: old for old, new in FORMER.get(table, {}).items() if (table, old) in VALUES}
        for table in tables
    }
    return {
        name: {former[name].get(key, key): value for key, value in table.items()}
        for name, table in tables.items()
    }


def test_every_former_name_is_tried():
    assert {*VALUES} == {(table, old) for table, known in FORMER.items() for old in known}


def test_no_former_name_is_one_of_today_and_all_lead_to_one():
    """In a model's table, too, whatever its family."""
    today = {name: {*table} for name, table in Settings().tables().items()}
    today["model"] = {key for name in names() for key in settings_of(name)}
    for table, known in FORMER.items():
        assert not today[table] & known.keys()
        assert today[table] >= {*known.values()}
        assert len({*known.values()}) == len(known)


@every
def test_in_a_recipe_and_with_set_it_means_what_todays_name_means(tmp_path, table: str, old: str):
    wanted, value = by_todays_name(table, old), VALUES[table, old]
    assert wanted != base(old)
    assert value_of(wanted, table, FORMER[table][old]) == value
    (tmp_path / "old.toml").write_text(tomli_w.dumps({table: {old: value}}))
    assert recipes.load(str(tmp_path / "old.toml"), base(old)) == wanted
    assert recipes.override(base(old), [f"{table}.{old}={json.dumps(value)}"]) == wanted


@every
def test_both_names_in_one_table_are_refused_in_one_sentence(tmp_path, table: str, old: str):
    new, value = FORMER[table][old], VALUES[table, old]
    sentence = f"[{table}] {old} is the former name of {new}; give only {new}"
    for both in ({old: value, new: value}, {new: value, old: value}):
        (tmp_path / "both.toml").write_text(tomli_w.dumps({table: both}))
        with pytest.raises(RegardError) as told:
            recipes.load(str(tmp_path / "both.toml"), base(old))
        assert str(told.value) == f"{tmp_path / 'both.toml'}: {sentence}"


def test_a_recipe_by_one_name_changes_what_another_says_by_the_other(tmp_path):
    (tmp_path / "old.toml").write_text("[training]\nrows = 3\n[optimizer]\npeak = 0.1\n")
    (tmp_path / "new.toml").write_text("extends = 'old.toml'\n[training]\nmicro_batch_size = 4\n")
    settings = recipes.load(str(tmp_path / "new.toml"))
    assert (settings.training.micro_batch_size, settings.optimizer.learning_rate) == (4, 0.1)


@pytest.mark.parametrize("model", ["gpt2-tiny", *sorted({*MODELS.values()})])
def test_a_run_by_former_names_is_the_run_by_todays(tmp_path, model: str):
    """Its settings, what was asked for, its model; and it may be resumed."""
    mine = {key: value for key, value in VALUES.items() if key[0] != "model"}
    mine |= {key: value for key, value in VALUES.items() if MODELS.get(key[1]) == model}
    asked: dict[str, dict] = {"model": {"preset": model}}
    for (table, old), value in mine.items():
        asked.setdefault(table, {})[FORMER[table][old]] = value
    settings = Settings().changed(asked, "")
    tokenizer = learn("char", [TEXT])
    config: ModelConfig = settings.model.config(vocabulary=len(tokenizer))
    run = tmp_path / "run"
    write_run(run, settings, config, [tokenizer], "data", asked)
    (run / "model.safetensors").touch()
    today = begun(run)
    said = tomllib.loads((run / RUN).read_text())
    versions, given = said.pop("versions"), said.pop("asked")
    old = {**backwards(said), "asked": backwards(given)}
    assert {old_name for _, old_name in mine} <= {key for table in old.values() for key in table}
    versions["settings"] = _digest(old)
    (run / RUN).write_text(tomli_w.dumps({"versions": versions, **old}))
    assert (run / TOKENIZER).exists()
    then = begun(run)
    assert then == today
    assert then is not None
    assert then.given == settings
    check_begun(then, {"data": "data", "settings": said})

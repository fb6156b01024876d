"""Settings are checked where they are made, and everything wrong is said at once."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import RegardError
from regard.families.settings import ModelSettings, Settings
from regard.fields import Range, rules
from regard.models.transformer.config import RotaryScaling
from regard.models.transformer.presets import preset


def refused(tables: dict) -> str:
    with pytest.raises(RegardError) as caught:
        Settings().changed(tables, "somewhere")
    return str(caught.value)


def test_a_changed_setting_changes_nothing_else():
    changed = Settings().changed({"training": {"steps": 7}, "data": {"train": ["a", "b"]}}, "here")
    before, after = Settings().tables(), changed.tables()
    different = {(t, k) for t in after for k in after[t] if before[t].get(k) != after[t][k]}
    assert different == {("training", "steps"), ("data", "train")}
    assert changed.data.train == ("a", "b")


def test_unknown_tables_and_keys_are_refused_with_the_nearest_known_one():
    assert "no table [trainin]; did you mean 'training'?" in refused({"trainin": {}})
    assert "[training] has no key 'step'; did you mean 'steps'?" in refused(
        {"training": {"step": 1}}
    )
    assert "[model] has no key 'widht'; did you mean 'width'?" in refused({"model": {"widht": 1}})
    assert "training must be a table" in refused({"training": 5})


def test_vocabulary_sizes_are_the_tokenizers():
    for key in ("vocabulary", "source_vocabulary"):
        said = refused({"model": {key: 100}})
        assert f"[model] {key} is the tokenizer's; set [tokenizer] vocabulary" in said


def test_all_problems_are_reported_together_and_name_where_they_are():
    said = refused(
        {
            "unknown": {},
            "training": {"stepz": 1, "seed": "one", "label_smoothing": 1.5},
            "optimizer": {"kind": "sgdm", "learning_rate": -1},
            "model": {"vocabulary": 5, "preset": 3, "layerz": 1},
        }
    )
    assert said.startswith("somewhere: 9 problems")
    for word in (
        "unknown",
        "stepz",
        "seed",
        "label_smoothing",
        "kind",
        "learning_rate",
        "preset",
        "layerz",
    ):
        assert word in said


@pytest.mark.parametrize(
    ("table", "key", "value", "wanted"),
    [
        ("training", "steps", 1.5, "a whole number"),
        ("training", "steps", True, "a whole number"),
        ("training", "steps", "many", "a whole number"),
        ("training", "recompute", 1, "true or false"),
        ("training", "device", 0, "a text"),
        ("optimizer", "learning_rate", "high", "a number"),
        ("optimizer", "learning_rate", True, "a number"),
        ("data", "train", 3.5, "a list of texts"),
        ("data", "train", 3, "a list of texts"),
        ("data", "train", ["a", 3], "a list of texts"),
    ],
)
def test_a_wrong_type_is_one_sentence(table, key, value, wanted):
    assert refused({table: {key: value}}).startswith(f"somewhere: [{table}] {key} must be {wanted}")


def test_a_wrong_word_is_answered_with_the_nearest():
    assert refused({"optimizer": {"kind": "adam"}}) == (
        "somewhere: [optimizer] kind cannot be 'adam'; did you mean 'adamw'?"
    )
    assert "kind cannot be ['adamw']; " in refused({"optimizer": {"kind": ["adamw"]}})


def test_a_whole_number_is_a_fine_number_and_a_text_a_list_of_one():
    settings = Settings().changed({"optimizer": {"peak": 1}, "data": {"train": "a b"}}, "")
    assert settings.optimizer.learning_rate == 1.0
    assert isinstance(settings.optimizer.learning_rate, float)
    assert settings.data.train == ("a b",)


RANGES: dict[tuple[str, str], Range] = {
    (table, key): rule.range
    for table, section in vars(Settings()).items()
    for key, rule in rules(type(section)).items()
    if rule.range
}


@pytest.mark.parametrize(("table", "key"), RANGES)
def test_every_range_holds_its_ends_and_nothing_beyond(table, key):
    least, most = RANGES[table, key].least, RANGES[table, key].most
    whole = isinstance(getattr(getattr(Settings(), table), key), int)
    step = 1 if whole else max(abs(most), 1) * 1e-3
    for fine in (least, most):
        changed = Settings().changed({table: {key: fine}}, "here")
        assert getattr(getattr(changed, table), key) == fine
    for beyond in (least - step, most + step, 10**400, *(() if whole else (math.nan, math.inf))):
        with pytest.raises(
            RegardError, match=rf"here: \[{table}\] {key} must be a (whole )?number from"
        ):
            Settings().changed({table: {key: beyond}}, "here")


@given(st.dictionaries(st.text(max_size=8), st.dictionaries(st.text(max_size=8), st.integers())))
def test_tables_of_nonsense_never_end_in_anything_but_one_error(tables):
    if all(not table for table in tables.values()) and {*tables} <= {*Settings().tables()}:
        assert Settings().changed(tables, "here") == Settings()
    else:
        with pytest.raises(RegardError, match="here: "):
            Settings().changed(tables, "here")


def test_wrong_model_fields_are_one_sentence_when_the_model_is_made():
    model = Settings().changed({"model": {"preset": "gpt2-tiny", "width": "wide"}}, "").model
    with pytest.raises(RegardError, match=r"width must be a whole number from 1 to .*, not 'wide'"):
        model.config()
    with pytest.raises(RegardError, match="dropout must be in"):
        ModelSettings("gpt2-tiny", {"dropout": math.nan}).config()
    with pytest.raises(RegardError, match="did you mean 'gpt2-tiny'"):
        ModelSettings("gpt2-tinny").config()


def test_a_rotary_scaling_is_a_table_and_false_is_none():
    table = {"kind": "linear", "factor": 4.0}
    asked = ModelSettings("llama-tiny", {"rotary_scaling": table}).config()
    assert asked.rotary_scaling == RotaryScaling(kind="linear", factor=4.0)
    without = ModelSettings("llama-3.2-1b", {"rotary_scaling": False}).config()
    assert without.rotary_scaling is None
    assert ModelSettings("llama-3.2-1b").config() == preset("llama-3.2-1b")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"facter": 2.0}, "there is no 'facter'; did you mean 'factor'"),
        ({"factor": "two"}, "factor must be a number"),
        ({"kind": "yarn"}, "kind cannot be 'yarn'"),
        (8.0, "rotary_scaling must be a RotaryScaling, not 8.0"),
        (True, "rotary_scaling must be"),
    ],
)
def test_a_wrong_rotary_scaling_is_one_sentence(given, said):
    with pytest.raises(RegardError, match=said):
        ModelSettings("llama-tiny", {"rotary_scaling": given}).config()

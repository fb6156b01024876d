"""Recipes extend one another, and `--set` reads what people type."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import RegardError
from regard.families.settings import Settings
from regard.models.transformer.presets import preset
from regard.runs import recipes


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_of_ours_is_valid_and_says_what_it_is(name):
    settings = recipes.load(name)
    assert settings != Settings()
    assert settings.model.config().layers > 0
    assert recipes.about(name)


def test_a_recipe_overrides_what_it_extends_and_inherits_the_rest(tmp_path):
    write(tmp_path / "base.toml", "[training]\nsteps = 5\nseed = 3\n[model]\npreset='gpt2-tiny'")
    write(tmp_path / "more" / "middle.toml", "extends = '../base.toml'\n[training]\nsteps = 6\n")
    last = write(tmp_path / "last.toml", "extends='more/middle.toml'\nabout='x'\n[model]\nlayers=1")
    settings = recipes.load(last)
    assert (settings.training.steps, settings.training.seed) == (6, 3)
    assert settings.model.preset == "gpt2-tiny"
    assert settings.model.changes == {"layers": 1}


def test_a_recipe_may_extend_one_of_ours_by_name(tmp_path):
    path = write(tmp_path / "mine.toml", "extends = 'shakespeare-char'\n[training]\nsteps = 2\n")
    ours, mine = recipes.load("shakespeare-char").tables(), recipes.load(path).tables()
    ours["training"]["steps"] = 2
    assert mine == ours


def test_paths_are_meant_from_the_recipe_and_not_from_where_one_stands(tmp_path, monkeypatch):
    write(tmp_path / "a" / "base.toml", "[training]\nsteps = 1\n")
    write(tmp_path / "b" / "base.toml", "[training]\nsteps = 2\n")
    mine = write(tmp_path / "a" / "mine.toml", "extends = 'base.toml'\n")
    lost = write(tmp_path / "c" / "lost.toml", "extends = 'base.toml'\n")
    monkeypatch.chdir(tmp_path / "b")
    assert recipes.load(mine).training.steps == 1
    with pytest.raises(RegardError, match=r"there is no recipe at .*c/base\.toml"):
        recipes.load(lost)


def test_recipes_that_extend_one_another_are_refused_however_they_spell_it(tmp_path):
    write(tmp_path / "r" / "a.toml", "extends = '../r/b.toml'\n")
    write(tmp_path / "r" / "b.toml", "extends = '../r/a.toml'\n")
    with pytest.raises(RegardError, match=r"extends itself: .*a\.toml → .*b\.toml → .*a\.toml"):
        recipes.load(str(tmp_path / "r" / "a.toml"))
    own = write(tmp_path / "own.toml", "extends = './own.toml'\n")
    with pytest.raises(RegardError, match="extends itself"):
        recipes.load(own)


def test_what_is_wrong_names_the_file_that_says_it(tmp_path):
    write(tmp_path / "base.toml", "[training]\nstepz = 5\n")
    path = write(tmp_path / "mine.toml", "extends = 'base.toml'\n[training]\nsteps = 3\n")
    with pytest.raises(RegardError, match=r"base\.toml: \[training\] has no key 'stepz'"):
        recipes.load(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("extends = 3", "extends must be the name of one recipe"),
        ("extends = ['a']", "extends must be the name of one recipe"),
        ("a = ", "not readable TOML"),
        ("x = " + "[" * 5000, "not readable TOML"),
        ("[training]\nsteps = " + "9" * 5000, "not readable TOML"),
        ("steps = 3", "there is no table [steps]"),
    ],
)
def test_a_broken_recipe_is_one_sentence(tmp_path, text, said):
    with pytest.raises(RegardError) as caught:
        recipes.load(write(tmp_path / "broken.toml", text))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_recipes_are_told_apart_by_how_they_were_named(tmp_path):
    with pytest.raises(RegardError, match="no recipe is called 'multi30'; did you mean 'multi30k'"):
        recipes.load("multi30")
    for lost in ("lost.toml", "some/lost", "a" * 5000 + "/b", "a\0b.toml"):
        with pytest.raises(RegardError):
            recipes.load(str(lost))
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(RegardError, match="not readable TOML"):
        recipes.load(str(tmp_path / "bad.toml"))
    loop = tmp_path / "loop.toml"
    os.symlink(loop, loop)
    with pytest.raises(RegardError, match="not readable TOML"):
        recipes.load(str(loop))


def test_a_folder_is_the_run_in_it(tmp_path):
    write(tmp_path / "run" / "run.toml", "[training]\nsteps = 4\n[versions]\ntorch = 'x'\n")
    assert recipes.load(str(tmp_path / "run")).training.steps == 4


@pytest.mark.parametrize(
    ("change", "table", "key", "value"),
    [
        ("training.steps=9", "training", "steps", 9),
        (" training.steps = 9 ", "training", "steps", 9),
        ("training.steps=1_000", "training", "steps", 1000),
        ("optimizer.learning_rate=3e-4", "optimizer", "learning_rate", 3e-4),
        ("optimizer.learning_rate=1", "optimizer", "learning_rate", 1.0),
        ("training.recompute=true", "training", "recompute", True),
        ("optimizer.kind=muon", "optimizer", "kind", "muon"),
        ("optimizer.kind='muon'", "optimizer", "kind", "muon"),
        ("data.train=some file.txt", "data", "train", ("some file.txt",)),
        ("data.train=a=b.txt", "data", "train", ("a=b.txt",)),
        ('data.train=["a b", "c"]', "data", "train", ("a b", "c")),
        ("data.train=2024", "data", "train", ("2024",)),
        ("data.train=2024-01-01", "data", "train", ("2024-01-01",)),
        ("data.train=notes # 1.txt", "data", "train", ("notes # 1.txt",)),
        ("tokenizer.file=/a/b c/tokenizer.json", "tokenizer", "file", "/a/b c/tokenizer.json"),
        ("tokenizer.file=true", "tokenizer", "file", "true"),
        ("tokenizer.file=", "tokenizer", "file", ""),
        ("model.preset=gpt2-tiny", "model", "preset", "gpt2-tiny"),
        ("training.device=cuda:1", "training", "device", "cuda:1"),
    ],
)
def test_a_change_is_read_as_its_setting_wants_it(change, table, key, value):
    changed = recipes.override(Settings(), [change])
    assert getattr(getattr(changed, table), key) == value


def test_changes_of_the_model_are_numbers_tables_and_words():
    changes = ["model.width=64", "model.tied=false", "model.rotary_scaling={factor = 2.0}"]
    model = recipes.override(Settings(), [*changes, "model.preset=llama-tiny"]).model
    config = model.config()
    assert (config.width, config.tied, config.rotary_scaling.factor) == (64, False, 2.0)
    assert config.layers == preset("llama-tiny").layers


def test_the_last_of_several_changes_counts_and_all_problems_are_told():
    assert (
        recipes.override(Settings(), ["training.steps=1", "training.steps=2"]).training.steps == 2
    )
    with pytest.raises(RegardError) as caught:
        recipes.override(
            Settings(), ["training.stepz=1", "training.seed=x", "optimizer.learning_rate=nan"]
        )
    assert str(caught.value).startswith("--set: 3 problems")


@pytest.mark.parametrize("change", ["", "steps", "steps=3", "training.=3", "=3", "training.steps"])
def test_a_change_without_table_key_and_value_is_told_how_to_write_it(change):
    with pytest.raises(RegardError, match=r"write it as table\.key=value"):
        recipes.override(Settings(), [change])


@given(st.text())
def test_any_text_in_quotes_or_not_is_that_text_or_a_refusal(text):
    quoted = '"' + "".join(f"\\U{ord(c):08X}" for c in text if not 0xD800 <= ord(c) < 0xE000) + '"'
    found = recipes.override(Settings(), [f"tokenizer.file={quoted}"]).tokenizer.file
    assert found == "".join(c for c in text if not 0xD800 <= ord(c) < 0xE000)
    plain = recipes.override(Settings(), [f"tokenizer.file=x{text}"]).tokenizer.file
    assert plain == f"x{text}".strip()


def test_a_value_of_several_lines_is_a_text_and_sets_nothing_else():
    change = "training.steps=1\ntraining.seed = 5"
    with pytest.raises(RegardError, match="steps must be a whole number"):
        recipes.override(Settings(), [change])

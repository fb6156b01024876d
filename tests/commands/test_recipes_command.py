"""`regard recipes`: what it lists is all there is, and true."""

import re
from dataclasses import fields

import pytest
from command_line import call

from regard.families.settings import Settings
from regard.models.construction import build
from regard.models.registry import FAMILIES, named, presets
from regard.runs import recipes


def listed(monkeypatch) -> dict[str, dict[str, str]]:
    """Each table's keys with their values as text."""
    monkeypatch.setenv("COLUMNS", "200")
    tables: dict[str, dict[str, str]] = {}
    for line in call("recipes", "--settings").out.splitlines():
        if found := re.match(r"\[(\w+)\]|  and in place .*, of ([\w-]+)", line):
            table = tables.setdefault(found[1] or f"model {found[2]}", {})
        elif found := re.match(r"  (\w+) = (\[\]|\"[^\"]*\"|\S+)", line):
            table[found[1]] = found[2]
    return tables


def test_every_recipe_is_listed_with_what_it_says_of_itself():
    said = call("recipes")
    words = " ".join(said.out.split())
    for name in recipes.names():
        assert recipes.about(name)
        assert f"{name} " in said.out
        assert recipes.about(name).split(";")[0] in words
    assert all(len(line) <= 80 for line in said.out.splitlines())


@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_loads_and_its_model_can_be_built(name):
    build(recipes.load(name).model.config(), "meta")


def test_every_setting_is_listed_once_and_as_its_default(monkeypatch):
    tables = {k: v for k, v in listed(monkeypatch).items() if not k.startswith("model ")}
    assert list(tables) == [f.name for f in fields(Settings)]
    for name, table in tables.items():
        if name != "model":
            assert list(table) == [f.name for f in fields(getattr(Settings(), name))]
    changes = [
        f"{t}.{k}={v}" for t, keys in tables.items() if t != "model" for k, v in keys.items()
    ]
    assert len(changes) > 40
    assert recipes.override(Settings(), changes) == Settings()


@pytest.mark.parametrize(
    ("listing", "name"),
    [
        ("gpt2", "llama-3-8b"),
        ("elman", "awd-lstm"),
        ("conv", "conv"),
        ("unigram", "trigram"),
        ("word2vec", "cbow"),
        ("bag-linear", "bag-linear"),
        ("captioner", "captioner-vit"),
    ],
)
def test_every_model_setting_that_is_listed_can_be_set_to_what_is_listed(
    monkeypatch, listing, name
):
    table = listed(monkeypatch)[f"model {listing}"]
    usual = type(named(name))()
    known = {f.name for f in fields(usual)} - {"vocabulary", "source_vocabulary"}
    assert table.keys() == known
    changes = [f"model.preset={name}", *(f"model.{key}={value}" for key, value in table.items())]
    config = recipes.override(Settings(), changes).model.config()
    assert all(getattr(config, key) == getattr(usual, key) for key in known)


def test_the_settings_of_every_family_are_listed(monkeypatch):
    firsts = [next(iter(presets(family).named)) for family in FAMILIES]
    assert [name for name in listed(monkeypatch) if name.startswith("model ")] == [
        f"model {first}" for first in firsts
    ]


def test_settings_fit_80_columns():
    assert all(len(line) <= 80 for line in call("recipes", "--settings").out.splitlines())

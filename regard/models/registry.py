"""The families of models: the one list of them, and what their names and settings stand for.

A family `NAME` is two places: `models/NAME/` has its settings (`config.py`), named models
(`presets.py`) and modules; `families/NAME.py` has its `FAMILY`, the object that tells everything
else what is peculiar to it. Both are imported when they are asked for.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from importlib import import_module

from regard.errors import RegardError, nearest
from regard.models.config import ModelConfig, Preset, Presets

FAMILIES = (
    "transformer",
    "recurrent",
    "convolution",
    "linear_recurrence",
    "counting",
    "word_vectors",
    "bag",
    "captioner",
)


@cache
def presets(family: str) -> Presets:
    """The named models of a family."""
    found: Presets = import_module(f"regard.models.{family}.presets").PRESETS
    return found


def defaults(family: str) -> ModelConfig:
    """The settings of a family's models as they are where nothing is chosen."""
    one = next(iter(presets(family).named.values()))
    return type(one.config)()


def all_presets() -> Mapping[str, Preset]:
    """All named models by name, but those that follow a pattern."""
    return {name: preset for family in FAMILIES for name, preset in presets(family).named.items()}


def names() -> Iterator[str]:
    """The names of models, some of those that follow a pattern among them."""
    for family in FAMILIES:
        yield from presets(family).names


def find(name: str) -> ModelConfig | None:
    """The settings that a model's name stands for, if there is such a model."""
    for family in FAMILIES:
        config = presets(family).find(name)
        if config is not None:
            return config
    return None


def named(name: str) -> ModelConfig:
    """The settings that a model's name stands for."""
    config = find(name)
    if config is None:
        raise RegardError(f"no model is called {name!r}; {nearest(name, list(names()))}")
    return config


def settings_of(name: str) -> list[str]:
    """What can be changed in a model of this name; in a Transformer, if there is no such model."""
    config = find(name) or named("gpt2")
    return [f.name for f in fields(config)]

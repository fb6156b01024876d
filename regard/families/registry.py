"""The object of each family."""

from functools import cache
from importlib import import_module

from regard.families.base import Family
from regard.models.config import ModelConfig


@cache
def family(name: str) -> Family:
    """What is peculiar to a family, by its name in `models/registry.py`."""
    found: Family = import_module(f"regard.families.{name}").FAMILY
    return found


def family_of(config: ModelConfig) -> Family:
    """What is peculiar to the family of a model."""
    return family(config.family)

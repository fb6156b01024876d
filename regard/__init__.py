"""Regard: sequence models from n-grams to Transformers, trained, measured, looked into, served."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from regard.errors import RegardError

if TYPE_CHECKING:
    from regard.inspection.tape import record
    from regard.loading import Model, build, ensemble, load, save
    from regard.models.registry import named as preset
    from regard.models.transformer.config import TransformerConfig

__all__ = [
    "Model",
    "RegardError",
    "TransformerConfig",
    "build",
    "ensemble",
    "load",
    "preset",
    "record",
    "save",
]
__version__ = "0.1.0"

# Where each name comes from. They are imported when they are asked for: torch takes a second or
# two, in which the command must already know what to do with Ctrl-C.
HOMES = {
    "Model": ("loading", "Model"),
    "TransformerConfig": ("models.transformer.config", "TransformerConfig"),
    "build": ("loading", "build"),
    "ensemble": ("loading", "ensemble"),
    "load": ("loading", "load"),
    "preset": ("models.registry", "named"),
    "record": ("inspection.tape", "record"),
    "save": ("loading", "save"),
}


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    module, known_there = HOMES[name]
    found = globals()[name] = getattr(import_module(f"regard.{module}"), known_there)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *HOMES})

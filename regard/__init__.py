"""Regard: sequence models from n-grams to Transformers, trained, measured, looked into, served."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from regard.errors import RegardError

if TYPE_CHECKING:
    from regard.api import TrainedRun, compare, cost, evaluate, train
    from regard.inspection.tape import record
    from regard.loading import Model, build, ensemble, load, save
    from regard.models.registry import named as preset
    from regard.models.transformer.config import TransformerConfig

__all__ = [
    "Model",
    "RegardError",
    "TrainedRun",
    "TransformerConfig",
    "build",
    "compare",
    "cost",
    "ensemble",
    "evaluate",
    "load",
    "preset",
    "record",
    "save",
    "train",
]
__version__ = "0.1.0"

# Where each name comes from. They are imported when they are asked for: torch takes a second or
# two, in which the command must already know what to do with Ctrl-C.
HOMES = {
    "Model": ("loading", "Model"),
    "TrainedRun": ("api", "TrainedRun"),
    "TransformerConfig": ("models.transformer.config", "TransformerConfig"),
    "build": ("loading", "build"),
    "compare": ("api", "compare"),
    "cost": ("api", "cost"),
    "ensemble": ("loading", "ensemble"),
    "evaluate": ("api", "evaluate"),
    "load": ("loading", "load"),
    "preset": ("models.registry", "named"),
    "record": ("inspection.tape", "record"),
    "save": ("loading", "save"),
    "train": ("api", "train"),
}


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    module, known_there = HOMES[name]
    found = globals()[name] = getattr(import_module(f"regard.{module}"), known_there)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *HOMES})

"""Regard: sequence models from n-grams to Transformers, trained, measured, looked into, served."""

from regard.errors import RegardError
from regard.inspection.tape import record
from regard.loading import Model, ensemble, load, save
from regard.models.config import TransformerConfig
from regard.models.families import build
from regard.models.families import named as preset

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

"""Small models to test with: every weight is drawn wide, so that no part of a pass is negligible.

(Freshly initialised, attention would be nearly uniform and a mistake in it nearly invisible.)
"""

from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from regard.models.construction import build
from regard.models.protocol import Memory
from regard.models.transformer.config import TransformerConfig
from regard.models.transformer.model import EncoderDecoder, Transformer
from regard.models.transformer.positions import SCHEMES
from regard.models.transformer.presets import preset

VOCABULARY = 256
NAMES = ("gpt2-tiny", "bert-tiny", "llama-tiny", "t5-tiny", "marian-tiny", "regard-2")

# Every tiny model that writes, and one of each kind with every position scheme.
WRITERS = [
    *(name for name in NAMES if name != "bert-tiny"),
    "regard-2-encoder-decoder",
    *(f"gpt2-tiny {scheme}" for scheme in SCHEMES if scheme != "learned"),
    *(f"t5-tiny {scheme}" for scheme in SCHEMES if scheme != "relative"),
]


def settings_of(case: str) -> TransformerConfig:
    """The settings of a case: a preset's name, and behind it a position scheme or nothing."""
    name, _, scheme = case.partition(" ")
    config = replace(preset(name), vocabulary=VOCABULARY)
    if name.startswith("regard"):
        config = replace(config, width=32, heads=4, hidden=64, context=64)
    return replace(config, positions=scheme) if scheme else config


def draw(model: Transformer, seed: int = 0) -> None:
    """Fill every parameter anew: norm scales around 1, all else around 0."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        centre = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        parameter.data = centre + 0.3 * noise


@cache
def tiny(case: str, dtype: torch.dtype = torch.float64, **changes: object) -> Transformer:
    """A model in evaluation mode, shared between tests: do not change it."""
    model = build(replace(settings_of(case), **changes))
    draw(model)
    return model.to(dtype).eval()


def ids(*shape: int, seed: int = 0) -> Tensor:
    """Random token ids, the same for the same shape and seed."""
    return torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def memory_of(model: Transformer, rows: int, lengths: list[int] | None = None) -> Memory | None:
    """A source for a model that reads one, else nothing; padding beyond `lengths` is garbage."""
    if not isinstance(model, EncoderDecoder):
        return None
    return model.encode(ids(rows, 5, seed=7), lengths)


def memory_of_row(model: Transformer, rows: int, row: int, length: int = 5) -> Memory | None:
    """What `memory_of` gives one row, read by itself and without padding."""
    if not isinstance(model, EncoderDecoder):
        return None
    return model.encode(ids(rows, 5, seed=7)[row : row + 1, :length])


def assert_same(one: Tensor, other: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)

"""A model in hand: loaded from a folder, looked at, saved again."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from regard.errors import RegardError
from regard.interchange.huggingface import load_folder, save_folder
from regard.models.config import TransformerConfig
from regard.models.transformer import Transformer


@dataclass(frozen=True)
class Model:
    """A module with its settings, and what came with it that the module has no use for."""

    module: Transformer
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> TransformerConfig:
        return self.module.config


def load(
    path: str | Path, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
) -> Model:
    """Load a Hugging Face folder of the GPT-2, BERT, Llama, T5 or Marian family.

    `load(path).module(tokens)` gives logits; for encoder–decoders
    `m.module(target, memory=m.module.encode(source))`. `dtype` None keeps the stored type.
    """
    folder = Path(path)
    if not _is_folder(folder):
        raise RegardError(f"{folder} is not a folder; give one with config.json and safetensors")
    if dtype is not None and not dtype.is_floating_point:
        raise RegardError(f"weights cannot be loaded as {dtype}; choose a floating-point type")
    module, extra = load_folder(folder, _device(device), dtype)
    return Model(module, extra)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # a name too long, or with a NUL in it
        return False


def _device(name: torch.device | str) -> torch.device:
    """A device that exists on this machine."""
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        reason = str(error).splitlines()[0]
        raise RegardError(f"device {str(name)!r} cannot be used here: {reason}") from None


def save(model: Model | Transformer, path: str | Path, shard_bytes: int = 5_000_000_000) -> None:
    """Write a model as a Hugging Face folder that `transformers` and `regard.load` read.

    Weights of more than `shard_bytes` are split over several files with an index.
    """
    if isinstance(model, Transformer):
        model = Model(model)
    save_folder(model.module, Path(path), model.extra, shard_bytes)

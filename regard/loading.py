"""A model in hand: loaded from a run or a folder, looked at, saved again."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from regard.errors import RegardError
from regard.interchange.huggingface import load_folder, save_folder
from regard.models.config import TransformerConfig
from regard.models.transformer import Transformer, usable
from regard.text.tokenizer import Tokenizer
from regard.training.runs import is_run, open_run

TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Model:
    """A module with its settings, and what it came with: a run's tokenizers, or a config.json."""

    module: Transformer
    extra: Mapping[str, Any] = field(default_factory=dict)  # `save` keeps its token ids
    tokenizer: Tokenizer | None = None  # of a run: of its text, or of the target of pairs
    source_tokenizer: Tokenizer | None = None  # of a run on pairs; often the same one

    @property
    def config(self) -> TransformerConfig:
        return self.module.config


def load(
    path: str | Path, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
) -> Model:
    """Load a run, or a Hugging Face folder of the GPT-2, BERT, Llama, T5 or Marian family.

    `load(path).module(tokens)` gives logits; for encoder–decoders
    `m.module(target, memory=m.module.encode(source))`. `dtype` None keeps the stored type.
    """
    folder = _path(path)
    if not is_folder(folder):
        raise RegardError(
            f"{folder} is not a folder; give a run, or one with config.json and safetensors"
        )
    if dtype is not None and dtype not in TYPES:
        known = ", ".join(str(kind) for kind in TYPES)
        raise RegardError(f"weights cannot be loaded as {dtype}; choose one of {known}")
    if is_run(folder):
        run = open_run(folder, usable(device))
        source = run.source_tokenizer if run.config.kind == "encoder-decoder" else None
        return Model(run.module.to(dtype), {}, run.tokenizer, source)
    module, extra = load_folder(folder, usable(device), dtype)
    return Model(module, extra)


def _path(given: object) -> Path:
    if not isinstance(given, str | Path):
        raise RegardError(f"a path must be a string or a Path, not a {type(given).__name__}")
    return Path(given)


def is_folder(path: Path) -> bool:
    """Whether there is such a folder; impossible names are none."""
    try:
        return path.is_dir()
    except (OSError, ValueError):  # a name too long, or with a NUL in it
        return False


def save(model: Model | Transformer, path: str | Path, shard_bytes: int = 5_000_000_000) -> None:
    """Write a model as a Hugging Face folder that `transformers` and `regard.load` read.

    Weights of more than `shard_bytes` are split over several files with an index.
    """
    model = getattr(model, "_orig_mod", model)  # a compiled module wraps the real one
    if isinstance(model, Transformer):
        model = Model(model)
    if not isinstance(model, Model):
        raise RegardError(f"save needs a model, then a path; a {type(model).__name__} is no model")
    if model.module.embed.tokens.weight.is_meta:
        raise RegardError("a model on the meta device has no weights to save")
    save_folder(model.module, _path(path), model.extra, shard_bytes)

"""A run's folder: settings, tokenizers and weights, written once and opened again.

run.toml               the resolved settings and versions; as a recipe it repeats the run
tokenizer.json         of the text, or of both sides of pairs, or of the target
source_tokenizer.json  of the source, where the vocabularies are separate
model.safetensors      the weights to use: averaged, best or last
log.jsonl, checkpoints/
"""

import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import tomli_w
import torch
from torch import Tensor

from regard.errors import Problems, RegardError
from regard.models.config import TransformerConfig
from regard.models.transformer import Transformer, build, usable
from regard.storage import TensorFolder, replacing, write_tensors
from regard.text.tokenizer import Tokenizer
from regard.training import recipes
from regard.training.settings import ModelSettings, Settings

RUN, TOKENIZER, SOURCE_TOKENIZER = "run.toml", "tokenizer.json", "source_tokenizer.json"


@dataclass(frozen=True)
class Run:
    """A trained run in hand."""

    folder: Path
    settings: Settings
    tokenizer: Tokenizer
    source_tokenizer: Tokenizer  # the same one where the vocabulary is shared
    module: Transformer

    @property
    def config(self) -> TransformerConfig:
        return self.module.config


def is_run(folder: Path) -> bool:
    return (folder / RUN).is_file()


def open_run(folder: Path, device: torch.device | str = "cpu") -> Run:
    """A run's model, ready to use."""
    if not is_run(folder):
        raise RegardError(f"{folder} is no run (it has no {RUN}); `regard train` makes one")
    if not (folder / "model.safetensors").is_file():
        raise RegardError(f"{folder} has no model.safetensors yet: its training did not end")
    settings = recipes.load(str(folder / RUN))
    tokenizer, source = _tokenizers(folder)
    module = build(config_for(settings.model, tokenizer, source), usable(device))
    _fill(module, TensorFolder(folder))
    return Run(folder, settings, tokenizer, source, module.eval())


def config_of(folder: Path) -> TransformerConfig:
    """The settings of a run's model, without its weights."""
    return config_for(recipes.load(str(folder / RUN)).model, *_tokenizers(folder))


def check_data(folder: Path, digest: str) -> None:
    """Refuse data that is not what a run was trained on: its held-out part would be another."""
    known = recipes.beside(str(folder / RUN)).get("versions", {}).get("data")
    if known and known != digest:
        raise RegardError(
            f"the data of {folder} has changed since it was trained, so what it held out is gone; "
            "name some data to evaluate it on"
        )


def _tokenizers(folder: Path) -> tuple[Tokenizer, Tokenizer]:
    """The target's and the source's, which may be the same."""
    tokenizer = Tokenizer.load(folder / TOKENIZER)
    separate = (folder / SOURCE_TOKENIZER).is_file()
    return tokenizer, Tokenizer.load(folder / SOURCE_TOKENIZER) if separate else tokenizer


def _fill(module: Transformer, tensors: TensorFolder) -> None:
    """Read every weight, and say all that does not fit."""
    problems = Problems(str(tensors.folder))
    wanted = dict(module.named_parameters())
    for name in sorted(wanted.keys() ^ tensors.keys()):
        problems.add(f"tensor {name} is {'missing' if name in wanted else 'not of this model'}")
    for name in sorted(wanted.keys() & tensors.keys()):
        shape = tuple(wanted[name].shape)
        problems.require(
            tensors.shapes[name] == shape,
            f"tensor {name} has shape {tensors.shapes[name]}, not {shape}",
        )
    problems.report()
    with torch.no_grad():
        for name, weight in wanted.items():
            weight.copy_(tensors[name])


def config_for(model: ModelSettings, tokenizer: Tokenizer, source: Tokenizer) -> TransformerConfig:
    """The model's settings with the vocabularies that the tokenizers have."""
    separate = 0 if source is tokenizer else len(source)
    return model.config(vocabulary=len(tokenizer), source_vocabulary=separate)


def spelled_out(model: ModelSettings, config: TransformerConfig) -> ModelSettings:
    """Every setting of a model by name, so that a run does not depend on what presets become."""
    values = {
        f.name: getattr(config, f.name)
        for f in fields(config)
        if f.name not in ("vocabulary", "source_vocabulary")
    }
    scaling = config.rotary_scaling
    values["rotary_scaling"] = False if scaling is None else asdict(scaling)
    return ModelSettings(model.preset, values)


def write_run(
    folder: Path,
    settings: Settings,
    config: TransformerConfig,
    tokenizers: list[Tokenizer],
    digest: str = "",
) -> None:
    """Begin a run's folder: settings and tokenizers (the target's, then a separate source's).

    `digest` names the data, so that what was held out can be told from what has changed since.
    """
    settings = replace(settings, model=spelled_out(settings.model, config))
    tables: dict[str, Any] = {"versions": {**versions(), "data": digest}, **settings.tables()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / RUN) as partial:
            partial.write_text(tomli_w.dumps(tables), encoding="utf-8")
        for name, tokenizer in zip((TOKENIZER, SOURCE_TOKENIZER), tokenizers, strict=False):
            tokenizer.save(folder / name)
    except (OSError, UnicodeEncodeError) as error:  # a file may have a name that is no UTF-8
        raise RegardError(f"cannot write the run to {folder}: {error}") from None


def write_weights(folder: Path, weights: Mapping[str, Tensor]) -> None:
    """The weights, by name, that `generate`, `evaluate` and the rest will use."""
    try:
        write_tensors(weights, folder, shard_bytes=1 << 62)
    except OSError as error:
        raise RegardError(f"cannot write the weights to {folder}: {error}") from None


def versions() -> dict[str, str]:
    """What a run was made with."""
    found = {"python": platform.python_version(), "torch": torch.__version__}
    for name in ("regard", "tokenizers", "tiktoken", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    if commit := _git("rev-parse", "HEAD"):
        found["git"] = commit + (" with changes" if _git("status", "--porcelain") else "")
    return found


def _git(*words: str) -> str:
    """What git says of the folder one works in; nothing without git."""
    try:
        asked = subprocess.run(["git", *words], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stdout.strip() if asked.returncode == 0 else ""

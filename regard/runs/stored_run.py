"""A run's folder: settings, tokenizers and weights, written once and opened again.

run.toml               the resolved settings and versions; as a recipe it repeats the run
tokenizer.json         of the text, or of both sides of pairs, or of the target
source_tokenizer.json  of the source, where the vocabularies are separate
model.safetensors      the weights to use: averaged, best or last
log.jsonl, status.json, checkpoints/
"""

import hashlib
import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w
import torch
from torch import Tensor

from regard.errors import RegardError
from regard.families.registry import family_of
from regard.families.settings import ModelSettings, Settings
from regard.models.config import ModelConfig
from regard.models.construction import usable
from regard.models.network import BaseModel, SequenceModule
from regard.runs import recipes
from regard.runs.run_folder import RUN, SOURCE_TOKENIZER, TOKENIZER, WEIGHTS, is_run
from regard.runs.versions import versions
from regard.storage import make_folder, no_room, sweep, write_together
from regard.storage.tensors import write_tensors
from regard.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Run:
    """A trained run in hand."""

    folder: Path
    settings: Settings
    tokenizer: Tokenizer
    source_tokenizer: Tokenizer  # the same one where the vocabulary is shared
    module: BaseModel

    @property
    def config(self) -> ModelConfig:
        return self.module.config

    def check_data(self, digest: str) -> None:
        """Refuse data that is not what the run was trained on."""
        check_data(self.folder, digest)

    @property
    def writer(self) -> SequenceModule:
        """The model, if it answers the protocol."""
        if not isinstance(self.module, SequenceModule):
            raise RegardError(
                f"{self.folder} holds word vectors, which neither write nor judge texts; "
                "`regard words` looks at them"
            )
        return self.module


def open_run(folder: Path, device: torch.device | str = "cpu") -> Run:
    """A run's model, ready to use; nothing is believed before it was checked."""
    if not is_run(folder):
        what = "`regard train` makes one"
        if (folder / "config.json").is_file():
            what = "a Hugging Face folder takes token ids, from Python: regard.load(path)"
        raise RegardError(f"{folder} is no run (it has no {RUN}); {what}")
    if not os.path.lexists(folder / WEIGHTS):
        raise RegardError(
            f"{folder} has no {WEIGHTS}, which the end of training writes: train it to its end, or "
            "put the file back if it had one (`regard runs` tells)"
        )
    settings = settings_of(folder)
    tokenizer, source = _tokenizers(folder)
    config = _config(folder, settings, tokenizer, source)
    module = family_of(config).load(config, folder, usable(device))
    return Run(folder, settings, tokenizer, source, module.eval())


def config_of(folder: Path) -> ModelConfig:
    """The settings of a run's model, without its weights."""
    return _config(folder, settings_of(folder), *_tokenizers(folder))


def _config(
    folder: Path, settings: Settings, tokenizer: Tokenizer, source: Tokenizer
) -> ModelConfig:
    try:
        return config_for(settings.model, tokenizer, source)
    except RegardError as error:
        raise RegardError(f"{folder / RUN}: {error}") from None


def settings_of(folder: Path) -> Settings:
    """A run's settings, which must be as they were written."""
    known, tables = _noted(folder).get("settings"), recipes.tables(str(folder / RUN))
    if not tables or (known is not None and known != _digest(tables)):
        raise RegardError(
            f"{folder / RUN} is not what was written when the run was trained; put it back, or use "
            "it as a recipe to train another"
        )
    return recipes.load(str(folder / RUN))


def is_ours(folder: Path) -> bool:
    """True if training made this run and it is as it was written, so that it may be begun anew."""
    try:
        if not is_run(folder):
            return False
        settings_of(folder)
        tokenizers_of(folder)
        return bool(_noted(folder))
    except RegardError:
        return False


def _noted(folder: Path) -> Mapping[str, Any]:
    """What a run was made with and from."""
    found = recipes.beside(str(folder / RUN)).get("versions")
    return found if isinstance(found, Mapping) else {}


def _digest(tables: Mapping[str, Any]) -> str:
    """Names all that a run.toml says but versions, and where the data lies: that may move."""
    said = {**_unplaced(tables), "asked": _unplaced(tables.get("asked"))}
    said.pop("versions", None)
    text = json.dumps(said, sort_keys=True, default=str)  # TOML has dates
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _unplaced(tables: Any) -> Any:
    """Tables of settings without the names of files."""
    data = tables.get("data") if isinstance(tables, Mapping) else None
    if not isinstance(data, Mapping):
        return tables
    named = ("train", "valid")
    return {**tables, "data": {key: data[key] for key in data if key not in named}}


def check_data(folder: Path, digest: str) -> None:
    """Refuse data that is not what a run was trained on: its held-out part would be another."""
    known = _noted(folder).get("data")
    if known and known != digest:
        raise RegardError(
            f"the data of {folder} has changed since it was trained, so what it held out is gone; "
            "name some data to evaluate it on"
        )


def tokenizers_of(folder: Path) -> list[Tokenizer]:
    """The tokenizers of a run: the target's, and the source's where it is another."""
    target, source = _tokenizers(folder)
    return [target] if source is target else [target, source]


def _tokenizers(folder: Path) -> tuple[Tokenizer, Tokenizer]:
    """The target's and the source's, which may be the same."""
    noted = _noted(folder)
    tokenizer = _tokenizer(folder / TOKENIZER, noted.get("tokenizer"))
    known = noted.get("source_tokenizer")
    if known is None and not os.path.lexists(folder / SOURCE_TOKENIZER):
        return tokenizer, tokenizer
    return tokenizer, _tokenizer(folder / SOURCE_TOKENIZER, known)


def _tokenizer(path: Path, known: object) -> Tokenizer:
    """A tokenizer, if it is the `known` one; runs from before they were noted do not say."""
    tokenizer = Tokenizer.load(path)
    if known is not None and known != tokenizer.fingerprint:
        raise RegardError(
            f"{path} is not the tokenizer that the run was trained with; put that one back"
        )
    return tokenizer


def config_for(model: ModelSettings, tokenizer: Tokenizer, source: Tokenizer) -> ModelConfig:
    """The model's settings with the vocabularies that the tokenizers have."""
    separate = 0 if source is tokenizer else len(source)
    return model.config(vocabulary=len(tokenizer), source_vocabulary=separate)


def spelled_out(model: ModelSettings, config: ModelConfig) -> ModelSettings:
    """Every setting of a model by name, so that a run does not depend on what presets become."""
    return ModelSettings(model.preset, config.spelled())


def write_run(
    folder: Path,
    settings: Settings,
    config: ModelConfig,
    tokenizers: list[Tokenizer],
    digest: str = "",
    asked: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Begin a run's folder: settings and tokenizers (the target's, then a separate source's).

    `digest` names the data, so that what was held out can be told from what has changed since;
    `asked` are the tables of what was given before all was decided.
    """
    settings = replace(settings, model=spelled_out(settings.model, config))
    by_file = dict(zip((TOKENIZER, SOURCE_TOKENIZER), tokenizers, strict=False))
    tables = {**settings.tables(), **({} if asked is None else {"asked": _plain(asked)})}
    written = tomllib.loads(tomli_w.dumps(tables))  # lists for tuples
    noted = {**versions(), "data": digest, "settings": _digest(written)}
    noted |= {name.removesuffix(".json"): known.fingerprint for name, known in by_file.items()}
    texts = {folder / RUN: tomli_w.dumps({"versions": noted, **tables})}
    texts |= {folder / name: known.spelled() for name, known in by_file.items()}
    try:
        make_folder(folder)
        sweep(folder)
        write_together(texts)
    except OSError as error:
        reason = no_room(error, folder, sum(map(len, texts.values())))
        raise RegardError(f"cannot write the run to {folder}: {reason}") from None
    except UnicodeEncodeError as error:  # a file may have a name that is no UTF-8
        raise RegardError(f"cannot write the run to {folder}: {error}") from None


def _plain(value: Any) -> Any:
    """A setting as TOML has it: it knows no None, which false stands for."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return False if value is None else value


def write_weights(folder: Path, weights: Mapping[str, Tensor]) -> None:
    """The weights, by name, that `generate`, `evaluate` and the rest will use."""
    try:
        sweep(folder)
        write_tensors(weights, folder, shard_bytes=1 << 62)
    except OSError as error:
        needed = sum(weight.nbytes for weight in weights.values())
        reason = no_room(error, folder, needed)
        raise RegardError(f"cannot write the weights to {folder}: {reason}") from None

"""Read and write Hugging Face model folders (config.json + safetensors)."""

import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import Problems, RegardError, nearest
from regard.interchange.huggingface import FAMILIES, FolderFamily
from regard.interchange.huggingface.family import ConfigReader, TensorRule
from regard.models.construction import build
from regard.models.transformer.config import TransformerConfig
from regard.models.transformer.model import Transformer
from regard.storage import make_folder, read_json
from regard.storage.tensors import (
    FLOATS,
    TensorFolder,
    check_finite,
    former_files,
    widest,
    write_tensors,
)

HEAD, POOLER = "cls.predictions.transform.dense.weight", "bert.pooler.dense.weight"  # of BERT
# Settings that do not change what a trained model computes, and need not survive.
TRAINING_ONLY = ("dropout", "attention_dropout", "activation_dropout", "initialisation")


def load_folder(
    folder: Path, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
) -> tuple[Transformer, dict[str, Any]]:
    """The module a folder holds, in eval mode, and the rest of its config (token ids and such).

    Everything missing, unexpected or misshapen is named at once, before a weight is read.
    `dtype` None keeps the stored type.
    """
    family, config, tensors, settings = open_folder(folder)
    module = build(config, "meta")
    state = _gather(family, module, tensors)
    dtype = dtype or widest(state)
    state = {name: tensor.to(device=device, dtype=dtype) for name, tensor in state.items()}
    module.load_state_dict(state, assign=True)
    return module.eval(), settings


def open_folder(
    folder: Path,
) -> tuple[FolderFamily, TransformerConfig, TensorFolder, dict[str, Any]]:
    """A folder's family, our config for it, its tensors by their canonical names, its config."""
    found = read_json(folder / "config.json")
    kind = str(found.get("model_type"))
    if kind not in FAMILIES:
        raise RegardError(
            f"{folder / 'config.json'}: model type {kind!r} is not one that Regard reads; "
            f"{nearest(kind, FAMILIES)}"
        )
    family, tensors = FAMILIES[kind], TensorFolder(folder)
    try:
        tensors.rename(family.canonical(list(tensors)))
    except RegardError as error:
        raise RegardError(f"{folder}: {error}") from None
    problems = Problems(str(folder / "config.json"))
    arguments = family.read(ConfigReader(found, problems), tensors, _own_head(family, tensors))
    problems.report()
    try:
        config = TransformerConfig(**arguments).resolved()
    except RegardError as error:
        raise RegardError(f"{folder / 'config.json'}: {error}") from None
    return family, config, tensors, found


def _own_head(family: FolderFamily, tensors: TensorFolder) -> bool:
    """Whether a folder has an output matrix that differs from the embedding."""
    embedding = next((name for name in family.embedding if name in tensors), None)
    if family.head not in tensors or embedding is None:
        return False
    if tensors.shapes[family.head] != tensors.shapes[embedding]:
        return True
    return not torch.equal(tensors[family.head], tensors[embedding])


def _gather(family: FolderFamily, module: Transformer, tensors: TensorFolder) -> dict[str, Tensor]:
    """Our tensors from theirs, after the names and shapes of all have been checked."""
    ours = {name: tuple(p.shape) for name, p in module.named_parameters()}
    rules = list(family.rules(module.config))
    problems, used = Problems(str(tensors.folder)), set()
    for rule in rules:
        for name, shape in zip(rule.theirs, _shapes(rule, ours[rule.ours]), strict=True):
            used.add(name)
            if name not in tensors:
                problems.add(f"tensor {name} {shape} is missing")
            elif tensors.shapes[name] != shape:
                problems.add(f"tensor {name} should be {shape} but is {tensors.shapes[name]}")
            elif tensors.kinds[name] not in FLOATS:
                problems.add(f"tensor {name} holds {tensors.kinds[name]}, not floating point")
        for name in tensors.keys() & set(rule.copies):
            used.add(name)
            main = rule.theirs[0]
            same = main not in tensors or torch.equal(tensors[name], tensors[main])
            problems.require(same, f"tensor {name} should equal {main} but differs from it")
    for name in sorted(set(tensors) - used):
        if not re.fullmatch(family.unneeded, name):
            problems.add(f"tensor {tensors.stored(name)} is unexpected")
    problems.report()
    return {rule.ours: _finite(rule, tensors) for rule in rules}


def _shapes(rule: TensorRule, ours: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The shapes their tensors must have to make up one of ours."""
    if rule.row:
        return [(1, *ours)]
    if rule.transposed:
        return [ours[::-1]]
    return [(size, *ours[1:]) for size in rule.sizes or ours[:1]]


def _finite(rule: TensorRule, tensors: TensorFolder) -> Tensor:
    """Our tensor, if all that it is made of are numbers."""
    found = _join(rule, tensors)
    try:
        check_finite(" or ".join(map(tensors.stored, rule.theirs)), found)
    except ValueError as error:
        raise RegardError(f"{tensors.folder}: {error}; fetch it again") from None
    return found


def _join(rule: TensorRule, tensors: Mapping[str, Tensor]) -> Tensor:
    parts = [tensors[name] for name in rule.theirs]
    if rule.row:
        return parts[0][0]
    if rule.transposed:
        return parts[0].T.contiguous()
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _part(rule: TensorRule, tensor: Tensor) -> dict[str, Tensor]:
    if rule.row:
        return {rule.theirs[0]: tensor[None]}
    if rule.transposed:
        return {rule.theirs[0]: tensor.T}
    if rule.write_copies:
        return {name: tensor.clone() for name in (*rule.theirs, *rule.copies)}
    parts = tensor.split(rule.sizes) if rule.sizes else (tensor,)
    return dict(zip(rule.theirs, parts, strict=True))


def config_of_folder(folder: Path) -> TransformerConfig:
    """The model of a Hugging Face folder, whether or not its weights are there."""
    path = folder / "config.json"
    if any(folder.glob("*.safetensors")) or not path.is_file():
        return open_folder(folder)[1]
    found = read_json(path)
    kind = str(found.get("model_type"))
    if kind not in FAMILIES:
        raise RegardError(f"{path}: model type {kind!r} is not one that Regard reads")
    # Only of BERT's do tensors tell what parts there are; its architecture tells too.
    names = [HEAD, *([POOLER] if "BertForPreTraining" in str(found.get("architectures")) else [])]
    problems = Problems(str(path))
    arguments = FAMILIES[kind].read(ConfigReader(found, problems), names, own_head=False)
    problems.report()
    return TransformerConfig(**arguments).resolved()


def savable(module: object) -> Transformer:
    """The module, if a folder can hold it."""
    if not isinstance(module, Transformer):
        raise RegardError("a Hugging Face folder holds a Transformer; this model is not one")
    return module


def save_folder(
    module: Transformer,
    folder: Path,
    extra: Mapping[str, Any] | None = None,
    shard_bytes: int = 5_000_000_000,
) -> None:
    """Write a folder that `transformers` loads; `extra` is config of no concern to the module."""
    config = module.config
    family = family_of(config)
    pad = min(config.vocabulary, config.source_vocabulary or config.vocabulary) - 1
    ids = {"pad_token_id": pad, "decoder_start_token_id": pad}
    kept = {key: value for key, value in (extra or {}).items() if key.endswith("_token_id")}
    settings = {"model_type": family.name, "dtype": str(_dtype(module)).removeprefix("torch.")}
    settings |= (ids if family.name == "marian" else {}) | family.write(config) | kept
    state = dict(module.named_parameters())
    tensors: dict[str, Tensor] = {}
    for rule in family.rules(config):
        tensors |= _part(rule, state[rule.ours].detach())
    try:
        make_folder(folder)
        write_tensors(tensors, folder, shard_bytes, former_files(folder), settings)
    except (OSError, ValueError) as error:  # a NUL in the path is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise RegardError(f"cannot write {folder}: {reason}") from None


def _dtype(module: Transformer) -> torch.dtype:
    return module.embed.tokens.weight.dtype


def family_of(config: TransformerConfig) -> FolderFamily:
    """The family whose folders can express this config, found by writing and reading it back."""
    nearest_misses = []
    for family in FAMILIES.values():
        differing = _lost(family, config)
        if not differing:
            return family
        nearest_misses.append((len(differing), family.name, differing))
    _, name, differing = min(nearest_misses)
    what = ", ".join(f"{key} = {getattr(config, key)!r}" for key in differing)
    raise RegardError(
        f"no Hugging Face family that Regard writes can hold this model; the nearest, {name}, "
        f"cannot express {what}"
    )


def _lost(family: FolderFamily, config: TransformerConfig) -> list[str]:
    """The settings that do not survive being written as this family's config and read back."""
    ignored = {*TRAINING_ONLY, *config.inert()}
    keys = [field.name for field in fields(config) if field.name not in ignored]
    # Some settings are told from the tensors' names when reading; these are the ones written.
    names = {name for rule in family.rules(config) for name in rule.theirs}
    written = ConfigReader(family.write(config), Problems(family.name))
    try:
        back = TransformerConfig(**family.read(written, names, not config.tied)).resolved()
    except RegardError:
        return keys
    return [key for key in keys if getattr(config, key) != getattr(back, key)]

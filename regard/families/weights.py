"""Weights on disk and the modules they are of: nothing is believed before it was checked."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from regard.errors import Problems, RegardError
from regard.families.file_names import RUN, WEIGHTS
from regard.models.config import ModelConfig
from regard.models.construction import build
from regard.models.network import BaseModel
from regard.storage import shown, size
from regard.storage.tensors import FLOATS, TensorFolder, check_finite, verified

NAMED = 8  # tensors that are missing or too many are named one by one


def filled(config: ModelConfig, folder: Path, device: torch.device) -> BaseModel:
    """The model with the weights of a folder, of which memory is taken when all of it fits."""
    tensors = TensorFolder(folder)
    layers = config.depth
    if layers > len(tensors):  # told before so many are made, even without memory for weights
        raise RegardError(
            f"{folder}: {RUN} has {layers} layers but {WEIGHTS} only {len(tensors)} tensors; one "
            "of them is of another run"
        )
    module = build(config, "meta")
    wanted = {name: tuple(weight.shape) for name, weight in module.named_parameters()}
    check_fit(wanted, tensors)
    needed = 4 * sum(weight.numel() for weight in module.parameters())
    if needed > (there := _memory(device)):
        raise RegardError(
            f"{folder}: its weights take {size(needed)} of memory and {device} has {size(there)}; "
            "use another device or machine"
        )
    module.load_state_dict(dict(_weights(folder / WEIGHTS, device)), assign=True)
    return module


def _weights(path: Path, device: torch.device) -> Iterator[tuple[str, Tensor]]:
    """A run's weights by name, all of which are numbers."""
    for name, weight in verified(path):
        kept = weight.to(device, torch.float32)
        try:
            check_finite(name, kept)
        except ValueError as error:
            raise RegardError(f"{path}: {error}; train it again, or put the file back") from None
        yield name, kept


def check_fit(wanted: Mapping[str, tuple[int, ...]], tensors: TensorFolder) -> None:
    """Say all that does not fit; if that is nearly everything, what it comes to."""
    missing, strange = sorted(wanted.keys() - tensors.keys()), sorted(tensors.keys() - wanted)
    if len(missing) + len(strange) > NAMED:
        parts = [
            f"{len(names)} tensors {what}, such as {shown(names[0])}"
            for names, what in ((missing, "are missing"), (strange, "are not of this model"))
            if names
        ]
        raise RegardError(
            f"{tensors.folder}: its weights are of another model than {RUN} says: "
            f"{', and '.join(parts)}; if an older Regard made it, train it anew"
        )
    problems = Problems(str(tensors.folder))
    for name in sorted(wanted.keys() ^ tensors.keys()):
        what = "missing" if name in wanted else "not of this model"
        problems.add(f"tensor {shown(name)} is {what}")
    for name in sorted(wanted.keys() & tensors.keys()):
        shape, kind = tensors.shapes[name], tensors.kinds[name]
        fits = shape == wanted[name]
        problems.require(fits, f"tensor {name} has shape {shape}, not {wanted[name]}")
        if name.endswith((".keys", ".logprobs", ".backoffs")):  # of a table
            given = "I64" if name.endswith(".keys") else "F32"
            problems.require(kind == given, f"tensor {name} holds {kind}, not {given}")
        else:
            problems.require(kind in FLOATS, f"tensor {name} holds {kind}, not floating point")
    problems.report()


def _memory(device: torch.device) -> int:
    """All bytes that a device has."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

"""Files that are there whole or not at all: safetensors, in one file or in shards, and JSON.

Only safetensors are opened, never a pickle. Names and shapes are read from the headers, so that a
folder can be judged whole before any weight is loaded.
"""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from regard.errors import Problems, RegardError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
WRITTEN = r"model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?"
FLOATS = ("F64", "F32", "F16", "BF16")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, or one sentence about what is wrong with it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RegardError(f"{path.parent} has no {path.name}") from None
    except (OSError, ValueError, RecursionError) as error:  # bad UTF-8 and JSON are ValueErrors
        raise RegardError(f"{path} is not readable JSON: {error}") from None
    if not isinstance(found, dict):
        raise RegardError(f"{path} must hold a JSON object, not a {type(found).__name__}")
    return found


class TensorFolder(Mapping[str, Tensor]):
    """The tensors of a folder by name; reading one reads only that one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.kinds: dict[str, str] = {}
        self._stored: dict[str, tuple[Any, str]] = {}  # name -> open file, name in it
        problems = Problems(str(folder))
        for name in _files(folder):
            self._open(folder / name, problems)
        problems.report()

    def _open(self, path: Path, problems: Problems) -> None:
        try:
            opened = safe_open(path, "pt")
            names = opened.keys()
        except FileNotFoundError:
            problems.add(f"{path.name} is missing")
            return
        except (SafetensorError, OSError) as error:
            problems.add(f"{path.name} is damaged or cut off ({error}); fetch or write it again")
            return
        for name in names:
            view = opened.get_slice(name)
            problems.require(name not in self.shapes, f"tensor {name} is in two files")
            self.shapes[name], self.kinds[name] = tuple(view.get_shape()), view.get_dtype()
            self._stored[name] = opened, name

    def rename(self, names: Mapping[str, str]) -> None:
        """Know each tensor `names[new]` of the folder as `new` from now on."""
        self._stored = {new: self._stored[old] for new, old in names.items()}
        self.shapes = {new: self.shapes[old] for new, old in names.items()}
        self.kinds = {new: self.kinds[old] for new, old in names.items()}

    def stored(self, name: str) -> str:
        """The name a tensor has in its file, for messages."""
        return self._stored[name][1]

    def __getitem__(self, name: str) -> Tensor:
        opened, stored = self._stored[name]
        return opened.get_tensor(stored)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def _files(folder: Path) -> list[str]:
    """The safetensors files that make up a folder's weights."""
    if (folder / SINGLE).exists():
        return [SINGLE]
    if (folder / INDEX).exists():
        places = read_json(folder / INDEX).get("weight_map")
        if not isinstance(places, dict) or not places:
            raise RegardError(f"{folder / INDEX} has no `weight_map`")
        names = sorted({str(name) for name in places.values()})
        for name in names:
            if Path(name).name != name or not name.endswith(".safetensors"):
                raise RegardError(f"{folder / INDEX} names {name!r}, which is no file beside it")
        return names
    if pickled := sorted(p.name for p in folder.glob("*.bin")):
        raise RegardError(
            f"{folder} holds {pickled[0]}, a pickle, which can run code when opened; convert it "
            "once, where you trust it, with transformers: "
            "AutoModel.from_pretrained(folder).save_pretrained(folder, safe_serialization=True)"
        )
    raise RegardError(f"{folder} has no {SINGLE} (nor {INDEX})")


def write_tensors(tensors: Mapping[str, Tensor], folder: Path, shard_bytes: int) -> None:
    """Write tensors into a folder: one file, or shards of up to `shard_bytes` with an index."""
    shards: list[dict[str, Tensor]] = [{}]
    room = shard_bytes
    for name, tensor in tensors.items():
        if tensor.nbytes > room and shards[-1]:
            shards.append({})
            room = shard_bytes
        shards[-1][name] = tensor
        room -= tensor.nbytes
    names = [SINGLE]
    if len(shards) > 1:
        count = len(shards)
        names = [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
    for name, shard in zip(names, shards, strict=True):
        _write_file({key: _whole(tensor) for key, tensor in shard.items()}, folder / name)
    if len(shards) > 1:
        places = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
        total = sum(tensor.nbytes for tensor in tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": places}
        write_json(index, folder / INDEX)
    kept = {*names, INDEX} if len(shards) > 1 else {*names}
    for path in folder.iterdir():  # what an earlier save left in other shards
        if re.fullmatch(WRITTEN, path.name) and path.name not in kept:
            path.unlink()


def _whole(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=False).contiguous()


def _write_file(tensors: dict[str, Tensor], path: Path) -> None:
    with replacing(path) as partial:
        write_safetensors(tensors, partial)


# The names of torch's types in the format.
STORED = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def write_safetensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write contiguous tensors in main memory as one safetensors file.

    The library's own writer took 1.0–1.2 s for 384 MB where this takes 0.3 s.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    place = 0
    for name, tensor in tensors.items():
        header[name] = {
            "dtype": STORED[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [place, place + tensor.nbytes],
        }
        place += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the numbers start at a multiple of 8 bytes
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(tensor.reshape(-1).view(torch.uint8).numpy().data)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Another name to write to first, then moved to `path`; on failure nothing is left behind.

    A model may have been loaded from, and still map, the very file that is replaced.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        yield partial
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


@contextmanager
def building(folder: Path) -> Iterator[Path]:
    """Another folder to write to, which becomes `folder` once it is whole and on the disk."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        yield partial
        for path in partial.rglob("*"):
            if path.is_file():
                _sync(path)
        try:
            os.replace(partial, folder)
        except OSError:  # somebody else made the same folder meanwhile
            if not folder.exists():
                raise
        _sync(folder.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _sync(path: Path) -> None:
    """Wait until a file or a folder's names are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(content: Mapping[str, Any], path: Path) -> None:
    """Write a JSON object, so that a reader sees the old file or the new one."""
    with replacing(path) as partial:
        partial.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def widest(tensors: Mapping[str, Tensor]) -> torch.dtype:
    """The smallest type that holds every tensor's values."""
    kinds = {tensor.dtype for tensor in tensors.values()}
    result = kinds.pop()
    for kind in kinds:
        result = torch.promote_types(result, kind)
    return result

"""Tensors in safetensors files, with checksums in those that we write.

Names and shapes are read from the headers, so that a folder can be judged whole before any weight
is loaded.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from regard.errors import Problems, RegardError, UnreadableError
from regard.storage.disk_space import size
from regard.storage.reading import opened, parse_json, read_json, shown
from regard.storage.writing import json_text, replacing, sync

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
CONFIG = "config.json"
WRITTEN = r"model(-\d{5}-of-\d{5})?\.safetensors"
FLOATS = ("F64", "F32", "F16", "BF16")
PIECE = 1 << 20  # bytes of a file that are read and looked at together
HEADER = 16 << 20  # bytes of names and shapes, for some 100,000 tensors


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
            with opened(path) as file:
                _header(file)  # not too large for the library to be asked
            source = safe_open(path, "pt")
            names = source.keys()
        except FileNotFoundError as error:
            check_missing(path, error)
            problems.add(f"{path.name} is missing")
            return
        except OSError as error:
            raise UnreadableError(path, error) from None
        except (SafetensorError, ValueError) as error:
            problems.add(f"{path.name} {_damaged(error)}")
            return
        except (RuntimeError, MemoryError) as error:  # of torch, which maps the file
            problems.add(f"{path.name} cannot be mapped into memory ({error})")
            return
        for name in names:
            view = source.get_slice(name)
            problems.require(name not in self.shapes, f"tensor {shown(name)} is in two files")
            self.shapes[name], self.kinds[name] = tuple(view.get_shape()), view.get_dtype()
            self._stored[name] = source, name

    def rename(self, names: Mapping[str, str]) -> None:
        """Know each tensor `names[new]` of the folder as `new` from now on."""
        self._stored = {new: self._stored[old] for new, old in names.items()}
        self.shapes = {new: self.shapes[old] for new, old in names.items()}
        self.kinds = {new: self.kinds[old] for new, old in names.items()}

    def stored(self, name: str) -> str:
        """The name a tensor has in its file, for messages."""
        return self._stored[name][1]

    def __getitem__(self, name: str) -> Tensor:
        source, stored = self._stored[name]
        return source.get_tensor(stored)

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


def write_tensors(
    tensors: Mapping[str, Tensor],
    folder: Path,
    shard_bytes: int,
    former: Iterable[str] = (),
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Write tensors into a folder: one file, or shards of up to `shard_bytes` with an index.

    `settings` go to config.json beside them. The `former` files are another model's: where some
    would be there together with some of these, they and their settings go first, so that for a
    moment the folder holds no model.
    """
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
    texts = {}
    if settings is not None:
        texts[CONFIG] = json_text(settings)
    if len(shards) > 1:
        places = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
        total = sum(tensor.nbytes for tensor in tensors.values())
        texts[INDEX] = json_text({"metadata": {"total_size": total}, "weight_map": places})
    with ExitStack() as named_last, ExitStack() as named_first:
        for name, text in texts.items():
            unnamed = named_last.enter_context(replacing(folder / name))
            unnamed.write_text(text, encoding="utf-8")
        for name, shard in zip(names, shards, strict=True):
            unnamed = named_first.enter_context(replacing(folder / name))
            write_safetensors({key: _whole(tensor) for key, tensor in shard.items()}, unnamed)
            sync(unnamed)
        _make_way(folder, {*former}, {*names, *texts}, texts.get(CONFIG, ""))


def _make_way(folder: Path, former: set[str], names: set[str], config: str) -> None:
    """Remove an earlier model, its config.json first, unless one file alone changes.

    Between two renames there would be weights of one model with the settings of another.
    """
    there = folder / CONFIG
    same = not config or (there.is_file() and there.read_bytes() == config.encode())
    if former and not (same and former == {SINGLE} == names - {CONFIG}):
        if config:
            there.unlink(missing_ok=True)
            sync(folder)
        for name in former:
            (folder / name).unlink(missing_ok=True)


def strange_files(folder: Path) -> list[str]:
    """The files of a folder's weights, and its index, that another program wrote."""
    sealed = _sealed_files(folder)
    index = [INDEX] if (folder / INDEX).is_file() and not sealed else []
    return index + [path.name for path in _weights(folder) if path.name not in sealed]


def former_files(folder: Path) -> set[str]:
    """The files that a folder's weights are read from, and all that were written here."""
    found = {*_sealed_files(folder)}
    with suppress(RegardError):  # there are none
        found |= {*_files(folder)}
    return found | ({INDEX} if found - {SINGLE} else set())


def _sealed_files(folder: Path) -> list[str]:
    return [path.name for path in _weights(folder) if _is_sealed(path)]


def _weights(folder: Path) -> list[Path]:
    there = sorted(folder.iterdir()) if folder.is_dir() else []
    return [path for path in there if re.fullmatch(WRITTEN, path.name) and path.is_file()]


def _is_sealed(path: Path) -> bool:
    """Whether a file has a header that was written here; its numbers are not looked at."""
    try:
        with opened(path) as file:
            text = _header(file)
        return _sums(text, parse_json(text).pop("__metadata__", None) or {}) is not None
    except (OSError, ValueError, AttributeError, TypeError):
        return False


def _whole(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=False).contiguous()


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
KINDS = {name: kind for kind, name in STORED.items()}
NONE = torch.empty(0)


def write_safetensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write contiguous tensors in main memory as one safetensors file with checksums.

    The checksums stand in the header's metadata, which other programs leave alone. The library's
    writer (0.8) takes as long, but puts its metadata in any order, so that no header has a seal
    and no two files are alike; gives files to their owner alone; and has no errno for a full disk.
    """
    # The largest elements first, so that each tensor starts at a multiple of its element's size.
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())
    entries: dict[str, Any] = {}
    sums, place = {}, 0
    for name, tensor in ordered:
        kind, shape = STORED[tensor.dtype], list(tensor.shape)
        offsets = [place, place + tensor.nbytes]
        entries[name] = {"dtype": kind, "shape": shape, "data_offsets": offsets}
        sums[name] = _checksum(name, kind, shape, [_bytes(tensor)])
        place += tensor.nbytes
    # The seal is first: nothing before it can look like its blank.
    notes = {"format": "pt", "seal": BLANK.decode(), "checksums": json.dumps(sums)}
    text = json.dumps({"__metadata__": notes, **entries}).encode()
    text += b" " * (-len(text) % 8)  # the numbers start at a multiple of 8 bytes
    text = text.replace(BLANK, _seal(text), 1)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in ordered:
            file.write(_bytes(tensor))


def _bytes(tensor: Tensor) -> memoryview:
    if not tensor.numel():  # which may have any strides
        return memoryview(b"")
    return tensor.reshape(-1).view(torch.uint8).numpy().data


BLANK = b"0" * 32  # where a header's seal stands while the seal is worked out


def _seal(header: bytes) -> bytes:
    """A checksum of a header, itself left blank, for what no tensor's checksum is about."""
    return hashlib.blake2b(header, digest_size=16).hexdigest().encode()


def _checksum(name: str, kind: str, shape: list[int], data: Iterable[bytes | memoryview]) -> str:
    """Of a tensor's name, type, shape and bytes."""
    found = hashlib.blake2b(json.dumps([name, kind, shape]).encode(), digest_size=16)
    for part in data:
        found.update(part)
    return found.hexdigest()


Look = Callable[[str, Tensor], None]


def verify(path: Path, look: Look | None = None) -> None:
    """Refuse a safetensors file that is not as it was written, by its checksums.

    A file without any, from another program, passes if the library can open it. In the same pass
    `look` is shown each tensor's name and numbers (any,) in pieces; its ValueErrors refuse too.
    """
    for _ in _walk(path, keep=False, look=look):
        pass


def verified(path: Path) -> Iterator[tuple[str, Tensor]]:
    """The tensors of such a file with their names, each in memory of its own, read once."""
    return _walk(path, keep=True)


def check_finite(name: str, tensor: Tensor) -> None:
    """Refuse weights that no model can count with, by a ValueError."""
    if not is_finite(tensor):
        raise ValueError(f"tensor {shown(name)} has numbers that are not finite")


def is_finite(tensor: Tensor) -> bool:
    """True if all numbers are; 14 ms for 30 million, where isfinite takes 240 and a copy 150."""
    if not (tensor.is_floating_point() and tensor.numel()):
        return True
    low, high = tensor.detach().aminmax()  # NaN is both
    return bool(low.isfinite() and high.isfinite())


def _walk(path: Path, keep: bool, look: Look | None = None) -> Iterator[tuple[str, Tensor]]:
    """All tensors of a file as they are found to be what was written; if not kept, empty ones."""
    try:
        with opened(path) as file:
            text = _header(file)
            with safe_open(path, "np"):  # it refuses offsets that overlap or leave the file
                header = parse_json(text)
            sums = _sums(text, header.pop("__metadata__", None) or {})
            for name, entry in header.items() if keep or look or sums is not None else ():
                kind, shape = entry["dtype"], entry["shape"]
                first, last = entry["data_offsets"]
                tensor = _room(name, kind, shape) if keep else NONE
                file.seek(8 + len(text) + first)
                data = _chunks(file, last - first, _bytes(tensor) if keep else None)
                if look is not None:
                    data = _shown(data, KINDS[kind], partial(look, name))
                found = _checksum(name, kind, shape, data)
                if sums is not None and name not in sums:
                    raise ValueError(f"tensor {shown(name)} has no checksum")
                if sums is not None and found != sums[name]:
                    raise ValueError(f"tensor {shown(name)} is not what was written")
                yield name, tensor
    except FileNotFoundError as error:
        check_missing(path, error)
        raise RegardError(f"{path.parent} has no {path.name}") from None
    except (OSError, MemoryError) as error:
        raise UnreadableError(path, error) from None
    except (SafetensorError, ValueError, RecursionError) as error:
        raise RegardError(f"{path} {_damaged(error)}") from None


def _room(name: str, kind: str, shape: list[int]) -> Tensor:
    """Memory for a tensor that is to be read."""
    if kind not in KINDS:
        raise ValueError(f"tensor {shown(name)} holds {kind}, which torch has no type for")
    return torch.empty(shape, dtype=KINDS[kind])


def _sums(text: bytes, notes: dict[str, Any]) -> dict[str, Any] | None:
    """The checksum of each tensor, if there are any, by a header that is what was written."""
    if not notes.keys() & {"seal", "checksums"}:
        return None
    seal = notes.get("seal", "").encode()
    if len(seal) != len(BLANK) or _seal(text.replace(seal, BLANK, 1)) != seal:
        raise ValueError("its header is not what was written")
    sums = parse_json(notes.get("checksums", "{}").encode())
    if not isinstance(sums, dict):
        raise ValueError("its checksums are no object")
    return sums


def _chunks(file: IO[bytes], count: int, into: memoryview | None) -> Iterator[memoryview]:
    """The next bytes of a file, a few at a time; `into` is where all of them shall stay.

    They are read and not mapped: a file that is cut off meanwhile would kill whoever maps it, and
    what is mapped counts as memory beside its copy.
    """
    kept = into is not None
    buffer = into if into is not None else memoryview(bytearray(min(count, PIECE)))
    while count:
        got = file.readinto(buffer[: min(count, PIECE)])  # type: ignore[attr-defined]
        if not got:
            raise ValueError("it ends too early")
        yield buffer[:got]
        buffer = buffer[got:] if kept else buffer
        count -= got


def _shown(
    data: Iterable[memoryview], kind: torch.dtype, look: Callable[[Tensor], None]
) -> Iterator[memoryview]:
    """Yield the same bytes, and show `look` the numbers that they encode."""
    for part in data:
        look(torch.frombuffer(part, dtype=kind))
        yield part


def _header(file: IO[bytes]) -> bytes:
    """The names and shapes of a safetensors file, as JSON, if they are there."""
    there = os.fstat(file.fileno()).st_size - 8
    length = int.from_bytes(file.read(8), "little")
    if length > there:
        raise ValueError("it ends in its header")
    if length > HEADER:
        raise ValueError(f"its header has {size(length)}, more than the {size(HEADER)} it may have")
    return file.read(length)


def check_missing(path: Path, error: Exception) -> None:
    """Refuse a file that is there all the same: the library calls it missing if opening fails."""
    if os.path.lexists(path):
        raise UnreadableError(path, error)


def _damaged(error: Exception) -> str:
    return f"is damaged or cut off ({error}); fetch or write it again"


def widest(tensors: Mapping[str, Tensor]) -> torch.dtype:
    """The smallest type that holds every tensor's values."""
    kinds = {tensor.dtype for tensor in tensors.values()}
    result = kinds.pop()
    for kind in kinds:
        result = torch.promote_types(result, kind)
    return result

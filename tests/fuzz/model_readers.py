"""Readers of models: tensors, folders of Hugging Face, counts, word vectors."""

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import good
import torch
from patching import Reader, or_refusal, patched, put

import regard
from regard.commands import arpa
from regard.interchange.huggingface.folder import config_of_folder
from regard.interchange.word_vectors import read_vectors
from regard.runs import stored_run
from regard.storage import tensors
from regard.storage.tensors import TensorFolder, verified, verify

WEIGHTS = "model.safetensors"

# Tensors


def weights(data: bytes, folder: Path) -> None:
    """A safetensors file, read in each way there is."""
    path = put(folder / "weights" / WEIGHTS, data)
    for how in (verify, lambda path: list(verified(path)), _every_tensor):
        or_refusal(how, path)


def _every_tensor(path: Path) -> None:
    found = TensorFolder(path.parent)
    for name in found:
        assert tuple(found[name].shape) == found.shapes[name]


def header(data: bytes, folder: Path) -> None:
    """Any header over 24 bytes."""
    weights(good.stored(data, bytes(24)), folder)


def sealed_header(data: bytes, folder: Path) -> None:
    """A good header with changes, and then the checksums that belong to it."""
    entries = patched(good.header(), data)
    if not isinstance(entries, dict):
        return
    notes = entries.pop("__metadata__", {})
    sums = {name: _sum(name, entry) for name, entry in entries.items()}
    told = {"seal": tensors.BLANK.decode(), "checksums": json.dumps(sums)}
    told |= notes if isinstance(notes, dict) else {}
    text = json.dumps({"__metadata__": told, **entries}).encode()
    if isinstance(told["seal"], str) and told["seal"] == tensors.BLANK.decode():
        text = text.replace(tensors.BLANK, tensors._seal(text), 1)
    weights(good.stored(text, bytes(24)), folder)


def _sum(name: str, entry: Any) -> str:
    try:
        first, last = entry["data_offsets"]
        return tensors._checksum(name, entry["dtype"], entry["shape"], [bytes(24)[first:last]])
    except (TypeError, ValueError, KeyError):
        return ""


def index(data: bytes, folder: Path) -> None:
    """An index of two shards."""
    path = folder / "shards"
    for place in ("one", "two"):
        text = json.dumps({place: good.header()["b"] | {"data_offsets": [0, 8]}}).encode()
        put(path / f"{place}.safetensors", good.stored(text, bytes(8)))
    base = {"weight_map": {"one": "one.safetensors", "two": "two.safetensors"}}
    put(path / tensors.INDEX, patched(base, data))
    _every_tensor(path / WEIGHTS)


def family(name: str) -> Reader:
    """A Hugging Face folder whose config.json has changes, asked for the score of a text."""

    def read(data: bytes, folder: Path) -> None:
        path = good.family(name)
        content = patched(json.loads(CONFIGS.setdefault(name, config_of(path))), data)
        put(path / "config.json", content)
        or_refusal(config_of_folder, path)
        model = regard.load(path)
        sources = [[3, 4]] if name in ("t5", "marian") else None
        model.embed([[3, 4]]) if name == "bert" else model.score([[3, 4]], sources=sources)

    return read


CONFIGS: dict[str, str] = {}


def config_of(path: Path) -> str:
    return (path / "config.json").read_text()


def config(data: bytes, folder: Path) -> None:
    """Any config.json, without weights."""
    path = put(folder / "config" / "config.json", data).parent
    or_refusal(regard.load, path)
    config_of_folder(path)


# Counts and vectors


def table(data: bytes, folder: Path) -> None:
    """The numbers of an n-gram table, with the checksums that belong to them, then a text."""
    path, found = good.counting_run(), {}
    for name, tensor in good.counted().items():
        some, data = data[: tensor.nbytes], data[tensor.nbytes :]
        raw = some + tensor.numpy().tobytes()[len(some) :]
        found[name] = torch.frombuffer(bytearray(raw), dtype=tensor.dtype)
    tensors.write_safetensors(found, path / WEIGHTS)
    model = regard.load(path)
    or_refusal(model.score, ["a cab"])
    or_refusal(lambda: model.generate("a", max_tokens=4))
    target = folder / "table.arpa"
    table = stored_run.open_run(path).module.table
    arpa.write_arpa(table, good.tokenizer().vocabulary.tokens, target)


def arpa_file(data: bytes, folder: Path) -> None:
    """An ARPA file becomes a run, which is asked for the score of a text."""
    path = folder / "imported"
    shutil.rmtree(path, ignore_errors=True)
    arpa._imported(put(folder / "file.arpa", data), path)
    regard.load(path).score(["a b"])


def packed_arpa(data: bytes, folder: Path) -> None:
    arpa_file(gzip.compress(data, 1, mtime=0), folder)


def vectors(data: bytes, folder: Path) -> None:
    found = read_vectors(put(folder / "vectors", data))
    found.nearest(found.words[0], 3)
    found.similarity(found.words[0], found.words[-1])


def packed_vectors(data: bytes, folder: Path) -> None:
    vectors(gzip.compress(data, 1, mtime=0), folder)

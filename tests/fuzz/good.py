"""Files as they should be, small, for fuzzing to begin from; each is made once in a process."""

import atexit
import io
import json
import os
import shutil
import struct
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import regard
from regard.costs.device.ceilings import CALLS, COPY, Device, Grid
from regard.costs.jobs import Counted, Shape
from regard.costs.jobs import read as read_job
from regard.data.readers.texts import gather
from regard.data.token_files import prepare
from regard.families.settings import ModelSettings, Settings
from regard.inspection.word_table import WordTable
from regard.models.construction import build
from regard.models.counting.estimate import estimate, smoothing
from regard.models.counting.model import NGramConfig, tensors_of
from regard.runs import stored_run
from regard.text.learning import learn
from regard.text.specials import BOS, EOS
from regard.text.tokenizer import Tokenizer

TEXT = "a cab, a bad cab"
TINY = {"width": 8, "heads": 1, "hidden": 8, "context": 8, "layers": 1}
MEMORY = Path("/dev/shm")
FAMILIES = ("gpt2", "bert", "llama", "t5", "marian")
FIGURES = {
    "quality": {"loss": 1.5, "perplexity": 4.5, "tokens": 9, "bits_per_byte": 1.0, "rules": ""},
    "context": {"tokens": [1, 2], "loss": [2.0, 1.5], "targets": 3},
    "lengths": {"positions": [[1, 1], [2, 3]], "loss": [2.0, 1.5]},
    "cost": {
        "lengths": [64, 128],
        "flops": [1.0, 2.0],
        "seconds": [0.1, 0.2],
        "step_flops": [1.0, 1.0],
        "step_seconds": [0.1, 0.1],
        "state_bytes": [8, 16],
    },
    "speed": {"1": 10.0, "16": 100.0},
    "samples": {"given": ["a"], "written": ["b"]},
    "memory": {"weights": 10, "optimizer": 20},
}


@cache
def folder() -> Path:
    """A folder of this process, in memory where there is such a place; it goes with the process.

    A fuzzer's process ends without a word to Python: whoever starts it names the folder, and clears
    it away.
    """
    if given := os.environ.get("FUZZ_FOLDER"):
        return Path(given)
    made = tempfile.TemporaryDirectory(prefix="fuzz-", dir=MEMORY if MEMORY.is_dir() else None)
    atexit.register(made.cleanup)
    return Path(made.name)


@cache
def tokenizer(kind: str = "char") -> Tokenizer:
    return learn(kind, [TEXT + "\n "], 262 if kind == "bpe" else 0)


@cache
def spelled(kind: str) -> Any:
    """A tokenizer.json as the values it holds."""
    return json.loads(tokenizer(kind).spelled())


@cache
def run() -> Path:
    """A run's folder with all it has, after one that was never trained."""
    torch.manual_seed(0)
    path, settings = folder() / "run", Settings()
    settings = settings.changed({"training": {"context": 8, "device": "cpu"}}, "here")
    settings = _with_model(settings, "gpt2-tiny", TINY)
    config = stored_run.config_for(settings.model, tokenizer(), tokenizer())
    asked = {"training": {"steps": 3}}
    stored_run.write_run(path, settings, config, [tokenizer()], "digest", asked)
    stored_run.write_weights(path, dict(build(config).named_parameters()))
    return path


def _with_model(settings: Settings, preset: str, changes: Mapping[str, Any]) -> Settings:
    return replace(settings, model=ModelSettings(preset, dict(changes)))


@cache
def tables() -> dict[str, Any]:
    """What stands in that run's run.toml."""
    return tomllib.loads((run() / "run.toml").read_text())


@cache
def counted() -> dict[str, torch.Tensor]:
    """The arrays of a 3-gram table."""
    ids = np.array([BOS, 5, 6, 5, 7, EOS, BOS, 5, 6, EOS])
    table = estimate(ids, 3, len(tokenizer()), BOS, smoothing("add-k", 1.0), never=(0, 4))
    return tensors_of(table)


@cache
def counting_run() -> Path:
    """The run of an n-gram model."""
    path, tokens = folder() / "counting", tokenizer()
    config = NGramConfig(len(tokens), 3)
    settings = _with_model(Settings(), "ngram", {"order": 3})
    stored_run.write_run(path, settings, config, [tokens], "digest")
    stored_run.write_weights(path, counted())
    return path


@cache
def place() -> dict[str, Any]:
    """A place.json without its checksum."""
    about = {"settings": Settings().tables(), "data": "digest", "tokenizers": ["one"]}
    files = {kind: [f"{kind}.safetensors"] for kind in ("model", "optimizer")}
    here = {"step": 4, "turn": 0, "order": "", "tokens": 9, "seconds": 1.0, "best_loss": 2.0}
    here |= {"best_step": 4, "waited": 0, "due": False, "regular": True, "log": 0, "cuts": 0}
    found = {"format": 1, "place": here, "about": about, "files": files, "rows": {}}
    return json.loads(json.dumps(found))


@cache
def device() -> dict[str, Any]:
    """A small calibration."""
    grid, line = Grid(((1, 8), (1,), (1,)), (1e9, 2e9)), Grid(((1, 64),), (1e9, 2e9))
    each = {"float32": grid}
    found = Device(
        "here", "cpu", "made up", 1 << 30, each, each, each, each, {}, {COPY: line}, CALLS, 1e-6
    )
    return json.loads(json.dumps(found.to_json()))


@cache
def job() -> Counted:
    """What a tiny model does, for a device to be asked about."""
    config = regard.preset("gpt2-tiny")
    return read_job(replace(config, **TINY), Shape(1, 2))


@cache
def family(name: str) -> Path:
    """A Hugging Face folder."""
    torch.manual_seed(0)
    path = folder() / name
    config = replace(regard.preset(f"{name}-tiny"), vocabulary=12, width=8, hidden=8, context=8)
    config = replace(config, layers=1, heads=1, kv_heads=1 if name == "llama" else 0)
    regard.save(regard.build(config), path)
    return path


@cache
def prepared() -> Path:
    """The token cache of a text, both parts."""
    text = folder() / "text.txt"
    text.write_text(TEXT * 4)
    prepare(gather([text], held_out=0.3), tokenizer(), cache=folder() / "cache")
    return next((folder() / "cache").glob("tokens-*"))


def words() -> WordTable:
    return WordTable(["a", "b", "c", "d"], np.eye(4, 3, dtype=np.float32) + 0.1)


def picture(kind: str, mode: str = "RGB") -> bytes:
    """A small PNG or JPEG file."""
    pixels = np.arange(9 * 10 * 4, dtype=np.uint8).reshape(9, 10, 4)
    file = io.BytesIO()
    Image.fromarray(pixels, "RGBA").convert(mode).save(file, kind)
    return file.getvalue()


def header() -> dict[str, Any]:
    """A safetensors header without its metadata, for 24 bytes of numbers."""
    return {
        "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
        "b": {"dtype": "I64", "shape": [1], "data_offsets": [16, 24]},
    }


def stored(text: bytes, body: bytes) -> bytes:
    """A safetensors file of such a header."""
    return struct.pack("<Q", len(text)) + text + body


def fresh(name: str, made: Path) -> Path:
    """A copy of a good folder, to be spoiled."""
    path = folder() / name
    shutil.rmtree(path, ignore_errors=True)
    return Path(shutil.copytree(made, path, symlinks=True))

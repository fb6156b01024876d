"""A run's folder may come from anybody: whatever is in it, opening it ends soon, in one sentence.

All are opened by one process that may take little more memory than opening a good run takes.
"""

import json
import math
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from hostile_files import NORMALIZER, WEIGHTS, header, sparse
from safetensors.torch import load_file, save_file
from small_runs import small_run

from regard.models.construction import build
from regard.runs.stored_run import config_of

Harm = Callable[[Path], object]


def settings(**changes: Any) -> Harm:
    """Other settings of the model, in a run from before they were noted."""

    def harm(folder: Path) -> None:
        tables = tomllib.loads((folder / "run.toml").read_text())
        del tables["versions"]
        tables["model"] |= changes
        (folder / "run.toml").write_text(tomli_w.dumps(tables))

    return harm


def text(name: str, content: str) -> Harm:
    return lambda folder: (folder / name).write_text(content)


def toml(content: str, at_end: bool = True) -> Harm:
    def harm(folder: Path) -> None:
        settings()(folder)
        path = folder / "run.toml"
        path.write_text(path.read_text() + content if at_end else content + path.read_text())

    return harm


def tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Harm:
    def harm(folder: Path) -> None:
        found = load_file(folder / WEIGHTS)
        change(found)
        save_file(found, folder / WEIGHTS)

    return harm


def tokenizer(change: Callable[[dict[str, Any]], object]) -> Harm:
    """Another tokenizer.json, in a run from before its fingerprint was noted."""

    def harm(folder: Path) -> None:
        settings()(folder)
        found = json.loads((folder / "tokenizer.json").read_text())
        change(found)
        (folder / "tokenizer.json").write_text(json.dumps(found))

    return harm


def linked(name: str, to: str) -> Harm:
    def harm(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(to)

    return harm


def fifo(name: str) -> Harm:
    def harm(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return harm


def immense(folder: Path) -> None:
    """Settings and weights that agree on some terabytes, of which the disk holds none."""
    settings(width=2**16, hidden=2**22, heads=2**10)(folder)
    shapes = {n: list(w.shape) for n, w in build(config_of(folder), "meta").named_parameters()}
    ends = list(accumulate(4 * math.prod(shape) for shape in shapes.values()))
    header(
        {
            n: ["F32", s, [a, b]]
            for (n, s), a, b in zip(shapes.items(), [0, *ends], ends, strict=False)
        }
    )(folder)
    os.truncate(folder / WEIGHTS, (folder / WEIGHTS).stat().st_size - 8 + ends[-1])


# what: (how a folder is harmed, what is said of it)
CASES: dict[str, tuple[Harm, str]] = {
    "10^9 layers": (
        settings(layers=10**9),
        "run.toml: model settings: layers must be a whole number from 1 to 1,024",
    ),
    "10^9 wide": (settings(width=10**9), "width must be a whole number from 1 to 1,048,576"),
    "context of 10^9": (
        settings(context=10**9),
        "context must be a whole number from 1 to 67,108,864",
    ),
    "1024 layers": (settings(layers=1024), "run.toml has 1024 layers but model.safetensors only"),
    "wide and many": (settings(width=2**20, hidden=2**22, heads=2**14), "has shape"),
    "a giant number": (toml("x = 0x" + "f" * 10**6), "a number of more than 300 digits"),
    "vocabulary": (settings(vocabulary=10**9), "vocabulary is the tokenizer's"),
    "deep arrays": (toml("x = " + "[" * 10**5), "run.toml is not readable TOML"),
    "deep tables": (toml("x = " + "{x=" * 10**5), "run.toml is not readable TOML"),
    "deep keys": (toml("x" + ".x" * 10**5 + " = 1"), "a line with too many dots"),
    "a deep header": (toml("[x" + ".x" * 10**5 + "]"), "a line with too many dots"),
    "many keys under a header": (
        toml("[x" + ".x" * 3000 + "]\n" + "".join(f"k{n}.x = 1\n" for n in range(10**5))),
        "a line with too many dots",
    ),
    "many tables": (toml("".join(f"[t{n}]\n" for n in range(10**4))), "more than the 2,000"),
    "a long key": (toml("x" * 10**6 + " = 1"), "a text of more than 16,384 characters"),
    "a gigabyte of blanks": (sparse("run.toml", 1 << 30), "run.toml is not readable TOML: it has"),
    "versions that are none": (toml("versions = 3\n", at_end=False), ""),
    "settings from a device": (toml('extends = "/dev/zero"\n', False), "not a regular file"),
    "settings from themselves": (toml('extends = "run.toml"\n', False), "extends itself"),
    "settings in a FIFO": (fifo("run.toml"), "is no run"),
    "settings in a circle": (linked("run.toml", "run.toml"), "is no run"),
    "another shape": (
        tensors(lambda found: found.update({"embed.tokens.weight": torch.zeros(3, 16)})),
        "tensor embed.tokens.weight has shape (3, 16), not",
    ),
    "a tensor too few": (tensors(dict.popitem), "is missing"),
    "a tensor too many": (
        tensors(lambda found: found.update({"../../x": torch.zeros(1)})),
        "tensor ../../x is not of this model",
    ),
    "names to be afraid of": (
        tensors(lambda found: found.update({"\0\x1b[31m\n": torch.zeros(1)})),
        r"tensor '\x00\x1b[31m\n'… is not of this model",
    ),
    "a name of a megabyte": (
        tensors(lambda found: found.update({"x" * 10**6: torch.zeros(1)})),
        f"tensor '{'x' * 60}'… is not of this model",
    ),
    "100,000 tensors": (
        header({f"{n}": ["F32", [0], [0, 0]] for n in range(10**5)}, data=0),
        "100000 tensors are not of this model, such as",
    ),
    "weights beyond all memory": (immense, "model.safetensors cannot be mapped into memory ("),
    "whole numbers": (
        tensors(lambda found: found.update({n: t.to(torch.int32) for n, t in found.items()})),
        "holds I32, not floating point",
    ),
    "overlapping": (
        header({"a": ["F32", [2], [0, 8]], "b": ["F32", [2], [4, 12]]}, data=12),
        "model.safetensors is damaged or cut off",
    ),
    "out of range": (header({"a": ["F32", [2], [0, 2**62]]}), "is damaged or cut off"),
    "shapes beyond 64 bits": (header({"a": ["F32", [2**40] * 4, [0, 8]]}), "is damaged or cut off"),
    "a header of 2^40": (sparse(WEIGHTS, 1 << 31, start=2**40), "it ends in its header"),
    "a header of 90 MB": (sparse(WEIGHTS, 1 << 30, start=90 << 20), "its header has 94.4 MB"),
    "a deep header in JSON": (header({"a": "DEEP"}), "is damaged or cut off"),
    "weights in a FIFO": (fifo(WEIGHTS), "it is not a regular file"),
    "weights from a device": (linked(WEIGHTS, "/dev/zero"), "it is not a regular file"),
    "weights in a circle": (linked(WEIGHTS, WEIGHTS), "has no model.safetensors"),
    "no tokenizer": (text("tokenizer.json", "[]"), "tokenizer.json cannot be used"),
    "a deep tokenizer": (text("tokenizer.json", '{"model":' * 10**5), "cannot be used"),
    "a huge tokenizer": (sparse("tokenizer.json", 513 << 20), "more than the 536.9 MB it may"),
    "a tokenizer in a FIFO": (fifo("tokenizer.json"), "it is not a regular file"),
    "a tokenizer from a device": (linked("tokenizer.json", "/dev/zero"), "not a regular file"),
    "a source tokenizer in a FIFO": (fifo("source_tokenizer.json"), "it is not a regular file"),
    "a token without a vector": (
        tokenizer(lambda found: found["model"]["vocab"].update({"\u1234": 16})),
        "tensor embed.tokens.weight has shape (16, 16), not (17, 16)",
    ),
    "a token with a giant id": (
        tokenizer(lambda found: found["model"]["vocab"].update({"\u1234": 2**32 - 1})),
        "tokenizer.json cannot be used",
    ),
    "a normalizer that panics": (
        tokenizer(lambda found: found.update(normalizer=NORMALIZER)),
        "its normalizer has settings that Regard does not have",
    ),
    "a prefix that panics": (
        tokenizer(
            lambda found: found["model"].update(
                type="BPE", continuing_subword_prefix="##", merges=[["e", "x"]]
            )
        ),
        "its model has settings that Regard does not have",
    ),
    "a line of a gigabyte": (sparse("log.jsonl", 1 << 30), "log.jsonl, line 1: not an event"),
    "a deep event": (text("log.jsonl", "[" * 10**6 + "\n"), "log.jsonl, line 1: not an event"),
    "a log in a FIFO": (fifo("log.jsonl"), "it is not a regular file"),
}

OPEN = """
import json, resource, sys, traceback
from pathlib import Path
from regard.errors import RegardError
from regard.storage import event_log
from regard.runs import stored_run

def most():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10

def told(opening, folder):
    try:
        opening(folder)
    except RegardError as error:
        return str(error)
    except BaseException:
        return traceback.format_exc()
    return ""

good = Path(sys.argv[1])
OPENING = (stored_run.open_run, stored_run.config_of, event_log.read)
for opening in OPENING:
    opening(good)
taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + (3 << 30), -1))  # so that nobody else suffers
for folder in map(Path, sys.argv[2:]):
    print(json.dumps(folder.name), flush=True)
    before = most()
    said = [told(opening, folder) for opening in OPENING]
    print(json.dumps([*said, most() - before]), flush=True)
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> dict[str, list]:
    """What was said of each folder by `open_run`, `config_of` and `read`, and more memory."""
    folder = tmp_path_factory.mktemp("hostile")
    small_run(folder / "good")
    for number, (harm, _) in enumerate(CASES.values()):
        shutil.copytree(folder / "good", folder / str(number))
        harm(folder / str(number))
    harmed = [str(folder / str(number)) for number in range(len(CASES))]
    command = [sys.executable, "-c", OPEN, str(folder / "good"), *harmed]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert done.stderr == ""  # a library may panic aloud
    lines = list(map(json.loads, done.stdout.splitlines()))
    return {name: lines[2 * int(lines[2 * n]) + 1] for n, name in enumerate(CASES)}


@pytest.mark.parametrize("what", CASES)
def test_a_hostile_folder_is_told_in_one_sentence_and_little_memory(outcomes, what):
    *said, memory = outcomes[what]
    assert "Traceback" not in "".join(said)
    assert CASES[what][1] in "".join(said)
    for sentence in said:
        lines = sentence.splitlines()
        assert len(lines) <= 502  # a list of problems has its end
        assert all(len(line) < 500 for line in lines)
    assert memory < 250 << 20

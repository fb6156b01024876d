"""No space is left: it is said how much was needed and where, and what was saved before is whole.

When there is room again the same command ends as if nothing had been.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from nursery import APART, Nursery
from tiny_runs import left, made

from regard.training.checkpoints.reading import Checkpoint, stored_steps

HOOKS = str(Path(__file__).with_name("hooks.py"))


@pytest.fixture(scope="module")
def apart(tmp_path_factory) -> Iterator[Nursery]:
    """Children that have disks of their own."""
    folder = tmp_path_factory.mktemp("apart")
    words = [*APART, "mount", "-t", "tmpfs", "none", str(folder)]
    if not shutil.which(APART[0]) or subprocess.run(words, capture_output=True).returncode:
        pytest.skip(f"no disk can be mounted here: `{' '.join(words[:-1])}` fails")
    made = Nursery(apart=True)
    yield made
    made.close()


def sentence(ended) -> str:
    """What is said at the end: one line that tells how much was needed."""
    assert ended.code == 2, ended.out
    assert "Traceback" not in ended.out
    last = ended.out.strip().splitlines()[-1]
    assert last.startswith("error: cannot ")
    assert "no space left in " in last
    assert "B are needed and " in last
    return last


def check_whole(run: Path) -> None:
    """Nothing half-written is in a run's folder."""
    for step in stored_steps(run):
        Checkpoint(run / "checkpoints" / str(step)).verify()
    log = run / "log.jsonl"
    for line in log.read_text().splitlines() if log.exists() else ():
        assert json.loads(line)["event"]
    assert not list(run.rglob(".*"))


# A real disk


def filled(nursery, folder, command, disk, size):
    """A command on a disk of this size, and again when there is room; what it said first."""
    (folder / disk).mkdir()
    nursery.mount(folder / disk, size)
    ended = nursery.run(folder, *command)
    run = nursery.seen(folder / command[-1])
    if run.exists():
        check_whole(run)
    nursery.mount(folder / disk, "64m")
    again = nursery.run(folder, *command)
    assert again.code == 0, again.out
    return sentence(ended), left(run)


# While a thread writes checkpoint 8 the loop writes its log; either may find the disk full first.
EITHER = ("checkpoint 8: no space left in disk/run/checkpoints", "the log disk/run/log.jsonl")


@pytest.mark.parametrize(
    ("size", "what"),
    [
        ("8k", ("the run to disk/run: no space left in disk/run",)),
        ("16k", ("the log disk/run/log.jsonl",)),
        ("300k", EITHER),
    ],
    ids=["8k", "16k", "300k"],
)
def test_a_disk_that_is_too_small_for_a_run(apart, whole, size, what, tmp_path):
    folder = tmp_path / "small"
    command = [*made(folder, "text")[:-1], "disk/run"]
    said, found = filled(apart, folder, command, "disk", size)
    assert any(f"cannot write {one}" in said for one in what), said
    assert found == whole("text").left


@pytest.mark.parametrize(("size", "what"), [("4k", "the tokenizer"), ("16k", "prepared data")])
def test_a_disk_that_is_too_small_for_the_cache(apart, whole, size, what, tmp_path):
    folder = tmp_path / "small"
    said, found = filled(apart, folder, made(folder, "text"), "cache", size)
    assert f"cannot keep {what}" in said
    assert f"no space left in {folder / 'cache'}: " in said
    assert found == whole("text").left


# At each place


PLACES = {
    "the tokenizer in the cache": ({"match": "/cache/.tokenizer-", "room": 3000}, "cache"),
    "tokens in the cache": ({"match": "/cache/.tokens-", "room": 500}, "cache"),
    "the settings": ({"match": "/run/.run.toml", "room": 1000}, "run"),
    "the tokenizer": ({"match": "/run/.tokenizer.json", "room": 3000}, "run"),
    "the log": ({"match": "/run/log.jsonl", "room": 4000}, "run"),
    "a checkpoint's numbers": ({"match": "/run/checkpoints/", "room": 400_000}, "run/checkpoints"),
    "a checkpoint's place": ({"match": "place.json", "room": 8000}, "run/checkpoints"),
    "a checkpoint reaching the disk": (
        {"match": "/run/checkpoints/", "call": "fsync", "number": 14},
        "run/checkpoints",
    ),
    "a checkpoint's name": (
        {"match": "/run/checkpoints/", "call": "replace", "number": 5},
        "run/checkpoints",
    ),
    "the weights": ({"match": "/run/.model.safetensors", "room": 20_000}, "run"),
}
BEFORE_A_STEP = list(PLACES)[:4]


@pytest.mark.parametrize("place", PLACES)
def test_no_space_left_anywhere(nursery, whole, place, tmp_path):
    folder, run = tmp_path / "full", tmp_path / "full" / "run"
    command, (given, where) = made(folder, "text"), PLACES[place]
    ended = nursery.run(folder, *command, hooks=HOOKS, setup="full_disk", given=given)
    assert f"no space left in {folder / where if where == 'cache' else where}: " in sentence(ended)
    if place in BEFORE_A_STEP:
        assert not run.exists()
    else:
        check_whole(run)
        assert len(stored_steps(run)) > 1
    ended = nursery.run(folder, *command)
    assert ended.code == 0, ended.out
    assert left(run) == whole("text").left


def test_no_space_left_for_the_settings_of_a_run_that_goes_on(nursery, whole, tmp_path):
    folder, run = tmp_path / "full", tmp_path / "full" / "run"
    command = made(folder, "text")
    assert nursery.run(folder, *command, hooks=HOOKS, setup="killed", given={"step": 9}).code == -9
    before = {name: (run / name).read_bytes() for name in ("run.toml", "tokenizer.json")}
    given = PLACES["the settings"][0]
    sentence(nursery.run(folder, *command, hooks=HOOKS, setup="full_disk", given=given))
    assert before == {name: (run / name).read_bytes() for name in before}
    check_whole(run)
    assert nursery.run(folder, *command).code == 0
    assert left(run) == whole("text").left

"""The power may go at any moment: what was saved is there, and the same command ends as if it had
not gone.

What a child does to its files is recorded, and disks are made that a cut may leave (see power.py).
`make soak` makes many more of them: it sets REGARD_SEEDS.
"""

import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import tiny_runs
from nursery import Nursery
from power import cuts, events

from regard import load
from regard.errors import RegardError
from regard.runs.status import states
from regard.runs.stored_run import open_run
from regard.storage import event_log
from regard.storage.tensors import TensorFolder
from regard.training.checkpoints.reading import Checkpoint, stored_steps

SEEDS = int(os.environ.get("REGARD_SEEDS", "2"))
LOOKED_AT, GONE_ON_WITH = 10 * SEEDS, max(2, SEEDS // 2)  # disks of each kind of work
RECORDER = str(Path(__file__).with_name("power_recorder.py"))
Left = Callable[[Path], object]


def counted(folder: Path) -> list[str]:
    tiny_runs.made(folder, "text")
    return ["train", "text", "--model", "ngram", "--tokenizer", "word", "--out", "runs/a"]


def vectors(folder: Path) -> list[str]:
    tiny_runs.made(folder, "text")
    often = (
        "tokenizer.min_frequency=1",
        "training.tokens_per_step=64",
        "training.checkpoint_every=3",
    )
    more = ("model.width=8", "training.epochs=2", "training.log_every=1", "model.subsample=0")
    return ["train", "text", "--model", "word2vec", "--out", "runs/a", "--set", *often, *more]


def trained(folder: Path) -> list[str]:
    return [*tiny_runs.made(folder, "text")[:-1], "runs/a"]


def carried(folder: Path) -> list[str]:
    return [*tiny_runs.made(folder, "carried")[:-1], "runs/a"]


def compared(folder: Path) -> list[str]:
    tiny_runs.made(folder, "text")
    few = ("training.context=16", "training.micro_batch_size=2", "training.tokens_per_step=64")
    models = ("--models", "unigram,elman", "--parameters", "9k", "--steps", "3")
    more = ("--out", "runs", "--set", *few, "tokenizer.kind=word", "training.checkpoint_every=1")
    return ["compare", "text", *models, *more, "training.device=cpu"]


def weights(run: Path) -> dict[str, object]:
    return {name: tensor.tolist() for name, tensor in TensorFolder(run).items()}


def counts(run: Path) -> object:
    assert event_log.read(run)[-1]["reason"] == "finished"
    return weights(run)


def scores(out: Path) -> object:
    found = json.loads((out / "report.json").read_text())["results"]
    runs = {path.name: weights(path) for path in (out / "runs").iterdir()}
    return [(one["name"], one["scores"], one["failed"]) for one in found], runs


class Work(NamedTuple):
    made: Callable[[Path], list[str]]
    left: Left
    out: str = "runs/a"


WORK = {
    "text": Work(trained, tiny_runs.left),
    "counts": Work(counted, counts),
    "vectors": Work(vectors, lambda run: (tiny_runs.kept(run), counts(run))),
}
LONG = {
    "carried": Work(carried, tiny_runs.left),
    "compared": Work(compared, scores, "runs"),
}


def recorded(nursery: Nursery, folder: Path, command: list[str], **given: object) -> Path:
    record = folder.with_name("record")
    how = {"setup": "recorded", "given": {"folder": str(folder), "out": str(record), **given}}
    ended = nursery.run(folder, *command, hooks=RECORDER, **how)
    assert ended.code == 0, ended.out
    return record


def disks(record: Path, folder: Path, count: int) -> Iterator[tuple[Path, str]]:
    """So many of the disks that a cut may leave, and what to call each."""
    points = [number for number, event in enumerate(events(record)) if event[0] != "begin"]
    rng = random.Random(count)
    wanted = sorted(rng.choices(points, k=count))
    for number, disk in cuts(record):
        for again in range(wanted.count(number)):
            name = f"{number}.{again}"
            made = folder / name
            made.mkdir(parents=True)
            yield made, f"event {name}: {disk.left(random.Random(name), made)}"


def check(disk: Path, where: str) -> None:
    """Nothing on a disk is taken for what it is not."""
    for found in states(disk):
        assert found.word in ("not begun", "killed", "finished"), (where, found.reason)
        if found.word == "finished":
            open_run(found.folder)
        for step in stored_steps(found.folder):
            Checkpoint(found.folder / "checkpoints" / str(step)).verify()


@pytest.mark.parametrize("kind", [*WORK, *(LONG if SEEDS > 2 else ())])
def test_what_a_power_cut_leaves_is_gone_on_with(nursery, kind, tmp_path):
    work = {**WORK, **LONG}[kind]
    command = work.made(tmp_path / "whole")
    record = recorded(nursery, tmp_path / "whole", command)
    expected = work.left(tmp_path / "whole" / work.out)
    lost = [events(record)[number] for number, disk in cuts(record) if disk.lost()]
    assert not lost, "what was synced lies in a folder whose own name may be lost"
    for disk, where in disks(record, tmp_path / "looked at", LOOKED_AT):
        check(disk, where)
    for disk, where in disks(record, tmp_path / "gone on with", GONE_ON_WITH):
        ended = nursery.run(disk, *command)
        assert ended.code == 0, (where, ended.out)
        assert "damaged" not in ended.out, where
        assert work.left(disk / work.out) == expected, where


@pytest.mark.parametrize("activation", ["gelu-tanh", "relu"])
@pytest.mark.parametrize("shard", [1 << 30, 1 << 10], ids=["one file", "shards"])
def test_a_model_that_is_saved_in_place_of_another_is_one_of_them_or_none(
    nursery, activation, shard, tmp_path
):
    folder, record = tmp_path / "whole", tmp_path / "record"
    folder.mkdir()
    given = {"folder": str(folder), "out": str(record), "shard": shard, "activation": activation}
    ended = nursery.run(folder, "recipes", hooks=RECORDER, setup="saved", given=given)
    assert ended.code == 0, ended.out
    seen = set()
    for disk, where in disks(record, tmp_path / "disks", max(40, 5 * SEEDS)):
        try:
            found = load(disk / "model")
        except RegardError:
            seen.add(None)
            continue
        numbers = {float(n) for w in found.module.parameters() for n in w.detach().unique()}
        seen.add((found.config.activation, *numbers))
        assert len(numbers) == 1, where
    assert seen - {None} == {("gelu-tanh", 1.0), (activation, 2.0)}

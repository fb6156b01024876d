"""What earlier versions left behind can still be used, and gone on with."""

import json
import shutil
import tomllib
from pathlib import Path

import pytest
import torch

from regard.cli import main
from regard.runs.status import state
from regard.storage.event_log import read
from regard.storage.tensors import TensorFolder
from regard.training.checkpoints.reading import sound, stored_steps

RUNS = sorted(Path(__file__).parents[1].glob("fixtures/run-*"))
TEXT = "the cat sat on the mat, and the dog sat on the cat.\n" * 12
SPOKEN = """
    train text.txt --model gpt2-tiny --tokenizer char --steps 12 --out run --set model.layers=1
    model.width=8 model.heads=2 model.hidden=16 model.dropout=0.1 training.context=16
    training.micro_batch_size=2 training.tokens_per_step=64 training.ema=0.9
    training.checkpoint_every=4 training.validate_every=4 training.log_every=1 training.keep=3
    training.sample_every=-1 training.device=cpu
"""


@pytest.fixture(params=RUNS, ids=lambda path: path.name)
def old(request, tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    Path("text.txt").write_text(TEXT)
    shutil.copytree(request.param, "run")
    return request.param


def test_there_is_one():
    assert RUNS


def test_it_is_measured_as_it_was(old, capsys):
    """The held-out part is the end of the only file."""
    held_out = TEXT[int(len(TEXT) * 0.9) :]
    Path("held.txt").write_text(held_out)
    main(["evaluate", "run", "held.txt", "--json"])
    now = json.loads(capsys.readouterr().out)
    then = next(event for event in read(old) if event["event"] == "evaluation")
    assert now["loss"] == pytest.approx(then["loss"], rel=1e-4)
    assert state(Path("run")).word == "finished"


@pytest.mark.parametrize("name", ["micro_batch_size", "rows"])  # and as it was called then
def test_it_goes_on_from_its_checkpoint_to_the_same_end(old, capsys, name):
    found, damaged = sound(Path("run"))
    assert [one.place.step for one in found] == [4, 8, 12]
    assert damaged == []
    shutil.rmtree("run/checkpoints/12")  # as if it had been killed before
    with Path("run/log.jsonl").open("r+") as log:
        log.truncate(found[1].place.log)
    Path("run/model.safetensors").unlink()
    main(SPOKEN.replace("micro_batch_size", name).split())
    assert "goes on from step 8" in capsys.readouterr().out
    assert stored_steps(Path("run")) == [4, 8, 12]
    for folder in ("", "checkpoints/12"):
        before, after = TensorFolder(old / folder), TensorFolder(Path("run") / folder)
        assert before.keys() == after.keys()
        for name in before:
            torch.testing.assert_close(after[name], before[name], rtol=1e-4, atol=1e-5, msg=name)
    orders = [[e["order"] for e in read(run) if e["event"] == "step"] for run in (old, "run")]
    assert orders[0] == orders[1]


def test_raised_it_has_todays_names_and_its_checkpoints_those_of_then(old, capsys):
    """Settings of both are compared when it is resumed once more."""
    raised = SPOKEN.replace("--steps 12", "--steps 16").split()
    before = tomllib.loads(Path("run/run.toml").read_text())["optimizer"]
    assert ("peak" in before) == (old.name == "run-0.1")
    main(raised)
    assert "learning_rate" in tomllib.loads(Path("run/run.toml").read_text())["optimizer"]
    ended = Path("run/model.safetensors").read_bytes()
    shutil.rmtree("run/checkpoints/16")
    Path("run/model.safetensors").unlink()
    (last, *_) = reversed(sound(Path("run"))[0])
    assert ("rows" in last.about["settings"]["training"]) == (old.name == "run-0.1")
    with Path("run/log.jsonl").open("r+") as log:
        log.truncate(last.place.log)
    capsys.readouterr()
    main(raised)
    assert "goes on from step 12" in capsys.readouterr().out
    assert Path("run/model.safetensors").read_bytes() == ended
    with pytest.raises(SystemExit):
        main(["training.rows=1" if "micro" in word else word for word in raised])
    assert "training.micro_batch_size is 1 here and 2 there" in capsys.readouterr().err

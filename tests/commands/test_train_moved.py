"""A run's folder that is moved, replaced or removed while it is trained."""

import errno
import os
import shutil
from pathlib import Path

import pytest
from command_line import call

from regard.runs import train_run
from regard.storage import event_log, lock
from regard.storage.event_log import Sink
from regard.training.checkpoints.reading import stored_steps
from regard.training.throughput import Peak

SETTINGS = ("training.checkpoint_every=2", "training.log_every=1", "model.layers=1")
SETTINGS = (*SETTINGS, "model.width=16", "model.heads=2", "training.device=cpu")


class Meddling(Sink):
    """A view during which something happens to the run's folder, at an event of a step."""

    def __init__(self, meddle, event: str, step: int) -> None:
        self.meddle, self.at = meddle, (event, step)

    def write(self, event):
        if (event["event"], event["step"]) == self.at:
            self.meddle()

    def close(self):
        pass


@pytest.fixture(autouse=True)
def _no_measuring(monkeypatch):
    """How fast the machine is takes longer to find out than all the rest."""
    monkeypatch.setattr(train_run, "peak", lambda *_: Peak(1e12, "made up"))


def meddled(monkeypatch, data, meddle, at=("step", 5)):
    """A run in `r` of six steps, during which somebody meddles."""
    monkeypatch.setattr(train_run, "view", lambda *_: Meddling(meddle, *at))
    words = ("--model", "gpt2-tiny", "--steps", 6, "--out", "r", "--set", *SETTINGS)
    return call("train", data / "notes.txt", *words)


def content(folder: str) -> dict[str, bytes]:
    paths = (path for path in Path(folder).rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.mark.parametrize("at", [("start", 0), ("step", 3), ("checkpoint", 6), ("step", 6)])
def test_a_run_whose_folder_was_moved_writes_nothing_into_another_in_its_place(
    monkeypatch, data, at
):
    call("train", data / "notes.txt", "--model", "ngram", "--out", "other")
    others = content("other")

    def meddle():
        os.rename("r", "moved")
        os.rename("other", "r")

    said = meddled(monkeypatch, data, meddle, at)
    assert said.code == 2
    words = " ".join(said.err.split())
    assert f"error: r was moved to {Path.cwd() / 'moved'} while it was being trained" in words
    assert "next:" not in said.out
    assert content("r") == others
    assert event_log.read("moved")[-1]["reason"] == "failed"


def test_what_was_saved_before_a_folder_was_moved_is_gone_on_with_there(monkeypatch, data):
    with monkeypatch.context() as patch:  # and not undone by itself: so would be where we stand
        meddled(patch, data, lambda: os.rename("r", "moved"))
    assert not Path("r").exists()
    assert stored_steps(Path("moved"))
    words = ("--model", "gpt2-tiny", "--steps", 6, "--set", *SETTINGS)
    for folder in ("moved", "whole"):
        said = call("train", data / "notes.txt", *words, "--out", folder)
        assert said.code == 0, said.err
    model = "model.safetensors"
    assert (Path("moved") / model).read_bytes() == (Path("whole") / model).read_bytes()


def removed():
    os.rename("r", "gone")  # at once, whatever is being written
    shutil.rmtree("gone", ignore_errors=True)


@pytest.mark.parametrize("meddle", [removed, lambda: os.unlink("r/.lock")])
def test_a_run_without_its_folder_or_lock_stops_and_makes_no_new_one(monkeypatch, data, meddle):
    said = meddled(monkeypatch, data, meddle)
    assert said.code == 2
    assert "r or its .lock was moved or removed while it was being trained" in said.err
    assert "next:" not in said.out
    assert not Path("r/model.safetensors").exists()


def test_a_folder_that_cannot_be_looked_at_any_more_is_not_said_to_be_moved(monkeypatch, data):
    def away(path, descriptor):
        raise OSError(errno.ESTALE, "Stale file handle", str(path))

    def meddle():
        monkeypatch.setattr(lock, "_is_at", away)

    said = meddled(monkeypatch, data, meddle)
    assert said.code == 2
    words = " ".join(said.err.split())
    assert "error: r cannot be looked at: Stale file handle; what was saved is whole" in words
    assert event_log.read("r")[-1]["reason"] == "failed"


def test_a_name_that_is_not_utf_8_is_refused_before_any_work(data):
    said = call("train", data / "notes.txt", "--model", "ngram", "--out", "r\udcff")
    assert said.code == 2
    assert "its name is not UTF-8" in said.err
    assert os.listdir() == []

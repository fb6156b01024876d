"""A run of every family can be loaded, and stopped and resumed it ends as if it had not been."""

from pathlib import Path

import pytest
import torch
from every_family import EVERY, ONE_OF_EACH
from rich.console import Console
from tiny_jobs import Stopping

import regard
from regard.data.builtin.scenes import write_folder
from regard.families.settings import Settings
from regard.models.config import ModelConfig
from regard.models.registry import presets
from regard.runs import train_run as running
from regard.runs.plan import plan
from regard.runs.stored_run import config_of
from regard.storage.tensors import TensorFolder
from regard.training.signals import Stop

TEXT = "the cat sat on a mat and saw some dogs run after one red ball in an old park"
WORDS = TEXT.split()
NAMES = [*ONE_OF_EACH, "word_vectors 0"]
BY_STEPS = [name for name in NAMES if EVERY[name].by_steps]


def settings_for(config: ModelConfig) -> Settings:
    """A few steps on a little data of the form that the model learns from."""
    lines = [" ".join(WORDS[i % 7 : i % 7 + 3 + i % 5]) for i in range(60)]
    Path("a.txt").write_text("\n".join(lines) + "\n")
    labels = [WORDS[i % 3] for i in range(60)]
    Path("b.txt").write_text("\n".join(labels) + "\n")
    if config.form == "images":
        write_folder(Path("pictures"), 20, 0, "train", 32, told=2)
    files = {"text": ["a.txt"], "pairs": ["a.txt", "b.txt"], "images": ["pictures"]}[config.form]
    preset = next(
        name
        for name in presets(config.family).names
        if (found := presets(config.family).find(name)) and found.kind == config.kind
    )
    return Settings().changed(
        {
            "data": {"train": files} | ({} if config.form == "text" else {config.form: True}),
            "model": {"preset": preset, **config.spelled()},
            "tokenizer": {"kind": "word"},
            "training": {
                "tokens_per_step": 64,
                "device": "cpu",
                "validate_every": 3,
                "checkpoint_every": 2,
                "sample_every": -1,
            }
            | ({"steps": 5} if config.by_steps else {}),
        },
        "test",
    )


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))


def trained(settings: Settings, folder: str, stop: Stop | None = None) -> str:
    """How training ended, in words."""
    outcome, _ = running.train_run(plan(settings), Path(folder), Console(quiet=True), stop=stop)
    return outcome.reason


@pytest.mark.parametrize("name", NAMES)
def test_what_was_trained_is_what_is_loaded(name: str):
    settings = settings_for(EVERY[name])
    made = plan(settings)
    running.train_run(made, Path("run"), Console(quiet=True))
    assert config_of(Path("run")) == made.config
    model = regard.load("run")
    assert model.config == made.config.resolved()
    kept, loaded = TensorFolder(Path("run")), model.module.state_dict()
    for part, tensor in loaded.items():
        assert torch.equal(tensor, kept[part]), part


@pytest.mark.parametrize("name", BY_STEPS)
def test_stopped_and_resumed_it_ends_as_if_it_had_not_been(name: str, monkeypatch):
    settings = settings_for(EVERY[name])
    assert trained(settings, "whole") == "finished"
    stop, listening = Stop(), running._listening
    with monkeypatch.context() as patch:
        patch.setattr(
            running, "_listening", lambda *given: [*listening(*given), Stopping(stop, "step", 3)]
        )
        assert trained(settings, "broken", stop) == "interrupted"
    assert trained(settings, "broken") == "finished"
    whole, broken = TensorFolder(Path("whole")), TensorFolder(Path("broken"))
    assert whole.keys() == broken.keys()
    assert all(torch.equal(whole[part], broken[part]) for part in whole)

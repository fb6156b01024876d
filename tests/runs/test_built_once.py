"""Before its first step a run builds its model once, and traces a step once."""

from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from regard.commands.cost import Cost
from regard.commands.train import train
from regard.costs import jobs
from regard.costs.trace.tracer import tracing
from regard.families.settings import Settings
from regard.models.config import ModelConfig
from regard.runs import forecast
from regard.runs.plan import plan
from regard.training.loop import Loop

MODELS = {
    "transformer": {"preset": "regard-2", "width": 16, "heads": 2, "hidden": 32},
    "lstm": {"preset": "lstm", "width": 16},
    "conv": {"preset": "conv", "width": 16},
}
PAIRS = {"preset": "transformer-tiny", "width": 16, "heads": 2, "hidden": 32}


class Counts:
    """How often modules were built, and jobs traced."""

    def __init__(self, monkeypatch) -> None:
        self.real = self.meta = self.traces = 0
        self.first: tuple[int, int, int] | None = None
        for config in _all_of(ModelConfig):
            if "module" in vars(config):
                monkeypatch.setattr(config, "module", self._counted(vars(config)["module"]))
        monkeypatch.setattr(jobs, "tracing", self._tracing)
        step = Loop._step

        def first(loop, *given):
            self.first = self.first or (self.real, self.meta, self.traces)
            return step(loop, *given)

        monkeypatch.setattr(Loop, "_step", first)

    def _counted(self, build):
        def built(config):
            module = build(config)
            on_meta = all(weight.is_meta for weight in module.parameters())
            self.meta, self.real = self.meta + on_meta, self.real + (not on_meta)
            return module

        return built

    @contextmanager
    def _tracing(self, *given, **named):
        self.traces += 1
        with tracing(*given, **named) as tracer:
            yield tracer


def _all_of(kind):
    return {kind, *(below for one in kind.__subclasses__() for below in _all_of(one))}


def settings_of(folder: Path, model: dict, **training) -> Settings:
    (folder / "notes.txt").write_text("the cat sat on a mat and saw one dog run\n" * 400)
    tables = {
        "model": model,
        "data": {"train": [str(folder / "notes.txt")]},
        "training": {"steps": 2, "context": 16, "tokens_per_step": 64, **training},
    }
    return Settings().changed(tables, "test")


@pytest.mark.parametrize("given", [{}, {"micro_batch_size": 2}])
@pytest.mark.parametrize("name", MODELS)
def test_a_run_builds_once_and_traces_once_before_its_first_step(
    tmp_path, monkeypatch, name, given
):
    monkeypatch.setattr(forecast, "SHORT", 1)
    counts = Counts(monkeypatch)
    made = plan(settings_of(tmp_path, MODELS[name], **given))
    train(made, tmp_path / "run", Console(quiet=True))
    assert counts.first is not None
    real, meta, traces = counts.first
    assert (real, traces) == (1, 1)
    assert meta <= 2


def test_pairs_of_all_lengths_are_traced_as_the_longest_and_as_the_first(tmp_path, monkeypatch):
    monkeypatch.setattr(forecast, "SHORT", 1)
    counts = Counts(monkeypatch)
    tables = {"train": ["reverse"], "examples": 200}
    training = {"steps": 2, "tokens_per_step": 64}
    made = plan(Settings().changed({"model": PAIRS, "data": tables, "training": training}, ""))
    train(made, tmp_path / "run", Console(quiet=True))
    assert counts.first is not None
    real, meta, traces = counts.first
    assert (real, meta) == (1, 1)
    assert traces <= 2


def test_what_a_model_costs_is_counted_on_one_module(monkeypatch, capsys):
    counts = Counts(monkeypatch)
    for job in ({}, {"train": True}, {"generate": 3}, {"train": True, "precision": "bf16-weights"}):
        counts.meta = 0
        Cost("gpt2-tiny", tokens=8, device="cpu", **job).run(Console(quiet=True))
        assert counts.meta <= 2
    assert counts.real == 0
    assert counts.traces > 8

"""`regard train` says what it will cost first, and what it did cost at its end."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import call, trained

from regard.costs import jobs
from regard.costs.device.ceilings import device_named, here, measured_folder
from regard.costs.jobs import Shape
from regard.costs.report import Asked, report
from regard.models.transformer.presets import preset
from regard.runs import forecast

pytestmark = pytest.mark.usefixtures("foretells")


@pytest.fixture
def text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("the cat sat on the mat, and the dog lay in the fog\n" * 60)
    return Path("notes.txt")


def test_both_stand_in_the_log_and_the_last_event_is_still_the_end(text, monkeypatch):
    monkeypatch.setattr(forecast, "SHORT", 1)
    said = trained("run", text, "--model", "llama-tiny", "--tokenizer", "char", steps=4)
    events = [json.loads(line) for line in Path("run/log.jsonl").read_text().splitlines()]
    first, last = (event for event in events if event["event"] == "cost")
    assert (first["step"], last["step"]) == (0, 4)
    assert first["predicted_seconds"] == last["predicted_seconds"] > 0
    assert first["operations"] > 0
    assert last["measured_seconds"] > 0
    assert last["measured_memory"] > 0
    assert events[-1]["event"] == "end"
    assert "predicted" in said.out
    assert "measured" in said.out


def test_a_short_run_is_not_held_up(text):
    trained("run", text, "--model", "llama-tiny", "--tokenizer", "char", steps=2)
    assert '"cost"' not in Path("run/log.jsonl").read_text()


def test_a_dry_run_shows_the_whole_report(text):
    said = call("train", text, "--model", "llama-tiny", "--tokenizer", "char", "--dry-run")
    assert said.code == 0, said.err
    for word in ("operations", "traffic", "memory", "it fits", "[training]"):
        assert word in said.out


def test_a_dry_run_tells_of_the_whole_step_and_of_all_steps(text):
    given = ("--model", "llama-tiny", "--tokenizer", "char", "--dry-run", "--steps", 700, "--set")
    settings = ("training.tokens_per_step=256", "training.context=32")
    whole, halves = (
        " ".join(
            call("train", text, *given, *settings, f"training.micro_batch_size={rows}").out.split()
        )
        for rows in (8, 2)
    )
    assert "a step of training, 8 rows of 32 tokens" in whole
    assert "a step of training, 4 parts of 2 rows of 32 tokens" in halves
    assert "for 700 steps" in halves
    products = [re.search(r"of which (\S+ \S) in products", said)[1] for said in (whole, halves)]
    assert products[0] == products[1]


def test_parts_of_a_step_add_up_to_the_step_as_it_is_traced_whole():
    asked = Asked("train", Shape(2, 8), device_named("cpu-2"))
    config = preset("llama-tiny")
    found = forecast.in_parts(report(config, asked), 3)
    traced = jobs.train_step(config, asked.shape, parts=3).total
    for name in ("products", "others", "read", "written"):
        assert getattr(found.total, name) == pytest.approx(getattr(traced, name), rel=0.02)
    assert found.tokens == 6 * 8
    assert sum(part.products for part in found.parts) == found.total.products
    assert found.seconds < 3 * report(config, asked).seconds  # the optimizer comes once


def tell_of(monkeypatch, memory):
    """A machine of so little memory."""
    found = forecast.device_named
    small = lambda name: replace(found(name), memory=memory)  # noqa: E731
    monkeypatch.setattr(forecast, "device_named", small)


def test_a_run_that_will_not_fit_is_told_before(text, monkeypatch):
    monkeypatch.setattr(forecast, "SHORT", 1)
    tell_of(monkeypatch, 1000)
    said = trained("run", text, "--model", "llama-tiny", "--tokenizer", "char", steps=2)
    assert "warning: a step is predicted to hold" in said.out
    assert "not one row would fit" in " ".join(said.out.split())


@pytest.mark.parametrize("threads", [1, 2])
def test_cores_that_others_use_are_told_before(text, monkeypatch, threads):
    monkeypatch.setattr(forecast, "SHORT", 1)
    monkeypatch.setattr(forecast, "crowding", lambda: 40.0)
    monkeypatch.setattr(forecast.torch, "get_num_threads", lambda: threads)
    said = trained("run", text, "--model", "llama-tiny", "--tokenizer", "char", steps=2)
    told = "warning: with 2 threads an operation takes 40 times as long as with one"
    assert (told in " ".join(said.out.split())) == (threads == 2)


def test_an_older_calibration_does_not_keep_a_run_from_training(text, monkeypatch, tmp_path):
    monkeypatch.setattr(forecast, "SHORT", 1)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    own = measured_folder() / f"{here('cpu')}.json"
    own.parent.mkdir(parents=True)
    own.write_text('{"format": 1}')
    trained("run", text, "--model", "llama-tiny", "--tokenizer", "char", steps=2)
    assert '"cost"' not in Path("run/log.jsonl").read_text()
    said = call("cost", "gpt2-tiny", "--device", "cpu")
    assert said.code != 0
    assert "`regard calibrate` makes one" in said.err

"""Python can do what the command can, and stops as cleanly."""

import signal
import subprocess
import sys

import pytest

import regard
from regard.errors import RegardError
from regard.storage.event_log import LOG

SMALL = {
    "model.width": 16,
    "training.device": "cpu",
    "training.tokens_per_step": 64,
    "training.context": 16,
}


@pytest.fixture
def notes(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("the cat sat on the mat. " * 60)
    return tmp_path / "notes.txt"


def trained(notes, **more):
    asked = {"model": "lstm", "steps": 6, "tokenizer": "char", "settings": SMALL, "quiet": True}
    return regard.train(notes, **(asked | more))


def test_a_run_is_trained_used_judged_and_drawn(notes, tmp_path):
    run = trained(notes)
    assert run.folder.name == "notes"
    assert repr(run).startswith("<run runs/notes: lstm, finished at step 6 of 6, best loss ")
    assert [event["event"] for event in run.log][-1] == "end"
    (written,) = run.generate("the", max_tokens=5)
    assert written.text == regard.load(run.folder).generate("the", max_tokens=5)[0].text
    scores = run.evaluate()
    assert scores == regard.evaluate("runs/notes")
    assert scores.loss == run.log[-2]["loss"] or scores.tokens
    assert run.plot()._repr_png_().startswith(b"\x89PNG")
    assert "cat" not in dir(run)
    with pytest.raises(AttributeError, match="a run has no 'purr'"):
        run.purr()


def test_the_same_call_resumes_and_then_has_nothing_to_do(notes):
    first = trained(notes, out="r")
    again = trained(notes, out="r")
    assert again.log == first.log
    assert trained(notes, out="r", steps=9).state.step == 9


def test_it_is_what_the_command_trains(notes, tmp_path):
    run = trained(notes, out="python")
    settings = [f"{name}={value}" for name, value in SMALL.items()]
    command = [sys.executable, "-P", "-m", "regard", "train", "notes.txt", "--model", "lstm"]
    command += ["--steps", "6", "--tokenizer", "char", "--out", "command", "--set", *settings]
    subprocess.run(command, check=True, capture_output=True)
    weights = "model.safetensors"
    assert (run.folder / weights).read_bytes() == (tmp_path / "command" / weights).read_bytes()


INTERRUPTED = """
import os, signal, threading, regard
from pathlib import Path

def ask():
    log = Path("r/log.jsonl")
    while not (log.exists() and '"step": 3,' in log.read_text()):
        pass
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=ask, daemon=True).start()
run = regard.train("notes.txt", model="lstm", steps=100000, tokenizer="char", out="r", quiet=True,
                   settings={**%r, "training.log_every": 1})
print(run.state.word, run.state.step > 0, bool(run.generate("the", max_tokens=2)))
"""


def test_ctrl_c_stops_it_after_a_step_and_gives_the_run(notes):
    script = INTERRUPTED % SMALL
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.split() == ["interrupted", "True", "True"], done.stderr


def test_a_mistake_is_one_sentence(notes):
    with pytest.raises(RegardError, match="did you mean 'lstm'"):
        trained(notes, model="lstmm")
    with pytest.raises(RegardError, match="has no key 'stepz'"):
        trained(notes, settings={"training.stepz": 3})
    assert not (notes.parent / "runs" / "notes" / LOG).exists()


def test_models_are_compared_and_the_report_is_there(notes, tmp_path):
    found = regard.compare(
        notes, models=["unigram", "lstm"], steps=4, parameters=0, out="c", settings={}, quiet=True
    )
    assert {one.name for one in found.ranked} == {"unigram", "lstm"}
    assert (tmp_path / "c" / "report.html").exists()


def test_the_price_of_a_run_is_that_of_its_model(notes):
    run = trained(notes)
    whole = regard.cost(run, train=True, batch_size=2, tokens=8)
    assert whole.counted.parameters == sum(w.numel() for w in run.model.module.parameters())


def test_listening_in_a_notebook_leaves_the_process_alive():
    from regard.training.signals import StoppedError, listening

    before = signal.getsignal(signal.SIGINT)
    with listening(leaves=False) as stop, stop.noted():
        stop.heard(signal.SIGINT)
        with pytest.raises(StoppedError):
            stop.heard(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_run_that_has_the_name_of_a_model_is_priced_as_the_run(notes, monkeypatch, tmp_path):
    run = trained(notes, out="lstm")
    found = regard.cost(regard.TrainedRun("lstm"), train=True, batch_size=2, tokens=8)
    assert found.counted.parameters == sum(w.numel() for w in run.model.module.parameters())


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"steps": 5, "model": "", "settings": {"model.preset": "ngram"}}, "counts its text once"),
        ({"epochs": "x"}, "epochs must be a number"),
        ({"settings": "a"}, "settings are a table"),
        ({"settings": {"training.seed": object()}}, "training.seed cannot be"),
        ({"settings": {"tokenizer.file": "😀.json"}}, "😀.json"),
        ({"model": "lstmm", "settings": {"model.cell": "gru"}}, "did you mean 'lstm'"),
    ],
)
def test_what_python_gives_wrongly_is_one_sentence_too(notes, asked, said):
    with pytest.raises(RegardError, match=said):
        trained(notes, **({"steps": None} | asked))


def test_what_a_run_cannot_be_judged_by_is_refused_from_python_as_from_the_command(notes):
    run = trained(notes)
    with pytest.raises(RegardError, match="--by-length is for runs on pairs"):
        run.evaluate(by_length=True)
    with pytest.raises(RegardError, match="--int8 is for Transformers"):
        run.evaluate(int8=True)
    with pytest.raises(RegardError, match="--precision is one of"):
        regard.cost(run, precision="fp8")
    assert run.evaluate([notes]) == run.evaluate(notes)

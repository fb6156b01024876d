"""`regard train` typed again: it goes on, says that all is done, or says what differs."""

import os
import shutil
import signal
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import QUICK, Said, call, mistake
from rich.console import Console

from regard.commands.train import train
from regard.errors import RegardError
from regard.families import base
from regard.families.settings import Settings
from regard.families.tasks import text
from regard.runs import recipes, train_run
from regard.runs.plan import plan
from regard.storage import event_log
from regard.storage.event_log import Sink
from regard.training.checkpoints.reading import Checkpoint, stored_steps
from regard.training.throughput import Peak

# Checkpoints at 3 and 6, validations at 2, 4 and 6; the best is saved too.
OFTEN = ("training.checkpoint_every=3", "training.validate_every=2", "training.log_every=1")
MODEL = ("model.layers=1", "model.width=32", "model.heads=2", "model.dropout=0.1")


class KilledError(Exception):
    """Ends a command as a kill would, but for what tidies up."""


class Asking(Sink):
    """A view during which this process gets a signal, when an event is told of a step."""

    def __init__(self, number: int, kind: str, step: int) -> None:
        self.number, self.at = number, (kind, step)

    def write(self, event):
        if (event["event"], event["step"]) == self.at:
            os.kill(os.getpid(), self.number)

    def close(self):
        pass


@pytest.fixture(autouse=True)
def _no_measuring(monkeypatch):
    """How fast the machine is takes longer to find out than all the rest."""
    monkeypatch.setattr(train_run, "peak", lambda *_: Peak(1e12, "made up"))


@pytest.fixture
def notes(data) -> Path:
    """The data, ours to change."""
    shutil.copy(data / "notes.txt", "notes.txt")
    return Path("notes.txt")


def again(*more: object, steps: int = 6, out: object = "r", given: object = "notes.txt") -> Said:
    """The same command, but for what is said."""
    words = ("--model", "gpt2-tiny", "--steps", steps, "--set", *QUICK, *OFTEN, *MODEL, *more)
    return call("train", given, *(("--out", out) if out else ()), *words)


def asked_to_stop(
    *more: object, at: tuple[str, int] = ("step", 5), number: int = signal.SIGTERM, **how
) -> Said:
    """The same command, during which somebody asks to stop."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_run, "view", lambda *_: Asking(number, *at))
        return again(*more, **how)


def events(kind: str, folder: str = "r") -> list[dict]:
    return [event for event in event_log.read(folder) if event["event"] == kind]


def left(folder: Path | str) -> dict[str, object]:
    """All that two runs must have alike, to the bit."""
    folder = Path(folder)
    last = folder / "checkpoints" / str(stored_steps(folder)[-1])
    names = (last / "model.safetensors", last / "optimizer.safetensors")
    told = {
        (event["event"], event["step"]): (event["loss"], event.get("order"))
        for event in event_log.read(folder)
        if event["event"] in ("step", "validation")
    }
    return {
        "files": [path.read_bytes() for path in (*names, folder / "model.safetensors")],
        "place": replace(Checkpoint(last).place, seconds=0.0, log=0),
        "told": told,
        "reason": event_log.read(folder)[-1]["reason"],
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory, data, cache) -> dict[str, object]:
    """What an unbroken run leaves."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(cache))
        said = again(out=folder / "r", given=data / "notes.txt")
    assert said.code == 0, said.err
    return left(folder / "r")


def touched(folder: str = "r") -> dict[Path, tuple[int, bytes]]:
    files = (path for path in Path(folder).rglob("*") if path.is_file())
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def plain(words: str) -> str:
    return " ".join(words.split())


# What is done, and what is not


def test_a_finished_run_says_so_and_stays_as_it_is(notes):
    assert again().code == 0
    before = touched()
    said = again()
    assert (said.code, said.err) == (0, "")
    assert plain(said.out) == "r is finished at step 6; raise --steps to train it further"
    assert call("train", "--out", "r").out == said.out
    assert touched() == before


def test_with_more_steps_it_goes_on_and_whoever_asks_later_is_told_of_all_of_them(notes):
    assert again(steps=2).code == 0
    said = again(steps=4)
    assert said.code == 0, said.err
    assert "goes on from step 2" in said.out
    assert [event["step"] for event in events("step")] == [1, 2, 3, 4]
    assert [event["reason"] for event in events("end")] == ["finished"]
    said = call("train", "--out", "r", "--steps", 5)  # without saying all of it again
    assert said.code == 0, said.err
    assert "goes on from step 4" in said.out
    stored = tomllib.loads(Path("r/run.toml").read_text(encoding="utf-8"))
    assert stored["training"]["steps"] == stored["asked"]["training"]["steps"] == 5
    assert stored["asked"]["model"]["width"] == 32
    assert "finished at step 5" in again(steps=5).out
    assert "finished at step 5" in call("train", "--out", "r").out
    told = mistake(again(steps=4))
    assert "training.steps is 4 here and 5 there; it can only be raised" in plain(told)


def test_as_many_steps_as_are_usual_are_more_than_fewer(notes):
    assert again(steps=2).code == 0
    said = call("train", "--out", "r", "--steps", 1000, "--dry-run")
    assert "steps = 1000" in said.out
    assert "finished at step 2" in call("train", "--out", "r", "--dry-run").out


def test_stopped_early_is_done_too_and_more_steps_begin_with_new_patience(notes):
    hopeless = ("training.patience=1", "optimizer.learning_rate=1.0", "training.validate_every=1")
    said = again(*hopeless, steps=20)
    assert said.code == 0
    step = events("end")[0]["step"]
    assert events("end")[0]["reason"] == "stopped early"
    said = again(*hopeless, steps=20)
    assert plain(said.out).startswith(f"r is stopped early at step {step};")
    assert again(*hopeless, steps=21).code == 0
    assert events("end")[0]["step"] > step


def test_a_run_that_was_raised_and_killed_at_once_is_not_taken_for_finished(notes):
    assert again(steps=2).code == 0
    written = train_run.stored_run.write_run

    def killed(*given):
        written(*given)
        raise KilledError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_run.stored_run, "write_run", killed)
        with pytest.raises(KilledError):
            again(steps=4)
    assert again(steps=4).code == 0
    assert [event["step"] for event in events("step")] == [1, 2, 3, 4]


# Interrupted


@pytest.mark.parametrize(
    ("at", "number"),
    [
        (("step", 1), signal.SIGTERM),
        (("step", 4), signal.SIGINT),  # before its validation
        (("validation", 4), signal.SIGTERM),
        (("checkpoint", 6), signal.SIGTERM),  # all steps are done
        (("evaluation", 6), signal.SIGINT),
    ],
)
def test_interrupted_and_typed_again_it_ends_as_if_it_had_not_been(notes, whole, at, number):
    said = asked_to_stop(at=at, number=number)
    assert said.code == 128 + number
    word = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}[number]
    assert f"{word} at step" in said.out
    assert "the same command goes on" in plain(said.out)
    assert event_log.read("r")[-1]["reason"] == "interrupted"
    assert call("generate", "r", "the", "--tokens", 2).code == 0
    step = stored_steps(Path("r"))[-1]
    said = again()
    assert said.code == 0, said.err
    assert f"goes on from step {step}" in said.out
    assert left("r") == whole
    assert [event["event"] for event in event_log.read("r")].count("resume") == 1
    assert len(events("end")) == 1


def test_it_may_be_interrupted_again_and_again(notes, whole):
    for step in (1, 2, 5):
        assert asked_to_stop(at=("step", step)).code == 143
    assert again().code == 0
    assert left("r") == whole


def test_a_signal_before_training_leaves_nothing(notes, monkeypatch):
    def asked(*given):
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(text, "gather", asked)
    said = again()
    assert (said.code, said.out) == (143, "")
    assert said.err.strip() == "terminated"
    assert not Path("r").exists()


def test_a_run_killed_before_its_settings_were_written_is_begun_anew(notes, whole):
    Path("r").mkdir()
    for name in (".lock", "tokenizer.json", ".run.toml.0123abcd-99999999-0123abcd.partial"):
        (Path("r") / name).write_text("half of")
    said = again()
    assert said.code == 0, said.err
    assert left("r") == whole


def test_a_run_killed_before_its_first_checkpoint_is_begun_anew(notes, whole):
    def killed(*given):
        raise KilledError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "Loop", killed)
        patch.setattr(train_run, "clear", lambda folder: None)  # nor tidied up
        with pytest.raises(KilledError):
            again("training.seed=9")  # whatever it was begun with
    assert {path.name for path in Path("r").iterdir()} >= {"run.toml", "log.jsonl"}
    assert again().code == 0
    assert left("r") == whole


# Without a name


def test_without_a_name_an_unfinished_run_goes_on_and_a_finished_one_is_left(notes, whole):
    assert asked_to_stop(out="").code == 143
    said = again(out="")
    assert said.code == 0, said.err
    assert "goes on from step 5" in said.out
    assert left("runs/notes") == whole
    before = touched("runs/notes")
    assert again(out="").code == 0
    assert left("runs/notes-2") == whole
    assert again(out="", steps=7).code == 0  # more steps are for a run that is named
    assert touched("runs/notes") == before
    assert sorted(os.listdir("runs")) == ["notes", "notes-2", "notes-3"]


def test_without_a_name_a_run_with_other_settings_or_data_or_damage_is_left(notes):
    assert asked_to_stop(out="").code == 143
    before = touched("runs/notes")
    assert again(out="", steps=3).code == 0
    assert asked_to_stop("training.seed=3", out="").code == 143
    Path("runs/notes-3/run.toml").write_text("[training]\nsteps = 'many'\n")
    assert asked_to_stop(out="").code == 143
    Path("notes.txt").write_text(Path("notes.txt").read_text(encoding="utf-8") + " and more")
    assert again(out="").code == 0
    assert touched("runs/notes") == before
    assert sorted(os.listdir("runs")) == ["notes", *(f"notes-{n}" for n in range(2, 6))]


# What differs


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("training.seed=1",), ["training.seed is 1 here and 0 there"]),
        (("model.width=64",), ["model.width is 64 here and 32 there"]),
        (
            ("optimizer.kind=muon", "training.ema=0.5"),
            [
                "optimizer.kind is 'muon' here and 'adamw' there",
                "training.ema is 0.5 here and 0.0 there",
            ],
        ),
    ],
)
def test_a_setting_that_differs_is_named_with_both_values(notes, more, told):
    assert asked_to_stop().code == 143
    before = touched()
    found = plain(mistake(again(*more)))
    assert all(words in found for words in told)
    assert "was begun with other settings" in found
    assert "choose another --out" in found
    assert touched() == before


def test_settings_that_change_no_weights_may_differ(notes, whole):
    assert asked_to_stop().code == 143
    assert again("training.keep=5", "training.sample_every=2", "training.log_every=2").code == 0
    expected = {**whole, "told": None}
    assert {**left("r"), "told": None} == expected


@pytest.mark.parametrize("known", [True, False])  # by its checkpoints, or else its settings
def test_data_that_has_changed_is_refused(notes, known):
    assert asked_to_stop().code == 143
    text = notes.read_text(encoding="utf-8")
    notes.write_text(text.replace("cat", "cow"), encoding="utf-8")
    if not known:
        shutil.rmtree("r/checkpoints")
    before = touched()
    assert "the data has changed since" in plain(mistake(again()))
    assert touched() == before


def test_other_data_under_another_name_is_refused_and_the_same_is_not(notes, data, whole):
    assert asked_to_stop().code == 143
    shutil.copy(data / "other.txt", ".")
    assert "the data has changed since" in plain(mistake(again(given="other.txt")))
    notes.rename("moved.txt")
    said = again(given="moved.txt")
    assert said.code == 0, said.err
    assert left("r") == whole


def test_another_tokenizer_in_the_folder_is_refused(notes, words):
    assert asked_to_stop().code == 143
    shutil.copy(words / "tokenizer.json", "r/tokenizer.json")
    assert "is not the tokenizer that the run was trained with" in plain(mistake(again()))


# Damage


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "place.json"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_taken(notes, whole, name):
    assert asked_to_stop().code == 143
    assert stored_steps(Path("r"))[-2:] == [4, 5]
    flip(Path("r/checkpoints/5") / name)
    said = again()
    assert said.code == 0, said.err
    assert "warning: checkpoint 5 is damaged and was put aside" in plain(said.out)
    assert "goes on from step 4" in said.out
    assert left("r") == whole
    assert Path("r/checkpoints/5.damaged").is_dir()
    assert "checkpoint 5 is damaged" in events("warning")[-1]["message"]


def test_the_best_checkpoint_too_is_made_again_if_it_is_damaged(notes, whole):
    assert asked_to_stop("training.keep=9").code == 143
    assert stored_steps(Path("r")) == [2, 3, 4, 5]
    best = Checkpoint(Path("r/checkpoints/5")).place.best_step
    assert best == 4
    flip(Path("r/checkpoints/4/model.safetensors"))
    said = again("training.keep=9")
    assert said.code == 0, said.err
    assert "checkpoint 4 is damaged" in plain(said.out)
    assert "goes on from step 3" in said.out
    assert left("r") == whole


def test_if_all_are_damaged_it_starts_over_and_says_so(notes, whole):
    assert asked_to_stop().code == 143
    steps = stored_steps(Path("r"))
    for step in steps:
        flip(Path("r/checkpoints") / str(step) / "model.safetensors")
    said = again()
    assert said.code == 0, said.err
    assert all(f"checkpoint {step} is damaged" in plain(said.out) for step in steps)
    assert "starts from the beginning" in said.out
    assert left("r") == whole


def test_without_any_checkpoint_it_starts_over_and_says_so(notes, whole):
    assert asked_to_stop().code == 143
    shutil.rmtree("r/checkpoints")
    said = again()
    assert said.code == 0, said.err
    assert "starts from the beginning" in said.out
    assert left("r") == whole


def test_from_python_too_no_other_run_is_overwritten(notes):
    assert again(steps=2).code == 0
    settings = recipes.override(recipes.load("r"), ["training.seed=5", "training.steps=2"])
    made = plan(settings)
    with pytest.raises(RegardError, match=r"training\.seed was 0 and is 5 now"):
        train(made, Path("r"), Console(quiet=True))
    shutil.rmtree("r/checkpoints")
    before = touched()
    with pytest.raises(RegardError, match=r"training\.seed was 0 and is 5 now"):
        train(made, Path("r"), Console(quiet=True))
    assert touched() == before


def test_from_python_too_signals_are_heard_while_it_trains_and_only_then(notes, monkeypatch):
    heard = []

    class Watching(Asking):
        def write(self, event):
            heard.append(signal.getsignal(signal.SIGTERM))

    monkeypatch.setattr(train_run, "view", lambda *_: Watching(0, "", 0))
    settings = recipes.override(
        Settings(), ["data.train=['notes.txt']", "training.steps=1", *QUICK]
    )
    made = plan(recipes.override(settings, ["model.preset=gpt2-tiny", *MODEL]))
    before = signal.getsignal(signal.SIGTERM)
    train(made, Path("r"), Console(quiet=True))
    assert heard
    assert all(handler.__name__ == "heard" for handler in heard)
    assert signal.getsignal(signal.SIGTERM) is before

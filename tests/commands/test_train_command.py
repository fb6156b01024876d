"""`regard train`: what the command line means, what it writes, and how it ends."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import tyro
from command_line import QUICK, call, mistake, trained
from rich.console import Console
from safetensors.torch import load_file

from regard.commands.train import Train, train
from regard.data import token_files
from regard.errors import RegardError
from regard.families.settings import Settings
from regard.runs import recipes, train_run
from regard.runs.plan import plan
from regard.runs.stored_run import open_run
from regard.storage import event_log
from regard.storage.event_log import Sink


def settings_of(*arguments: str) -> Settings:
    """What a command line of `regard train` asks for."""
    return tyro.cli(
        Train, args=arguments, config=(tyro.conf.FlagCreatePairsOff,)
    ).request.settings()


def losses(folder: Path) -> list[float]:
    return [
        event["loss"]
        for event in event_log.read(folder)
        if event["event"] in ("step", "validation")
    ]


class Interrupting(Sink):
    """A view during which somebody presses Ctrl-C, at an event of a kind and a step."""

    def __init__(self, kind: str, step: int) -> None:
        self.at = kind, step

    def write(self, event):
        if (event["event"], event["step"]) == self.at:
            raise KeyboardInterrupt

    def close(self):
        pass


# What a command line means


@pytest.mark.parametrize(
    "arguments",
    [
        "a.txt b.txt --out r --steps 5 --set optimizer.kind=muon training.seed=3",
        "--out r --steps 5 --set optimizer.kind=muon training.seed=3 --model regard-4 a.txt b.txt",
        "--steps 5 a.txt b.txt --set optimizer.kind=muon --set training.seed=3",
        "a.txt b.txt --seed 3 --set optimizer.kind=muon training.steps=5",
    ],
)
def test_data_may_stand_before_behind_and_between_options(arguments):
    settings = settings_of(*arguments.split())
    assert [Path(name).name for name in settings.data.train] == ["a.txt", "b.txt"]
    assert not settings.data.pairs
    assert settings.optimizer.kind == "muon"
    assert (settings.training.steps, settings.training.seed) == (5, 3)


@pytest.mark.parametrize(
    "arguments",
    [
        "--pairs a b --valid c d --set data.ratio=2 tokenizer.shared=false --out r",
        "--set data.ratio=2 --out r --set tokenizer.shared=false --valid c --valid d --pairs a b",
    ],
)
def test_pairs_and_held_out_files_keep_to_their_options(arguments):
    settings = settings_of(*arguments.split())
    assert [Path(name).name for name in settings.data.train] == ["a", "b"]
    assert [Path(name).name for name in settings.data.valid] == ["c", "d"]
    assert settings.data.pairs
    assert settings.data.ratio == 2
    assert not settings.tokenizer.shared


def test_an_option_wins_over_set_and_set_over_the_recipe():
    Path("own.toml").write_text("[training]\nsteps = 5\n[schedule]\nwarmup = 1\n")
    assert settings_of("--recipe", "own.toml").training.steps == 5
    said = ("--recipe", "own.toml", "--set", "training.steps=7", "schedule.warmup=2")
    assert settings_of(*said).training.steps == 7
    assert settings_of(*said, "--steps", "9").training.steps == 9
    assert settings_of(*said, "--steps", "9").schedule.warmup == 2


def test_another_model_than_the_recipes_leaves_its_changes_behind(decoder):
    assert settings_of("--recipe", str(decoder)).model.changes["layers"] == 2
    for other in (("--model", "regard-4"), ("--set", "model.preset=regard-4")):
        changed = settings_of("--recipe", str(decoder), *other, "--set", "model.dropout=0.2")
        assert (changed.model.preset, changed.model.changes) == ("regard-4", {"dropout": 0.2})


def test_other_data_than_the_recipes_is_not_measured_on_its_held_out_files(translator):
    assert len(settings_of("--recipe", str(translator)).data.valid) == 2
    changed = settings_of("--recipe", str(translator), "--pairs", "x", "y")
    assert changed.data.valid == ()


def test_a_recipe_for_pairs_takes_plain_names_as_pairs():
    assert settings_of("a", "b", "--recipe", "multi30k").data.pairs


def test_a_file_in_every_dress_gives_the_same_tokens(data):
    text = (data / "notes.txt").read_text(encoding="utf-8")
    Path("lines.jsonl").write_text(json.dumps({"text": text}) + "\n")
    Path("folder").mkdir()
    shutil.copy(data / "notes.txt", "folder")
    plain = (data / "notes.txt").read_bytes()

    def found(name: object, stdin: bytes = b"") -> list[str]:
        said = call("train", name, "--dry-run", "--model", "gpt2-tiny", stdin=stdin)
        assert said.code == 0, said.err
        return [line for line in said.out.splitlines() if line[:6].strip() in ("train", "valid")]

    expected = found(data / "notes.txt")
    assert len(expected) == 2 + 2  # in the table and among the settings
    others = (
        data / "notes.txt.gz",
        "lines.jsonl",
        "folder",
        "folder/*.txt",
        f"{data}/note?.txt",
    )
    for other in others:
        assert found(other)[:2] == expected[:2], other
    assert found("-", plain)[:2] == expected[:2]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["{data}/notes.txt"], "notes"),
        (["{data}/notes.txt.gz"], "notes"),
        (["{data}/note*.txt"], None),
        (["-"], "stdin"),
        (["--pairs", "{data}/source", "{data}/target"], "source-target"),
        (["reverse", "--set", "data.examples=100"], "reverse"),
    ],
)
def test_without_out_the_run_is_named_after_the_data(data, arguments, name):
    given = [argument.format(data=data) for argument in arguments]
    text = (data / "notes.txt").read_bytes()
    expected = f"runs/{name or data.name}"
    assert f" {expected} (not written)" in call("train", *given, "--dry-run", stdin=text).out
    Path(expected).mkdir(parents=True)
    assert f" {expected}-2 (not written)" in call("train", *given, "--dry-run", stdin=text).out


# What a dry run says


def test_a_dry_run_writes_no_run_and_its_settings_are_a_recipe_of_that_run(data):
    arguments = (data / "notes.txt", "--model", "gpt2-tiny", "--steps", 2, "--set", *QUICK)
    said = call("train", *arguments, "--out", "r", "--dry-run")
    assert said.code == 0
    assert not Path("r").exists()
    trained("r", *arguments[:3], steps=2)
    module = open_run(Path("r")).module
    assert f"{sum(w.numel() for w in module.parameters()):,} parameters" in said.out
    printed = said.out[said.out.index("[data]") :]
    tables = tomllib.loads(printed)
    stored = tomllib.loads(Path("r/run.toml").read_text(encoding="utf-8"))
    assert set(tables) == set(stored) - {"versions", "asked"}
    assert tables.pop("model").items() <= stored["model"].items()
    assert all(stored[name] == table for name, table in tables.items())


def test_the_table_fits_the_width_and_says_nothing_twice(data):
    said = trained("r", data / "notes.txt", "--model", "gpt2-tiny", steps=1)
    head = said.out[: said.out.index("step ")].splitlines()
    assert max(len(line.rstrip()) for line in head) <= 80
    assert sum("parameters" in line for line in head) == 1
    assert sum(line.strip() == "r" for line in head) == 1


# What it writes


@pytest.mark.parametrize("again", ["run.toml", ""])
def test_a_runs_own_recipe_repeats_it_bit_for_bit(decoder, again):
    said = call("train", "--recipe", decoder / again, "--out", "again")
    assert said.code == 0, said.err
    assert len(losses(decoder)) == 12 + 1  # steps, and a validation at the end
    assert losses(Path("again")) == losses(decoder)
    first, second = (load_file(run / "model.safetensors") for run in (decoder, Path("again")))
    assert (decoder / "model.safetensors").read_bytes() == Path(
        "again/model.safetensors"
    ).read_bytes()
    assert first.keys() == second.keys()


def test_another_seed_gives_another_run(decoder):
    assert call("train", "--recipe", decoder, "--out", "other", "--seed", 1).code == 0
    assert losses(Path("other"))[0] != losses(decoder)[0]


@pytest.mark.parametrize(
    ("model", "kind"),
    [("gpt2-tiny", "byte"), ("llama-tiny", "char"), ("bert-tiny", "char"), ("bert-tiny", "word")],
)
def test_every_model_and_tokenizer_for_text_trains_evaluates_and_generates(data, model, kind):
    trained("r", data / "notes.txt", "--model", model, "--tokenizer", kind, steps=2)
    figures = json.loads(call("evaluate", "r", "--json").out)
    reported = event_log.read("r")[-2]
    assert reported["event"] == "evaluation"
    assert figures["loss"] == pytest.approx(reported["loss"], rel=1e-6)
    text = "the [mask] cat"
    command = ("fill", "r", text) if model == "bert-tiny" else ("generate", "r", text)
    said = call(*command)
    assert said.code == 0, said.err
    assert said.out.startswith("the ")
    assert open_run(Path("r")).tokenizer.kind == kind


def test_a_built_in_task_is_learned_from_its_name_alone():
    trained("r", "copy", "--model", "marian-tiny", steps=2, settings=("data.examples=100",))
    run = open_run(Path("r"))
    assert run.settings.data.train == ("copy",)
    assert run.tokenizer.kind == "char"
    assert json.loads(call("evaluate", "r", "copy", "--json").out)["tokens"] > 1000


def test_the_next_commands_it_names_work_as_they_stand(data):
    said = trained("a run", data / "notes.txt", "--model", "gpt2-tiny", steps=1)
    assert "regard generate 'a run' Once" in said.out
    assert "regard plot 'a run'" in said.out


# Mistakes

MISTAKES = [
    ("nothing.txt", "nothing.txt does not exist"),
    ("~nobody-here/a.txt", "~nobody-here/a.txt does not exist"),
    ("--pairs ~nobody-here/a ~nobody-here/b", "~nobody-here/b is not there"),
    ("--images ~nobody-here", "~nobody-here"),
    ("empty.txt", "there is no text in"),
    ("-", "no text in standard input"),
    ("", "nothing to train on"),
    ("notes.txt --recipe pyton", "did you mean 'python'?"),
    ("notes.txt --recipe there/is/none.toml", "there is no recipe at"),
    ("notes.txt --model gtp2", "did you mean 'gpt2'?"),
    ("notes.txt --model t5-tiny", "a model that translates learns from pairs, not from text"),
    (
        "--pairs a.txt a.txt --model gpt2-tiny",
        "continues texts learns from text, not",
    ),
    ("notes.txt --set trainin.steps=3", "did you mean 'training'?"),
    ("notes.txt --set training.stepz=3", "did you mean 'steps'?"),
    ("notes.txt --set steps", "write it as table.key=value"),
    ("notes.txt --steps 0", "steps must be a whole number from 1"),
    ("notes.txt --steps -1", "steps must be a whole number from 1"),
    ("notes.txt --seed -1", "seed must be a whole number from 0"),
    ("--pairs notes.txt empty.txt", "lines but"),
    ("--pairs notes.txt", "pairs are two aligned files"),
    ("notes.txt --pairs notes.txt notes.txt", "not both"),
    ("notes.txt --set training.device=abacus", "abacus"),
]


@pytest.mark.parametrize(("arguments", "words"), MISTAKES)
def test_a_mistake_is_one_sentence_and_leaves_nothing_behind(data, arguments, words):
    shutil.copy(data / "notes.txt", ".")
    Path("empty.txt").touch()
    Path("a.txt").write_text("a\nb\n")
    before = sorted(os.listdir())
    said = call("train", *arguments.split(), "--out", "r")
    assert words in mistake(said)
    assert said.out == ""
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize("arguments", ["--steps many", "--frobnicate", "--tokenizer letters"])
def test_what_is_no_option_or_no_value_is_told_on_stderr(arguments):
    said = call("train", "notes.txt", *arguments.split())
    assert (said.code, said.out) == (2, "")
    assert arguments.split()[-1] in said.err
    assert "regard train --help" in said.err


def test_another_runs_folder_is_refused_before_anything_is_read(decoder):
    before = {path: path.stat().st_mtime_ns for path in decoder.rglob("*")}
    told = mistake(call("train", "nothing.txt", "--out", decoder))
    assert f"{decoder} was begun with other settings" in told
    assert {path: path.stat().st_mtime_ns for path in decoder.rglob("*")} == before


def test_a_folder_that_is_no_run_is_refused_before_anything_is_read():
    Path("r").mkdir()
    Path("r/notes.md").write_text("mine")
    assert "r is already there; choose" in mistake(call("train", "nothing.txt", "--out", "r"))
    assert [path.name for path in Path("r").iterdir()] == ["notes.md"]


def test_a_folder_below_a_file_is_refused_before_anything_is_read():
    Path("file").touch()
    assert "cannot write file/r" in mistake(call("train", "nothing.txt", "--out", "file/r"))


@pytest.mark.parametrize("there", [False, True])
def test_a_start_that_fails_leaves_the_folder_free_for_the_next_try(data, monkeypatch, there):
    def missing(folder: Path, first: int) -> None:
        raise RegardError("TensorBoard is not installed")

    monkeypatch.setattr(train_run, "TensorBoard", missing)
    if there:
        Path("r").mkdir()
    arguments = ("train", data / "notes.txt", "--out", "r", "--model", "gpt2-tiny")
    said = call(*arguments, "--tensorboard", "--steps", 1)
    assert "TensorBoard is not installed" in mistake(said)
    assert Path("r").exists() == there
    assert call(*arguments, "--steps", 1).code == 0


def test_tensorboard_files_are_written_when_asked_for(data):
    trained("r", data / "notes.txt", "--model", "gpt2-tiny", "--tensorboard", steps=1)
    assert list(Path("r/tensorboard").glob("events*"))


# Interruptions


def test_an_interrupted_run_can_be_used_and_says_so(data, monkeypatch):
    monkeypatch.setattr(train_run, "view", lambda *_: Interrupting("step", 3))
    arguments = (data / "notes.txt", "--out", "r", "--model", "gpt2-tiny", "--steps", 90)
    said = call("train", *arguments, "--set", "training.validate_every=2")
    assert said.code == 130
    assert (
        "interrupted at step 3; r holds the weights of step 2, ready to use; the same command "
        "goes on" in " ".join(said.out.split())
    )
    assert event_log.read("r")[-1]["reason"] == "interrupted"
    assert call("generate", "r", "the").code == 0
    assert call("evaluate", "r").code == 0


def test_an_interrupted_run_of_averaged_weights_says_what_it_holds(data, monkeypatch):
    monkeypatch.setattr(train_run, "view", lambda *_: Interrupting("step", 3))
    arguments = (data / "notes.txt", "--out", "r", "--model", "gpt2-tiny", "--steps", 90)
    said = call("train", *arguments, "--set", "training.average=2")
    assert "at step 3; r holds the mean of its last checkpoints" in " ".join(said.out.split())


@pytest.mark.parametrize("event", ["start", "warning"])
def test_an_interruption_before_the_first_step_leaves_no_run(data, monkeypatch, event):
    monkeypatch.setattr(train_run, "view", lambda *_: Interrupting(event, 0))
    Path("odd.txt").write_bytes((data / "notes.txt").read_bytes() + b"\xff")  # worth a warning
    said = call("train", "odd.txt", "--out", "r", "--model", "gpt2-tiny", "--steps", 9)
    assert said.code == 130
    assert "interrupted" in said.err
    assert not Path("r").exists()


def test_an_interruption_while_encoding_leaves_no_half_cache(data, monkeypatch, tmp_path):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "new"))
    whole = token_files.in_order

    def interrupted(*arguments):
        yield next(whole(*arguments))
        raise KeyboardInterrupt

    monkeypatch.setattr(token_files, "in_order", interrupted)
    arguments = ("train", data / "notes.txt", "--out", "r", "--model", "gpt2-tiny", "--steps", 1)
    assert call(*arguments).code == 130
    assert not [path for path in (tmp_path / "new").iterdir() if path.is_dir()]
    monkeypatch.setattr(token_files, "in_order", whole)
    assert call(*arguments).code == 0


def test_control_c_at_a_real_process_keeps_the_run(data, tmp_path):
    arguments = (data / "notes.txt", "--out", "r", "--model", "gpt2-tiny", "--steps", 100_000)
    words = [sys.executable, "-m", "regard", "train", *map(str, arguments), "--set", *QUICK]
    words.append("training.log_every=1")
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    path, deadline = Path("r/log.jsonl"), time.monotonic() + 120
    while time.monotonic() < deadline:
        if path.exists() and '"event": "step"' in path.read_text():
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in out
    assert "ready to use" in out
    assert call("generate", "r", "the", "--tokens", 2).code == 0


def test_a_reader_that_goes_away_ends_it_without_a_traceback(data):
    arguments = (
        f"train {shlex.quote(str(data))}/notes.txt --out r --model gpt2-tiny --steps 100000 --set"
    )
    settings = " ".join((*QUICK, "training.log_every=1"))
    line = f"{sys.executable} -m regard {arguments} {settings} | head -n 12"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 12
    assert Path("r/model.safetensors").exists() == Path("r").exists()


def test_a_folder_with_something_in_it_is_never_touched(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("a few words to learn from, again and again. " * 50)
    settings = Settings().changed({"data": {"train": [str(tmp_path / "text.txt")]}}, "test")
    made = plan(recipes.override(settings, ["model.preset=llama-tiny", "training.steps=1"]))
    with pytest.raises(RegardError, match="already there"):
        train(made, tmp_path, Console(quiet=True))
    assert (tmp_path / "text.txt").exists()

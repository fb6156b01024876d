"""`regard runs`: every run there is, how it stands, and how to go on, at any width."""

import json
import os
import re
import time
from pathlib import Path

import pytest
from command_line import call, mistake

from regard.storage.event_log import LOG
from regard.storage.lock import Lock

END = {"event": "end", "step": 700, "best_loss": 1.25, "best_step": 650}


def begun(
    name,
    *events,
    age=0.0,
    steps=1000,
    data=("/far/away/notes.txt",),
    model="regard-4",
    checkpoints=(),
):
    """A run made by hand, last changed so many seconds ago."""
    folder = Path(name)
    folder.mkdir(parents=True)
    tables = f'[data]\ntrain = {json.dumps(data)}\n[model]\npreset = "{model}"\n'
    (folder / "run.toml").write_text(f"{tables}[training]\nsteps = {steps}\n", encoding="utf-8")
    (folder / LOG).write_text("".join(json.dumps(event) + "\n" for event in events))
    for step in checkpoints:
        (folder / "checkpoints" / str(step)).mkdir(parents=True)
    for path in (folder / "run.toml", folder / LOG, folder / "checkpoints"):
        if path.exists():
            os.utime(path, (time.time() - age,) * 2)
    return folder


def listed(said):
    """The lines of the table by the run's name, their cells apart."""
    assert (said.code, said.err) == (0, "")
    table = said.out.split("\n\n")[0].splitlines()
    rows = [re.split(r" {2,}", line.strip()) for line in table]
    return {row[0]: row for row in rows}


@pytest.fixture
def _wide(monkeypatch):
    monkeypatch.delenv("COLUMNS")  # as in a pipe


@pytest.mark.usefixtures("_wide")
def test_a_run_that_was_trained_is_listed_with_what_its_files_say(decoder):
    (found,) = json.loads(call("runs", "--json", decoder).out)
    events = [json.loads(line) for line in (decoder / LOG).read_text().splitlines()]
    best = min((e["loss"], e["step"]) for e in events if e["event"] == "validation")
    files = [path for path in decoder.rglob("*") if path.is_file()]
    kept = sorted(int(path.name) for path in (decoder / "checkpoints").iterdir())
    assert (found["folder"], found["state"]) == (str(decoder), "finished")
    assert (found["step"], found["steps"], found["model"]) == (12, 12, "gpt2-tiny")
    assert (found["best_loss"], found["best_step"]) == best
    assert [Path(name).name for name in found["data"]] == ["notes.txt"]
    assert found["size"] == sum(path.stat().st_size for path in files)
    assert (found["checkpoints"], found["holder"], found["can_go_on"]) == (kept, None, False)
    row = listed(call("runs", decoder.parent))[str(decoder)]
    assert row[1:6] == ["finished", "12 of 12", f"{best[0]:.4f}", "gpt2-tiny", "notes.txt"]


@pytest.mark.usefixtures("_wide")
def test_a_line_says_how_a_run_stands_the_last_changed_first():
    begun("runs/old", {**END, "reason": "stopped early"}, age=3 * 86400 + 7200)
    begun("runs/sweep/a", {**END, "reason": "interrupted"}, age=200, checkpoints=[700])
    begun("runs/new", age=-5)
    said = call("runs")
    rows = listed(said)
    assert list(rows) == ["run", "runs/new", "runs/sweep/a", "runs/old"]
    assert rows["run"] == ["run", "state", "step", "best loss", "model", "data", "size", "changed"]
    a = ["interrupted", "700 of 1,000", "1.2500", "regard-4", "notes.txt"]
    assert rows["runs/sweep/a"][1:6] == a
    assert rows["runs/sweep/a"][-1] == "3 min ago"
    assert rows["runs/new"][1:4] == ["not begun", "0 of 1,000", "regard-4"]  # no best loss
    assert rows["runs/new"][-1] == "now"
    assert (rows["runs/old"][1], rows["runs/old"][-1]) == ("stopped early", "3 d ago")
    assert said.out.endswith("\n\n`regard train --out runs/sweep/a` goes on\n")


def test_only_those_that_can_go_on_are_said_to_and_by_a_command_that_a_shell_takes():
    begun("runs/it's", {"event": "step", "step": 5}, checkpoints=[5])
    begun("runs/lost", {"event": "step", "step": 5})  # no checkpoint
    assert r"""`regard train --out 'runs/it'"'"'s'` goes on""" in call("runs").out
    for i in range(5):
        begun(f"runs/more-{i}", {**END, "reason": "interrupted"}, checkpoints=[7], age=9 + i)
    names = ", ".join(f"runs/more-{i}" for i in range(4))
    said = " ".join(call("runs").out.split())
    assert said.endswith(f"`regard train --out RUN` goes on with runs/it's, {names} and 1 more")


def test_a_run_that_is_trained_now_is_running_and_nobody_is_told_to_go_on():
    folder = begun("runs/x", {"event": "step", "step": 5}, checkpoints=[5])
    with Lock(folder):
        assert listed(call("runs"))["runs/x"][1] == "running"
        assert "goes on" not in call("runs").out
        (found,) = json.loads(call("runs", "--json").out)
    assert (found["state"], found["holder"]["process"]) == ("running", os.getpid())
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d", found["holder"]["since"])
    assert json.loads(call("runs", "--json").out)[0]["state"] == "killed"


@pytest.mark.usefixtures("_wide")
def test_a_damaged_or_failed_run_is_listed_and_told_why_beside_the_others():
    begun("runs/good", {**END, "reason": "finished"}, age=5)
    (begun("runs/bad") / "run.toml").write_text("[data")
    begun("runs/nan", {**END, "reason": "failed", "message": "the loss is nan\x1b[2J\n!"}, age=9)
    said = call("runs")
    rows = listed(said)
    assert {name: rows[f"runs/{name}"][1] for name in ("good", "bad", "nan")} == {
        "good": "finished",
        "bad": "damaged",
        "nan": "failed",
    }
    first, second = said.out.split("\n\n")[1].splitlines()
    assert first.startswith("runs/bad/run.toml is not readable TOML: ")
    assert second == r"runs/nan failed: the loss is nan\x1b[2J\n!"
    reasons = {s["folder"]: s["reason"] for s in json.loads(call("runs", "--json").out)}
    assert reasons["runs/nan"] == "the loss is nan\x1b[2J\n!"


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 140])
def test_at_any_width_no_name_is_cut_and_no_line_is_too_long(monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    long = "runs/" + "long-" * 30
    begun("runs/short", {**END, "reason": "finished"})
    begun(long, {**END, "reason": "finished"}, data=["x" * 300], model="y" * 300, steps=10**9)
    said = call("runs")
    lines = said.out.splitlines()
    assert all(len(line) <= width for line in lines)
    assert re.search("finished", said.out)
    first = next(i for i, line in enumerate(lines) if line.startswith("runs/l"))
    name = "".join(line.split()[0] for line in lines[first:] if not line.startswith("runs/s"))
    assert name == long


@pytest.mark.usefixtures("_wide")
@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (["/a/b/notes.txt"], "notes.txt"),
        (["/a/b/en.txt", "/a/b/de.txt"], "en.txt de.txt"),
        (["/a/b/1", "/a/b/2", "/a/b/3"], "1 and 2 more"),
        (["/a/books/*.txt"], "books/*.txt"),
        (["reverse"], "reverse"),
        (["/a/b\x1b2J\n猫"], r"b\x1b2J\n猫"),
        (["/a/" + "b" * 40], "b" * 27 + "…"),
    ],
)
def test_the_data_is_told_in_a_few_words(data, shown):
    begun("runs/x", {**END, "reason": "finished"}, data=data)
    assert listed(call("runs"))["runs/x"][5] == shown


def test_folders_are_listed_once_under_their_first_name():
    begun("a/x", age=9)
    begun("b/y")
    assert list(listed(call("runs", "a/x", "a", "b", "a/../b"))) == ["run", "b/y", "a/x"]


def test_states_have_their_colours(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    for reason in ("finished", "stopped early", "interrupted", "failed"):
        begun(f"runs/{reason}", {**END, "reason": reason})
    begun("runs/killed", {"event": "step", "step": 1})
    (begun("runs/damaged") / "run.toml").write_text("[")
    with Lock(begun("runs/running")):
        said = call("runs").out
    found = {
        word: colour
        for colour, word in re.findall(r"\x1b\[(\d+)m([a-z]+(?: [a-z]+)?) *\x1b\[0m", said)
        if colour not in ("1", "36")  # headings and names
    }
    assert found == {
        "running": "32",
        "finished": "2",
        "stopped early": "2",
        "interrupted": "33",
        "killed": "33",
        "failed": "31",
        "damaged": "31",
    }


def test_no_runs_are_one_sentence_and_an_empty_array():
    Path("empty").mkdir()
    for where, arguments in (("runs/", ()), ("empty", ("empty",))):
        sentence = f"there are no runs in {where}; `regard train` makes one\n"
        assert call("runs", *arguments) == (0, sentence, "")
        assert json.loads(call("runs", "--json", *arguments).out) == []


def test_folders_that_are_not_there_are_all_told():
    Path("file").write_text("")
    said = mistake(call("runs", "nowhere", "file"))
    assert "there is no folder nowhere" in said
    assert "there is no folder file" in said

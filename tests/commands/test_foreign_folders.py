"""Folders that somebody else made, and links out of a run: nothing of theirs is lost."""

import errno
import os
import shutil
from pathlib import Path

import pytest
from command_line import QUICK, Said, call, mistake

from regard import demo
from regard.errors import RegardError, UnreadableError
from regard.inspection.curves import plot
from regard.runs import resume_or_new
from regard.runs.run_folder import clear
from regard.runs.stored_run import is_ours
from regard.training.checkpoints.reading import stored_steps

SMALL = ("model.layers=1", "model.width=32", "model.heads=2")
FIXTURE = Path(__file__).parents[1] / "fixtures" / "run-0.1"
RECIPE = "[training]\nsteps = 2\n"


def start(data: Path, *more: object, out: object = "r", settings: tuple = ()) -> Said:
    words = (data / "notes.txt", "--model", "gpt2-tiny", "--out", out)
    return call("train", *words, *more, "--set", *QUICK, *SMALL, *settings)


def contents(folder: Path) -> dict[str, bytes | str]:
    """All files, and where links lead."""
    return {
        str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


@pytest.fixture
def failing() -> tuple[str, ...]:
    """Settings of a run that fails when its model is made, before the first step."""
    Path("v.vec").write_text("1 3\ncat 1 2 3\n")
    return ("training.vectors=v.vec",)


@pytest.fixture
def killed(decoder) -> Path:
    """A run that was killed before its first checkpoint."""
    shutil.copytree(decoder, "r")
    shutil.rmtree("r/checkpoints")
    Path("r/model.safetensors").unlink()
    return Path("r")


# Somebody's own files


@pytest.mark.parametrize(
    "files",
    [
        {"run.toml": RECIPE, "notes.md": "mine"},
        {"run.toml": RECIPE},
        {"run.toml": f"{RECIPE}[versions]\nregard = '0.1.0'\n"},  # and no tokenizer
        {"run.toml": "steps: 2", "log.jsonl": "{}"},
        {"run.toml": RECIPE, "checkpoints/1/mine": "a", "model.safetensors": "mine"},
        {"tokenizer.json": "{}"},
        {"model.safetensors": "mine"},
        {"log.jsonl": "mine"},
        {"checkpoints/100/mine": "a"},
        {".hidden": "mine"},
    ],
)
def test_a_folder_of_somebody_elses_is_refused_and_stays_as_it_is(data, files):
    for name, text in files.items():
        (Path("proj") / name).parent.mkdir(parents=True, exist_ok=True)
        (Path("proj") / name).write_text(text)
    before = contents(Path("proj"))
    recipe = ("--recipe", "proj/run.toml") if files.get("run.toml") == RECIPE else ()
    told = mistake(start(data, *recipe, out="proj"))
    assert "choose another --out" in told
    assert contents(Path("proj")) == before


def test_a_copied_run_toml_is_a_recipe_and_not_the_run(data, decoder):
    Path("proj").mkdir()
    shutil.copy(decoder / "run.toml", "proj")
    told = mistake(start(data, "--recipe", "proj/run.toml", out="proj"))
    assert "proj/run.toml is not what training wrote, and would be lost" in told
    assert contents(Path("proj")) == {"run.toml": (decoder / "run.toml").read_bytes()}


@pytest.mark.parametrize("name", ["run.toml", "tokenizer.json"])
def test_a_run_that_was_changed_by_hand_is_not_begun_anew(data, killed, words, name):
    if name == "run.toml":
        (killed / name).write_text((killed / name).read_text().replace("seed = 0", "seed = 1"))
    else:
        shutil.copy(words / name, killed / name)
    before = contents(killed)
    assert "run.toml is not what training wrote" in mistake(start(data))
    assert contents(killed) == before


def test_a_run_of_ours_is_one_whenever_it_was_made(killed):
    assert is_ours(killed)
    assert is_ours(FIXTURE)
    older = "".join(
        line
        for line in (FIXTURE / "run.toml").read_text().splitlines(keepends=True)
        if not line.startswith(("settings = ", "tokenizer = ", "data = "))
    )
    Path("old").mkdir()
    shutil.copy(FIXTURE / "tokenizer.json", "old")
    Path("old/run.toml").write_text(older)
    assert is_ours(Path("old"))


def test_a_start_that_fails_takes_away_what_it_wrote_and_nothing_else(data, failing, monkeypatch):
    from regard.runs import train_run

    begin = train_run.start_with

    def meanwhile(*given):
        Path("r/notes.md").write_text("mine")
        return begin(*given)

    monkeypatch.setattr(train_run, "start_with", meanwhile)
    assert "v.vec has vectors of 3 numbers" in mistake(start(data, settings=failing))
    assert contents(Path("r")) == {"notes.md": b"mine"}


def test_a_folder_that_was_not_there_goes_again_and_one_that_was_stays(data, failing):
    Path("there").mkdir()
    there = os.stat("there").st_ino
    for out in ("there", "new"):
        assert start(data, out=out, settings=failing).code == 2
    assert os.listdir("there") == []
    assert os.stat("there").st_ino == there
    assert not Path("new").exists()


def test_whoever_is_killed_while_it_is_cleared_finds_the_folder_free(data, killed, monkeypatch):
    """After each of its parts; what is left is ours, or what a killed run leaves."""
    from regard.runs import run_folder
    from regard.runs.resume_or_new import check_free

    (killed / ".lock").touch()
    (killed / "checkpoints").mkdir()
    discard = run_folder.discard

    def looked(path):
        discard(path)
        check_free(killed)

    monkeypatch.setattr(run_folder, "discard", looked)
    clear(killed)
    assert list(killed.iterdir()) == []


def test_the_demo_takes_the_place_of_an_earlier_one_alone(decoder, tmp_path, capsys):
    folder = Path("demo")
    folder.mkdir()
    (folder / "main.py").write_text("mine")
    data = f"data.train=['{__file__}']"
    with pytest.raises(SystemExit):
        demo.main((data, "data.held_out=0.1", "tokenizer.vocabulary=300", *SMALL), folder)
    assert "demo is already there" in capsys.readouterr().err
    assert contents(folder) == {"main.py": b"mine"}


def test_a_last_run_that_cannot_be_read_stops_the_command(data, monkeypatch):
    def away(folder):
        raise UnreadableError(folder / "run.toml", OSError(errno.EACCES, "Permission denied"))

    Path("runs/notes").mkdir(parents=True)
    monkeypatch.setattr(resume_or_new, "begun", away)
    said = mistake(call("train", data / "notes.txt", "--model", "ngram"))
    assert "runs/notes/run.toml cannot be read: Permission denied; make it readable, or" in said


# The folder itself is a link


def test_a_link_that_leads_nowhere_is_refused_as_one(data):
    os.symlink("unmounted", "r")
    said = call("train", data / "notes.txt", "--model", "ngram", "--out", "r")
    assert "r is a link to unmounted, which is not there" in said.err
    assert os.readlink("r") == "unmounted"


def test_a_start_that_fails_into_a_linked_folder_leaves_the_link(data, failing):
    Path("disk").mkdir()
    Path("r").symlink_to("disk")
    assert start(data, settings=failing).code == 2
    assert os.readlink("r") == "disk"
    assert os.listdir("disk") == []


def test_a_run_may_stand_where_a_link_leads(data):
    Path("disk/deep").mkdir(parents=True)
    Path("near").symlink_to("disk")
    Path("r").symlink_to("near/deep")
    for steps in (1, 2):
        said = start(data, "--steps", steps)
        assert said.code == 0, said.err
    assert "goes on from step 1" in said.out
    assert os.readlink("r") == "near/deep"
    assert "model.safetensors" in os.listdir("disk/deep")
    assert start(data, "--steps", 1, out="near/other").code == 0
    assert "model.safetensors" in os.listdir("disk/other")


@pytest.mark.parametrize(("out", "to"), [("r", "nowhere"), ("r", "r"), ("r/x", "nowhere")])
def test_a_link_that_leads_nowhere_is_refused_and_stays(data, out, to):
    Path("r").symlink_to(to)
    mistake(start(data, out=out))
    assert os.listdir() == ["r"]
    assert os.readlink("r") == to


def test_without_a_name_a_link_that_leads_nowhere_keeps_its_name(data):
    Path("runs").mkdir()
    Path("runs/notes").symlink_to("nowhere")
    assert start(data, "--steps", 1, out="").code == 0
    assert os.readlink("runs/notes") == "nowhere"
    assert "run.toml" in os.listdir("runs/notes-2")


# Links inside a run


@pytest.mark.parametrize("name", ["checkpoints", "tensorboard", "log.jsonl", ".lock"])
@pytest.mark.parametrize("to", ["there", "nowhere"])
def test_training_does_not_follow_a_link_out_of_a_run(data, decoder, name, to):
    shutil.copytree(decoder, "r")
    Path("r", name).is_dir() and shutil.rmtree(Path("r", name))
    Path("r", name).unlink(missing_ok=True)
    Path("there/2019").mkdir(parents=True)
    Path("there/2019/photo").write_text("mine")
    Path("there/.7.share-1").mkdir()
    Path("r", name).symlink_to(f"../{to}")
    before = contents(Path())
    told = mistake(call("train", "--out", "r", "--steps", 14))
    assert f"r/{name} is a link, and training would write to where it leads" in told
    assert contents(Path()) == before
    assert not Path("nowhere").exists()


@pytest.mark.parametrize("name", ["run.toml", "tokenizer.json", "model.safetensors"])
def test_a_file_of_a_run_that_is_a_link_is_replaced_and_what_it_named_stays(data, decoder, name):
    shutil.copytree(decoder, "r")
    Path("r", name).rename(name)
    Path("r", name).symlink_to(Path(name).absolute())
    kept = Path(name).read_bytes()
    said = call("train", "--out", "r", "--steps", 14)
    assert said.code == 0, said.err
    assert not Path("r", name).is_symlink()
    assert Path(name).read_bytes() == kept


def test_a_checkpoint_that_is_a_link_is_dropped_as_the_link_alone(data, decoder):
    shutil.copytree(decoder, "r")
    last = stored_steps(Path("r"))[-1]
    Path("r/checkpoints", str(last)).rename("moved")
    Path("r/checkpoints", str(last)).symlink_to("../../moved")
    Path("photos").mkdir()
    Path("photos/one").write_text("mine")
    Path("r/checkpoints/8").symlink_to("../../photos")
    Path("r/checkpoints/9").mkdir()
    for step in (8, 9):
        Path(f"r/checkpoints/{step}.damaged").symlink_to("../../photos")
    kept = contents(Path("moved"))
    said = call("train", "--out", "r", "--steps", 14)
    assert said.code == 0, said.err
    assert f"goes on from step {last}" in said.out
    assert contents(Path("moved")) == kept
    assert contents(Path("photos")) == {"one": b"mine"}


def test_a_copy_of_hard_links_keeps_its_log(data, decoder):
    shutil.copytree(decoder, "r")
    shutil.copytree("r", "copy", copy_function=os.link)
    kept = contents(Path("copy"))
    said = call("train", "--out", "r", "--steps", 14)
    assert said.code == 0, said.err
    assert contents(Path("copy")) == kept


# What other commands write


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("compare.json", '{"models": {"a": {"b": 1}}}', "is damaged or not ours"),
        ("compare.json", '{"models": {}, "mine": 1}', "is damaged or not ours"),
        ("compare.json", "mine", "is not readable JSON"),
        ("measured/bigram-0/quality.json", "mine", "measured is there, but compare.json is not"),
    ],
)
def test_a_comparison_writes_over_no_file_of_somebody_elses(data, name, text, told):
    (Path("out") / name).parent.mkdir(parents=True)
    (Path("out") / name).write_text(text)
    said = call("compare", data / "notes.txt", "--models", "bigram", "--out", "out")
    assert told in mistake(said)
    assert contents(Path("out")) == {name: text.encode()}


def test_a_comparison_measures_through_no_link(data):
    Path("out").mkdir()
    Path("there").mkdir()
    Path("out/compare.json").write_text('{"models": {}}')
    Path("out/measured").symlink_to("../there")
    said = call("compare", data / "notes.txt", "--models", "bigram", "--out", "out")
    assert "out/measured is a link" in mistake(said)


def test_a_picture_takes_the_place_of_a_link_and_is_not_drawn_over_what_it_names(decoder):
    Path("precious").write_text("mine")
    Path("curves.png").symlink_to("precious")
    plot([decoder], "curves.png")
    assert Path("precious").read_text() == "mine"
    assert Path("curves.png").read_bytes().startswith(b"\x89PNG")
    Path("c.png").symlink_to(decoder / "model.safetensors")
    assert "is a part of the run" in mistake(call("plot", decoder, "-o", "c.png"))


def test_a_tokenizer_is_not_written_over_another_that_nobody_named(data):
    Path("tokenizer.json").write_text("mine")
    words = ("tokenizer", data / "notes.txt", "--kind", "char")
    assert "tokenizer.json is already there; name it with --out" in mistake(call(*words))
    assert Path("tokenizer.json").read_text() == "mine"
    assert call(*words, "-o", "tokenizer.json").code == 0
    assert Path("tokenizer.json").read_text() != "mine"


@pytest.mark.parametrize("name", ["/dev/null", "out"])
def test_no_file_takes_the_place_of_a_device(name):
    from regard.commands.arguments import check_writable

    Path("out").symlink_to("/proc/self/fd/1")
    with pytest.raises(RegardError, match="is a device; name a file"):
        check_writable(Path(name), replaced=True)
    check_writable(Path("/dev/null"))  # which is written into

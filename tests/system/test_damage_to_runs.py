"""Files of a run that was killed are cut off, changed, or no files any more; then the same command.

What can be made again is, and the run ends as if nothing had been: checkpoints (an older one is
taken), the log, the weights, the cache. What cannot (settings, tokenizer) is named in a sentence.
"""

import json
import os
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from signal import SIGTERM

import pytest
from tiny_runs import kept, left, made

from regard.text.learning import learn
from regard.training.checkpoints.reading import Checkpoint, stored_steps

HOOKS = str(Path(__file__).with_name("hooks.py"))
PATIENCE = 30.0  # seconds
KEEP = ("--set", "training.keep=4")
Damage = Callable[[Path], None]


def cut(path: Path, length: int) -> None:
    path.write_bytes(path.read_bytes()[:length])


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def pipe(path: Path) -> None:
    remove(path)
    os.mkfifo(path)


def circle(path: Path) -> None:
    remove(path)
    path.symlink_to(path.name)


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def changed(before: str, after: str) -> Damage:
    def change(path: Path) -> None:
        assert before in path.read_text()
        path.write_text(path.read_text().replace(before, after, 1))

    return change


DAMAGES: dict[str, Damage] = {
    "empty": lambda path: cut(path, 0),
    "cut to a byte": lambda path: cut(path, 1),
    "cut in half": lambda path: cut(path, path.stat().st_size // 2),
    "cut by a few bytes": lambda path: cut(path, -3),
    "a bit of its first bytes": lambda path: flip(path, 3),
    "a bit of its head": lambda path: flip(path, min(200, path.stat().st_size // 3)),
    "a bit in the middle": lambda path: flip(path, path.stat().st_size // 2),
    "a bit at its end": lambda path: flip(path, -2),
    "a pipe": pipe,
    "a link in a circle": circle,
    "gone": remove,
}
NO_FILES = ("a pipe", "a link in a circle")


@pytest.fixture(scope="module")
def broken(nursery, tmp_path_factory):
    """A run that was stopped, went on, and was killed: it has weights and four checkpoints."""
    folder = tmp_path_factory.mktemp("broken") / "folder"
    command = [*made(folder, "text"), *KEEP]
    given = {"where": "regard.training.loop:Loop._gradients", "call": 7, "signals": [SIGTERM]}
    stopped = nursery.run(folder, *command, hooks=HOOKS, setup="stopped", given=given)
    assert stopped.code == 143, stopped.out
    assert nursery.run(folder, *command, hooks=HOOKS, setup="killed", given={"step": 21}).code == -9
    assert stored_steps(folder / "run") == [12, 16, 18, 20]
    return folder, command


@pytest.fixture
def again(nursery, broken, tmp_path):
    """What the same command does in a copy of the folder in which some files are damaged."""

    def run(damages: dict[str, Damage]):
        folder, command = broken
        shutil.copytree(folder, tmp_path / "copy")
        for name, damage in damages.items():
            damage(next((tmp_path / "copy").glob(name)))
        return nursery.run(tmp_path / "copy", *command, after=PATIENCE), tmp_path / "copy" / "run"

    return run


def sentence(ended) -> str:
    """What a refusal says; all problems of one input come together, a line each."""
    assert ended.code == 2, ended.out
    assert "Traceback" not in ended.out
    return ended.out[ended.out.index("error: ") :]


# Checkpoints


@pytest.mark.parametrize("how", DAMAGES)
def test_damaged_checkpoints_are_named_and_an_older_one_is_taken(again, whole, how):
    files = {20: "model.safetensors", 18: "optimizer.safetensors", 16: "place.json"}
    ended, run = again({f"run/checkpoints/{s}/{name}": DAMAGES[how] for s, name in files.items()})
    assert ended.code == 0, ended.out
    assert left(run) == whole("text").left
    said = " ".join(ended.out.split())  # a console breaks lines
    assert "goes on from step 12" in said
    for step, name in files.items():
        assert f"checkpoint {step} is damaged and was put aside: run/checkpoints/{step}" in said
        assert name in said
        assert (run / "checkpoints" / f"{step}.damaged").is_dir()


def test_a_place_that_says_something_else_is_no_place(again, whole):
    texts = {
        20: ('"turn": 0', '"turn": 1'),
        18: ('"order": "', '"order": "f'),
        16: ('"waited": 0', '"waited": 1'),
    }
    ended, run = again(
        {f"run/checkpoints/{s}/place.json": changed(*text) for s, text in texts.items()}
    )
    assert ended.code == 0, ended.out
    assert left(run) == whole("text").left
    assert "goes on from step 12" in ended.out


def test_without_any_whole_checkpoint_a_run_starts_again(again, whole):
    files = {f"run/checkpoints/{step}/place.json": DAMAGES["empty"] for step in (12, 16, 18, 20)}
    ended, run = again(files)
    assert ended.code == 0, ended.out
    assert left(run) == whole("text").left
    assert "starts from the beginning" in ended.out


@pytest.mark.parametrize("how", [*NO_FILES, "gone"])
def test_no_folder_where_a_checkpoint_was(again, whole, how):
    ended, run = again({"run/checkpoints/20": DAMAGES[how], "run/checkpoints/16": DAMAGES[how]})
    assert ended.code == 0, ended.out
    assert left(run) == whole("text").left


NO_FOLDER = {
    "a pipe": "cannot write checkpoint 4",
    "a link in a circle": "run/checkpoints is a link",
}


@pytest.mark.parametrize(("how", "said"), NO_FOLDER.items())
def test_no_folder_where_checkpoints_were(again, how, said):
    ended, _ = again({"run/checkpoints": DAMAGES[how]})
    assert said in sentence(ended)


@pytest.mark.parametrize(
    ("step", "best", "average"), [(18, 18, 0), (16, 24, 4)], ids=["best", "averaged"]
)
def test_a_damaged_checkpoint_that_the_final_weights_need_is_made_again(
    nursery, step, best, average, tmp_path
):
    settings = [f"training.average={average}", "training.ema=0"]
    for name in ("whole", "damaged"):
        command = [*made(tmp_path / name, "text"), *KEEP, *settings]
    expected, folder = tmp_path / "whole", tmp_path / "damaged"
    judged = {"hooks": HOOKS, "setup": "judged"}
    killed = {"best": best, "hook": "killed", "given": {"step": 21}}
    assert nursery.run(expected, *command, **judged, given={"best": best}).code == 0
    assert nursery.run(folder, *command, **judged, given=killed).code == -9
    DAMAGES["cut in half"](folder / "run" / "checkpoints" / str(step) / "model.safetensors")
    ended = nursery.run(folder, *command, **judged, given={"best": best})
    assert ended.code == 0, ended.out
    assert left(folder / "run") == left(expected / "run")


# Settings and tokenizer


@pytest.mark.parametrize("how", [how for how in DAMAGES if not how.startswith("a bit")])
def test_settings_that_are_cut_off_are_named(again, how):
    ended, run = again({"run/run.toml": DAMAGES[how]})
    assert "run.toml" in sentence(ended)
    assert stored_steps(run) == [12, 16, 18, 20]  # none was touched


@pytest.mark.parametrize(
    "text",
    [  # each a bit
        ("beta2 = 0.95", "beta2 = 0.94"),
        ("seed = 0", "seed = 1"),
        ("dropout = 0.1", "dropout = 0.0"),
        ("held_out = 0.1", "held_out = 0.0"),
        ("vocabulary = 290", "vocabulary = 291"),
        ("keep = 4", "keep = 5"),
        ("[training]", "[trainine]"),
        ("[model]", "[model\\"),
    ],
    ids=lambda text: text[1],
)
def test_settings_that_say_something_else_are_refused(again, text):
    ended, run = again({"run/run.toml": changed(*text)})
    assert "run.toml" in sentence(ended)
    assert stored_steps(run) == [12, 16, 18, 20]


def test_what_a_run_was_made_with_may_say_what_it_likes(again, whole):
    ended, run = again({"run/run.toml": changed('python = "', 'python = "1')})
    assert ended.code == 0, ended.out
    assert left(run) == whole("text").left


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_tokenizer_is_named(again, how):
    ended, run = again({"run/tokenizer.json": DAMAGES[how]})
    assert "run/tokenizer.json" in sentence(ended)
    assert stored_steps(run) == [12, 16, 18, 20]


def test_another_tokenizer_is_refused(again):
    other = learn("bpe", ["another text has other tokens than that text had"], 290)
    ended, _ = again({"run/tokenizer.json": other.save})
    assert "tokenizer.json" in sentence(ended)


# What can be made again


@pytest.mark.parametrize("how", [how for how in DAMAGES if how not in NO_FILES])
def test_damaged_weights_logs_and_locks_keep_nothing_from_going_on(again, whole, how):
    ended, run = again(
        {f"run/{name}": DAMAGES[how] for name in ("model.safetensors", "log.jsonl", ".lock")}
    )
    assert ended.code == 0, ended.out
    assert json.loads((run / "log.jsonl").read_bytes().splitlines()[-1])["reason"] == "finished"
    assert kept(run) == {name: whole("text").left[name] for name in kept(run)}


@pytest.mark.parametrize("how", NO_FILES)
def test_no_file_where_the_weights_were(again, whole, how):
    ended, run = again({"run/model.safetensors": DAMAGES[how]})
    assert ended.code == 0, ended.out
    assert left(run) == whole("text").left


@pytest.mark.parametrize("how", NO_FILES)
def test_a_log_that_cannot_be_written_is_named(again, how):
    ended, run = again({"run/log.jsonl": DAMAGES[how]})
    assert "run/log.jsonl" in sentence(ended)
    for step in stored_steps(run):
        Checkpoint(run / "checkpoints" / str(step)).verify()


def test_a_pipe_where_the_lock_was_keeps_nobody_out(again, whole):
    ended, run = again({"run/.lock": pipe})
    assert ended.code == 0, ended.out
    assert left(run) == whole("text").left


def test_a_lock_that_is_a_link_in_a_circle_is_named(again):
    assert "run/.lock is a link" in sentence(again({"run/.lock": circle})[0])


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *product(("meta.json", "documents.bin", "tokens-00000.bin"), ("empty", "a bit at its end")),
        ("meta.json", "a pipe"),
        ("documents.bin", "a link in a circle"),
        ("tokens-00000.bin", "a pipe"),
    ],
)
def test_a_damaged_token_cache_is_made_again(again, broken, whole, name, how):
    part = "valid" if how == "empty" else "train"
    ended, run = again({f"cache/tokens-*/{part}/{name}": DAMAGES[how]})
    assert ended.code == 0, ended.out
    assert left(run) == whole("text").left
    made = [next(p.glob(f"cache/tokens-*/{part}/{name}")) for p in (broken[0], run.parent)]
    assert made[0].read_bytes() == made[1].read_bytes()


@pytest.mark.parametrize("how", ["empty", "cut in half", "another letter", *NO_FILES])
def test_a_damaged_tokenizer_in_the_cache_is_learned_again(nursery, whole, how, tmp_path):
    folder = tmp_path / "cached"
    command = made(folder, "gaps")  # of characters: any letter makes a tokenizer
    assert nursery.run(folder, *command, hooks=HOOKS, setup="killed", given={"step": 0}).code == -9
    shutil.rmtree(folder / "run")
    kept = next(folder.glob("cache/tokenizer-*.json"))
    if how == "another letter":
        assert '"w"' in kept.read_text()
        kept.write_text(kept.read_text().replace('"w"', '"v"'))
    else:
        DAMAGES[how](kept)
    ended = nursery.run(folder, *command, after=PATIENCE)
    assert ended.code == 0, ended.out
    assert left(folder / "run") == whole("gaps").left

"""Cut off anywhere, with any bit flipped: a run opens as it was, or one sentence says why not."""

import os
import random
import shutil
from pathlib import Path

import pytest
import torch
from small_runs import TEXT, small_run

from regard.cli import main
from regard.errors import RegardError
from regard.runs import stored_run
from regard.storage import event_log

FILES = ("run.toml", "tokenizer.json", "model.safetensors")


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "good"
    small_run(folder)
    return folder


@pytest.fixture
def folder(good, tmp_path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "run"))


def opened(folder: Path) -> stored_run.Run | None:
    """The run, or None where one sentence (or a list of problems) said what is wrong and where."""
    said = ""
    try:
        return stored_run.open_run(folder)
    except RegardError as error:
        said = str(error)
    assert str(folder) in said
    assert "\n" not in said or "problems" in said
    return None


def same(run: stored_run.Run, other: stored_run.Run) -> bool:
    """Whether two runs compute the same from the same text."""
    ids = torch.tensor([run.tokenizer.encode(TEXT).tolist()])
    return (
        run.settings == other.settings
        and run.config == other.config
        and run.tokenizer.fingerprint == other.tokenizer.fingerprint
        and torch.equal(run.module(ids), other.module(ids))
    )


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_a_run_that_was_cut_off_is_told(good, folder, name):
    whole, size = stored_run.open_run(good), (good / name).stat().st_size
    told = 0
    for kept in (0, 1, 7, 8, 9, size // 4, size // 2, size - 100, size - 10, size - 2, size - 1):
        shutil.copy(good / name, folder / name)
        os.truncate(folder / name, kept)
        run = opened(folder)
        told += run is None
        assert run is None or same(run, whole)
    # Nothing is lost with the newline at the end of a text.
    assert told == (11 if name == "model.safetensors" else 10)


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_in_a_run_is_told_or_makes_no_difference(good, folder, name):
    whole, content, dice = stored_run.open_run(good), (good / name).read_bytes(), random.Random(0)
    told = 0
    for _ in range(150):
        place, bit = dice.randrange(len(content)), dice.randrange(8)
        flipped = bytes([content[place] ^ 1 << bit])
        (folder / name).write_bytes(content[:place] + flipped + content[place + 1 :])
        run = opened(folder)
        told += run is None
        assert run is None or same(run, whole), (place, bit)
    assert told == 150 if name == "model.safetensors" else told > 75


def test_no_flipped_bit_in_the_settings_changes_them_in_silence(good, folder):
    """Many would fit the weights, and compute something else."""
    told, wanted = 0, stored_run.config_of(good)
    content = (good / "run.toml").read_bytes()
    start = content.index(b"norm_epsilon")
    end = content.index(b"\n", content.index(b"rotary_base"))
    assert start < end < start + 200
    for bit in range(8 * start, 8 * end):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        (folder / "run.toml").write_bytes(flipped)
        try:
            assert stored_run.config_of(folder) == wanted  # 1e-05 may become 1E-05
        except RegardError:
            told += 1
    assert told > 0.95 * 8 * (end - start)


def test_a_log_that_was_cut_off_keeps_its_whole_lines(good, folder):
    events, content = event_log.read(good), (good / event_log.LOG).read_bytes()
    assert len(events) == 3
    for kept in range(len(content)):
        (folder / event_log.LOG).write_bytes(content[:kept])
        found = event_log.read(folder)
        assert found == events[: len(found)]
        # A line is whole with its last brace, the newline may be missing.
        assert len(found) == content[:kept].count(b"}")


def test_a_flipped_bit_in_a_log_is_told_or_changes_one_event(good, folder):
    events, content = event_log.read(good), bytearray((good / event_log.LOG).read_bytes())
    for bit in range(8 * len(content)):
        content[bit // 8] ^= 1 << bit % 8
        (folder / event_log.LOG).write_bytes(content)
        content[bit // 8] ^= 1 << bit % 8
        try:
            found = event_log.read(folder)
        except RegardError:
            continue
        # The last line without its end is taken for torn; nothing else is lost.
        assert sum(a != b for a, b in zip(found, events, strict=False)) <= 1
        assert len(found) == 3 or bit // 8 == len(content) - 1


def test_a_command_says_so_in_one_line(folder, capsys, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(folder / "cache"))
    (folder / "text.txt").write_text(TEXT * 50)
    main(["evaluate", str(folder), str(folder / "text.txt"), "--json"])
    capsys.readouterr()
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-500] ^= 4
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", str(folder), str(folder / "text.txt"), "--json"])
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "is not what was written); fetch or write it again" in said.err
    assert said.err.count("\n") == 1

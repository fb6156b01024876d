"""Files and folders are there whole or not at all, and a full disk is told in figures."""

import errno
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from regard.storage import building, make_folder, no_room, replacing, sweep, write_together
from regard.storage import writing as module


@pytest.fixture
def synced(monkeypatch) -> list[str]:
    """What was synced and renamed, in order; the names of partial ones shortened."""
    done: list[str] = []
    sync, rename = os.fsync, os.replace

    def short(path) -> str:
        return ".".join(p for p in Path(path).name.split(".") if not p.startswith(module._host()))

    monkeypatch.setattr(
        os, "fsync", lambda d: (done.append(short(os.readlink(f"/proc/self/fd/{d}"))), sync(d))
    )
    monkeypatch.setattr(
        os, "replace", lambda a, b: (done.append(f"{short(a)} > {short(b)}"), rename(a, b))
    )
    return done


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, synced):
    with replacing(tmp_path / "x") as partial:
        partial.write_text("new")
    assert synced == [".x.partial", ".x.partial > x", tmp_path.name]


def test_a_folder_and_all_in_it_is_on_the_disk_before_it_has_its_name(tmp_path, synced):
    with building(tmp_path / "x") as partial:
        (partial / "inner").mkdir()
        (partial / "inner" / "file").write_text("new")
        (partial / "empty").mkdir()
    assert sorted(synced[:4]) == [".x.partial", "empty", "file", "inner"]
    assert synced[4:] == [".x.partial > x", tmp_path.name]


def test_a_folder_that_goes_has_lost_its_name_on_the_disk_before_what_is_in_it_goes(
    tmp_path, synced, monkeypatch
):
    """Else a power cut may leave the name with less in it: a damaged checkpoint."""
    build(tmp_path / "x", "one")
    monkeypatch.setattr(module, "_remove", lambda path: synced.append("removed"))
    synced.clear()
    module.discard(tmp_path / "x")
    assert synced == ["x > .x.partial", tmp_path.name, "removed"]


def test_folders_are_made_with_their_names_on_the_disk(tmp_path, synced):
    make_folder(tmp_path / "a" / "b")
    assert synced == [tmp_path.name, "a"]
    make_folder(tmp_path / "a" / "b")
    assert synced == [tmp_path.name, "a"]


def build(folder: Path, content: str, **how) -> None:
    with building(folder, **how) as partial:
        (partial / "sub").mkdir()
        (partial / "sub" / "file").write_text(content)


def test_a_folder_that_is_there_stays_unless_it_is_to_be_replaced(tmp_path):
    file = tmp_path / "x" / "sub" / "file"
    build(tmp_path / "x", "one")
    build(tmp_path / "x", "two")
    assert file.read_text() == "one"
    build(tmp_path / "x", "three", replace=True)
    assert file.read_text() == "three"
    build(tmp_path / "y", "new", replace=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x", "y"]


def test_a_link_to_a_folder_is_replaced_and_what_it_named_stays(tmp_path):
    build(tmp_path / "far" / "real", "one")
    (tmp_path / "x").symlink_to(tmp_path / "far" / "real")
    build(tmp_path / "x", "two", replace=True)
    assert (tmp_path / "x" / "sub" / "file").read_text() == "two"
    assert (tmp_path / "far" / "real" / "sub" / "file").read_text() == "one"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["far", "x"]


def test_a_file_in_the_way_of_a_folder_is_an_error_and_not_a_loss(tmp_path):
    (tmp_path / "x").write_text("mine")
    with pytest.raises(OSError, match="Not a directory"):
        build(tmp_path / "x", "new")
    assert (tmp_path / "x").read_text() == "mine"
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


CALLS = {(replacing, "fsync"): 2, (replacing, "replace"): 1}
CALLS |= {(building, "fsync"): 4, (building, "replace"): 2}


@pytest.mark.parametrize(("use", "call"), CALLS)
def test_whichever_call_finds_the_disk_full_the_old_content_stays(use, call, tmp_path, monkeypatch):
    """Each call of its kind in turn fails, until all go well."""
    target, failed = tmp_path / "x", 0

    def content() -> str:
        return (target if use is replacing else target / "sub" / "file").read_text()

    def write(text: str) -> None:
        if use is building:
            build(target, text, replace=True)
        else:
            with replacing(target) as partial:
                partial.write_text(text)

    write("old")
    while content() == "old":
        with monkeypatch.context() as patch:
            patch.setattr(os, call, failing(getattr(os, call), failed))
            with suppress(OSError):
                write("new")
        failed += content() == "old"
        assert [p.name for p in tmp_path.iterdir()] == ["x"]
    # The last fsync is of the parent's names, which are new by then.
    assert failed == CALLS[use, call] - (call == "fsync")


def failing(real, number: int):
    """A call that works so many times, then finds the disk full, then works again."""
    calls = itertools.count()

    def call(*arguments):
        if next(calls) == number:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments)

    return call


def test_texts_written_together_are_all_there_or_none(tmp_path, monkeypatch):
    texts = {tmp_path / name: f"new {name}" for name in "abc"}
    for number in range(3):  # the contents; then come the names
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", failing(os.fsync, number))
            with pytest.raises(OSError, match="No space"):
                write_together(texts)
        assert list(tmp_path.iterdir()) == []
    write_together(texts)
    assert {path: path.read_text() for path in tmp_path.iterdir()} == texts


# --- what killed processes leave -------------------------------------------------------------


KILLED = """
import sys, time
from pathlib import Path
from regard.storage import building, replacing
with building(Path(sys.argv[1]) / "x") as partial, replacing(Path(sys.argv[1]) / "f") as file:
    (partial / "sub").mkdir()
    (partial / "sub" / "file").write_text("half")
    file.write_text("half")
    print("ready", flush=True)
    time.sleep(600)
"""


def test_what_a_killed_process_left_is_swept_and_what_a_living_one_writes_is_not(tmp_path):
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        left = sorted(p.name for p in tmp_path.iterdir())
        assert [name[:3] for name in left] == [".f.", ".x."]
        assert all(name.endswith(".partial") for name in left)
        (tmp_path / "mine.partial").write_text("")
        (tmp_path / ".x.old.partial").write_text("")
        sweep(tmp_path)
        assert len(list(tmp_path.iterdir())) == 4
    finally:
        process.kill()
        process.communicate()
    sweep(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".x.old.partial", "mine.partial"]
    sweep(tmp_path / "not there")


def test_what_another_machine_left_goes_when_nothing_in_it_was_touched_for_a_day(tmp_path):
    folder = tmp_path / ".x.00000000-1-abcdef12.partial"
    (folder / "sub").mkdir(parents=True)
    file = folder / "sub" / "file"
    file.write_text("half")
    old = time.time() - 2 * 24 * 3600
    for path in (folder / "sub", folder):
        os.utime(path, (old, old))
    sweep(tmp_path)  # the file is new: somebody writes it
    assert file.exists()
    for path in (file, folder / "sub", folder):
        os.utime(path, (old, old))
    sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []


KILLED_WHILE_RENAMING = """
import os, signal, sys
from pathlib import Path
from regard.storage import building
real, calls = os.replace, []
def dying(*paths):
    calls.append(paths)
    if len(calls) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    real(*paths)
os.replace = dying
with building(Path(sys.argv[1]) / "x", replace=True) as partial:
    (partial / "file").write_text("new")
"""


def test_a_folder_moved_aside_by_a_process_that_died_is_put_back(tmp_path):
    build(tmp_path / "x", "old")
    command = [sys.executable, "-c", KILLED_WHILE_RENAMING, str(tmp_path)]
    assert subprocess.run(command).returncode == -signal.SIGKILL
    assert not (tmp_path / "x").exists()
    sweep(tmp_path)
    assert (tmp_path / "x" / "sub" / "file").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


# --- full disks ------------------------------------------------------------------------------


def test_a_full_disk_is_told_with_what_is_needed_and_what_is_free(tmp_path, monkeypatch):
    full = OSError(errno.ENOSPC, "No space left on device")
    folder = tmp_path / "not" / "there"
    monkeypatch.setattr(shutil, "disk_usage", lambda p: shutil._ntuple_diskusage(9, 9, 3 * 10**8))
    said = no_room(full, folder, 1_500_000_000)
    assert said == f"no space left in {folder}: about 1.5 GB are needed and 300.0 MB are free"
    said = no_room(OSError(errno.EDQUOT, "Disk quota exceeded"), folder, 10**8)
    assert "100.0 MB are needed and 300.0 MB look free, so a quota" in said
    monkeypatch.setattr(shutil, "disk_usage", lambda p: (_ for _ in ()).throw(OSError("?")))
    assert no_room(full, folder, 1000) == f"no space left in {folder}: about 1.0 kB are needed"
    assert no_room(OSError(errno.EACCES, "Permission denied"), folder, 1) == "Permission denied"
    assert no_room(OSError("odd"), folder, 1) == "odd"


def test_no_file_takes_the_place_of_a_device(tmp_path, monkeypatch):
    (tmp_path / "out").symlink_to("/proc/self/fd/1")
    monkeypatch.setattr(os, "replace", lambda *given: pytest.fail("it would be lost"))
    for path in (Path("/dev/null"), tmp_path / "out"):
        with pytest.raises(OSError, match="it is a device"), replacing(path):
            pytest.fail("nothing is written")
    assert os.listdir(tmp_path) == ["out"]

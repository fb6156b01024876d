"""A run has one writer, who is named to the others, and whose lock dies with it."""

import errno
import fcntl
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta

import pytest

from regard.errors import RegardError
from regard.storage import lock as module
from regard.storage.lock import LOCK, Holder, Lock, holder

# Takes the lock, says so, and keeps it until its standard input ends.
WRITER = """
import errno, fcntl, os, subprocess, sys
from pathlib import Path

def unknown(descriptor, how):
    raise OSError(errno.ENOTSUP, "no flock here")

folder, *how = sys.argv[1:]
if "no-flock" in how:
    fcntl.flock = unknown
from regard.errors import RegardError
from regard.storage.lock import Lock

with Lock(Path(folder)):
    child = 0
    if "forks" in how and not (child := os.fork()):
        os.execvp("sleep", ["sleep", "60"]) if "execs" in how else os.read(0, 1)
        os._exit(0)
    if "leaves" in how and not (child := os.fork()):
        sys.exit()  # out of the `with`, in the child
    if "leaves" in how:
        os.waitpid(child, 0)
    print(child, flush=True)
    sys.stdin.read()
"""

# Rounds of processes that all try at once; prints how many won each round.
RACE = """
import errno, fcntl, os, sys, time
from pathlib import Path

def unknown(descriptor, how):
    raise OSError(errno.ENOTSUP, "no flock here")

folder, how, stale = Path(sys.argv[1]), sys.argv[2], sys.argv[3].encode()
if how == "no-flock":
    fcntl.flock = unknown
from regard.errors import RegardError
from regard.storage import lock

lock.TRIES = 3
for _ in range(8):
    if stale:
        (folder / lock.LOCK).write_bytes(stale)
    (gate, opens), (tells, told), (ends, end) = os.pipe(), os.pipe(), os.pipe()
    children = []
    for _ in range(12):
        if not (child := os.fork()):
            os.close(opens), os.close(end)
            os.read(gate, 1)  # until all are there
            try:
                with lock.Lock(folder):
                    os.write(told, b"+")
                    os.read(ends, 1)  # until all have tried
            except RegardError:
                os.write(told, b"-")
            os._exit(0)
        children.append(child)
    os.close(opens)
    heard = b""
    while len(heard) < len(children):
        heard += os.read(tells, 1)
    os.close(end)
    for child in children:
        os.waitpid(child, 0)
    print(heard.count(b"+"))
"""


@contextmanager
def writer(folder, *how):
    """Another process that holds the lock, and the child it has forked."""
    command = [sys.executable, "-c", WRITER, str(folder), *how]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        child = int(process.stdout.readline())
        try:
            yield process, child
        finally:
            process.kill()


def killed(process):
    process.send_signal(signal.SIGKILL)
    process.wait()


def refused(folder):
    """The sentence that a second writer gets."""
    with pytest.raises(RegardError) as caught, Lock(folder):
        pass
    return str(caught.value)


def lockless(monkeypatch):
    def unknown(descriptor, how):
        raise OSError(errno.ENOLCK, "no flock here")

    monkeypatch.setattr(fcntl, "flock", unknown)


# Two processes


def test_a_second_writer_is_told_who_the_first_is_and_goes_when_that_is_killed(tmp_path):
    folder = tmp_path / "runs" / "x"  # made by the lock
    with writer(folder) as (process, _):
        who = f"process {process.pid} on host {platform.node()} since "
        said = refused(folder)
        assert said.startswith(f"{folder} is being trained by {who}")
        since = re.search(r"since (\d{4}-\d\d-\d\d \d\d:\d\d); wait for it, end it, or", said)
        age = datetime.now() - datetime.strptime(since[1], "%Y-%m-%d %H:%M")
        assert timedelta(0) <= age < timedelta(minutes=10)
        assert "remove" not in said  # what a kernel's lock protects must not be removed
        assert holder(folder).process == process.pid
        killed(process)
        assert (folder / LOCK).exists()
        assert holder(folder) is None
        with Lock(folder):
            assert holder(folder).process == os.getpid()
    assert holder(folder) is None


@pytest.mark.parametrize("how", [("forks",), ("forks", "execs")])
def test_a_child_that_outlives_a_killed_writer_does_not_keep_the_lock(tmp_path, how):
    with writer(tmp_path, *how) as (process, child):
        killed(process)
        os.kill(child, 0)  # it is alive
        try:
            with Lock(tmp_path):
                pass
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_forked_child_that_ends_does_not_free_the_lock_of_its_parent(tmp_path):
    with writer(tmp_path, "leaves") as (process, _):
        assert f"process {process.pid} " in refused(tmp_path)


@pytest.mark.parametrize(
    ("how", "stale"),
    [
        ("flock", ""),
        ("flock", '{"host": "a", "process": 1, "since": ""}'),
        ("no-flock", ""),
        ("no-flock", "dead"),
    ],
)
def test_of_many_at_once_exactly_one_gets_the_lock(tmp_path, how, stale):
    if stale == "dead":
        with writer(tmp_path, "no-flock") as (process, _):
            killed(process)
        stale = (tmp_path / LOCK).read_text()
    command = [sys.executable, "-c", RACE, str(tmp_path), how, stale]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["1"] * 8, done.stderr


# One process


def test_a_lock_has_its_name_on_the_disk_before_anything_is_written(tmp_path, monkeypatch):
    """By it a folder that lost its run.toml in a power cut is known as half begun, and free."""
    synced, sync = [], os.fsync

    def watched(descriptor: int) -> None:
        sync(descriptor)
        synced.append(
            (os.readlink(f"/proc/self/fd/{descriptor}"), (tmp_path / "a" / LOCK).exists())
        )

    monkeypatch.setattr(os, "fsync", watched)
    with Lock(tmp_path / "a"):
        assert (str(tmp_path), False) in synced
        assert synced[-1] == (str(tmp_path / "a"), True)


def test_a_lock_leaves_nothing_behind_and_can_be_taken_again(tmp_path):
    for _ in range(3):
        with Lock(tmp_path):
            assert LOCK in os.listdir(tmp_path)
            assert f"process {os.getpid()} " in refused(tmp_path)  # also the same process
        assert os.listdir(tmp_path) == []


def test_a_copy_of_the_descriptor_that_nobody_knows_of_does_not_keep_the_lock(tmp_path):
    with Lock(tmp_path) as lock:
        copy = os.dup(lock._descriptor)  # as in a child that was forked outside Python
    with Lock(tmp_path):
        pass
    os.close(copy)


def test_asking_who_holds_a_lock_refuses_nobody(tmp_path, monkeypatch):
    asking = os.open(tmp_path / LOCK, os.O_RDWR | os.O_CREAT)
    fcntl.flock(asking, fcntl.LOCK_SH)  # what `holder` does, stopped halfway
    assert holder(tmp_path) is None  # nor is who asks a holder to others who ask
    monkeypatch.setattr(module.time, "sleep", lambda _: fcntl.flock(asking, fcntl.LOCK_UN))
    with Lock(tmp_path):
        assert holder(tmp_path).process == os.getpid()
    os.close(asking)


def test_a_lock_on_a_file_that_was_just_removed_is_no_lock(tmp_path, monkeypatch):
    real, removed = fcntl.flock, []

    def late(descriptor, how):
        if not removed:
            removed.append((tmp_path / LOCK).unlink())
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with Lock(tmp_path):
        monkeypatch.undo()
        assert removed
        assert "being trained" in refused(tmp_path)


def test_who_has_lost_the_folder_does_not_free_its_next_holder(tmp_path):
    with ExitStack() as second:
        with Lock(tmp_path / "run"):
            shutil.rmtree(tmp_path / "run")
            second.enter_context(Lock(tmp_path / "run"))
        assert "being trained" in refused(tmp_path / "run")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\x00",
        b"[" * 5000,
        b"[1]",
        b"null",
        b'{"host": "a"}',
        b'{"host": 1, "process": 4711, "since": ""}',
        b'{"host": "a", "process": true}',
        b'{"host": "a", "process": -1}',
        b'{"host": "a", "process": 1' + b"0" * 400 + b"}",
    ],
)
def test_a_damaged_file_still_locks_for_somebody(tmp_path, content):
    with Lock(tmp_path):
        (tmp_path / LOCK).write_bytes(content)
        assert holder(tmp_path) == Holder()
        assert "is being trained by another process; wait for it" in refused(tmp_path)


@pytest.mark.parametrize("since", ["", "yesterday", None, "0001-01-01T00:00:00+14:00", 5])
def test_a_time_that_is_none_is_left_out_and_nothing_that_a_terminal_obeys_is_said(tmp_path, since):
    with Lock(tmp_path):
        signature = {"host": "a\x1b[2J\nb", "process": 4711, "since": since}
        (tmp_path / LOCK).write_text(module.json.dumps(signature))
        assert "by process 4711 on host a\\x1b[2J b; wait for it" in refused(tmp_path)


def test_a_huge_file_is_not_read(tmp_path):
    with Lock(tmp_path):
        os.truncate(tmp_path / LOCK, 1 << 42)
        assert holder(tmp_path) == Holder()


def test_a_full_disk_does_not_unlock(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with Lock(tmp_path):
        assert "by another process" in refused(tmp_path)


@pytest.mark.parametrize("name", ["file", "file/below", "taken", "linked", "/proc/1/run"])
def test_a_place_that_cannot_be_locked_is_one_sentence(tmp_path, name):
    (tmp_path / "file").write_text("")
    (tmp_path / "taken" / LOCK).mkdir(parents=True)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / LOCK).symlink_to(tmp_path / "elsewhere")
    folder = tmp_path / name
    assert re.fullmatch(rf"cannot lock {folder}: [^\n]+", refused(folder))
    assert holder(folder) is None
    assert not (tmp_path / "elsewhere").exists()


def test_a_pipe_in_place_of_the_file_stops_nobody_for_ever(tmp_path):
    os.mkfifo(tmp_path / LOCK)
    assert holder(tmp_path) is None
    with Lock(tmp_path):
        assert holder(tmp_path) == Holder()


# Without flock


def test_without_flock_the_file_is_the_lock_and_is_inherited_from_the_dead(tmp_path, monkeypatch):
    lockless(monkeypatch)
    with writer(tmp_path, "no-flock") as (process, _):
        said = refused(tmp_path)
        assert f"by process {process.pid} on host {platform.node()}" in said
        assert said.endswith(f"(or, if that is gone, remove {tmp_path / LOCK})")
        assert holder(tmp_path).process == process.pid
        killed(process)
    assert holder(tmp_path) is None
    with Lock(tmp_path):
        assert holder(tmp_path).process == os.getpid()
        assert f"process {os.getpid()} " in refused(tmp_path)
    assert os.listdir(tmp_path) == []


def test_without_flock_nobody_inherits_what_another_process_is_about_to(tmp_path, monkeypatch):
    lockless(monkeypatch)
    with writer(tmp_path, "no-flock") as (process, _):
        killed(process)
    heir = tmp_path / f"{LOCK}.{process.pid}"
    heir.touch()
    assert "being trained" in refused(tmp_path)
    heir.unlink()
    with Lock(tmp_path):
        pass


def test_without_flock_what_another_machine_left_is_left_to_the_user(tmp_path, monkeypatch):
    lockless(monkeypatch)
    with writer(tmp_path, "no-flock") as (process, _):
        killed(process)
    monkeypatch.setattr(platform, "node", lambda: "elsewhere")
    said = refused(tmp_path)
    (tmp_path / LOCK).unlink()  # as it says
    assert f"remove {tmp_path / LOCK}" in said
    with Lock(tmp_path):
        pass


def test_a_lock_that_is_another_file_too_is_held_and_not_written(tmp_path):
    (tmp_path / "precious").write_text("mine")
    os.link(tmp_path / "precious", tmp_path / LOCK)
    with Lock(tmp_path):
        assert holder(tmp_path)
        assert (tmp_path / "precious").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]

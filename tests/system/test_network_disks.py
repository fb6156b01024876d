"""On network disks a run ends as on others; what fails there is told in a sentence, and is no
damage and no loss.

`make soak` lets many more calls fail: it sets REGARD_SEEDS.
"""

import errno
import fcntl
import os
import random
import shutil
from pathlib import Path

import pytest
from tiny_runs import left, made

from regard.runs.status import states

SEEDS = int(os.environ.get("REGARD_SEEDS", "3"))
HOOKS = str(Path(__file__).with_name("hooks.py"))
NETWORK = str(Path(__file__).with_name("network_disk.py"))
WRITES = ("fsync", "replace", "rename", "mkdir", "unlink", "create", "close", "truncate")
READS = ("stat", "lstat", "scandir", "listdir", "open", "read")
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE)
AWAY = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EMFILE)
CALLS = 130  # of such ones in a run that goes on, or some fewer
FAULTS = {"write": (WRITES, FULL), "read": (READS, AWAY)}


def no_flock(*values: object) -> None:
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


def test_a_run_on_a_network_disk_ends_as_on_another(nursery, whole, monkeypatch, tmp_path):
    folder = tmp_path / "remote"
    command, seen = made(folder, "text"), []
    monkeypatch.setattr(fcntl, "flock", no_flock)
    with monkeypatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        for at in (60, 150, 0):  # killed twice, at these operations
            kill = {"at": at} if at else {}
            child = nursery.begin(folder, *command, hooks=NETWORK, setup="remote", given={}, **kill)
            while Path(f"/proc/{child}/exe").exists():  # else it is over
                seen += [one.word for one in states(folder)]
            ended = nursery.end(child)
            assert ended.code == (-9 if at else 0), ended.out
            assert "damaged" not in ended.out
    assert left(folder / "run") == whole("text").left
    assert {"running"} <= {*seen} <= {"not begun", "running", "killed", "finished"}
    assert nursery.run(folder, *command).out.startswith("run is finished at step 24")


@pytest.fixture(scope="module")
def half_done(nursery, tmp_path_factory) -> tuple[Path, list[str]]:
    folder = tmp_path_factory.mktemp("half") / "done"
    command = made(folder, "text")
    ended = nursery.run(folder, *command, hooks=HOOKS, setup="killed", given={"step": 9})
    assert ended.code == -9
    return folder, command


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("kind", FAULTS)
def test_a_call_that_fails_there_is_told_and_loses_nothing(
    nursery, whole, half_done, kind, seed, tmp_path
):
    rng, (half, command) = random.Random(f"{kind} {seed}"), half_done
    kinds, errors = FAULTS[kind]
    folder = tmp_path / "broken"
    shutil.copytree(half, folder)
    given = {"match": "/broken/(run|cache)", "kinds": kinds, "error": rng.choice(errors)}
    given |= {"number": rng.randint(1, CALLS)}
    ended = nursery.run(folder, *command, hooks=NETWORK, setup="failing", given=given)
    assert ended.code in (0, 2), ended.out
    assert "Traceback" not in ended.out
    assert ended.out.count("error: ") == (ended.code == 2), ended.out
    assert "damaged" not in ended.out
    ended = nursery.run(folder, *command)
    assert ended.code == 0, (given, ended.out)
    assert left(folder / "run") == whole("text").left

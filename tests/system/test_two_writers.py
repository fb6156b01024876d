"""A run has one writer: a second one hears who the first is, and does nothing."""

import platform
import time
from pathlib import Path

import pytest
from tiny_runs import left, made

HOOKS = str(Path(__file__).with_name("hooks.py"))
PATIENCE = 60.0  # seconds


def wait_for(path: Path) -> None:
    begin = time.monotonic()
    while not path.exists():
        assert time.monotonic() - begin < PATIENCE
        time.sleep(0.005)


@pytest.mark.parametrize("step", [0, 9], ids=["before the first step", "behind a checkpoint"])
def test_a_second_writer_is_refused_with_the_firsts_host_and_process(
    nursery, whole, step, tmp_path
):
    folder, run = tmp_path / "two", tmp_path / "two" / "run"
    command = made(folder, "text")
    how = {"hooks": HOOKS, "setup": "held", "given": {"step": step}}
    first = nursery.begin(folder, *command, **how)
    wait_for(folder / "there")
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    for more in ((), ("--steps", "30")):
        second = nursery.run(folder, *command, *more)
        assert second.code == 2, second.out
        (line,) = second.out.splitlines()
        assert f"run is being trained by process {first} on host {platform.node()}" in line
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
    (folder / "go").touch()
    ended = nursery.end(first)
    assert ended.code == 0, ended.out
    assert left(run) == whole("text").left


def test_of_two_that_start_together_one_trains(nursery, whole, tmp_path):
    folder = tmp_path / "two"
    command = made(folder, "text")
    how = {"hooks": HOOKS, "setup": "held", "given": {"step": 3}}
    both = [nursery.begin(folder, *command, **how) for _ in range(2)]
    time.sleep(0.5)  # for the other one to be refused in; else it is refused, or all is done, later
    (folder / "go").touch()
    ended = [nursery.end(child) for child in both]
    assert 0 in [one.code for one in ended]
    for one in ended:
        assert one.code == 0 or "run is being trained by process" in one.out
    assert left(folder / "run") == whole("text").left

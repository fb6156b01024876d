"""Many processes train what one does, also when their number changes on the way."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from nursery import Ended, Nursery
from test_survival import made

from regard.training import log
from regard.training.checkpoints import Checkpoint, stored_steps

PATIENCE = 90.0  # seconds
ROUNDING = 2e-4  # relative, of losses after two dozen steps


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


def together(
    nursery: Nursery, folder: Path, count: int, *arguments: str, **how: object
) -> list[Ended]:
    """`regard ARGUMENTS` in `count` processes as torchrun starts them; `how` is for the last."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    children = []
    for rank in range(count):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **place}
        more = how if rank == count - 1 else {}
        children.append(nursery.begin(folder, *arguments, environment=where, **more))
    return [nursery.end(child) for child in children]


def command(folder: Path, kind: str, *changes: str) -> list[str]:
    return [*made(folder, kind), "--set", "training.rows=1", *changes]


def told(run: Path, event: str, key: str = "loss") -> dict[int, float]:
    """A figure of all events of a kind, by step; of a step that was done twice, the later one."""
    return {found["step"]: found[key] for found in log.read(run) if found["event"] == event}


def order(run: Path) -> str:
    return Checkpoint(run / "checkpoints" / str(stored_steps(run)[-1])).place.order


@pytest.mark.parametrize("kind", ["text", "gaps", "pairs"])
def test_one_two_and_four_processes_train_alike(nursery, tmp_path, kind):
    runs = []
    counts = [(1, "ddp"), (2, "ddp"), (4, "fsdp")]
    if kind == "text":  # all of them, for one
        counts += [(4, "ddp"), (2, "fsdp")]
    for count, how in counts:
        folder = tmp_path / f"{count}-{how}"
        words = command(folder, kind, f"training.distribution={how}")
        for ended in together(nursery, folder, count, *words):
            assert ended.code == 0, ended.out
        runs.append(folder / "run")
    assert len({order(run) for run in runs}) == 1
    for run in runs[1:]:
        assert told(run, "step", "order") == told(runs[0], "step", "order")
        for event in ("step", "validation", "evaluation"):
            assert told(run, event) == pytest.approx(told(runs[0], event), rel=ROUNDING)


def test_only_one_process_speaks(nursery, tmp_path):
    words = command(tmp_path / "f", "text")
    first, second = together(nursery, tmp_path / "f", 2, *words)
    assert "finished at step 24" in first.out
    assert second.out == ""


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_a_run_goes_on_with_another_number_of_processes(nursery, tmp_path, how):
    """1 → 2 → 1: killed after a checkpoint each time, and on with exactly the next examples."""
    whole, folder = tmp_path / "whole", tmp_path / "broken"
    assert nursery.run(whole, *command(whole, "text")).code == 0
    words = command(folder, "text", f"training.distribution={how}")
    for count, step in ((1, 4), (2, 12), (1, 24)):
        for child in together(nursery, folder, count, *words, **_killed_behind(step)):
            assert child.code in ((0,) if step == 24 else (-9, 2)), child.out
        assert stored_steps(folder / "run")[-1] == step
    steps = told(folder / "run", "step", "order")
    assert steps == told(whole / "run", "step", "order")
    assert order(folder / "run") == order(whole / "run")
    losses = told(folder / "run", "validation")
    assert losses == pytest.approx(told(whole / "run", "validation"), rel=ROUNDING)


def _killed_behind(step: int) -> dict[str, object]:
    hooks = str(Path(__file__).with_name("killed_behind.py"))
    return {} if step == 24 else {"hooks": hooks, "setup": "killed_behind", "given": step}


def test_under_torchrun_a_killed_worker_ends_the_job_with_one_clear_message(tmp_path):
    folder = tmp_path / "f"
    words = command(folder, "text", "training.checkpoint_every=2", "training.steps=100000")
    words[words.index("--steps") : words.index("--out")] = []
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    job = subprocess.Popen(
        [*torchrun, "--nproc-per-node", "2", "-m", "regard", *words],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "REGARD_CACHE": str(folder / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        _wait_for(lambda: stored_steps(folder / "run"))
        workers = _children(job.pid)
        assert len(workers) == 2
        os.kill(workers[1], signal.SIGKILL)
        said, _ = job.communicate(timeout=PATIENCE)
    finally:
        job.kill()
    assert job.returncode
    assert len(re.findall("^error: ", said, re.MULTILINE)) == 1
    assert "error: another process of this job has ended" in said
    assert "the same command goes on from there" in said
    assert Checkpoint(folder / "run" / "checkpoints" / str(stored_steps(folder / "run")[-1]))
    assert not [worker for worker in workers if _alive(worker)]


def _wait_for(happened) -> None:
    begin = time.monotonic()
    while not happened():
        assert time.monotonic() - begin < PATIENCE
        time.sleep(0.02)


def _children(process: int) -> list[int]:
    found = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return sorted(int(number) for number in found)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True

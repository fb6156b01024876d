"""Many processes train what one does, also when their number changes on the way."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from nursery import Ended, Nursery
from test_survival import made
from torch.distributed import TCPStore

from regard.storage import event_log
from regard.training.checkpoints.reading import Checkpoint, stored_steps

REGARD = str(Path(sys.executable).with_name("regard"))
PATIENCE = 90.0  # seconds
ROUNDING = 2e-4  # relative, of losses after two dozen steps


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


def together(
    nursery: Nursery,
    folder: Path,
    count: int,
    *arguments: str,
    away: Path | None = None,
    others: tuple[str, ...] = (),
    **how: object,
) -> list[Ended]:
    """`regard ARGUMENTS` in `count` processes as torchrun starts them.

    The rest is for the last: another folder, further arguments, `how` it is run.
    """
    with met_at() as where:
        children = []
        for rank in range(count - 1):
            place = where | placed(rank, count)
            children.append(nursery.begin(folder, *arguments, environment=place))
        how = {**how, "environment": where | placed(count - 1, count)}
        children.append(nursery.begin(away or folder, *arguments, *others, **how))
        return [nursery.end(child) for child in children]


@contextmanager
def met_at() -> Iterator[dict[str, str]]:
    """A place to meet, which is here before the processes and after them, as torchrun's is."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    yield {**where, "TORCHELASTIC_USE_AGENT_STORE": "True"}


def placed(rank: int, count: int) -> dict[str, str]:
    return {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}


def command(folder: Path, kind: str, *changes: str) -> list[str]:
    return [*made(folder, kind), "--set", "training.micro_batch_size=1", *changes]


def told(run: Path, event: str, key: str = "loss") -> dict[int, float]:
    """A figure of all events of a kind, by step; of a step that was done twice, the later one."""
    return {found["step"]: found[key] for found in event_log.read(run) if found["event"] == event}


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


def errors(*ended: Ended) -> list[str]:
    """What was wrong, of all processes."""
    out = "".join(one.out for one in ended)
    assert "Traceback" not in out
    return re.findall("^error: .*", out, re.MULTILINE)


@pytest.mark.parametrize(
    "changes",
    [("--seed", "1"), ("--set", "training.tokens_per_step=48"), ("--out", "b"), ("--dry-run",)],
)
def test_a_process_with_another_command_is_refused(nursery, tmp_path, changes):
    words = command(tmp_path / "f", "text")
    ended = together(nursery, tmp_path / "f", 2, *words, others=changes)
    assert [one.code for one in ended] == [2, 2]
    (told,) = errors(*ended)
    assert "process 1 has other settings than process 0; start all 2 with the same command" in told
    assert not (tmp_path / "f" / "run").exists()


def test_machines_that_do_not_share_the_folder_of_a_run_are_told_at_once(nursery, tmp_path):
    """Each would write, and go on from, a run of its own."""
    words = command(tmp_path / "one", "text")
    assert words == command(tmp_path / "two", "text")
    hooks = {"hooks": str(Path(__file__).with_name("killed_behind.py")), "setup": "hurried"}
    ended = together(nursery, tmp_path / "one", 2, *words, away=tmp_path / "two", **hooks)
    assert [one.code for one in ended] == [2, 2]
    (told,) = errors(*ended)
    assert "process 1 has other files in run than process 0" in told
    assert nursery.run(tmp_path / "two", *words).code == 0
    ended = together(nursery, tmp_path / "one", 2, *words, away=tmp_path / "two")
    assert [one.code for one in ended] == [2, 2]  # one would train, the other has finished
    (told,) = errors(*ended)
    assert "process 1 has other files in run than process 0" in told


def test_what_is_wrong_before_all_have_met_is_told_once(nursery, tmp_path):
    words = command(tmp_path / "f", "text", "training.stepz=3")
    ended = together(nursery, tmp_path / "f", 3, *words)
    assert [one.code for one in ended] == [2, 2, 2]
    (told,) = errors(*ended)
    assert "there is no key stepz" in told or "stepz" in told


def test_a_process_that_waits_for_the_others_can_be_ended(nursery, tmp_path):
    """torchrun does so when one of them has died; waiting in C++ it would hear no signal."""
    words = command(tmp_path / "f", "text")
    with met_at() as where:
        child = nursery.begin(tmp_path / "f", *words, environment=where | placed(0, 2))
        store = TCPStore("127.0.0.1", int(where["MASTER_PORT"]), is_master=False)
        store.wait(["regard/0/here/0"])
        os.kill(child, signal.SIGTERM)
        ended = nursery.end(child)
    assert ended.code == 143
    assert ended.out.strip() == "terminated"


def test_a_process_that_is_killed_when_all_is_written_is_told_in_one_sentence(nursery, tmp_path):
    words, hooks = (
        command(tmp_path / "f", "text"),
        str(Path(__file__).with_name("killed_behind.py")),
    )
    how = {"hooks": hooks, "setup": "killed_at_the_end"}
    first, last = together(nursery, tmp_path / "f", 2, *words, **how)
    assert (first.code, last.code) == (2, -9)
    (told,) = errors(first, last)
    assert "another process of this job has ended" in told


def test_under_torchrun_a_killed_worker_ends_the_job_with_one_clear_message(tmp_path):
    folder = tmp_path / "f"
    words = command(folder, "text", "training.checkpoint_every=2", "training.steps=100000")
    words[words.index("--steps") : words.index("--out")] = []
    (folder / "tyro.py").write_text("raise SystemExit('code of the current folder')\n")
    torchrun = [sys.executable, "-P", "-m", "torch.distributed.run", "--standalone"]
    job = subprocess.Popen(
        [*torchrun, "--nproc-per-node", "2", "--no-python", REGARD, *words],
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

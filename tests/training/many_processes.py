"""Real processes for tests: they meet on this machine, do a job together, and say what they found.

A server that has imported torch forks them, so that each starts at once.
"""

import contextlib
import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d

from regard.training.distributed.joining import joined

SECONDS = 60  # after which a job that hangs is ended
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(  # torch imports dynamo for wrappers and optimizers: half a second
    [
        "torch._dynamo",
        "torch.distributed.fsdp",
        "regard.decoding.translation",
        "regard.training.loop",
    ]
)


class Ended(Exception):  # noqa: N818 - no error here
    """How a process ended that had nothing to say."""


class Found(Exception):  # noqa: N818 - a process fails with it
    """What a process found out that must not leave in peace."""


def together(count: int, job: Callable[..., Any], *given: Any) -> list[Any]:
    """What `job(processes, *given)` gives, or has `Found`, in each process; `Ended` if killed.

    Any other error in any of them is an error here.
    """
    answers, port = [], free_port()
    for rank in range(count):
        here, there = FORKED.Pipe(duplex=False)
        process = FORKED.Process(target=_member, args=(there, rank, count, port, job, given))
        process.start()
        there.close()
        answers.append((process, here))
    try:
        found = [_answer(process, here) for process, here in answers]
        for process, _ in answers:
            process.join(SECONDS)
    finally:
        for process, _ in answers:
            process.kill()
            process.join()
    for kind, value in found:
        if kind == "error":
            raise AssertionError(value)
    return [value for _, value in found]


def _answer(process: Any, here: Any) -> tuple[str, Any]:
    try:
        if here.poll(SECONDS):
            return here.recv()
    except EOFError:
        process.join(SECONDS)
        return "ended", Ended(process.exitcode)
    return "error", f"process {process.pid} did not answer"


def _member(there: Any, rank: int, count: int, port: int, job: Any, given: Any) -> None:
    torch.set_num_threads(1)
    c10d._object_to_tensor = c10d._tensor_to_object = _never  # what pickles
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    try:
        with joined("cpu", timedelta(seconds=SECONDS)) as processes:
            found = job(processes, *given)
        there.send(("found", found))
    except Found as failure:
        there.send(("found", failure.args))
    except BaseException:
        with contextlib.suppress(OSError):
            there.send(("error", f"process {rank} of {count}:\n{traceback.format_exc()}"))


def _never(*given: Any) -> None:
    raise AssertionError("something was to be pickled")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]

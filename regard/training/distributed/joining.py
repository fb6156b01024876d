"""Joining the processes that torchrun started, and leaving them.

They meet where torchrun says: at a store of keys that all can read. There each says that it has
come, and who speaks first for all when something goes wrong.
"""

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from regard.errors import RegardError
from regard.training.distributed.processes import FAREWELL, PATIENCE, Processes

LOOK = 0.05  # seconds between looks whether all have come
ATTEMPT = "TORCHELASTIC_RESTART_COUNT"  # torchrun may start all anew, and keep what was said before


@contextmanager
def joined(kind: str, patience: timedelta = PATIENCE) -> Iterator[Processes]:
    """This process among those that torchrun started to compute on `kind` of device; else alone.

    Whoever leaves with an error lets go of the others at once: they lose it, and fail too.
    """
    place = _place()
    if place is None:
        yield Processes(kind=kind)
        return
    rank, count, here = place
    if kind == "cuda" and here >= torch.cuda.device_count():
        raise RegardError(
            f"process {rank} is number {here} on this machine, which has "
            f"{torch.cuda.device_count()} GPUs; start as many with --nproc-per-node"
        )
    try:
        processes = _join(Processes(rank, count, here, kind, patience))
    except (RuntimeError, ValueError) as error:
        _leave()
        where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise RegardError(
            f"process {rank} of {count} cannot meet the others at {where}: {reason}"
        ) from None
    try:
        yield processes
        processes.barrier()
    except BaseException:
        processes.one_speaks()  # before the others lose this one, and would speak of that
        # Waiting for what is under way would be waiting for processes that wait for this one.
        with suppress(RuntimeError):
            dist.group.WORLD.abort()  # type: ignore[union-attr]
        raise
    finally:
        _leave()


def unmet() -> Processes:
    """This process before it has met the others, where one may speak for all; else alone."""
    place = _place()
    if place is None:
        return Processes()
    try:
        return Processes(*place, store=_store(FAREWELL))
    except (RuntimeError, ValueError):
        return Processes()


def _leave() -> None:
    """Let go of the others; else a vote under way would keep this process from ever ending."""
    with suppress(RuntimeError, ValueError, AssertionError):
        dist.destroy_process_group()


def _place() -> tuple[int, int, int] | None:
    """Rank, count and rank on this machine as torchrun says them; None where there is one only."""
    if "RANK" not in os.environ or os.environ.get("WORLD_SIZE") == "1":
        return None
    numbers = []
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        said = os.environ.get(name, "")
        if not re.fullmatch(r"\d{1,6}", said):
            raise RegardError(
                f"{name} is {said!r} in the environment, where torchrun puts a number; start many "
                "processes with torchrun"
            )
        numbers.append(int(said))
    rank, count, here = numbers
    if rank >= count:
        raise RegardError(f"RANK is {rank} but WORLD_SIZE {count}; start them with torchrun")
    return rank, count, here


def _store(patience: timedelta) -> Any:
    store, _, _ = next(rendezvous("env://", timeout=patience))
    return dist.PrefixStore(f"regard/{os.environ.get(ATTEMPT, 0)}", store)


def _join(place: Processes) -> Processes:
    """Meet the others: one group for what the models exchange, one for small messages."""
    device = place.device if place.kind == "cuda" else None
    if device is not None:
        torch.cuda.set_device(device)
    store = _store(place.patience)
    _call_roll(place, store)
    dist.init_process_group(
        "nccl" if place.kind == "cuda" else "gloo",
        store=store,
        rank=place.rank,
        world_size=place.count,
        timeout=place.patience,
        device_id=device,
    )
    control = dist.new_group(backend="gloo", timeout=place.patience)
    return Processes(
        place.rank, place.count, place.local, place.kind, place.patience, control, store
    )


def _call_roll(place: Processes, store: Any) -> None:
    """Wait until all have come.

    Joining would wait too, but hear no signal meanwhile: it took torchrun 30 s to end a process
    whose companion had died before.
    """
    store.set(f"here/{place.rank}", "")
    end = time.monotonic() + place.patience.total_seconds()
    arrived = store.add("here", 1)
    while arrived < place.count:
        if time.monotonic() > end:
            missing = [r for r in range(place.count) if not store.check([f"here/{r}"])]
            raise RuntimeError(f"{_named(missing)} did not come")
        time.sleep(LOOK)
        arrived = store.add("here", 0)


def _named(ranks: list[int]) -> str:
    return f"process{'es' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"

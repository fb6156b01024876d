"""How long a job takes on a device, operation by operation.

An operation takes as long as its arithmetic or its traffic, whichever is longer, at the rates that
were reached with such sizes; and what it touches comes as fast as from where it lies, which depends
on how long ago it was touched before. On a CPU the host's own time is added, for calls of torch and
of modules; a GPU works while the host goes on, so there the longer of the two counts.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from regard.costs.device.ceilings import COPY, Device, Grid
from regard.costs.jobs import Counted
from regard.costs.trace.reuse import Touched, touched
from regard.costs.trace.rules import ATTENTION
from regard.costs.trace.tracer import Record

How = Literal["train", "write"]
NEAR = 1 / 16  # of the largest cache: what the caches of cores hold beside it
GRAIN = 1 << 15  # numbers from which torch shares an operation out to all threads of a CPU
Bound = Literal["arithmetic", "memory traffic", "launching"]


@dataclass(frozen=True)
class Taken:
    """Seconds of one operation."""

    arithmetic: float
    traffic: float
    least: float = 0.0  # of its arithmetic, at the best rate there is

    @property
    def seconds(self) -> float:
        return max(self.arithmetic, self.traffic)

    @property
    def multiplies(self) -> bool:
        """Whether arithmetic bounds it, by the roofline.

        The measured rate of a product with a vector does not tell: memory bounds that rate itself.
        """
        return self.least > self.traffic


@dataclass(frozen=True)
class Prediction:
    """Seconds of a job, and what they are spent on."""

    seconds: float
    arithmetic: float  # of operations that arithmetic bounds
    traffic: float  # of those that memory does
    launching: float  # of the host, beside or in between

    @property
    def bound(self) -> Bound:
        """What most of the time goes to."""
        shares: dict[Bound, float] = {
            "arithmetic": self.arithmetic,
            "memory traffic": self.traffic,
            "launching": self.launching,
        }
        return max(shares, key=lambda name: shares[name])


def taken(record: Record, device: Device, how: How, places: Sequence[Touched]) -> Taken:
    """What one operation takes, once it has begun."""
    memory = device.traffic[COPY]
    comes = sum(size / memory.beyond(max(distance, 1)) for size, distance in places)
    if record.executed:
        largest = max(places[: len(record.reads)], default=(0, 0.0))
        least = record.executed / _of(device.products, _kind(record)).best
        return Taken(_arithmetic(record, device, how, largest[1]), comes, least)
    moved = record.read + record.written
    return Taken(0.0, max(moved / _traffic(record, device).at(max(moved, 1)), comes))


def timed(records: Sequence[Record], device: Device, how: How) -> list[Taken]:
    """What each operation of a job takes."""
    places = touched(records)
    return [taken(record, device, how, at) for record, at in zip(records, places, strict=True)]


def _kind(record: Record) -> str:
    return str(record.dtype).removeprefix("torch.")


def _arithmetic(record: Record, device: Device, how: How, distance: float) -> float:
    kind = _kind(record)
    work = record.executed
    if record.name in ATTENTION:
        table = device.attention_back if record.name.endswith("_backward") else device.attention
        times, queries, width, keys = record.shape
        each = 10 if record.name.endswith("_backward") else 4
        causal = "causal" if work < 0.75 * each * times * queries * width * keys else ""
        return work / _of(table, kind, causal).at(queries, width, keys)
    if len(record.shape) == 5:
        return _recurrence(record, device, kind, how)
    if len(record.shape) != 4:
        return work / _of(device.products, kind).best
    times, rows, inner, columns = record.shape
    table = device.products if times == 1 else device.batched
    variant = "write" if how == "write" else "turned" if record.turned else ""
    near = _of(table, kind, variant).at(rows, inner, columns)
    far = _of(table, kind, f"{variant}/far" if variant else "far").at(rows, inner, columns)
    share = away(distance, device.cache)
    return work / (near ** (1 - share) * far**share)


def away(distance: float, cache: int) -> float:
    """How far out something lies: 0 in the caches of cores, 1 beyond twice the largest cache.

    In between lies the largest cache, which others use too: what was there a millisecond ago may be
    gone (a product of 8 MB alone, again at once 0.25 ms, after 5 ms of nothing 0.45).
    """
    near, far = cache * NEAR, cache * 2
    if not near < distance < far:
        return float(distance >= far)
    return math.log(distance / near) / math.log(far / near)


def _recurrence(record: Record, device: Device, kind: str, how: How) -> float:
    steps, rows, hidden, gates, width = record.shape
    variant = "write" if how == "write" else "back" if record.name.endswith("_backward") else ""
    if device.recurrence:
        return record.executed / _of(device.recurrence, kind, variant).at(steps, rows, hidden)
    grid = _of(device.products, kind)  # Wx of all positions, then Uh step by step
    inputs = record.executed * width / (width + hidden)
    whole = inputs / grid.at(rows * steps, width, gates)
    return whole + (record.executed - inputs) / grid.at(rows, hidden, gates)


def _of(table: Mapping[str, Grid], kind: str, variant: str = "") -> Grid:
    """The grid of a type and a variant of it, else of one that is there."""
    variants = (variant, variant.removesuffix("/far"), variant.rpartition("/")[2], "")
    names = [f"{kind}/{one}".strip("/") for one in variants]
    names += [name.replace(kind, "float32") for name in names]
    return next((table[name] for name in names if name in table), next(iter(table.values())))


def _traffic(record: Record, device: Device) -> Grid:
    for name in (record.name, record.name.removesuffix("_")):
        if name in device.traffic:
            return device.traffic[name]
    return device.traffic[COPY]


def host_seconds(records: Sequence[Record], launch: Mapping[str, float], how: How) -> float:
    """What the host takes to ask for it all: for each call, each module, and each tensor."""
    found = 0.0
    for record in records:
        phase = "write" if how == "write" else record.phase
        counts = host_counts(record)
        found += sum(launch.get(f"{phase} {name}", 0.0) * n for name, n in counts.items())
    return found


def host_counts(record: Record) -> dict[str, int]:
    """What the host has to do for an operation; `shared` if it is one for all threads of a CPU.

    And the bytes that it then moves: some of them another core has changed last. Products and
    attention are no such: how they are shared out is in their rates.
    """
    places = (*record.reads, *record.writes)
    numbers = max((place.bytes for place in places), default=0) // record.dtype.itemsize
    shared = not record.executed and numbers >= GRAIN
    return {
        "call": record.calls,
        "module": record.modules,
        "tensor": len(places),
        "shared": int(shared),
        "byte": record.read + record.written if shared else 0,
    }


def step_seconds(counted: Counted, device: Device, parts: int = 1) -> float:
    """A step of training in so many parts: there and back of each, the optimizer once."""
    update = counted.of("optimizer")
    rest = [record for record in counted.records if record.phase != "optimizer"]
    if parts == 1:
        return predicted(counted, device, "train").seconds
    each = predicted(rest, device, "train").seconds
    return parts * each + predicted(update, device, "train").seconds


def predicted(counted: Counted | Sequence[Record], device: Device, how: How) -> Prediction:
    """How long all operations of a job take together."""
    records = counted.records if isinstance(counted, Counted) else counted
    arithmetic = traffic = 0.0
    for found in timed(records, device, how):
        seconds = found.seconds
        if device.kind == "cuda":
            seconds = max(seconds, device.kernel)
        if found.multiplies:
            arithmetic += seconds
        else:
            traffic += seconds
    launching = host_seconds(records, device.launch, how)
    busy = arithmetic + traffic
    seconds = max(busy, launching) if device.kind == "cuda" else busy + launching
    return Prediction(seconds, arithmetic, traffic, launching)

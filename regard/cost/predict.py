"""How long a job takes on a device, operation by operation.

An operation takes as long as its arithmetic or its traffic, whichever is longer, at the rates that
were reached with such sizes. On a CPU what it takes to begin one is added; a GPU works while the
host begins the next, so there the longer of the two counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from regard.cost.device import Device, Grid
from regard.cost.jobs import Counted
from regard.cost.rules import ATTENTION
from regard.cost.trace import Record

Bound = Literal["arithmetic", "memory traffic", "launching"]


@dataclass(frozen=True)
class Taken:
    """Seconds of one operation."""

    arithmetic: float
    traffic: float

    @property
    def seconds(self) -> float:
        return max(self.arithmetic, self.traffic)


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


def taken(record: Record, device: Device) -> Taken:
    """What one operation takes, once it has begun."""
    kind = str(record.dtype).removeprefix("torch.")
    moved = record.read + record.written
    traffic = moved / _traffic(record, device).at(max(moved, 1))
    if not record.executed:
        return Taken(0.0, traffic)
    return Taken(_arithmetic(record, device, kind), traffic)


def _arithmetic(record: Record, device: Device, kind: str) -> float:
    if record.name in ATTENTION:
        table = device.attention_back if record.name.endswith("_backward") else device.attention
        _, queries, width, keys = record.shape
        return record.executed / _of(table, kind).at(queries, width, keys)
    if len(record.shape) == 5:  # a recurrence: Wx of all positions, then Uh step by step
        steps, rows, hidden, gates, width = record.shape
        grid = _of(device.products, kind)
        inputs = record.executed * width / (width + hidden)
        whole = inputs / grid.at(rows * steps, width, gates)
        return whole + (record.executed - inputs) / grid.at(rows, hidden, gates)
    if len(record.shape) != 4:
        return record.executed / _of(device.products, kind).best
    times, rows, inner, columns = record.shape
    table = device.products if times == 1 else device.batched
    return record.executed / _of(table, kind).at(rows, inner, columns)


def _of(table: Mapping[str, Grid], kind: str) -> Grid:
    """The grid of a type, else of one that is there."""
    return table.get(kind) or table.get("float32") or next(iter(table.values()))


def _traffic(record: Record, device: Device) -> Grid:
    for name in (record.name, record.name.removesuffix("_")):
        if name in device.traffic:
            return device.traffic[name]
    return device.traffic["aten::copy_"]


def step_seconds(counted: Counted, device: Device, parts: int = 1) -> float:
    """A step of training in so many parts: there and back of each, the optimizer once."""
    update = counted.of("optimizer")
    rest = [record for record in counted.records if record.phase != "optimizer"]
    if parts == 1:
        return predicted(counted, device, "train").seconds
    each = predicted(rest, device, "train").seconds
    return parts * each + predicted(update, device, "train").seconds


def predicted(
    counted: Counted | Sequence[Record], device: Device, how: Literal["train", "write"]
) -> Prediction:
    """How long all operations of a job take together."""
    records = counted.records if isinstance(counted, Counted) else counted
    arithmetic = traffic = 0.0
    for record in records:
        found = taken(record, device)
        seconds = found.seconds
        if device.kind == "cuda":
            seconds = max(seconds, device.kernel)
        if found.arithmetic >= found.traffic:
            arithmetic += seconds
        else:
            traffic += seconds
    launching = len(records) * device.launch[how]
    busy = arithmetic + traffic
    seconds = max(busy, launching) if device.kind == "cuda" else busy + launching
    return Prediction(seconds, arithmetic, traffic, launching)

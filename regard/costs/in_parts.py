"""A step that is computed in parts, priced from one of them."""

from dataclasses import replace

from regard.costs.jobs import Counted
from regard.costs.predict import step_seconds
from regard.costs.report import Part, Report
from regard.costs.trace.tracer import Total, total

UPDATE = "(optimizer)"  # where the report puts what a step does once, however many parts it has


def in_parts(found: Report, parts: int) -> Report:
    """The report of a step that takes so many times the rows, one part after the other.

    The optimizer comes once; the memory, and what would fit, stay those of one part.
    """
    if parts == 1:
        return found
    together = found.seconds - found.prediction.seconds  # what processes add up, once
    return replace(
        found,
        total=_in_parts(found.counted, parts),
        seconds=step_seconds(found.counted, found.asked.device, parts) + together,
        tokens=parts * found.tokens,
        parts=tuple(sorted((_times(p, parts) for p in found.parts), key=lambda p: -p.seconds)),
    )


def _in_parts(counted: Counted, parts: int) -> Total:
    """The sums of all parts; the least traffic is hardly more than one's: weights come once."""
    one, more = counted.total, parts - 1
    once = total(counted.of("optimizer"), counted.records, counted.alive)
    return replace(  # each further part adds its gradients to those before
        one,
        products=one.products + more * (one.products - once.products),
        others=one.others + more * (one.others - once.others + counted.parameters),
        read=one.read + more * (one.read - once.read + 2 * counted.weights),
        written=one.written + more * (one.written - once.written + counted.weights),
    )


def _times(part: Part, parts: int) -> Part:
    times = 1 if part.place == UPDATE else parts
    return Part(part.place, times * part.products, times * part.moved, times * part.seconds)

"""What a whole generation costs: a prompt, then step after step, each behind a longer text.

A step's counts change with the prefix along straight lines: not at all for a recurrent layer, by as
much for each token for a cache, until a window is full. So some steps are traced, and where the one
in the middle lies on the line between two others, those between them do too.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import pairwise

from regard.costs import jobs
from regard.costs.jobs import Counted, Model, Shape
from regard.costs.trace.fake_device import Kind
from regard.costs.trace.tracer import Total
from regard.errors import RegardError
from regard.training.optimization.precision import Precision

Line = tuple[int, ...]


@dataclass(frozen=True)
class Generation:
    """A prompt that was read, and steps that were written."""

    prompt: Counted
    steps: Total  # of all of them together; each alone, for what a fused kernel would move
    new: int
    probes: dict[int, Counted]  # some of the steps, by their prefix

    @property
    def total(self) -> Total:
        """Prompt and steps."""
        return _added(self.prompt.total, self.steps)

    @property
    def largest(self) -> Counted:
        """What holds the most memory."""
        return max((self.prompt, *self.probes.values()), key=lambda counted: counted.peak)

    def summed(self, value: Callable[[Counted], float]) -> float:
        """The sum over all steps of something that changes smoothly with the prefix."""
        known = sorted(self.probes)
        found = {prefix: value(self.probes[prefix]) for prefix in known}
        if len(known) == 1:
            return found[known[0]] * self.new
        total = found[known[0]]
        for low, high in pairwise(known):
            # The steps behind `low` up to `high`, on the line between the two.
            count, mean = high - low, (found[low] + found[high]) / 2
            total += count * mean + (found[high] - found[low]) / 2
        return total


def generation(
    model: Model,
    shape: Shape,
    new: int,
    kind: Kind = "cpu",
    precision: Precision = "float32",
) -> Generation:
    """Read `shape.tokens` tokens (and a source), then write `new` tokens one by one.

    The first of them comes with the prompt's last logits, so new − 1 steps follow.
    """
    if new < 1:
        raise RegardError(f"there is nothing to count in writing {new} tokens; give at least 1")
    room = shape.tokens + new
    prompt = jobs.write(model, shape, 0, kind, precision, room=room)
    probes: dict[int, Counted] = {}

    def step(prefix: int) -> Line:
        if prefix not in probes:
            at = Shape(shape.rows, prefix, shape.source or shape.tokens, shape.lengths)
            probes[prefix] = jobs.write(model, at, 1, kind, precision, room=room)
        return _line(probes[prefix].total)

    first, last = shape.tokens, shape.tokens + new - 2
    zero = (0,) * len(fields(Total))
    sums = _sum(step, first, last) if last >= first else zero
    return Generation(prompt, Total(*sums), new - 1, probes)


def _line(total: Total) -> Line:
    return tuple(getattr(total, f.name) for f in fields(total))


def _added(one: Total, other: Total) -> Total:
    return Total(*(a + b for a, b in zip(_line(one), _line(other), strict=True)))


def _sum(step: Callable[[int], Line], first: int, last: int) -> Line:
    """The sum of all steps from `first` to `last`, both counted."""
    ends = step(first), step(last)
    count = last - first + 1
    if count <= 2:
        return tuple(sum(pair) if count == 2 else pair[0] for pair in zip(*ends, strict=True))
    middle = (first + last) // 2
    ahead, whole = middle - first, last - first
    straight = all(
        (there - low) * whole == (high - low) * ahead
        for low, there, high in zip(ends[0], step(middle), ends[1], strict=True)
    )
    if straight:
        return tuple(count * (low + high) // 2 for low, high in zip(*ends, strict=True))
    left, right = _sum(step, first, middle), _sum(step, middle + 1, last)
    return tuple(a + b for a, b in zip(left, right, strict=True))

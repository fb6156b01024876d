"""The largest size of a job that fits into some room, from as few counts of it as possible.

What a job holds is nearly a straight line in its rows, and in its tokens where pairs of them are
not held; where it bends, it bends upwards. So lines tell where to look, and halves end the search.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise

TRIES = 12
FARTHEST = 32  # times what was counted: where a line has just begun to rise, it misleads
STRAIGHT = 0.02  # by how much two parts of a line may differ: allocators round up to blocks


def largest(
    bytes_of: Callable[[int], int | None], room: int, start: int, most: int, tries: int = TRIES
) -> int:
    """The largest size up to `most` that fits, 0 if not even 1 does.

    The search ends at a size that fits while the next does not, or at one of which `bytes_of`
    knows nothing: that is too large to be counted.
    """
    known: dict[int, int] = {}
    low, size, widths = 0, start, [max(most, start) + 1]
    for _ in range(tries):
        held = bytes_of(size)
        if held is None:
            break
        known[size] = held
        high = min((n for n in known if known[n] > room), default=max(most, start) + 1)
        low = max((n for n in known if n < high), default=0)
        widths.append(high - low)
        if high - low == 1:
            break
        size = _next(known, room, low, high, slow=widths[-1] > widths[-2] / 2)
    return low


def _next(known: Mapping[int, int], room: int, low: int, high: int, slow: bool) -> int:
    """A size between one that fits and one that does not, which a line through two others tells."""
    if high not in known:
        return min(_ahead(known, room), high - 1)
    pair = (low, high) if low in known else sorted(known)[:2]
    slope = _slope(known, *pair) if len(pair) == 2 else 0.0
    if slow or slope <= 0:  # lines come nearer from one side only
        return (low + high) // 2
    guess = int(pair[0] + (room - known[pair[0]]) / slope)
    return max(low + 1, min(guess, high - 1))


def _ahead(known: Mapping[int, int], room: int) -> int:
    """Where to look next when all that was counted fits."""
    *others, last = sorted(known)
    if not others:
        return 2 * last
    slope = _slope(known, others[-1], last)
    # Small sizes may all hold the same: what an optimizer needs is then more than a pass does.
    if slope <= 0:
        return 4 * last
    return max(last + 1, min(int(last + (room - known[last]) / slope), FARTHEST * last))


def _slope(known: Mapping[int, int], one: int, other: int) -> float:
    return (known[other] - known[one]) / (other - one)


def on_a_line(known: Mapping[int, int], room: int) -> int | None:
    """The largest size by a straight line through some that were counted; None if there is none."""
    slopes = [_slope(known, one, other) for one, other in pairwise(sorted(known))]
    steepest = max(slopes)
    if steepest <= 0 or steepest - min(slopes) > STRAIGHT * steepest:
        return None
    last = max(known)
    return int(last + (room - known[last]) / steepest)

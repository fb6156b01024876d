"""Few settings out of all combinations, in which any two values of two options still meet.

Most mistakes need one option or two that do not get on; three at a time are written out as one
option whose values are tuples.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

Place = tuple[str, int]  # an option, and which of its values


def pairwise(options: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Combinations by name, the first values together first, such that every pair occurs."""
    open_pairs = dict.fromkeys(_pairs(options))  # in order, so that it is always the same
    found: list[dict[str, int]] = []
    while open_pairs:
        row = dict(next(iter(open_pairs)))
        for name in options:
            if name not in row:
                row[name] = max(
                    range(len(options[name])),
                    key=lambda value: (_met((name, value), row, open_pairs), -value),
                )
        for pair in combinations([(name, row[name]) for name in options], 2):
            open_pairs.pop(pair, None)
        found.append(row)
    return [{name: options[name][row[name]] for name in options} for row in found]


def _pairs(options: Mapping[str, Sequence[Any]]) -> list[tuple[Place, Place]]:
    """All that must occur: values of two options each, in the order of the options."""
    return [
        ((one, i), (other, j))
        for one, other in combinations(options, 2)
        for i in range(len(options[one]))
        for j in range(len(options[other]))
    ]


def _met(place: Place, row: Mapping[str, int], open_pairs: Mapping[Any, None]) -> int:
    """How many pairs that did not occur yet a value would add to a row."""
    return sum(
        (place, other) in open_pairs or (other, place) in open_pairs for other in row.items()
    )

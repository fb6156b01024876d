"""How far links are from those that people, or a task, say are right (Och and Ney, 2003)."""

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from regard.data.builtin.tasks import Example
from regard.data.readers.files import expanded, find, lines
from regard.errors import Problems, RegardError
from regard.inspection.alignment import Link

LINK = re.compile(r"([0-9]{1,9})([-?p])([0-9]{1,9})")  # ? and p: possible
NONE: frozenset[Any] = frozenset()


@dataclass(frozen=True)
class Gold:
    """The right links of a pair."""

    sure: frozenset[Link]
    possible: frozenset[Link]  # the sure ones among them
    unjudged: frozenset[int] = NONE  # target units that come from no source unit


@dataclass(frozen=True)
class Tally:
    """Links counted, over any number of pairs."""

    pairs: int = 0
    links: int = 0
    sure: int = 0
    possible: int = 0  # the sure ones counted too
    links_sure: int = 0  # links that are sure
    links_possible: int = 0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    @property
    def error(self) -> float:
        """AER: 1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|); NaN if there is nothing to compare."""
        return 1 - _share(self.links_sure + self.links_possible, self.links + self.sure)

    @property
    def precision(self) -> float:
        """The share of the links that is possible."""
        return _share(self.links_possible, self.links)

    @property
    def recall(self) -> float:
        """The share of what is sure that was found."""
        return _share(self.links_sure, self.sure)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else math.nan


def compare(links: Collection[Link], gold: Gold) -> Tally:
    """One pair's links counted against the right ones."""
    judged = {link for link in links if link[1] not in gold.unjudged}
    return Tally(
        1,
        len(judged),
        len(gold.sure),
        len(gold.possible),
        len(judged & gold.sure),
        len(judged & gold.possible),
    )


def gold_of(example: Example) -> Gold:
    """What a built-in task says of its characters.

    A character that comes from one source character has a sure link; one that comes from several
    may look at any of them; one that comes from none is not judged.
    """
    spans = list(enumerate(example.alignment))
    possible = {(i, j) for j, (start, stop) in spans for i in range(start, stop)}
    sure = {(start, j) for j, (start, stop) in spans if stop - start == 1}
    unjudged = {j for j, (start, stop) in spans if start == stop}
    return Gold(frozenset(sure), frozenset(possible), frozenset(unjudged))


def read_gold(
    path: str | Path, sizes: Sequence[tuple[int, int]], *, one_based: bool = False
) -> list[Gold]:
    """A file of right links: a line for each pair, `i-j` sure, `i?j` or `ipj` possible.

    The source comes first. `sizes` are the units of each pair's source and target. All that is
    wrong is told at once.
    """
    path = expanded(path)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "is no file" if path.exists() else "is not there"
        raise RegardError(f"{path} {what}; name a file of links such as 0-0 1?2")
    find([path])  # tells what is no text
    read = list(lines(path))
    if len(read) != len(sizes):
        raise RegardError(
            f"{path} has {len(read):,} lines, but there are {len(sizes):,} pairs; "
            "it must have a line for each"
        )
    problems, found = Problems(str(path)), []
    for number, (line, size) in enumerate(zip(read, sizes, strict=True), 1):
        try:
            found.append(_gold(line, size, int(one_based)))
        except RegardError as error:
            problems.add(f"line {number}: {error}")
    problems.report()
    return found


def _gold(line: str, sizes: tuple[int, int], first: int) -> Gold:
    sure, possible = set(), set()
    for word in line.split():
        parts = LINK.fullmatch(word)
        if parts is None:
            raise RegardError(f"{word!r:.40} is no link; write 3-4 if it is sure, else 3?4")
        ends = int(parts[1]) - first, int(parts[3]) - first
        for side, end, size in zip(("source", "target"), ends, sizes, strict=True):
            if not 0 <= end < size:
                last = size - 1 + first
                known = f"{first} to {last}" if size else "nothing"
                raise RegardError(f"{word} is outside of the {side}, which has {known}")
        possible.add(ends)
        if parts[2] == "-":
            sure.add(ends)
    return Gold(frozenset(sure), frozenset(possible))

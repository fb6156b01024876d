"""Whole lines out of blocks of a file that anybody may have made: 2.6 MB of gzip can be 2.5 GB of
"a" without a newline."""

import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from regard.errors import RegardError
from regard.storage.disk_space import size

BLOCK = 1 << 20  # bytes read at a time
# A line is held whole, and is one text for a model: 16 MiB are three times War and Peace, and as
# token ids take some 300 MB.
LINE = 1 << 24
NEWLINE = b"\n"


class WholeLines(NamedTuple):
    """Some lines as they stand in a file."""

    text: np.ndarray  # (bytes,)
    ends: np.ndarray  # (lines,) where each ends, newline included


class LineReader:
    """The lines of a file that is read in blocks; a line of more than `longest` bytes is refused
    before it is held."""

    def __init__(
        self, read: Callable[[int], bytes], name: object, longest: int = LINE, block: int = BLOCK
    ) -> None:
        """`read` gives at most so many bytes, none at the end; `name` is the file's in messages."""
        self.read, self.name = read, name
        self.longest, self.block = longest, block
        self.held, self.at = b"", 0  # what was read, and up to where it was used
        self.line = 0  # the number of the last line that was taken

    def __iter__(self) -> Iterator[bytes]:
        """Every line, without its newline."""
        while self.more():
            yield from self.whole()
        yield from self.whole()

    def more(self) -> bool:
        """Read on when no whole line is held; False at the end, where a last line is whole."""
        rest = self.held[self.at :]
        if len(rest) > self.longest:
            raise self._too_long(self.line + 1)
        block = self.read(max(self.block, len(rest)))  # else long lines would be copied often
        begun = not block and rest and not rest.endswith(NEWLINE)
        self.held, self.at = rest + (NEWLINE if begun else block), 0
        return bool(block)

    def whole(self) -> list[bytes]:
        """All lines that are held whole, without their newlines."""
        end = self.held.rfind(NEWLINE) + 1
        if end <= self.at:
            return []
        lines = self.held[self.at : end - 1].split(NEWLINE)
        sizes = map(len, lines)
        if max(sizes) > self.longest:
            first = next(n for n, line in enumerate(lines) if len(line) > self.longest)
            raise self._too_long(self.line + 1 + first)
        self.at = end
        self.line += len(lines)
        return lines

    def next(self) -> bytes | None:
        """The next line without its newline; None at the end."""
        if not self._next_is_whole():
            return None
        end = self.held.find(NEWLINE, self.at)
        line, self.at = self.held[self.at : end], end + 1
        self.line += 1
        if len(line) > self.longest:
            raise self._too_long(self.line)
        return line

    def columns(self, most: int = sys.maxsize) -> WholeLines:
        """The next lines as an array, at most so many; none at the end."""
        self._next_is_whole()
        held = np.frombuffer(self.held, np.uint8)[self.at :]
        ends = np.flatnonzero(held == NEWLINE[0])[:most] + 1
        long = np.flatnonzero(np.diff(ends, prepend=0) > self.longest + 1)
        if len(long):
            raise self._too_long(self.line + 1 + int(long[0]))
        stop = int(ends[-1]) if len(ends) else 0
        self.at += stop
        self.line += len(ends)
        return WholeLines(held[:stop], ends)

    def _next_is_whole(self) -> bool:
        """Read until a whole line is held; False at the end."""
        while self.held.find(NEWLINE, self.at) < 0:
            if not self.more():
                return self.at < len(self.held)
        return True

    def _too_long(self, line: int) -> RegardError:
        return RegardError(
            f"{self.name}: line {line:,} is longer than {size(self.longest)}, the most that a line "
            "may have; divide it, or leave it out"
        )

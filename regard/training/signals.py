"""Being asked to stop: SIGINT and SIGTERM, in every phase of a command.

The first one stops the work: where nothing would be lost it is an exception at once, elsewhere it
is noted and looked at when a step is whole. A second SIGINT leaves at once; all that is on disk is
whole at any moment, so this too loses nothing but the last steps.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

CURSOR = b"\x1b[?25h"  # shows it again: a live view hides it
WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


class StoppedError(KeyboardInterrupt):
    """Somebody asked the process to stop, and it may do so here."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Stop:
    """Whether somebody asked to stop, and how; without handlers nobody ever does."""

    def __init__(self, leaves: bool = True) -> None:
        """`leaves`: a second SIGINT ends the process, as people at a terminal want."""
        self.asked: int | None = None  # a signal's number
        self.leaves = leaves
        self._at_once = True

    @property
    def code(self) -> int:
        """The exit code that shells and schedulers know: 130 for SIGINT, 143 for SIGTERM."""
        return 128 + (self.asked or signal.SIGINT)

    @property
    def word(self) -> str:
        return WORDS[signal.Signals(self.asked or signal.SIGINT)]

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Work that must be whole: a signal is noted and nothing else."""
        with self._in_mode(at_once=False):
            yield

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Work that can be left anywhere: a signal, also one noted before, raises."""
        with self._in_mode(at_once=True):
            if self.asked is not None:
                raise StoppedError(self.asked)
            yield

    @contextmanager
    def _in_mode(self, at_once: bool) -> Iterator[None]:
        before, self._at_once = self._at_once, at_once
        try:
            yield
        finally:
            self._at_once = before

    def heard(self, number: int, frame: FrameType | None = None) -> None:
        """What to do about a signal."""
        if self.asked is not None:
            if number == signal.SIGINT and self.leaves:
                _leave(number)
            if number == signal.SIGINT:  # a notebook's process has more to lose than this run
                raise StoppedError(number)
            return  # schedulers repeat themselves
        self.asked = number
        if self._at_once:
            raise StoppedError(number)


def _leave(number: int) -> NoReturn:
    """End the process now, without waiting for anybody's cleaning up."""
    if sys.stderr.isatty():
        os.write(2, CURSOR)
    os.write(2, b"\nleft at once; what was saved before is whole\n")
    os._exit(128 + number)


@contextmanager
def listening(leaves: bool = True) -> Iterator[Stop]:
    """Hear SIGINT and SIGTERM meanwhile, unless somebody else already does, or ignores them."""
    stop = Stop(leaves)
    before = {}
    if threading.current_thread() is threading.main_thread():
        usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
        for number, handler in usual.items():
            if signal.getsignal(number) is handler:
                before[number] = signal.signal(number, stop.heard)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

"""Choices that a process makes once, or that torch keeps for the whole of it."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

# REGARD_PLAIN=1: no fast path of ours, whatever is quicker here. Said once, when a process begins.
PLAIN = os.environ.get("REGARD_PLAIN", "0") not in ("", "0")


class Switch:
    """One choice for all threads: the first that wants it makes it, the last undoes it."""

    def __init__(self, choice: Callable[[], AbstractContextManager[object]]) -> None:
        self.choice = choice
        self.lock, self.inside, self.made = threading.Lock(), 0, ExitStack()

    @contextmanager
    def on(self) -> Iterator[None]:
        """It is made meanwhile."""
        with self.lock:
            if not self.inside:
                self.made.enter_context(self.choice())
            self.inside += 1
        try:
            yield
        finally:
            with self.lock:
                self.inside -= 1
                if not self.inside:
                    self.made.close()

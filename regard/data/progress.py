"""Progress of what comes before training: reading, learning a tokenizer, encoding."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars


class Progress:
    """Shows each stage as a bar that goes away when it is done; without a terminal, nothing."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console

    @contextmanager
    def stage(self, title: str, total: int = 0) -> Iterator[Callable[[int], None]]:
        """A function to call with how much of `total` is done; 0: nobody knows."""
        if self.console is None or not self.console.is_terminal:
            yield lambda done: None
            return
        columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn()
        # Else standard output would be printed to where the bar is.
        apart: dict[str, Any] = {"redirect_stdout": False, "redirect_stderr": False}
        with Bars(
            *columns, TimeRemainingColumn(), console=self.console, transient=True, **apart
        ) as progress:
            task = progress.add_task(title, total=total or None)
            yield lambda done: progress.update(task, completed=done)

"""What commands print: at once, and spelled out where a terminal would obey it."""

import math
import os
import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from regard.errors import RegardError
from regard.terminal import literal, message

WIDE = 200  # columns of what goes to a file or a pipe


class ReaderGoneError(KeyboardInterrupt):
    """Nobody reads what is printed any more (`| head`): stop, and keep what there is."""


class Output(Console):
    """The one console of all commands: what it is given as text stays text.

    No escape sequence, markup or emoji code in it is obeyed; only styles of ours are.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The segments to print, with all but the console's own control codes spelled out."""
        for part in super().render(renderable, options):
            yield part if part.control else Segment(literal(part.text), part.style)

    def on_broken_pipe(self) -> None:
        """Stop the command like Ctrl-C does."""
        self.quiet = True
        raise ReaderGoneError


def output() -> Output:
    """Standard output, wide where it is no terminal."""
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Output(width=WIDE if piped else None)


def errors() -> Output:
    """Standard error."""
    return Output(stderr=True)


def put(text: str) -> None:
    """Write to standard output at once."""
    if sys.stdout.isatty():
        text = "\t".join(literal(part) for part in text.split("\t"))
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:  # nobody reads any more, which is no mistake
        raise
    except OSError as error:
        raise RegardError(f"cannot write to standard output: {error.strerror or error}") from None


def finite(number: float) -> float | None:
    """A number as JSON can hold it: null for what has no end."""
    return number if math.isfinite(number) else None


def note_unknown(unknown: int, among: str) -> None:
    """Tell of words that a run does not know, if there are any."""
    if unknown:
        note(f"{unknown:,} of {among} are unknown to this run")


def note(sentence: str) -> None:
    """Tell something beside the results."""
    _tell(as_note(sentence))


def as_note(sentence: str) -> Text:
    """A note that stands among the results."""
    return Text(f"note: {message(sentence)}", "yellow")


def fail(sentence: str) -> None:
    """Tell why there are no results."""
    _tell(Text("error: ", "bold red").append(message(sentence), "not bold default"))


def _tell(words: Text) -> None:
    console = errors()
    console.print(words, soft_wrap=not console.is_terminal)  # a file gets one line


@contextmanager
def foreign_words() -> Iterator[None]:
    """Turn the warnings of libraries, which may quote data, into notes like ours."""

    def told(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        note(str(message))

    with warnings.catch_warnings():
        warnings.showwarning = told
        yield


def crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print a traceback as Python does, with control characters spelled out."""
    sys.stderr.write(literal("".join(traceback.format_exception(kind, error, trace))))


@contextmanager
def line_of_its_own() -> Iterator[None]:
    """End the line that is being written where an error stops it: a message begins its own."""
    try:
        yield
    except Exception:
        put("\n")
        raise

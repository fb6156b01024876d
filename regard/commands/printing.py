"""What commands print: at once, and spelled out where a terminal would obey it."""

import math
import sys

from rich.console import Console
from rich.text import Text

from regard.errors import RegardError
from regard.training.formats import literal


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
    console = Console(stderr=True)
    console.print(Text(f"note: {sentence}", "yellow"), soft_wrap=not console.is_terminal)

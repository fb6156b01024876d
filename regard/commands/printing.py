"""What commands print: at once, and spelled out where a terminal would obey it."""

import sys

from rich.console import Console
from rich.text import Text

from regard.training.formats import literal


def put(text: str) -> None:
    """Write to standard output at once."""
    if sys.stdout.isatty():
        text = "\t".join(literal(part) for part in text.split("\t"))
    sys.stdout.write(text)
    sys.stdout.flush()


def note(sentence: str) -> None:
    """Tell something beside the results."""
    console = Console(stderr=True)
    console.print(Text(f"note: {sentence}", "yellow"), soft_wrap=not console.is_terminal)

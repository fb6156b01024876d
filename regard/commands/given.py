"""Texts that a run is asked about: as they are, in a file, or on standard input."""

from collections.abc import Sequence
from pathlib import Path

from regard.commands.names import STREAM, check_printed, standard_input
from regard.errors import RegardError
from regard.text.sources import expanded, find, is_json_lines, lines


def check_texts(texts: Sequence[str], file: str) -> None:
    """Refuse texts from two places at once, before anything is read."""
    if texts and file:
        raise RegardError("give texts or --file, not both")
    if STREAM in texts and len(texts) > 1:
        raise RegardError(f"{STREAM} stands for standard input; give it alone, or give texts")


def given_texts(texts: Sequence[str], file: str) -> list[str]:
    """The texts themselves, the lines of a file, or else those of standard input."""
    if texts and tuple(texts) != (STREAM,):
        return list(texts)
    check_printed(file or STREAM)
    if file and file != STREAM:
        return _file_lines(file)
    whole = standard_input()
    if not whole:
        raise RegardError("there is no text in standard input")
    return [line.removesuffix("\r") for line in whole.split("\n")]


def _file_lines(name: str) -> list[str]:
    path = expanded(name)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "is no file" if path.exists() else "is not there"
        raise RegardError(f"{name} {what}; name a text file, or {STREAM} for standard input")
    check_plain(path)
    found = list(lines(path))
    if not found:
        raise RegardError(f"there is no text in {name}")
    return found


def check_plain(path: Path) -> None:
    """Refuse a file whose lines are no texts."""
    find([path])  # tells what is no text
    if is_json_lines(path):
        raise RegardError(
            f"{path} is JSON Lines by its name, but here a line is a text as it stands; take the "
            "texts out first (`jq -r .text`)"
        )


def one_line(text: str) -> str:
    """A text where a newline would end it."""
    return " ".join(text.replace("\r", "\n").split("\n"))

"""Texts that a run is asked about: as they are, in a file, or on standard input."""

import os
import select
import stat
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from regard.commands.arguments import STREAM, check_printed
from regard.commands.printing import note
from regard.data.readers.files import check_text, expanded, find, is_json_lines, lines
from regard.errors import RegardError
from regard.storage.line_reader import LineReader

BLOCK = 1 << 16  # bytes of a pipe that are read at a time
MOST = 1 << 16  # lines that are taken from it together


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
    if sys.stdin.isatty():
        note("type a text; Ctrl-D ends it")
    found = [*chain(*in_parts(sys.stdin.buffer, MOST, "standard input"))]
    if found in ([], [""]):
        raise RegardError("there is no text in standard input")
    return found


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


def in_parts(file: BinaryIO, most: int, where: str = "the pipe") -> Iterator[list[str]]:
    """The lines of a file or pipe in parts: as many as are there, but no more than so many.

    Whoever writes a line and waits gets its translation; whoever writes many gets them sorted.
    """
    live, lines, first, new = is_live(file), [], True, True
    read = partial(os.read, file.fileno()) if live else file.read
    reader = LineReader(read, where, block=BLOCK)
    while reader.more():
        if new:
            check_text(reader.held, where)
            new = False
        lines += reader.whole()
        while lines and (len(lines) >= most or (live and not _ready(file))):
            yield _decoded(lines[:most], first)
            lines, first = lines[most:], False
    lines += reader.whole()
    for begin in range(0, len(lines), most):
        yield _decoded(lines[begin : begin + most], first and not begin)


def is_live(file: BinaryIO) -> bool:
    """Whether someone may be writing to it."""
    try:
        return not stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    except OSError:
        return False


def _ready(file: BinaryIO) -> bool:
    """Whether more can be read, or its end be seen, without waiting."""
    return bool(select.select([file], [], [], 0)[0])


def _decoded(lines: list[bytes], first: bool) -> list[str]:
    texts = [line.decode("utf-8", "surrogateescape").removesuffix("\r") for line in lines]
    return [texts[0].removeprefix("\ufeff"), *texts[1:]] if first else texts


def one_line(text: str) -> str:
    """A text where a newline would end it."""
    return " ".join(text.replace("\r", "\n").split("\n"))

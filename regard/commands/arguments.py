"""What names on a command line stand for: data, standard input, places to write to."""

import os
import stat
import sys
from contextlib import suppress
from pathlib import Path

from regard.commands.printing import note
from regard.data.readers.files import DOCUMENT, check_text, expanded
from regard.errors import RegardError
from regard.runs.data_names import STREAM
from regard.runs.run_folder import CHECKPOINTS, FILES, check_place, is_run
from regard.storage import replaceable, size

SETTINGS = {"limit": "--max-tokens", "beams": "--beam"}  # that searches call by other words


def option(setting: str) -> str:
    """A search's setting as it is typed: `top_k` is --top-k."""
    return SETTINGS.get(setting, f"--{setting.replace('_', '-')}")


def standard_input() -> str:
    """All of standard input as text, without its last newline and a leading mark; broken UTF-8 as
    lone surrogates."""
    if sys.stdin.isatty():
        note("type a text; Ctrl-D ends it")
    read = sys.stdin.buffer.read(DOCUMENT + 1)
    if len(read) > DOCUMENT:
        raise RegardError(
            f"standard input is longer than {size(DOCUMENT)}, the most that one text may have; "
            "give a part of it"
        )
    if not read:
        raise RegardError("there is no text in standard input")
    check_text(read, "standard input")
    text = read.decode("utf-8-sig", "surrogateescape")
    return text.removesuffix("\n").removesuffix("\r")


def check_writable(path: Path, *read: str, replaced: bool = False) -> None:
    """Say that no file can be written at `path` before the work, not behind it.

    Nor can one that is `read` in the work, by its name or as standard input. What is `replaced`,
    and not written into, must not be a device.
    """
    if os.path.isdir(path):
        raise RegardError(f"{path} is a folder; name a file to write to")
    if any(_same(path, name) for name in read):
        raise RegardError(f"{path} is read here, and would be lost; name another file to write to")
    if replaced and not replaceable(path):
        raise RegardError(f"{path} is a device; name a file to write to")
    if run := _run_of(path):
        raise RegardError(f"{path} is a part of the run {run}; name another file to write to")
    check_place(path)


def _run_of(path: Path) -> Path | None:
    """The run whose own file this is, or would be."""
    with suppress(OSError, RuntimeError, ValueError):  # links in a circle are no run's
        there = path.resolve()
        if there.name in FILES and is_run(there.parent):
            return there.parent
        stored = (folder for folder in there.parents if folder.name == CHECKPOINTS)
        return next((folder.parent for folder in stored if is_run(folder.parent)), None)
    return None


def check_printed(name: str) -> None:
    """Refuse to print into the file that is read (`>> FILE`): it would change, or never end."""
    with suppress(OSError, ValueError, RuntimeError):  # one of them is no file
        if _is_file(os.fstat(sys.stdout.fileno()), name):
            what = "standard input" if name == STREAM else name
            raise RegardError(f"{what} is read and printed into here; print into another file")


def _same(path: Path, name: str) -> bool:
    """Whether a name, or standard input, is the file at this path."""
    with suppress(OSError, ValueError, RuntimeError):  # there is none, or standard input is no file
        return _is_file(path.stat(), name)
    return False


def _is_file(there: os.stat_result, name: str) -> bool:
    given = os.fstat(sys.stdin.fileno()) if name == STREAM else expanded(name).stat()
    return stat.S_ISREG(there.st_mode) and os.path.samestat(there, given)

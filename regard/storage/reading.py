"""Files that anybody may have made: bounded before they are read, told in a few words if wrong."""

import errno
import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from regard.errors import RegardError, UnreadableError
from regard.storage.disk_space import size

DEEPEST = 100  # values within values: what follows may be recursive
LARGEST = 1 << 1000  # a float holds it, and a message too
VALUES = 1 << 20  # in one JSON text; each takes up to 250 bytes where it took 3 in the file


def read_file(path: Path, most: int) -> bytes:
    """The bytes of a regular file, if it has at most so many; a ValueError says otherwise."""
    with opened(path) as file:
        there = os.fstat(file.fileno()).st_size
        if there > most:
            raise ValueError(f"it has {size(there)}, more than the {size(most)} it may have")
        return file.read()


def opened(path: Path) -> IO[bytes]:
    """A regular file to read: a FIFO would be waited for, and a device may have no end."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ValueError("it is a link in a circle") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError("it is not a regular file")
    return os.fdopen(descriptor, "rb")


def read_json(path: Path, most: int = 64 << 20) -> dict[str, Any]:
    """A JSON object from a file of at most so many bytes, or one sentence about what is wrong."""
    try:
        found = parse_json(read_file(path, most))
    except FileNotFoundError:
        raise RegardError(f"{path.parent} has no {path.name}") from None
    except (OSError, MemoryError) as error:
        raise UnreadableError(path, error) from None
    except (ValueError, RecursionError) as error:  # bad UTF-8 and JSON are ValueErrors
        raise RegardError(f"{path} is not readable JSON: {error}") from None
    if not isinstance(found, dict):
        raise RegardError(f"{path} must hold a JSON object, not a {type(found).__name__}")
    return found


def parse_json(text: bytes) -> Any:
    """What some JSON stands for, if it is neither too deep nor too much for main memory."""
    if sum(map(text.count, (b",", b"[", b"{"))) > VALUES:
        raise ValueError(f"it has more than {VALUES:,} values")
    found = json.loads(text.decode("utf-8"), parse_constant=_finite, parse_float=_finite)
    check_bounds(found)
    return found


def parse_line(text: str) -> Any:
    """Parse a line of JSON Lines, which may be a long text but not have too many values."""
    if len(text) > VALUES and _values_in(text) > VALUES:
        raise ValueError(f"it has more than {VALUES:,} values")
    return json.loads(text)


def _values_in(text: str) -> int:
    """Count the values of some JSON, roughly; the contents of its strings are left out."""
    plain = text.replace("\\\\", "").replace('\\"', "")
    if (quotes := plain.count('"')) > 2 * VALUES:
        return quotes // 2
    return sum(part.count(mark) for part in plain.split('"')[::2] for mark in ",[{")


def check_bounds(found: Any) -> list[list[Any]]:
    """The values of some JSON or TOML level by level, if neither levels nor numbers are absurd."""
    levels = [[found]]
    while len(levels) <= DEEPEST:
        level = [value for outer in levels[-1] for value in _inside(outer)]
        if any(isinstance(value, int) and abs(value) >= LARGEST for value in level):
            raise ValueError("it has a number of more than 300 digits")
        if not level:
            return levels
        levels.append(level)
    raise ValueError(f"it is more than {DEEPEST} levels deep")


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _finite(text: str) -> float:
    number = float(text)
    if abs(number) < float("inf"):  # not for NaN either
        return number
    raise ValueError(f"{text[:20]} is no finite number")


def shown(name: str) -> str:
    """A tensor's name for a message: anybody may have made it up."""
    return name if len(name) <= 100 and name.isprintable() else f"{name[:60]!r}…"

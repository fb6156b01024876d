"""What names of data stand for: files that are read more than once, wherever one stands."""

import glob
import sys
from collections.abc import Sequence
from pathlib import Path

from regard.data.readers.files import expanded, spool
from regard.errors import RegardError
from regard.runs.plan import BUILT_IN
from regard.storage import cache_folder

STREAM = "-"


def readable(names: Sequence[str]) -> tuple[str, ...]:
    """Names with standard input put into a file, since data is read more than once."""
    return tuple(_spooled() if name == STREAM else name for name in names)


def _spooled() -> str:
    path = spool(sys.stdin.buffer, cache_folder() / "streams")
    if not path.stat().st_size:
        path.unlink()
        raise RegardError("there is no text in standard input")
    return str(path)


def lasting(names: Sequence[str]) -> tuple[str, ...]:
    """Names that mean the same from any folder: a run is evaluated and repeated from elsewhere."""
    if len(names) == 1 and names[0] in BUILT_IN:
        return tuple(names)
    return tuple(_absolute(name) for name in readable(names))


def _absolute(name: str) -> str:
    path = expanded(name)
    if glob.has_magic(name) and not path.is_absolute() and not path.exists():
        return str(Path(glob.escape(str(Path.cwd()))) / path)  # a folder's own brackets are no sign
    return str(path.absolute())

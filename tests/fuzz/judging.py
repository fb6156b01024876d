"""What a reader may do with any bytes: return, or say in one paragraph what is wrong."""

import re
import resource
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, suppress
from io import StringIO
from pathlib import Path

import good
import patching
import targets

from regard import RegardError, cli

LONGEST, LINES = 2000, 45  # characters of a message's line, and lines: a list of problems has many
SLOW = 3.0  # seconds of computing
LARGE = 600 << 20  # bytes more than ever before; an image of the most pixels takes half of it
CONTROL = re.compile(r"[\0-\x09\x0b-\x1f\x7f-\x9f]|\n(?!  - )")


class FindingError(Exception):
    """What a reader should not have done."""

    def __init__(self, what: str, place: str) -> None:
        super().__init__(f"{what} at {place}")
        self.what, self.place = what, place


def judge(name: str, data: bytes, read: Callable[..., None] = targets.read) -> None:
    """Read an input; a FindingError says what went wrong."""
    patching.REFUSALS.clear()
    begun, held = time.process_time(), _most()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)  # which a command would print
            read(name, data, good.folder())
    except RegardError as error:
        patching.REFUSALS.append(error)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a library's panic is no Exception
        raise FindingError(f"{type(error).__name__}: {error}"[:300], _place(error)) from error
    for error in patching.REFUSALS:
        if wrong := unfit(str(error)):
            raise FindingError(wrong, _place(error)) from error
    if (taken := time.process_time() - begun) > SLOW:
        raise FindingError(f"it took {taken:.1f} s", name)
    if (more := _most() - held) > LARGE:
        raise FindingError(f"it took {more >> 20} MB", name)


def unfit(message: str) -> str:
    """What is wrong with a message as a terminal gets it; nothing if it is fit."""
    if _long(message) or CONTROL.search(message):
        message = spoken(message)
    if not message.strip() or "Traceback" in message:
        return "a message that says nothing"
    if _long(message):
        return "a message that is too long"
    return "a message with control characters" if CONTROL.search(message) else ""


def _long(message: str) -> bool:
    lines = message.split("\n")
    return len(lines) > LINES or max(map(len, lines)) > LONGEST


def spoken(message: str) -> str:
    """What the command line makes of a message."""
    said = StringIO()
    with redirect_stderr(said), suppress(SystemExit):
        cli._fail(message)
    return said.getvalue().removesuffix("\n")


def _place(error: BaseException) -> str:
    """The innermost line of ours that an error came from, and the innermost of all."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/regard/" in frame.filename] or frames
    if not ours:
        return "nowhere"
    named = [
        f"{Path(f.filename).parent.name}/{Path(f.filename).name}:{f.lineno}"
        for f in (ours[-1], frames[-1])
    ]
    return " in ".join(dict.fromkeys(named))


def _most() -> int:
    """The most memory that this process ever held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10

"""A run's folder: the names of what is in it, what is a run, and what a failed start takes away.

Nothing is written through a link inside a run, which may have come from anybody. The run's own
folder may be a link: people keep runs on another disk.
"""

import os
from pathlib import Path

from regard.errors import RegardError
from regard.families.file_names import RUN, SOURCE_TOKENIZER, TOKENIZER, WEIGHTS
from regard.runs import recipes
from regard.runs.tensorboard import TENSORBOARD
from regard.storage import discard, read_file, sweep
from regard.storage.event_log import LOG, STATUS
from regard.storage.lock import LOCK
from regard.training.checkpoints import FOLDER as CHECKPOINTS

FILES = (RUN, WEIGHTS, TOKENIZER, SOURCE_TOKENIZER, LOG, STATUS, LOCK)
# All that training writes, in the order it is taken away: whoever is killed meanwhile leaves a run
# without a checkpoint, then what a run leaves that was killed before its run.toml.
PARTS = (CHECKPOINTS, TENSORBOARD, STATUS, LOG, WEIGHTS, RUN, TOKENIZER, SOURCE_TOKENIZER, LOCK)
WRITTEN_INTO = (CHECKPOINTS, TENSORBOARD, LOG, LOCK)  # the other parts are replaced, links too
BEGUN = (LOG, CHECKPOINTS, WEIGHTS)  # any of them tells of a run, whatever its run.toml says


def is_folder(path: Path) -> bool:
    """True for a folder; impossible names are none."""
    try:
        return path.is_dir()
    except (OSError, ValueError):  # a name too long, or with a NUL in it
        return False


def is_run(folder: Path) -> bool:
    """True for a folder with a run.toml, unless that is just a recipe of somebody's."""
    if not os.path.isfile(folder / RUN):  # unlike pathlib's, False where it may not be asked
        return False
    if any(os.path.lexists(folder / name) for name in BEGUN):
        return True
    try:
        return "versions" in recipes.parsed(read_file(folder / RUN, recipes.MOST_BYTES))
    except (OSError, ValueError, RecursionError):  # damaged settings may have said so
        return True


def followed(folder: Path) -> Path:
    """The folder that a link leads to, which is worked in while the link stays what it is."""
    linked = os.path.islink(folder) and os.path.isdir(folder)
    return Path(os.path.realpath(folder)) if linked else folder


def check_links(folder: Path) -> None:
    """Refuse a run of which a part is a link: what is written would land where it leads."""
    for name in WRITTEN_INTO:
        if os.path.islink(folder / name):
            raise RegardError(
                f"{folder / name} is a link, and training would write to where it leads; put what "
                "it leads to in its place, or choose another --out"
            )


def clear(folder: Path) -> None:
    """Remove what training writes into a folder; all else that is there stays."""
    for name in PARTS:
        discard(folder / name)
    sweep(folder)


def check_spelling(path: Path) -> None:
    """Refuse a name that is not UTF-8: the library that reads weights cannot be given it."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise RegardError(f"cannot write {path}: its name is not UTF-8; choose another") from None


def check_place(path: Path) -> None:
    """Refuse a place where neither a file nor a folder can be written."""
    check_spelling(path)
    near = next(place for place in (path, *path.absolute().parents) if os.path.lexists(place))
    if near == path:
        good = os.access(path, os.W_OK)
    else:
        good = near.is_dir() and os.access(near, os.W_OK | os.X_OK)
    if not good:
        where = "" if near == path else f" ({near} is no folder that one can write to)"
        raise RegardError(f"cannot write {path}{where}")

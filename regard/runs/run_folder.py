"""Whose a run's folder is: what training may write over, and what a failed start takes away.

A folder is a run of ours if its run.toml says what made it and is as it was written, beside the
tokenizers that it names; a recipe of somebody's that is called run.toml is not. Nothing is written
through a link inside a run, which may have come from anybody. The run's own folder may be a link:
people keep runs on another disk.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from regard.errors import RegardError
from regard.runs import recipes
from regard.runs.stored_run import (
    RUN,
    SOURCE_TOKENIZER,
    TOKENIZER,
    WEIGHTS,
    is_run,
    settings_of,
    tokenizers_of,
)
from regard.runs.tensorboard import TENSORBOARD
from regard.storage import discard, sweep
from regard.storage.event_log import LOG
from regard.storage.lock import LOCK
from regard.training.checkpoints.reading import FOLDER as CHECKPOINTS

# All that training writes, in the order it is taken away: whoever is killed meanwhile leaves a run
# without a checkpoint, then what a run leaves that was killed before its run.toml.
PARTS = (CHECKPOINTS, TENSORBOARD, LOG, WEIGHTS, RUN, TOKENIZER, SOURCE_TOKENIZER, LOCK)
WRITTEN_INTO = (CHECKPOINTS, TENSORBOARD, LOG, LOCK)  # the other parts are replaced, links too


def is_ours(folder: Path) -> bool:
    """Whether training made this run, so that it may begin it anew."""
    if not is_run(folder):
        return False
    try:
        settings_of(folder)
        tokenizers_of(folder)
        return isinstance(recipes.beside(str(folder / RUN)).get("versions"), Mapping)
    except RegardError:
        return False


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

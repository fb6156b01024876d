"""Where prepared data is kept, and who is trusted there.

What lies in the cache is believed: its checksums tell damage, not malice, since whoever can write a
file can write its checksum. So nobody else may be able to put anything there, but those whom the
owner let in: the folder is ours or root's, and not everybody may write to it. In a shared one that
is sticky, as /tmp is, each user has a folder of their own.
"""

import os
import stat
from contextlib import suppress
from pathlib import Path

from regard.errors import RegardError
from regard.storage.writing import make_folder

OTHERS, GROUP = stat.S_IWOTH, stat.S_IWGRP
TRUSTED = {0, os.geteuid()}


def cache_folder() -> Path:
    """$REGARD_CACHE, else the user's cache folder, made for us alone if it is not there."""
    folder = _made(_named())
    try:
        owners, found = {os.lstat(folder).st_uid}, os.stat(folder)
        if found.st_uid in TRUSTED and found.st_mode & OTHERS and found.st_mode & stat.S_ISVTX:
            folder = _made(folder / f"regard-{os.geteuid()}")
            found = os.lstat(folder)  # a link may be written to by everybody
    except OSError:  # it cannot be made, which is said when something is to be kept there
        return folder
    ours = owners | {found.st_uid} <= TRUSTED
    if not ours or found.st_mode & OTHERS:
        why = "can be written to by everybody" if ours else "belongs to another user"
        raise RegardError(
            f"the cache {folder} {why}, so that others could change what is trained on; set "
            "REGARD_CACHE to a folder of yours that they cannot write to"
        )
    return folder


def _named() -> Path:
    if named := os.environ.get("REGARD_CACHE"):
        return Path(named)
    if named := os.environ.get("XDG_CACHE_HOME"):
        return Path(named) / "regard"
    home = os.path.expanduser("~")
    if home == "~":  # neither $HOME nor an entry of this user, as in a container for any user
        raise RegardError("this user has no home folder; set REGARD_CACHE to a folder with room")
    return Path(home) / ".cache" / "regard"


def private_folder(name: str) -> Path | None:
    """A folder in the cache for what is executed, if we alone can write to both."""
    with suppress(OSError, RegardError):
        folder = cache_folder()
        if is_private(folder.resolve()) and is_private(folder / name):
            return folder / name
    return None


def is_private(folder: Path) -> bool:
    """Whether we alone can write to a folder, which is made if it is not there."""
    try:
        found = os.lstat(_made(folder))
    except OSError:
        return False
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return ours and not found.st_mode & (OTHERS | GROUP)


def _made(folder: Path) -> Path:
    with suppress(OSError):
        make_folder(folder, 0o700)
    return folder

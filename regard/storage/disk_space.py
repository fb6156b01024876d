"""How much fits on a disk, and how that is said."""

import errno
import shutil
from pathlib import Path


def size(number: float) -> str:
    """Bytes in powers of a thousand: 640 B, 1.2 GB."""
    if number < 999.5:
        return f"{number:.0f} B"
    for unit in ("kB", "MB"):
        number /= 1000
        if number < 999.95:  # which would round to 1000.0
            return f"{number:.1f} {unit}"
    return f"{number / 1000:.1f} GB"


def no_room(error: OSError, folder: Path, needed: int) -> str:
    """What an error of writing means; for a full disk, how much is `needed` and how much free."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return error.strerror or str(error)
    there = next((f for f in (folder, *folder.parents) if f.exists()), folder)
    wanted = f"no space left in {folder}: about {size(needed)} are needed"
    try:
        free = shutil.disk_usage(there).free
    except OSError:
        return wanted
    if free > 2 * needed + 10**6:
        return f"{wanted} and {size(free)} look free, so a quota or the number of files is reached"
    return f"{wanted} and {size(free)} are free"

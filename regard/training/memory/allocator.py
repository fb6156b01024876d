"""Memory that is freed on a CPU stays with the process, since the next step wants it again.

glibc gives large blocks back to the system when they are freed, and gets them anew, page by page
and filled with zeros, when the next operation makes one: 35,000 pages a step of a small model.
Kept, a step took 10 to 25 % less (docs/measurements.md), and the process up to 40 % more memory.
"""

import ctypes
import sys

TRIM, MAPPED = -1, -4  # M_TRIM_THRESHOLD and M_MMAP_MAX of malloc.h
MOST = 2**31 - 1  # bytes free at the end of the heap before any are given back


def keep_freed() -> bool:
    """Keep what is freed from now on; says whether this system's allocator can."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # musl has none
        return False
    return bool(mallopt(MAPPED, 0)) and bool(mallopt(TRIM, MOST))

"""Files that are there whole or not at all: safetensors, in one file or in shards, and JSON.

Tensors (`storage/tensors.py`, with torch) and lines (`line_reader.py`, with NumPy) are imported by
their modules: listings of runs and recipes must not wait for these libraries.

Whatever is read may come from anybody: sizes are bounded before memory is taken, nothing but
regular files is opened, and nothing is ever unpickled.
"""

from regard.storage.cache import cache_folder, is_private, private_folder
from regard.storage.disk_space import no_room, size
from regard.storage.reading import (
    check_bounds,
    opened,
    parse_json,
    parse_line,
    read_file,
    read_json,
    shown,
)
from regard.storage.writing import (
    building,
    discard,
    make_folder,
    replaceable,
    replacing,
    sweep,
    sync,
    write_json,
    write_together,
)

__all__ = [
    "building",
    "cache_folder",
    "check_bounds",
    "discard",
    "is_private",
    "make_folder",
    "no_room",
    "opened",
    "parse_json",
    "parse_line",
    "private_folder",
    "read_file",
    "read_json",
    "replaceable",
    "replacing",
    "shown",
    "size",
    "sweep",
    "sync",
    "write_json",
    "write_together",
]

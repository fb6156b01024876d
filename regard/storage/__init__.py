"""Files that are there whole or not at all: safetensors, in one file or in shards, and JSON.

Whatever is read may come from anybody: sizes are bounded before memory is taken, nothing but
regular files is opened, and nothing is ever unpickled.
"""

from regard.storage.cache import cache_folder, is_private, private_folder
from regard.storage.reading import check_bounds, opened, parse_json, read_file, read_json, shown
from regard.storage.room import no_room, size
from regard.storage.tensors import (
    FLOATS,
    TensorFolder,
    verified,
    verify,
    widest,
    write_safetensors,
    write_tensors,
)
from regard.storage.writing import (
    building,
    discard,
    make_folder,
    replacing,
    sweep,
    sync,
    write_json,
    write_together,
)

__all__ = [
    "FLOATS",
    "TensorFolder",
    "building",
    "cache_folder",
    "check_bounds",
    "discard",
    "is_private",
    "make_folder",
    "no_room",
    "opened",
    "parse_json",
    "private_folder",
    "read_file",
    "read_json",
    "replacing",
    "shown",
    "size",
    "sweep",
    "sync",
    "verified",
    "verify",
    "widest",
    "write_json",
    "write_safetensors",
    "write_tensors",
    "write_together",
]

"""Files that are there whole or not at all: safetensors, in one file or in shards, and JSON.

Whatever is read may come from anybody: sizes are bounded before memory is taken, nothing but
regular files is opened, and nothing is ever unpickled.
"""

from regard.storage.cache import cache_folder, is_private, private_folder
from regard.storage.disk_space import no_room, size
from regard.storage.line_reader import LineReader
from regard.storage.reading import (
    check_bounds,
    opened,
    parse_json,
    parse_line,
    read_file,
    read_json,
    shown,
)
from regard.storage.tensors import (
    FLOATS,
    TensorFolder,
    check_finite,
    check_missing,
    former_files,
    is_finite,
    strange_files,
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
    replaceable,
    replacing,
    sweep,
    sync,
    write_json,
    write_together,
)

__all__ = [
    "FLOATS",
    "LineReader",
    "TensorFolder",
    "building",
    "cache_folder",
    "check_bounds",
    "check_finite",
    "check_missing",
    "discard",
    "former_files",
    "is_finite",
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
    "strange_files",
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

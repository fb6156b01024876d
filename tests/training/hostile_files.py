"""Files that somebody made to do harm."""

import json
from collections.abc import Callable
from pathlib import Path

WEIGHTS = "model.safetensors"
NORMALIZER = {"type": "Precompiled", "precompiled_charsmap": ""}  # the library panics at it


def sparse(name: str, size: int, start: int = 0) -> Callable[[Path], None]:
    """A file of so many bytes that takes no room, with a number at its start."""

    def harm(folder: Path) -> None:
        with (folder / name).open("wb") as file:
            file.write(start.to_bytes(8, "little"))
            file.truncate(size)

    return harm


def header(entries: dict[str, object], data: int = 8) -> Callable[[Path], None]:
    """Weights with such a header: [type, shape, offsets] by name."""
    keys = ("dtype", "shape", "data_offsets")

    def harm(folder: Path) -> None:
        said = {
            name: dict(zip(keys, entry, strict=True)) if isinstance(entry, list) else entry
            for name, entry in entries.items()
        }
        text = json.dumps(said).replace('"DEEP"', "[" * 10**6).encode()
        start = len(text).to_bytes(8, "little")
        (folder / WEIGHTS).write_bytes(start + text + bytes(data))

    return harm

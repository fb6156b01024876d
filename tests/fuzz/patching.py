"""What the readers here have in common: where bytes are put, and how good values are changed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from regard import RegardError

Reader = Callable[[bytes, Path], object]


def patched(base: Any, data: bytes) -> Any:
    """A good value with the changes that some JSON says: `{"-key": 0}` takes a key away."""
    try:
        return merged(base, json.loads(data))
    except (ValueError, RecursionError):
        return base


def merged(base: Any, change: Any) -> Any:
    if isinstance(base, list) and isinstance(change, dict):
        found = merged({str(i): value for i, value in enumerate(base)}, change)
        return list(found.values())
    if not isinstance(base, dict) or not isinstance(change, dict):
        return change
    kept = {key: value for key, value in base.items() if f"-{key}" not in change}
    new = {k: merged(kept.get(k), v) for k, v in change.items() if k[:1] != "-"}
    return kept | new


def put(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())
    return path


def or_refusal(work: Callable[..., object], *given: Any) -> None:
    """Go on after a refusal: the same file is read in other ways too. What it says is judged."""
    try:
        work(*given)
    except RegardError as error:
        REFUSALS.append(error)


REFUSALS: list[RegardError] = []  # of the input that is read now, but for the last

"""Inputs that together reach what is known to be reached, one small file for each target.

`mended` are those that once made a reader fail, `found` those that fuzzing kept. Each is a text
where it can be one, else base64; its first byte says for which reader it is (see `targets`).
"""

import base64
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import judging
import targets

FOLDER = Path(__file__).with_name("corpus")
KEPT, LONGEST = 40, 2000  # inputs of a target, and bytes of each
BINARY = "base64:"
OURS = str(Path(judging.cli.__file__).parent)


def load(name: str) -> dict[str, list[bytes]]:
    """The inputs kept for a target."""
    path = FOLDER / f"{name}.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {kind: list(map(_bytes, found.get(kind, ()))) for kind in ("mended", "found")}


def save(name: str, inputs: Mapping[str, Iterable[bytes]]) -> None:
    """Keep inputs of a target, in an order that does not depend on when they were found."""
    spelled = {kind: sorted(map(_spelled, set(some))) for kind, some in inputs.items()}
    text = json.dumps(spelled, indent=0, ensure_ascii=True) + "\n"
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")


def _spelled(data: bytes) -> str:
    try:
        text = data.decode("ascii")
    except UnicodeDecodeError:
        text = BINARY
    return BINARY + base64.b64encode(data).decode() if text.startswith(BINARY) else text


def _bytes(text: str) -> bytes:
    if text.startswith(BINARY):
        return base64.b64decode(text.removeprefix(BINARY))
    return text.encode("ascii")


def chosen(name: str, inputs: Iterable[bytes]) -> list[bytes]:
    """Some small inputs that are read rightly and reach as much as few can, the most first."""
    known = {data: reached(name, data) for data in sorted(set(inputs)) if len(data) <= LONGEST}
    found: list[bytes] = []
    seen: set[Any] = set()
    while len(found) < KEPT:
        best = max(known, key=lambda data: (len(known[data] - seen), -len(data)), default=b"")
        if not known.get(best, seen) - seen:
            break
        seen |= known.pop(best)
        found.append(best)
    return found


def reached(name: str, data: bytes) -> set[Any]:
    """The reader and steps from line to line of ours that an input reaches; none of a finding."""
    readers = len(targets.TARGETS[name])
    steps: set[Any] = {data[0] % targets.SLOTS % readers if data else 0}

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        where = frame.f_code.co_filename
        if not where.startswith(OURS):
            return None
        last = [frame.f_lineno]

        def inside(frame: FrameType, event: str, argument: object) -> Any:
            if event == "line":
                steps.add((where, last[0], frame.f_lineno))
                last[0] = frame.f_lineno
            return inside

        return inside

    sys.settrace(trace)
    try:
        judging.judge(name, data)
    except judging.FindingError:
        return set()
    finally:
        sys.settrace(None)
    return steps

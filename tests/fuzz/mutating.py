"""Changes to inputs that stay JSON: a value somewhere becomes an odd one."""

import json
import random
from collections.abc import Callable
from typing import Any

import good
from model_readers import CONFIGS, config_of
from targets import SLOTS

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 5, 255, 1 << 16, 1 << 31, 1 << 32, 1 << 53, 10**30),
    *((1 << 63) - 1, 1 << 63, -1 << 63, 10**400, 0.5, -0.0, 1e-320, 1e308, -1e308, 1e-5),
    *(float("nan"), float("inf"), "nan", "inf", "", "a", "2", "\x1b]0;x\x07", "\x9b31m", "\ud800"),
    *("a" * 300, "../a", "/dev/zero", "\0", "é\n", [], {}, [0], [[]], [1, 2], ["a"], {"a": 1}),
    *([1 << 62] * 3, [None], [0.5, float("nan")], [-1], {"": {}}, [[1, 2]]),
)
INDEX = {"weight_map": {"one": "one.safetensors", "two": "two.safetensors"}, "metadata": {}}


def base(name: str, slot: int) -> Any:
    """The good value that inputs for a reader change, if it is of that sort."""
    bases: dict[tuple[str, int], Callable[[], Any]] = {
        ("settings", 1): good.tables,
        ("settings", 2): good.tables,
        ("tensors", 2): lambda: {**good.header(), "__metadata__": {"checksums": "", "seal": ""}},
        ("tensors", 3): lambda: INDEX,
        ("kept", 0): good.place,
        ("kept", 3): lambda: json.loads((good.prepared() / "train" / "meta.json").read_text()),
        ("kept", 6): good.device,
        ("kept", 7): lambda: {"key": "1", "figures": good.FIGURES, "models": {"a": {}}},
    }
    for at, kind in enumerate(("char", "word", "byte", "bpe", "char"), 1):
        bases["tokenizers", at] = lambda kind=kind: good.spelled(kind)
    for at, family in enumerate(good.FAMILIES, 1):
        bases["folders", at] = lambda family=family: json.loads(
            CONFIGS.setdefault(family, config_of(good.family(family)))
        )
    return bases[name, slot]() if (name, slot) in bases else None


def changed(name: str, data: bytes, rng: random.Random) -> bytes | None:
    """An input with one value more that is odd; None for what is no JSON."""
    head, body = data[:1] or b"@", data[1:]
    lines = body.split(b"\n") if name in ("logs", "lists", "texts") else [body]
    at = rng.randrange(len(lines))
    known = base(name, head[0] % SLOTS)
    try:
        found = json.loads(lines[at] or b"{}")
        if known is not None and rng.random() < 0.6:
            _step(found, known, rng)
        else:
            found = _odd(found, rng)
        lines[at] = json.dumps(found, separators=(",", ":")).encode()
    except (ValueError, RecursionError, TypeError):
        return None
    if len(lines) > 1 and rng.random() < 0.2:
        lines.insert(rng.randrange(len(lines)), rng.choice(lines))
    return head + b"\n".join(lines)


def _step(found: Any, known: Any, rng: random.Random) -> None:
    """Change a value that the good one has: as deep as chance goes."""
    keys = list(known) if isinstance(known, dict) else [str(i) for i in range(len(known))]
    if not isinstance(found, dict) or not keys:
        return
    key = rng.choice(keys)
    inner = known[key] if isinstance(known, dict) else known[int(key)]
    deeper = isinstance(inner, dict | list) and len(inner) and rng.random() < 0.8
    if deeper and isinstance(found.setdefault(key, {}), dict):
        _step(found[key], inner, rng)
    elif rng.random() < 0.15:
        found[f"-{key}"] = 0
    else:
        found[key] = _value(known, rng)


def _value(known: Any, rng: random.Random) -> Any:
    """Something odd, or what stands elsewhere."""
    if rng.random() < 0.8:
        return rng.choice(ODD)
    return rng.choice(list(known.values()) if isinstance(known, dict) else known)


def _odd(found: Any, rng: random.Random) -> Any:
    """The same with one value or key changed, at any depth."""
    if not isinstance(found, dict | list) or not found or rng.random() < 0.15:
        return rng.choice(ODD)
    key = rng.choice(list(found) if isinstance(found, dict) else range(len(found)))
    if rng.random() < 0.1:
        found.pop(key)
    elif isinstance(found, dict) and rng.random() < 0.1:
        found[rng.choice(("a", "", "x" * 300, key + "x"))] = found.pop(key)
    else:
        found[key] = _odd(found[key], rng)
    return found

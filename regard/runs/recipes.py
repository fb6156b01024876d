"""Recipes: named, tested settings in TOML files, each extending another or the defaults.

`regard/recipes/NAME.toml` are ours; any path to a TOML file is a recipe too, and so is the
`run.toml` of a run, which repeats it.
"""

import io
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.errors import RegardError, UnreadableError, nearest
from regard.families.settings import Settings
from regard.storage import check_bounds, read_file

FOLDER = Path(__file__).parents[1] / "recipes"
BESIDE = ("extends", "about", "versions", "asked")  # what a recipe may hold besides settings
# Bounds for a recipe, which may have come from anybody.
MOST_BYTES, MOST_KEYS, MOST_DOTS, LONGEST = 4 << 20, 2000, 2 * 10**7, 1 << 14


def names() -> list[str]:
    """The recipes that come with Regard."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load(name: str, base: Settings | None = None) -> Settings:
    """The settings of a recipe, by name or path, with all that it extends."""
    settings = base or Settings()
    chain = _chain(name)
    for where, tables in reversed(chain):
        settings = settings.changed(tables, where)
    return settings


def tables(name: str) -> dict[str, Any]:
    """What a recipe says itself, as it is written."""
    return _read(name)[1]


def about(name: str) -> str:
    """What a recipe says of itself."""
    return str(beside(name).get("about", ""))


def beside(name: str) -> dict[str, Any]:
    """What a recipe holds besides settings."""
    return {key: value for key, value in _read(name)[1].items() if key in BESIDE}


def _chain(name: str) -> list[tuple[str, dict[str, Any]]]:
    """A recipe's tables, then those of what it extends, and so on."""
    chain: list[tuple[str, dict[str, Any]]] = []
    seen: list[str] = []
    while name:
        where, found = _read(name)
        if where in seen:
            raise RegardError(f"recipe {name} extends itself: {' → '.join([*seen, where])}")
        seen.append(where)
        chain.append((where, {k: v for k, v in found.items() if k not in BESIDE}))
        upper = found.get("extends", "")
        if not isinstance(upper, str):
            raise RegardError(f"{where}: extends must be the name of one recipe, not {upper!r}")
        # A path is meant from the recipe that names it.
        name = str(Path(where).parent / upper) if _is_path(upper) else upper
    return chain


def _is_path(name: str) -> bool:
    return name.endswith(".toml") or "/" in name


def _read(name: str) -> tuple[str, dict[str, Any]]:
    """Where a recipe stands, and what it holds."""
    path = FOLDER / f"{name}.toml" if name in names() else Path(name)
    try:
        if path.is_dir():  # a run
            path = path / "run.toml"
        return str(path.resolve()), parsed(read_file(path, MOST_BYTES))
    except FileNotFoundError:
        if _is_path(name):
            raise RegardError(f"there is no recipe at {path}") from None
        raise RegardError(f"no recipe is called {name!r}; {nearest(name, names())}") from None
    except OSError as error:
        raise UnreadableError(path, error) from None
    except (ValueError, RuntimeError) as error:  # nested too deep; links in a circle
        raise RegardError(f"{path} is not readable TOML: {error}") from None


def parsed(content: bytes) -> dict[str, Any]:
    """What some TOML holds, if it is of a size that people write."""
    # tomllib takes time and memory for every part of a dotted key times those before it, and for
    # every line times the parts of its header: 200 kB of "a.a.a…" were seen to take all memory.
    dots = [line.count(b".") for line in io.BytesIO(content)]
    if (max(dots, default=0) + 1) * (len(dots) + sum(dots)) > MOST_DOTS:
        raise ValueError("it has a line with too many dots; write one name a line")
    found = tomllib.loads(content.decode("utf-8"))
    values = [value for level in check_bounds(found) for value in level]
    keys = [key for value in values if isinstance(value, dict) for key in value]
    if len(keys) > MOST_KEYS:
        raise ValueError(f"it has {len(keys):,} keys, more than the {MOST_KEYS:,} it may have")
    if any(len(text) > LONGEST for text in (*keys, *values) if isinstance(text, str)):
        raise ValueError(f"it has a text of more than {LONGEST:,} characters")
    return found


def override(settings: Settings, changes: Sequence[str]) -> Settings:
    """Settings with `table.key=value` changes; the value is TOML, or else a text."""
    tables: dict[str, dict[str, Any]] = {}
    for change in changes:
        name, equals, value = change.partition("=")
        table, dot, key = name.strip().partition(".")
        if not (equals and dot and key):
            raise RegardError(f"--set {change}: write it as table.key=value, e.g. training.steps=9")
        now = getattr(getattr(settings, table, None), key, None)
        tables.setdefault(table, {})[key] = _value(
            value.strip(), texts=isinstance(now, str | tuple)
        )
    return settings.changed(tables, "--set")


def _value(text: str, texts: bool) -> Any:
    """What some TOML stands for; where `texts` are wanted, a file may be called 2024 or true."""
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    value = found.pop("value")
    plain = isinstance(value, str | list) or not texts
    return value if plain and not found else text

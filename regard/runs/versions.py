"""Versions of what a run was made with: Python, Regard, and what decides its numbers."""

import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from regard.storage.reading import read_file

PACKAGES = ("regard", "tokenizers", "tiktoken", "numpy")
CHECKOUT = Path(__file__).parents[2]  # of Regard, if it was not installed without its history
COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
LARGEST = 4 << 20  # bytes of a file of git's


def versions() -> dict[str, str]:
    """The version of each, and the commit of Regard's own checkout if it runs from one."""
    found = {"python": platform.python_version(), "torch": torch.__version__}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    commit = checked_out(CHECKOUT)
    return {**found, "git": commit} if commit else found


def checked_out(folder: Path) -> str:
    """The commit of a checkout, read from its files; nothing if it has none.

    Git itself is not asked: it runs programs that the configuration of a checkout names, and a
    folder that somebody has just unpacked may bring one.
    """
    try:
        store = _store(folder / ".git")
        head = _read(store / "HEAD")
        if not head.startswith("ref: "):
            return head if COMMIT.fullmatch(head) else ""
        return _named(store, head.removeprefix("ref: "))
    except (OSError, ValueError):
        return ""


def _store(git: Path) -> Path:
    """Where git keeps a checkout's data: a second checkout has a file that says where."""
    return git if git.is_dir() else git.parent / _read(git).removeprefix("gitdir: ")


def _named(store: Path, name: str) -> str:
    """The commit that a branch stands at, in a file of its own or packed with others."""
    common = store / _read(store / "commondir") if (store / "commondir").is_file() else store
    if (common / name).is_file():
        found = _read(common / name)
        return found if COMMIT.fullmatch(found) else ""
    packed = (line.split(" ", 1) for line in _read(common / "packed-refs").splitlines())
    return next(
        (line[0] for line in packed if line[1:] == [name] and COMMIT.fullmatch(line[0])), ""
    )


def _read(path: Path) -> str:
    return read_file(path, LARGEST).decode().strip()

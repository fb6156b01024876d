"""Files and folders that are there whole or not at all, also after a kill or a power cut."""

import errno
import hashlib
import json
import os
import platform
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

DAY = 24 * 3600  # seconds


@contextmanager
def replacing(path: Path, lasting: bool = True) -> Iterator[Path]:
    """Another name to write to first, then moved to `path`; on failure nothing is left behind.

    A model may have been loaded from, and still map, the very file that is replaced. After a power
    cut there is the old file or the new one, since the content is on the disk before the name is;
    unless it is not `lasting`, for which nobody waits.
    """
    if not replaceable(path):
        raise OSError(errno.EINVAL, "it is a device, which no file takes the place of")
    partial = _beside(path, "partial")
    try:
        yield partial
        if lasting:
            sync(partial)
        os.replace(partial, path)
        if lasting:
            sync(path.parent)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def replaceable(path: Path) -> bool:
    """Whether a file may take a name: not /dev/null's, nor /dev/stdout's, which leads to /proc.

    Root's `regard arpa RUN /dev/null` would leave the machine without one.
    """
    try:
        mode = os.lstat(path).st_mode
        leads_to = os.readlink(path) if stat.S_ISLNK(mode) else ""
    except (OSError, ValueError):  # nothing is there, or nothing can be
        return True
    return not (stat.S_ISCHR(mode) or stat.S_ISBLK(mode) or leads_to.startswith("/proc/"))


@contextmanager
def building(folder: Path, replace: bool = False) -> Iterator[Path]:
    """Another folder to write to, which becomes `folder` once it is whole and on the disk.

    If `folder` is there by then, what it holds stays (two processes may make the same cache) unless
    it is to be replaced. Then a reader sees the old folder or the new one, or for an instant none;
    who is killed in that instant leaves the old one to `sweep`, which puts it back.
    """
    make_folder(folder.parent)
    partial = _beside(folder, "partial")
    partial.mkdir()
    try:
        yield partial
        for path in (*partial.rglob("*"), partial):
            if not path.is_symlink():
                sync(path)
        _install(partial, folder, replace)
    finally:
        _remove(partial)


def _install(partial: Path, folder: Path, replace: bool) -> None:
    """Give a folder its name, in place of what has it, or else unless something has it."""
    aside = _beside(folder, "aside")
    try:
        if replace and os.path.lexists(folder):  # or a link that leads nowhere
            os.replace(folder, aside)
        os.replace(partial, folder)
    except OSError as error:
        if replace or error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    finally:
        if aside.exists() and not folder.exists():
            os.replace(aside, folder)
    try:
        sync(folder.parent)
    finally:
        _remove(aside)


def make_folder(folder: Path, rights: int = 0o777) -> None:
    """Make a folder, and those it lies in, whose names are then on the disk: what is synced in a
    folder whose own name is not may be lost with it.
    """
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(rights, exist_ok=True)
        with suppress(PermissionError):  # a folder that one may write to and not read
            sync(folder.parent)


def discard(folder: Path) -> None:
    """Remove a folder; a kill or a power cut meanwhile leaves nothing under its name."""
    aside = _beside(folder, "partial")
    with suppress(OSError):
        os.replace(folder, aside)
        sync(folder.parent)
    _remove(aside)


def sync(path: Path) -> None:
    """Wait until a file or a folder's names are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # which some network disks say of every folder
            raise
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    """Remove a file or a folder, as far as it can be; a link is only the link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _beside(path: Path, use: str) -> Path:
    """A name that nobody else has, and that tells `sweep` who made it."""
    return path.with_name(f".{path.name}.{_host()}-{os.getpid()}-{secrets.token_hex(4)}.{use}")


def _host() -> str:
    """This machine, or this container: process ids mean something within it only."""
    inside = 0
    with suppress(OSError):
        inside = os.stat("/proc/self/ns/pid").st_ino
    return hashlib.blake2b(f"{platform.node()} {inside}".encode(), digest_size=4).hexdigest()


LEFT = re.compile(r"\.(.+)\.(?P<host>[0-9a-f]{8})-(?P<process>\d+)-\w{8}\.(partial|aside)")


def sweep(parent: Path) -> None:
    """Remove what processes that were killed left half-written in a folder.

    Nothing is taken from a process that lives; whether one on another machine does cannot be told,
    so what it left goes when a day old. What cannot be removed stays.
    """
    left = []
    with suppress(OSError):
        left = [made for path in parent.iterdir() if (made := LEFT.fullmatch(path.name))]
    for made in left:
        path = parent / made[0]
        with suppress(OSError):
            if _in_use(path, made["host"], int(made["process"])):
                continue
            if made[4] == "aside" and not (parent / made[1]).exists():
                path.rename(parent / made[1])  # it was killed between two renames
            _remove(path)


def _in_use(path: Path, host: str, process: int) -> bool:
    if host != _host():
        touched = (p.lstat().st_mtime for p in (path, *path.rglob("*")))
        return max(touched) > time.time() - DAY
    try:
        os.kill(process, 0)  # asks only
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def write_together(texts: Mapping[Path, str]) -> None:
    """Write some texts, none of which is there unless all could be; the first is named last."""
    with ExitStack() as stack:
        partials = [(stack.enter_context(replacing(path)), text) for path, text in texts.items()]
        for partial, text in partials:
            partial.write_text(text, encoding="utf-8")
            sync(partial)


def write_json(content: Mapping[str, Any], path: Path, inside: bool = False) -> None:
    """Write a JSON object, so that a reader sees the old file or the new one.

    `inside` a folder that is being built, which is synced and gets its name as a whole, it is
    written plainly.
    """
    with nullcontext(path) if inside else replacing(path) as partial:
        partial.write_text(json_text(content), encoding="utf-8")


def json_text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2, sort_keys=True) + "\n"

"""Raw text: finding the files, and reading their documents as a stream in bounded memory."""

import codecs
import glob
import gzip
import hashlib
import os
import tempfile
import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, cast

from regard.errors import Problems, RegardError
from regard.storage import make_folder, parse_line, sync
from regard.storage.line_reader import LINE, LineReader
from regard.text.cutting import TextPiece, cut
from regard.text.invalid_utf8 import broken, canonical

__all__ = ["FoundFiles", "TextPiece", "broken", "check_text", "find", "lines", "pieces", "spool"]

HEAD = 8 << 10  # bytes looked at to tell text from other files
PICTURES = (".png", ".jpg", ".jpeg")
BLOCK = 1 << 20  # bytes read at a time
# Bytes of a JSON document's line: it is cut into pieces when it is read, and escaped letters take
# six bytes each.
DOCUMENT = 1 << 26


@dataclass(frozen=True)
class FoundFiles:
    """What `find` found, in the order given and sorted within folders and patterns."""

    files: list[Path] = field(default_factory=list)
    skipped: list[Path] = field(default_factory=list)  # hidden or binary, met on the way


def expanded(path: str | Path) -> Path:
    """A path with the home folder for its ~; as it is where nobody knows one, as shells do."""
    return Path(os.path.expanduser(path))  # Path.expanduser raises RuntimeError then


def find(given: Sequence[str | Path]) -> FoundFiles:
    """The text files among files, folders (looked through) and glob patterns (`**` too)."""
    found, problems = FoundFiles(), Problems("text")
    problems.require(bool(given), "no file, folder or pattern was given")
    for one in given:
        _look(expanded(one), found, problems)
    problems.report()
    return FoundFiles(list(dict.fromkeys(found.files)), list(dict.fromkeys(found.skipped)))


def spool(stream: BinaryIO, folder: Path) -> Path:
    """Write what cannot be read twice to a file in `folder`, named by a hash of the content."""
    make_folder(folder)
    digest = hashlib.sha256()
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as kept:
        try:
            while block := stream.read(BLOCK):
                digest.update(block)
                kept.write(block)
        except BaseException:
            os.unlink(kept.name)
            raise
    path = folder / f"{digest.hexdigest()[:32]}.txt"
    sync(Path(kept.name))  # a run that goes on reads it again, also after a power cut
    os.replace(kept.name, path)
    sync(folder)
    return path


def pieces(path: Path, size: int = 1 << 20) -> Iterator[TextPiece]:
    """The documents of one file, each in pieces of about `size` characters.

    A `.jsonl` or `.ndjson` file has a document in each line's "text", any other file is one
    document; both may be compressed (`.gz`). Empty documents are left out.
    """
    if is_json_lines(path):
        for text in _texts(path):
            yield from cut([text], size)
    else:
        yield from cut(_decoded(path), size)


def _look(path: Path, found: FoundFiles, problems: Problems) -> None:
    """Add what one given path or pattern means to `found`, what is wrong to `problems`."""
    if path.is_file():
        head = _head(path, problems)
        problems.require(not _binary(head), f"{path} {_binary(head)}")
        found.files.append(path)
        return
    if path.is_dir():
        met, nothing = _within(path, found), f"folder {path} has no text files"
    elif path.exists():
        problems.add(f"{path} is no plain file; pipe it in and give - instead")
        return
    elif glob.has_magic(str(path)):
        matches = map(Path, sorted(glob.glob(str(path), recursive=True)))
        met, nothing = [m for m in matches if m.is_file()], f"{path} matches no text files"
    else:
        problems.add(f"{path} does not exist")
        return
    binary = {one for one in met if _binary(_head(one, problems))}
    found.files.extend(one for one in met if one not in binary)
    found.skipped.extend(sorted(binary))
    pictures = any(one.suffix.lower() in PICTURES for one in binary)
    nothing += ", but images; with captions of them give it with --images" if pictures else ""
    problems.require(len(met) > len(binary), nothing)


def _within(folder: Path, found: FoundFiles) -> list[Path]:
    """The files below a folder, sorted; what is hidden, and our runs, go to `found.skipped`."""
    met: list[Path] = []
    for here, folders, files in os.walk(folder):
        if {"run.toml", "log.jsonl"} <= {*files}:  # a run beside the data it was trained on
            found.skipped.append(Path(here))
            folders.clear()
            continue
        hidden = [name for name in folders + files if name.startswith(".")]
        found.skipped.extend(Path(here, name) for name in sorted(hidden))
        folders[:] = [name for name in folders if name not in hidden]
        met.extend(Path(here, name) for name in files if name not in hidden)
    return sorted(path for path in met if path.is_file())


def _head(path: Path, problems: Problems) -> bytes:
    """How a file begins; nothing, and a problem, if it cannot be read."""
    try:
        with closing(_read(path, HEAD)) as blocks:
            return next(blocks, b"")
    except RegardError as error:
        problems.add(str(error))
        return b""


def check_text(head: bytes, where: str) -> None:
    """Refuse what begins like this, if that is no text."""
    what = _binary(head[:HEAD])
    if what:
        raise RegardError(f"{where} {what}")


def _binary(head: bytes) -> str:
    """Why a file that begins like this is not text; empty if it is."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or _every_second(head):
        return "looks like UTF-16; convert it with: iconv -f UTF-16 -t UTF-8"
    return "is not text (it has NUL bytes)" if b"\0" in head else ""


def _every_second(head: bytes) -> bool:
    """Whether nearly every other byte is NUL, as in UTF-16 of Western text without a mark."""
    halves = head[::2].count(0), head[1::2].count(0)
    return len(head) >= 4 and max(halves) > 0.4 * len(head) and min(halves) < 0.1 * len(head)


def is_json_lines(path: Path) -> bool:
    """Whether each line of the file is an object, by its name."""
    return unpacked_name(path).endswith((".jsonl", ".ndjson"))


def unpacked_name(path: Path) -> str:
    """What the file is called without `.gz`, in small letters: its ending tells what it holds."""
    return path.name.lower().removesuffix(".gz")


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """A file's bytes, uncompressed."""
    compressed = path.name.lower().endswith(".gz")
    try:
        with (gzip.open if compressed else open)(path, "rb") as file:
            yield cast(BinaryIO, file)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise RegardError(f"{path} is a damaged gzip file ({error}); fetch it again") from None
    except OSError as error:
        raise RegardError(f"{path} cannot be read ({error.strerror or error})") from None


def _read(path: Path, size: int) -> Generator[bytes]:
    """A file's bytes, uncompressed, in blocks of `size`."""
    with _opened(path) as file:
        while block := file.read(size):
            yield block


def _decoded(path: Path) -> Iterator[str]:
    """A file's text, broken bytes as lone surrogates, newlines as they are, no leading mark."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
    for block in _read(path, BLOCK):
        yield decoder.decode(block)
    yield decoder.decode(b"", final=True)


def lines(path: Path, longest: int = LINE) -> Iterator[str]:
    """A file's lines without their ends; only a newline ends a line, as `wc -l` counts."""
    with _opened(path) as file:
        codec = "utf-8-sig"
        for line in LineReader(file.read, path, longest):
            yield line.decode(codec, "surrogateescape").rstrip("\r\n")
            codec = "utf-8"


def _texts(path: Path) -> Iterator[str]:
    """The "text" of each line of a JSON Lines file."""
    for number, text in enumerate(lines(path, DOCUMENT), start=1):
        if not text.strip():
            continue
        try:
            document = parse_line(text)
        except (ValueError, RecursionError) as error:
            raise _unusable(path, number, f"is not JSON ({error})") from None
        if not isinstance(document, dict) or not isinstance(document.get("text"), str):
            raise _unusable(path, number, 'has no "text"')
        yield canonical(document["text"])


def _unusable(path: Path, number: int, what: str) -> RegardError:
    return RegardError(
        f'{path}: line {number} {what}; each line must be an object like {{"text": "…"}}'
    )

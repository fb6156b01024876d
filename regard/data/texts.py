"""Raw text, divided: which documents are trained on and which are held out.

Files are read as a stream, so a corpus may be larger than memory. A first pass reads each file once
to learn its size and content; the division is a function of that content alone, so it is the same
on every machine and in every run.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from regard.data import python_library
from regard.errors import RegardError
from regard.text.sources import broken, find, pieces

Part = Literal["train", "valid"]
Progress = Callable[[int], None]

WHOLE_DOCUMENTS = 20  # from so many on, whole documents are held out; below, the end of each
MOST_HELD_OUT = 10_000_000  # characters: a validation pass over more tells nothing new


class Passage(NamedTuple):
    """A stretch of a document, and whether the document (or its part) ends with it."""

    part: Part
    text: str
    last: bool


@dataclass(frozen=True)
class Census:
    """What one pass over some files found."""

    digest: str  # of the decoded content, documents apart
    sizes: np.ndarray  # (documents,) characters
    marks: np.ndarray  # (documents,) a number drawn from the beginning of each
    bytes: int
    broken: int  # bytes that are no UTF-8

    @property
    def characters(self) -> int:
        return int(self.sizes.sum())


@dataclass(frozen=True)
class Texts:
    """Documents in two parts. `passages` streams them; `warnings` says what was odd."""

    files: Sequence[Path]
    census: Census
    valid_files: Sequence[Path] = ()
    valid_census: Census | None = None
    held_out: float = 0.1
    warnings: Sequence[str] = field(default_factory=tuple)

    @property
    def digest(self) -> str:
        """Names content and division; equal digests give equal passages."""
        other = self.valid_census.digest if self.valid_census else f"{self.held_out!r}"
        return hashlib.blake2b(f"{self.census.digest} {other}".encode()).hexdigest()[:32]

    @property
    def bytes(self) -> int:
        return self.census.bytes + (self.valid_census.bytes if self.valid_census else 0)

    def rule(self) -> str:
        """How the parts were divided, in words."""
        if self.valid_census:
            count = len(self.valid_files)
            return f"held out: {count} named file{'s' if count > 1 else ''}"
        if not self.held_out:
            return "nothing held out"
        share = _held_share(self.census.characters, self.held_out)
        if len(self.census.sizes) >= WHOLE_DOCUMENTS:
            return f"held out: whole documents chosen by content, {share:.3g} of the text"
        return f"held out: the last {share:.3g} of each document"

    def passages(self) -> Iterator[Passage]:
        """All documents in order, in pieces, each with the part it belongs to."""
        if self.valid_census or not self.held_out:
            for path in self.files:
                for text, last in pieces(path):
                    yield Passage("train", text, last)
            for path in self.valid_files:
                for text, last in pieces(path):
                    yield Passage("valid", text, last)
            return
        bounds = self._bounds()
        document, place = 0, 0
        for path in self.files:
            for text, last in pieces(path):
                bound = int(bounds[document])  # characters of this document to train on
                here = min(max(bound - place, 0), len(text))
                if here:
                    yield Passage("train", text[:here], last or here < len(text))
                if here < len(text):
                    yield Passage("valid", text[here:], last)
                place += len(text)
                if last:
                    document, place = document + 1, 0

    def texts(self, part: Part, most: int = 0) -> Iterator[str]:
        """The text of one part; if `most` is given, about so many characters, evenly spread."""
        total = self.census.characters
        stride = max(1.0, total / most) if most else 1.0
        seen, due = 0, 0.0
        for passage in self.passages():
            if passage.part != part:
                continue
            for start in range(0, len(passage.text), SAMPLE):
                if seen >= due:
                    yield passage.text[start : start + SAMPLE]
                    due += SAMPLE * stride
                seen += SAMPLE

    def _bounds(self) -> np.ndarray:
        """(documents,) how many characters of each document are trained on."""
        sizes = self.census.sizes
        share = _held_share(self.census.characters, self.held_out)
        if len(sizes) < WHOLE_DOCUMENTS:
            return (sizes * (1 - share)).astype(np.int64)
        order = np.argsort(self.census.marks, kind="stable")
        before = np.cumsum(sizes[order]) - sizes[order]
        held = order[before < share * sizes.sum()]
        bounds = sizes.copy()
        bounds[held] = 0
        return bounds


SAMPLE = 1 << 16  # characters handed to a tokenizer's training at a time


def _held_share(characters: int, held_out: float) -> float:
    return min(held_out, MOST_HELD_OUT / max(characters, 1))


def gather(
    train: Sequence[str | Path],
    valid: Sequence[str | Path] = (),
    held_out: float = 0.1,
    progress: Progress | None = None,
) -> Texts:
    """Find and take stock of the texts to train on; `python` is built in."""
    files, skipped = _files(train)
    census = take_census(files, progress)
    if not census.characters:
        raise RegardError(f"there is no text in {', '.join(map(str, train))}")
    warnings = []
    if skipped:
        warnings.append(
            f"{len(skipped)} hidden or binary file{'s' if len(skipped) > 1 else ''} skipped, "
            f"{skipped[0]} first"
        )
    valid_files: list[Path] = []
    valid_census = None
    if valid:
        valid_files, _ = _files(valid)
        valid_census = take_census(valid_files, progress)
        if not valid_census.characters:
            raise RegardError(f"there is no text in {', '.join(map(str, valid))}")
        if valid_census.digest == census.digest:
            warnings.append("the held-out text is the training text")
    bad = census.broken + (valid_census.broken if valid_census else 0)
    if bad:
        warnings.append(
            f"{bad:,} bytes are not UTF-8; byte and bpe tokens keep them, char and word replace "
            "them"
        )
    return Texts(files, census, valid_files, valid_census, held_out, tuple(warnings))


def _files(given: Sequence[str | Path]) -> tuple[list[Path], list[Path]]:
    """The files named; a file called like a built-in corpus is meant only with a path before it."""
    if list(given) == ["python"]:
        return python_library.files(), []
    found = find(given)
    return found.files, found.skipped


def take_census(files: Iterable[Path], progress: Progress | None = None) -> Census:
    """Read every file once: sizes, content, and what is not UTF-8."""
    digest = hashlib.blake2b(digest_size=16)
    sizes, marks = [], []
    size = total = bad = read = 0
    mark = None
    for path in files:
        for text, last in pieces(path):
            raw = text.encode("utf-8", "surrogateescape")
            digest.update(raw)
            total += len(raw)
            bad += broken(text)
            if mark is None:
                mark = int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "big")
            size += len(text)
            if last:
                digest.update(b"\xff\x00")  # no UTF-8: parts documents
                sizes.append(size)
                marks.append(mark)
                size, mark = 0, None
            read += len(text)
            if progress:
                progress(read)
    return Census(
        digest.hexdigest(),
        np.array(sizes, dtype=np.int64),
        np.array(marks, dtype=np.uint64),
        total,
        bad,
    )

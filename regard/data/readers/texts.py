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

from regard.data.builtin import python_library
from regard.data.readers.files import broken, find, pieces
from regard.errors import RegardError
from regard.text.cutting import cut

Part = Literal["train", "valid"]
Advance = Callable[[int], None]

WHOLE_DOCUMENTS = 20  # from so many on, whole documents are held out; below, the end of each
MOST_HELD_OUT = 10_000_000  # characters: a validation pass over more tells nothing new
SAMPLE = 1 << 16  # characters handed to a tokenizer's training at a time
DIVISION = (
    2  # the version of the rules below; what is kept by `digest` is made anew when it changes
)


class Passage(NamedTuple):
    """A stretch of a document, and whether the document (or its part) ends with it."""

    part: Part
    text: str
    last: bool


@dataclass(frozen=True)
class Census:
    """What one pass over some files found."""

    digest: str  # of the decoded content, document by document
    sizes: np.ndarray  # (documents,) characters
    marks: np.ndarray  # (documents,) a number drawn from the content of each
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
        name = f"{DIVISION} {self.census.digest} {other}"
        return hashlib.blake2b(name.encode()).hexdigest()[:32]

    @property
    def bytes(self) -> int:
        return self.census.bytes + (self.valid_census.bytes if self.valid_census else 0)

    def characters(self, part: Part) -> int:
        """The size of one part."""
        trained = int(self._bounds().sum())
        if part == "train":
            return trained
        return (
            self.valid_census.characters if self.valid_census else self.census.characters - trained
        )

    def rule(self) -> str:
        """How the parts were divided, in words."""
        if self.valid_census:
            count = len(self.valid_files)
            return f"held out: {count} named file{'s' if count > 1 else ''}"
        if not self.held_out:
            return "nothing held out"
        share = self.characters("valid") / self.census.characters
        if len(self.census.sizes) >= WHOLE_DOCUMENTS:
            return f"held out: whole documents chosen by content, {share:.3g} of the text"
        return f"held out: the last {share:.3g} of each document"

    def passages(self) -> Iterator[Passage]:
        """All documents in order, in pieces, each with the part it belongs to."""
        yield from _divided(self.files, self.census.sizes, self._bounds())
        if self.valid_census:
            sizes = self.valid_census.sizes
            yield from _divided(self.valid_files, sizes, np.zeros_like(sizes))

    def texts(self, part: Part, most: int = 0) -> Iterator[str]:
        """The text of one part; if `most` is given, about so many characters, evenly spread."""
        size = min(SAMPLE, max(most // 100, 1)) if most else SAMPLE
        stride = max(1.0, self.characters(part) / most) if most else 1.0
        seen = taken = 0
        for passage in self.passages():
            if passage.part != part:
                continue
            for text, _ in cut([passage.text], size):  # between words: no word is torn
                if seen >= taken * stride:
                    yield text
                    taken += len(text)
                seen += len(text)

    def _bounds(self) -> np.ndarray:
        """(documents,) how many characters of each document are trained on."""
        sizes = self.census.sizes
        if self.valid_census or not self.held_out:
            return sizes
        share = min(self.held_out, MOST_HELD_OUT / self.census.characters)
        if len(sizes) < WHOLE_DOCUMENTS:
            return (sizes * (1 - share)).astype(np.int64)
        return np.where(chosen(sizes, self.census.marks, share), 0, sizes)


def _divided(files: Sequence[Path], sizes: np.ndarray, bounds: np.ndarray) -> Iterator[Passage]:
    """Documents in pieces, the first `bounds` characters of each in train, the rest in valid."""
    document = place = 0
    for path in files:
        for text, last in pieces(path):
            end = place + len(text)
            if document == len(sizes) or last != (end == sizes[document]):
                raise RegardError(f"{path} changed while it was read; start again")
            bound = int(bounds[document])
            here = min(max(bound - place, 0), len(text))
            if here:
                yield Passage("train", text[:here], place + here == bound)
            if here < len(text):
                yield Passage("valid", text[here:], last)
            document, place = (document + 1, 0) if last else (document, end)
    if document < len(sizes):
        raise RegardError("the text became shorter while it was read; start again")


def chosen(sizes: np.ndarray, marks: np.ndarray, share: float) -> np.ndarray:
    """(items,) which of some items to hold out: about `share` of their sizes, never none or all.

    In the order of their marks, so that the choice follows from the content, and one item more or
    less moves few others. Items with equal marks go together, unless there are no others. What is
    larger than the whole share is passed over, and about half of the rest is left at least.
    """
    groups = np.unique(marks, return_inverse=True)[1]  # numbered in the order of the marks
    if not groups.any():
        groups = np.arange(len(sizes))
    weights = np.bincount(groups, sizes)  # (groups,)
    wanted = max(min(share, 0.5) * weights.sum(), weights.min())
    fitting = weights <= wanted
    weights = np.where(fitting, weights, 0)
    middles = np.cumsum(weights) - weights / 2
    held = fitting & (middles <= min(wanted, weights.sum() / 2))
    return held[groups]


def gather(
    train: Sequence[str | Path],
    valid: Sequence[str | Path] = (),
    held_out: float = 0.1,
    progress: Advance | None = None,
) -> Texts:
    """Find and take stock of the texts to train on; `python` is built in."""
    if not 0 <= held_out < 1:
        raise RegardError(f"the share held out must be from 0 to below 1, not {held_out}")
    files, skipped = _files(train)
    valid_files: list[Path] = []
    warnings = []
    if skipped:
        warnings.append(
            f"{len(skipped)} skipped because hidden, binary or a run of ours, {skipped[0]} first"
        )
    if valid:
        valid_files, _ = _files(valid)
        files = _without(files, valid_files)
    census = _census(files, train, progress)
    valid_census = _census(valid_files, valid, progress) if valid else None
    if valid_census and (shared := int(np.isin(valid_census.marks, census.marks).sum())):
        count = len(valid_census.marks)
        warnings.append(f"{shared:,} of {count:,} held-out documents are also trained on")
    bad = census.broken + (valid_census.broken if valid_census else 0)
    if bad:
        warnings.append(
            f"{bad:,} bytes are not UTF-8; byte and bpe tokens keep them, char and word replace "
            "them"
        )
    texts = Texts(files, census, valid_files, valid_census, held_out, tuple(warnings))
    if not texts.characters("train"):
        raise RegardError(
            f"there is too little text in {_named(train)} to hold a part of it out; give more, or "
            "files to hold out"
        )
    return texts


def _files(given: Sequence[str | Path]) -> tuple[list[Path], list[Path]]:
    """The files named; a file called like a built-in corpus is meant only with a path before it."""
    if list(given) == ["python"]:
        return python_library.files(), []
    found = find(given)
    return found.files, found.skipped


def _without(files: list[Path], others: Iterable[Path]) -> list[Path]:
    """The files of a folder less those held out of it; all of them if none would be left."""
    held = {path.resolve() for path in others}
    return [path for path in files if path.resolve() not in held] or files


def _named(given: Iterable[str | Path]) -> str:
    return ", ".join(map(str, given))


def _census(files: list[Path], given: Sequence[str | Path], progress: Advance | None) -> Census:
    census = take_census(files, progress)
    if not census.characters:
        raise RegardError(f"there is no text in {_named(given)}")
    return census


def take_census(files: Iterable[Path], progress: Advance | None = None) -> Census:
    """Read every file once: sizes, content, and what is not UTF-8."""
    whole, document = _hash(), _hash()
    sizes, marks = [], []
    size = total = bad = read = 0
    for path in files:
        for text, last in pieces(path):
            raw = text.encode("utf-8", "surrogateescape")
            document.update(raw)
            total += len(raw)
            bad += broken(text)
            size += len(text)
            read += len(text)
            if last:
                whole.update(document.digest())
                sizes.append(size)
                marks.append(int.from_bytes(document.digest()[:8], "big"))
                document, size = _hash(), 0
            if progress:
                progress(read)
    return Census(
        whole.hexdigest(),
        np.array(sizes, dtype=np.int64),
        np.array(marks, dtype=np.uint64),
        total,
        bad,
    )


def _hash() -> "hashlib.blake2b":
    return hashlib.blake2b(digest_size=16)

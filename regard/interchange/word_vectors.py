"""Word vectors in the formats of word2vec's own program, text and binary, and GloVe's text.

Text: a line `count width`, then for each word a line with the word and its numbers; GloVe leaves
the first line out. Binary: the same first line, then for each word its bytes, a blank, and `width`
float32s, behind which word2vec.c puts a newline and gensim does not. Each may be compressed.
"""

import gzip
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn, cast

import numpy as np

from regard.data.readers.files import expanded
from regard.errors import RegardError
from regard.inspection.word_table import Vectors, WordTable
from regard.storage import no_room, opened, replacing, size

FIRST = 1 << 20  # bytes of a first line at most: GloVe's is a word and all its numbers
NUMBER = 64  # bytes of a number in a line at most, on average
WORD = 1 << 12  # bytes of a word at most
SMALLEST_NUMBER = 2  # bytes of a number in a line at least, its blank included
DEFLATED = 1032  # what a compressed byte stands for at most
ROWS = 4096  # vectors made at a time
GZIP = b"\x1f\x8b"
FLOAT = np.dtype("<f4")
CONTROLS = bytes({*range(32)} - {*b"\t\r"})  # which no line of text has inside


class VectorHeader(NamedTuple):
    """What the first line says."""

    words: int
    width: int


class WordVector(NamedTuple):
    word: bytes
    numbers: Any  # (width,) of floats


def read_vectors(path: str | Path) -> WordTable:
    """A file's words and vectors; the format is told by the content."""
    return _VectorReader(expanded(path)).table()


class _VectorReader:
    """One file on its way to a table."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.headed = False  # whether the first line gives count and width

    def table(self) -> WordTable:
        with self._file() as file:
            first = file.readline(FIRST)
            shape = _shape(first)
            self.headed = shape is not None
            if shape is None:
                return self._gathered(self._lines(file, first, self._width(first)), None, "line")
            self._check_size(shape, file)
            if self._is_text(file, shape):
                return self._gathered(self._lines(file, b"", shape.width), shape, "line")
        with self._file() as file:
            file.readline(FIRST)
            return self._gathered(self._blocks(file, shape), shape, "vector")

    @contextmanager
    def _file(self) -> Iterator[IO[bytes]]:
        """The file's bytes, uncompressed."""
        try:
            with opened(self.path) as file:
                compressed = file.read(2) == GZIP
                file.seek(0)
                yield cast(IO[bytes], gzip.GzipFile(fileobj=file)) if compressed else file
        except FileNotFoundError:
            raise RegardError(f"{self.path} does not exist") from None
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            self._fail(f"is a damaged gzip file ({error}); fetch it again")
        except OSError as error:
            self._fail(f"cannot be read ({error.strerror or error})")
        except ValueError as error:  # it is a FIFO, or its name has a NUL
            self._fail(f"cannot be read ({error})")

    def _fail(self, what: str) -> NoReturn:
        raise RegardError(f"{self.path} {what}") from None

    def _fail_at(self, place: str, number: int, what: str) -> NoReturn:
        raise RegardError(f"{self.path}: {place} {number:,} {what}") from None

    def _width(self, first: bytes) -> int:
        """How many numbers the first line has, in a file that does not say so itself."""
        word, *numbers = first.split() or [b""]
        if not numbers or not all(map(_is_number, numbers)) or not _is_utf8(word):
            self._fail(
                "is no file of word vectors: its first line is neither `count width` nor a word "
                "and its numbers"
            )
        return len(numbers)

    def _check_size(self, shape: VectorHeader, file: IO[bytes]) -> None:
        """Refuse a first line that promises more than there can be, before memory is taken."""
        count, width = shape
        there = os.stat(self.path).st_size
        most = there * DEFLATED if isinstance(file, gzip.GzipFile) else there
        if not count or not width:
            self._fail_at(
                "line", 1, f"says {count:,} vectors of width {width:,}; there must be some"
            )
        if count * (2 + SMALLEST_NUMBER * width) - 1 > most:
            self._fail_at(
                "line",
                1,
                f"says {_short(count)} vectors of width {_short(width)}, more than a file of "
                f"{size(there)} can hold; it is damaged or cut off",
            )

    def _is_text(self, file: IO[bytes], shape: VectorHeader) -> bool:
        """Whether lines follow, told by the first of them; the file is left where it was."""
        start = file.tell()
        line = file.readline(_longest(shape.width))
        file.seek(start)
        fields = line.split()
        if len(fields) == shape.width + 1 and all(map(_is_number, fields[1:])):
            return True
        if len(line.translate(None, CONTROLS)) < len(line.rstrip(b"\n")) or not _is_utf8(line):
            return False
        # A damaged line, or a few numbers whose bytes happen to be letters: what fits to the end?
        try:
            self._gathered(self._blocks(file, shape), shape, "vector")
        except RegardError:
            return True
        finally:
            file.seek(start)
        return False

    def _lines(self, file: IO[bytes], first: bytes, width: int) -> Iterator[WordVector]:
        """The rows of text behind the first line, which may be one of them."""
        number, longest = int(self.headed), _longest(width)
        while line := first or file.readline(longest):
            number, first = number + 1, b""
            fields = line.split()
            if not fields and not file.read(longest).strip():
                return  # empty lines at the end
            if len(fields) > width + 1 and not any(map(_is_number, fields[1:-width])):
                word = b" ".join(fields[:-width])  # some of GloVe's words have blanks
            else:
                word = fields[0] if fields else b""
                if len(fields) != width + 1:
                    had = max(0, len(fields) - 1)
                    self._fail_at("line", number, f"has {had:,} numbers, not {width:,}")
            yield WordVector(word, self._floats(fields[-width:], number))

    def _floats(self, fields: list[bytes], number: int) -> list[float]:
        try:
            found = list(map(float, fields))
        except ValueError:
            found = []
        if not found or b"_" in b"".join(fields):  # which Python allows inside a number
            wrong = next(field for field in fields if not _is_number(field))
            said = wrong[:40].decode("utf-8", "backslashreplace")
            self._fail_at("line", number, f"has {said!r} where a number should be")
        return found

    def _blocks(self, file: IO[bytes], shape: VectorHeader) -> Iterator[WordVector]:
        """The rows of a binary file."""
        length, data, at = FLOAT.itemsize * shape.width, b"", 0
        block = max(1 << 20, 2 * (length + WORD))
        for number in range(1, shape.words + 1):
            if len(data) - at < length + WORD:
                data, at = data[at:] + file.read(block), 0
            while data[at : at + 1] == b"\n":  # word2vec.c ends a vector with one
                at += 1
            blank = data.find(b" ", at, at + WORD)
            if at == len(data) or (blank < 0 and len(data) - at < WORD):
                self._fail_at("vector", number, f"is missing; line 1 says {shape.words:,}")
            if blank < 0:
                self._fail_at("vector", number, f"has no word: no blank within {WORD:,} bytes")
            if len(data) < blank + 1 + length:
                self._fail_at("vector", number, f"is cut off; line 1 says {shape.words:,}")
            yield WordVector(data[at:blank], np.frombuffer(data, FLOAT, shape.width, blank + 1))
            at = blank + 1 + length
        if (data[at:] + file.read(block)).strip(b"\n"):
            self._fail(f"goes on behind the {shape.words:,} vectors that line 1 says")

    def _gathered(
        self, rows: Iterator[WordVector], shape: VectorHeader | None, place: str
    ) -> WordTable:
        """All rows as a table, as many as the first line says, each checked."""
        words: dict[str, int] = {}
        parts: list[Vectors] = []
        held: list[Any] = []
        before = int(self.headed) if place == "line" else 0  # lines without a vector
        number = before
        for number, row in enumerate(rows, before + 1):
            word = self._word(row.word, place, number)
            if (first := words.setdefault(word, number)) != number:
                self._fail_at(place, number, f"has the word {word!r} again, of {place} {first:,}")
            held.append(row.numbers)
            if len(held) == ROWS:
                parts.append(self._numbers(held, place, number))
                held = []
        if held:
            parts.append(self._numbers(held, place, number))
        if shape is not None and len(words) != shape.words:
            self._fail(f"has {len(words):,} vectors, but line 1 says {shape.words:,}")
        return WordTable(list(words), np.concatenate(parts))

    def _word(self, word: bytes, place: str, number: int) -> str:
        if not word:
            self._fail_at(place, number, "has no word")
        try:
            return word.decode("utf-8")
        except UnicodeDecodeError:
            self._fail_at(place, number, f"has a word that is not UTF-8: {word[:40]!r}")

    def _numbers(self, held: list[Any], place: str, last: int) -> Vectors:
        """Vectors (rows, width), the last of which is number `last`, if all are finite."""
        with np.errstate(over="ignore", invalid="ignore"):  # 1e99 is found to be infinite below
            table = np.array(held, np.float64).astype(np.float32)
        finite = np.isfinite(table).all(1)
        if not finite.all():
            number = last - len(held) + 1 + int(finite.argmin())
            self._fail_at(place, number, "has a number that is not finite in 32 bits")
        return table


def _shape(first: bytes) -> VectorHeader | None:
    """Count and width, if that is what a first line says."""
    fields = first.split()
    if len(fields) != 2 or not all(field.isdigit() and len(field) < 20 for field in fields):
        return None
    return VectorHeader(*map(int, fields))


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return b"_" not in field  # which Python allows inside


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _longest(width: int) -> int:
    return WORD + NUMBER * width


def _short(number: int) -> str:
    return f"{number:,}" if number < 10**12 else f"{number:.1e}"


def write_vectors(table: WordTable, path: str | Path, *, binary: bool = False) -> None:
    """Write a table as word2vec's program and gensim read it, whole or not at all.

    A name that ends in `.gz` is compressed. What is read back is the same to the bit.
    """
    path = expanded(path)
    words = [_spelled(word) for word in table.words]
    spell = _bytes if binary else _line(table.width)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial, _written(partial, path) as file:
            file.write(b"%d %d\n" % table.vectors.shape)
            for first in range(0, len(words), ROWS):
                rows = slice(first, first + ROWS)
                vectors = table.vectors[rows]
                file.write(b"".join(map(spell, words[rows], vectors)))
    except OSError as error:
        reason = no_room(error, path.parent, table.vectors.nbytes * (1 if binary else 3))
        raise RegardError(f"cannot write {path}: {reason}") from None


def _spelled(word: str) -> bytes:
    """A word's bytes, if the formats can hold them."""
    try:
        found = word.encode("utf-8")
    except UnicodeEncodeError:
        found = b""
    if found.split() != [found] or len(found) >= WORD:
        raise RegardError(
            f"the word {word[:40]!r} cannot be written: the format knows no blanks in words, no "
            f"empty ones, and here at most {WORD - 1:,} bytes of UTF-8"
        )
    return found


@contextmanager
def _written(partial: Path, path: Path) -> Iterator[IO[bytes]]:
    """The file to write to, compressed if the final name says so."""
    with partial.open("wb") as file:
        if path.suffix.lower() != ".gz":
            yield file
            return
        with gzip.GzipFile("", "wb", 6, file, mtime=0) as compressed:  # no name, no time
            yield cast(IO[bytes], compressed)


def _bytes(word: bytes, vector: Vectors) -> bytes:
    return b"%b %b\n" % (word, vector.astype(FLOAT).tobytes())


def _line(width: int) -> Callable[[bytes, Vectors], bytes]:
    """Nine digits, which tell every float32 from its neighbours."""
    form = b"%b" + b" %.9g" * width + b"\n"
    return lambda word, vector: form % (word, *vector.tolist())

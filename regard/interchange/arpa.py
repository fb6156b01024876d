"""N-grams as ARPA text, the format of SRILM and KenLM, in and out.

    \\data\\             each line: log10 of its probability, the words, log10 of its back-off if it
    ngram 1=3           is a context. Files have millions of lines, so they are written in columns
    …                   and read in blocks: words are told apart by a hash of their bytes, numbers
    \\1-grams:           are put together digit by digit, for all lines of a block at once.
    -0.8  a  -0.3
    …
    \\end\\
"""

import functools
import gzip
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple, cast

import numpy as np

from regard.errors import RegardError
from regard.interchange.columns import BLANKS, LineBlock
from regard.models.counting.config import NGramConfig
from regard.models.counting.model import NGram
from regard.models.counting.model import tensors_of as tensors_of
from regard.models.counting.table import Level, Table, find, in_order
from regard.models.counting.table_check import MOST
from regard.models.network import BaseModel
from regard.storage import no_room, opened, replacing
from regard.storage.line_reader import LineReader

BEGIN = "<s>"
IMPOSSIBLE = -99.0  # what stands for the logarithm of 0
THOUSAND = 1000  # numbers are written in two pieces of three decimals
STEP = 1 << 16  # n-grams written at a time
LIKELY = 40  # bytes of a line
BLOCK = 1 << 23  # bytes read at a time
LONGEST = 1 << 12  # bytes of a word or a number
LINE = 1 << 20  # bytes of a line
COUNT = re.compile(rb"ngram\s+(\d{1,18})\s*=\s*(\d{1,18})")


def table_of(module: BaseModel, where: object) -> Table:
    """The table of an n-gram model, which alone an ARPA file can hold."""
    if not isinstance(module, NGram):
        raise RegardError(f"{where} is not an n-gram model; ARPA holds nothing else")
    return module.table


def config_of(table: Table, vocabulary: int) -> NGramConfig:
    """The settings of a model with such a table."""
    return NGramConfig(vocabulary, table.order)


def write_arpa(table: Table, tokens: Sequence[str], path: Path) -> None:
    """Write a table, with the spelling of each id; packed by gzip if the path ends in .gz."""
    spelled = _spelled(table, tokens)
    words = {end: _objects([word + end for word in spelled]) for end in (b"", b" ", b"\n")}
    try:
        with replacing(path) as partial, _opened(partial, packed=path.suffix == ".gz") as out:
            out.write(b"\\data\\\n")
            for n, level in enumerate(table.levels, 1):
                out.write(b"ngram %d=%d\n" % (n, len(level.keys)))
            for n, level in enumerate(table.levels, 1):
                out.write(b"\n\\%d-grams:\n" % n)
                for low in range(0, len(level.keys), STEP):
                    part = slice(low, min(low + STEP, len(level.keys)))
                    out.write(_written(table, words, n, part))
            out.write(b"\n\\end\\\n")
    except OSError as error:
        needed = sum(LIKELY * len(level.keys) for level in table.levels)
        raise RegardError(f"cannot write {path}: {no_room(error, path.parent, needed)}") from None


def _opened(path: Path, packed: bool) -> IO[bytes]:
    if packed:
        return cast(IO[bytes], gzip.open(path, "wb", compresslevel=4))
    return path.open("wb")


def _spelled(table: Table, tokens: Sequence[str]) -> list[bytes]:
    """The tokens' bytes, if a reader can tell them apart."""
    if not table.normalised:
        raise RegardError(
            "stupid back-off makes scores, not probabilities; ARPA has no place for it"
        )
    if len(tokens) != table.vocabulary or len(set(tokens)) != len(tokens):
        raise RegardError(
            f"ARPA needs {table.vocabulary:,} different words, not {len(set(tokens)):,} in "
            f"{len(tokens):,}"
        )
    if tokens[table.begin] != BEGIN:
        raise RegardError(
            f"what begins a sequence is {BEGIN} in ARPA, not {tokens[table.begin][:60]!r}"
        )
    blanks = {*BLANKS.decode(), "\0"}
    bad = next((token for token in tokens if not token or not blanks.isdisjoint(token)), None)
    if bad is not None:
        raise RegardError(f"a word in ARPA has no blanks, but there is {bad[:60]!r}")
    try:
        return [token.encode() for token in tokens]
    except UnicodeEncodeError as error:
        raise RegardError(f"not every word is Unicode: {error}") from None


class _Numerals(NamedTuple):
    """The pieces that numbers are written in, as arrays of bytes objects to choose from."""

    whole: np.ndarray  # (200,000,) -0.000 to -99.999, then 0.000 to 99.999
    behind_tab: np.ndarray  # the same, each behind a tab
    with_tab: np.ndarray  # (1,000,) the next three decimals, and a tab
    with_newline: np.ndarray  # (1,000,)


@functools.cache
def _numerals() -> _Numerals:
    plain = [b"%d.%03d" % divmod(n, THOUSAND) for n in range(100 * THOUSAND)]
    whole = [b"-" + number for number in plain] + plain
    rest = [b"%03d" % n for n in range(THOUSAND)]
    return _Numerals(
        _objects(whole),
        _objects([b"\t" + number for number in whole]),
        _objects([number + b"\t" for number in rest]),
        _objects([number + b"\n" for number in rest]),
    )


def _objects(pieces: list[bytes]) -> np.ndarray:
    found = np.empty(len(pieces), object)
    found[:] = pieces
    return found


def _written(table: Table, words: Mapping[bytes, np.ndarray], n: int, part: slice) -> bytes:
    """The lines of some n-grams; `words` has them by what stands behind."""
    level, numerals = table.levels[n - 1], _numerals()
    grams = table.grams(n, part.start, part.stop)  # (grams, n)
    context = n < table.order
    cells = np.empty((len(grams), n + (4 if context else 2)), object)
    whole, rest = _split(level.logprobs[part])
    cells[:, 0], cells[:, 1] = numerals.whole[whole], numerals.with_tab[rest]
    for column in range(n - 1):
        cells[:, 2 + column] = words[b" "][grams[:, column]]
    cells[:, n + 1] = words[b"" if context else b"\n"][grams[:, -1]]
    if context:
        backoffs = level.backoffs[part]
        whole, rest = _split(backoffs)
        cells[:, -2], cells[:, -1] = numerals.behind_tab[whole], numerals.with_newline[rest]
        cells[backoffs == 0, -2:] = (b"", b"\n")
    return b"".join(cells.ravel().tolist())


def _split(logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log10 of natural logarithms (any,): which whole piece, and the decimals behind."""
    values = np.clip(logs.astype(np.float64) / math.log(10), IMPOSSIBLE, -IMPOSSIBLE)
    whole, rest = np.divmod(np.rint(np.abs(values) * THOUSAND**2).astype(np.int64), THOUSAND)
    return whole + np.where(values > 0, 100 * THOUSAND, 0), rest


def read_arpa(path: Path) -> tuple[Table, list[str]]:
    """The table of an ARPA file, packed by gzip or not, and the word of each id."""
    try:
        with opened(path) as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            text = cast(IO[bytes], gzip.GzipFile(fileobj=file)) if packed else file
            return _ArpaReader(text, path).table()
    except (OSError, EOFError, zlib.error, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RegardError(f"cannot read {path}: {reason}") from None


class _ArpaReader:
    """Reads one file from its beginning to its end."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self.path = path
        self.lines = LineReader(file.read, path, LINE, BLOCK)
        self.line = 0  # the number of the last one that was read
        self.words: list[str] = []
        self.hashes = np.empty(0, np.uint64)  # (words,) sorted
        self.ids = np.empty(0, np.int64)  # (words,) of each hash
        self.levels: list[Level] = []

    def wrong(self, what: str, line: int | None = None) -> RegardError:
        return RegardError(f"{self.path}, line {self.line if line is None else line}: {what}")

    def table(self) -> tuple[Table, list[str]]:
        """The whole file's n-grams, and its words."""
        counts = self._counts()
        for n, count in enumerate(counts, 1):
            self._expect(b"\\%d-grams:" % n)
            self.levels.append(self._level(n, count, last=n == len(counts)))
        self._expect(b"\\end\\")
        if BEGIN not in self.words:
            raise RegardError(f"{self.path} has no word {BEGIN}, which begins a sequence")
        begin = self.words.index(BEGIN)
        self.levels[0].logprobs[begin] = -np.inf  # some write 0, since it is given
        return Table(tuple(self.levels), len(self.words), begin), self.words

    def _counts(self) -> list[int]:
        """How many n-grams of each length the header promises."""
        while (line := self._line()) != b"\\data\\":
            if line is None:
                raise RegardError(f"{self.path} is no ARPA file: it has no line \\data\\")
        counts: list[int] = []
        while line := self._line():
            found = COUNT.fullmatch(line)
            if not found or int(found[1]) != len(counts) + 1:
                wanted = f"'ngram {len(counts) + 1}=' and a number"
                raise self.wrong(f"{wanted} or an empty line should be here, not {_show(line)}")
            counts.append(int(found[2]))
        if not counts or not counts[0]:
            raise self.wrong("the header promises no words")
        return counts

    def _expect(self, wanted: bytes) -> None:
        """Go on behind the next line that is not empty, if it is this one."""
        while (line := self._line()) == b"":
            pass
        if line is None:
            raise self.wrong(f"the file ends before {wanted.decode()}")
        if line != wanted:
            raise self.wrong(f"{wanted.decode()} should be here, not {_show(line)}")

    def _line(self) -> bytes | None:
        """The next line, without blanks around it; None at the end."""
        line = self.lines.next()
        if line is None:
            return None
        self.line += 1
        return line.strip()

    def _block(self, most: int) -> LineBlock:
        """The next lines, at most so many; none at the end of the file."""
        return LineBlock.of(*self.lines.columns(most))

    def _level(self, n: int, count: int, last: bool) -> Level:
        """The n-grams of one section, which begins with the next line."""
        top, columns = self.line + 1, []
        while self.line < top + count - 1:
            block = self._block(top + count - 1 - self.line)
            if not len(block.first):
                raise self.wrong(
                    f"the file ends after {self.line - top + 1:,} of {count:,} {n}-grams"
                )
            columns.append(self._parsed(n, block, last))
            self.line += len(block.first)
        keys, logs, backoffs = (
            np.concatenate(column) for column in zip(*columns or [_NOTHING], strict=True)
        )
        keys, order = in_order(keys)
        twice = np.flatnonzero(keys[1:] == keys[:-1])
        if len(twice):
            line = top + int(order[twice + 1].min())
            raise self.wrong(f"this {n}-gram was there before", line)
        return Level(keys, logs[order], backoffs[:0] if last else backoffs[order])

    def _parsed(self, n: int, block: LineBlock, last: bool) -> tuple[np.ndarray, ...]:
        """The keys, log-probabilities and back-offs of the n-grams of a block; (lines,) each."""
        self._require(
            (block.fields == n + 1) | ((block.fields == n + 2) & (not last)),
            f"a number, {n} words{'' if last else ' and perhaps a number'} should be here (the "
            f"header promises more {n}-grams, or this is none)",
        )
        self._require(
            np.maximum.reduceat(block.sizes, block.first) <= LONGEST, "a word is too long to be one"
        )
        logs = self._logs(block, block.first)
        self._require(logs <= 0, "the logarithm of a probability is above 0")
        backoffs = np.zeros(len(logs), np.float32)
        with_backoff = np.flatnonzero(block.fields == n + 2)
        backoffs[with_backoff] = self._logs(block, block.first[with_backoff] + n + 1, with_backoff)
        self._require(backoffs <= MOST, "a back-off is too large to be one")
        if n == 1:
            return self._numbered(block), logs, backoffs
        places = self._ids(block, block.first + 1)
        for column in range(2, n + 1):
            keys = places * len(self.words) + self._ids(block, block.first + column)
            if column < n:
                places, known = find(self.levels[column - 1].keys, keys)
                self._require(known, f"its first {column} words are not among the {column}-grams")
        return keys, logs, backoffs

    def _require(self, good: np.ndarray, otherwise: str, lines: np.ndarray | None = None) -> None:
        """Name the first line of a block where something is not `good`."""
        if not good.all():
            bad = int(np.argmin(good))
            raise self.wrong(otherwise, self.line + 1 + (bad if lines is None else int(lines[bad])))

    def _logs(
        self, block: LineBlock, fields: np.ndarray, lines: np.ndarray | None = None
    ) -> np.ndarray:
        """Natural logarithms of log10s."""
        values = block.numbers(fields)
        self._require(values < np.inf, "a number should be here", lines)  # nor NaN
        values[values <= IMPOSSIBLE] = -np.inf
        return (values * math.log(10)).astype(np.float32)

    def _numbered(self, block: LineBlock) -> np.ndarray:
        """The words of a block of single words get the next ids."""
        begin = len(self.words)
        fields = block.first + 1
        try:
            for spelled in block.texts(fields):
                self.words.append(spelled.decode())
        except UnicodeDecodeError:
            line = self.line + 1 + len(self.words) - begin
            raise self.wrong("the word is not UTF-8", line) from None
        ids = np.arange(begin, len(self.words))
        hashes = np.concatenate((self.hashes, block.hashes(fields)))
        order = np.argsort(hashes, kind="stable")
        self.hashes, self.ids = hashes[order], np.concatenate((self.ids, ids))[order]
        twice = np.flatnonzero(self.hashes[1:] == self.hashes[:-1])
        if len(twice):
            again = int(self.ids[twice + 1].min())
            line = self.line + 1 + again - begin
            raise self.wrong(f"the word {self.words[again][:60]!r} was there before", line)
        return ids

    def _ids(self, block: LineBlock, fields: np.ndarray) -> np.ndarray:
        wanted = block.hashes(fields)
        at = np.minimum(np.searchsorted(self.hashes, wanted), len(self.hashes) - 1)
        self._require(self.hashes[at] == wanted, "a word is not among the 1-grams")
        return self.ids[at]


_NOTHING = (np.empty(0, np.int64), np.empty(0, np.float32), np.empty(0, np.float32))


def _show(line: bytes) -> str:
    return repr(line[:60].decode(errors="replace"))

"""Documents as token ids on disk: written once, cached by content, then mapped into memory.

A folder holds `tokens-00000.bin`, … (raw little-endian uint16, or uint32 for vocabularies above
65,536), `documents.bin` (int64: where each document starts) and `meta.json`. Each document stands
as `<s> … </s>`. Encoding runs on all cores over a bounded window of pieces, so memory does not grow
with the corpus.
"""

import hashlib
import os
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from regard.data.texts import Part, Passage, Progress, Texts
from regard.errors import RegardError
from regard.storage import building, read_json, write_json
from regard.text.specials import BOS, EOS
from regard.text.tokenizer import Tokenizer

FORMAT = 1
SHARD = 1 << 27  # tokens in a file: 256 MiB of uint16


def cache_folder() -> Path:
    """Where prepared data is kept: $REGARD_CACHE, else the user's cache folder."""
    if named := os.environ.get("REGARD_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "regard"


@dataclass
class Stock:
    """What a part holds; written as meta.json."""

    vocabulary: int
    tokens: int = 0  # with the specials around each document
    documents: int = 0
    bytes: int = 0  # of the raw text
    unknown: int = 0  # tokens that became <unk>
    shard: int = SHARD
    format: int = FORMAT

    def fits(self, shards: list[int], documents: int) -> bool:
        """Whether files with so many tokens and documents are what was written."""
        full, rest = divmod(self.tokens, self.shard)
        expected = [self.shard] * full + ([rest] if rest else [])
        return self.format == FORMAT and shards == expected and documents == self.documents


class Tokens:
    """The token ids of one part, mapped from disk."""

    def __init__(self, folder: Path) -> None:
        try:
            self.stock = Stock(**read_json(folder / "meta.json"))
            self.starts = np.fromfile(folder / "documents.bin", dtype="<i8")
            self._shards = [
                np.memmap(folder / f"tokens-{shard:05}.bin", _dtype(self.stock.vocabulary), "r")
                for shard in range(-(-self.stock.tokens // self.stock.shard))
            ]
            whole = self.stock.fits(list(map(len, self._shards)), len(self.starts))
        except (RegardError, OSError, TypeError, ValueError, ArithmeticError):
            whole = False
        if not whole:
            raise RegardError(
                f"the prepared data in {folder} is damaged; delete {folder.parent} and it will be "
                "made again"
            )

    def __len__(self) -> int:
        return self.stock.tokens

    def read(self, start: int, stop: int) -> np.ndarray:
        """The ids from `start` up to `stop` or the end, as int64 (tokens,)."""
        size = self.stock.shard
        stop = min(stop, len(self))
        parts = [
            self._shards[shard][max(start - shard * size, 0) : stop - shard * size]
            for shard in range(start // size, -(-stop // size))
        ]
        return np.concatenate(parts or [np.empty(0, np.int64)]).astype(np.int64)

    def documents(self, start: int, stop: int) -> np.ndarray:
        """The number of the document that each place belongs to; (stop - start,) int64."""
        first, last = np.searchsorted(self.starts, (start, stop - 1), side="right") - 1
        inside = self.starts[first + 1 : last + 1]
        return first + np.searchsorted(inside, np.arange(start, stop), side="right")


def _dtype(vocabulary: int) -> np.dtype:
    return np.dtype("<u2" if vocabulary <= 1 << 16 else "<u4")


@dataclass
class _Writer:
    """Appends one part's ids to its files."""

    folder: Path
    stock: Stock
    starts: "array[int]" = field(default_factory=lambda: array("q"))
    inside: bool = False  # of a document

    def add(self, ids: np.ndarray, size: int, unknown: int, last: bool) -> None:
        """The next piece of a document: its ids (tokens,) and how many bytes they stand for."""
        if not self.inside:
            self.starts.append(self.stock.tokens)
            self.stock.documents += 1
        before, after = [] if self.inside else [BOS], [EOS] if last else []
        dtype = _dtype(self.stock.vocabulary)
        self._append(np.concatenate((before, ids, after), dtype=dtype, casting="unsafe"))
        self.inside = not last
        self.stock.bytes += size
        self.stock.unknown += unknown

    def _append(self, ids: np.ndarray) -> None:
        while len(ids):
            shard, place = divmod(self.stock.tokens, self.stock.shard)
            room = self.stock.shard - place
            with (self.folder / f"tokens-{shard:05}.bin").open("ab") as file:
                ids[:room].tofile(file)
            self.stock.tokens += len(ids[:room])
            ids = ids[room:]

    def close(self) -> None:
        np.array(self.starts, dtype="<i8").tofile(self.folder / "documents.bin")
        write_json(asdict(self.stock), self.folder / "meta.json")


def prepare(
    texts: Texts,
    tokenizer: Tokenizer,
    progress: Progress | None = None,
    cache: Path | None = None,
    shard: int = SHARD,
) -> dict[Part, Tokens]:
    """Both parts of some texts as tokens, from the cache or by encoding them now."""
    name = f"{FORMAT} {shard} {tokenizer.fingerprint} {texts.digest}"
    key = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
    folder = (cache or cache_folder()) / f"tokens-{key}"
    if not folder.exists():  # it appears whole
        try:
            with building(folder) as partial:
                _write(texts, tokenizer, partial, progress, shard)
        except OSError as error:
            raise RegardError(
                f"cannot keep prepared data in {folder.parent}: {error.strerror or error}; set "
                "REGARD_CACHE to a folder with room"
            ) from None
    return {part: Tokens(folder / part) for part in PARTS}


PARTS: tuple[Part, ...] = ("train", "valid")


class _Encoded(NamedTuple):
    ids: np.ndarray  # (tokens,)
    bytes: int
    unknown: int


def _write(
    texts: Texts, tokenizer: Tokenizer, folder: Path, progress: Progress | None, shard: int
) -> None:
    """Encode every passage on all cores, and write them in order."""
    writers = {}
    for part in PARTS:
        (folder / part).mkdir()
        writers[part] = _Writer(folder / part, Stock(len(tokenizer), shard=shard))

    def encode(text: str) -> _Encoded:
        ids = tokenizer.encode(text)
        return _Encoded(ids, len(text.encode("utf-8", "surrogateescape")), tokenizer.unknown(ids))

    tokenizer.encode("")  # made ready once, not by every worker
    done = 0
    for passage, encoded in in_order(encode, texts.passages()):
        writers[passage.part].add(*encoded, passage.last)
        done += len(passage.text)
        if progress:
            progress(done)
    for writer in writers.values():
        writer.close()


def in_order(
    work: Callable[[str], _Encoded], passages: Iterator[Passage]
) -> Iterator[tuple[Passage, _Encoded]]:
    """Each passage with its encoding; a few are under way at once, on all cores."""
    workers = os.cpu_count() or 1
    waiting: deque[tuple[Passage, Future[_Encoded]]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for passage in passages:
            waiting.append((passage, pool.submit(work, passage.text)))
            if len(waiting) > 2 * workers:
                first, future = waiting.popleft()
                yield first, future.result()
        for first, future in waiting:
            yield first, future.result()

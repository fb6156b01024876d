"""Documents as token ids on disk: written once, cached by content, then mapped into memory.

A folder holds `tokens-00000.bin`, … (raw little-endian uint16, or uint32 for vocabularies above
65,536), `documents.bin` (int64: where each document starts) and `meta.json`, with a checksum of
each. Each document stands as `<s> … </s>`; if asked for, each line does, and is a document here.
Encoding runs on all cores over a bounded window of pieces, so memory does not grow with the corpus.
What is damaged is thrown away and made again.
"""

import hashlib
import json
import os
from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from regard.data.readers.texts import Advance, Part, Passage, Texts
from regard.errors import RegardError
from regard.storage import building, cache_folder, no_room, read_json, sweep, write_json
from regard.text.specials import BOS, EOS, SPECIALS, UNK
from regard.text.tokenizer import Tokenizer

FORMAT = 3  # 2: with checksums; 3: with the text's own <unk>
SHARD = 1 << 27  # tokens in a file: 256 MiB of uint16
# Bytes of one part that are checked whenever it is opened, which takes 0.3 s; reading a hundred
# times as much before every start would cost more than the damage that sizes do not show.
CHECKED = 256 << 20
# What notes with the wrong things in them lead to.
STRANGE = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError)


@dataclass
class Stock:
    """What a part holds; written as meta.json."""

    vocabulary: int
    tokens: int = 0  # with the specials around each document
    documents: int = 0
    bytes: int = 0  # of the raw text
    unknown: int = 0  # tokens that became <unk>
    own: int = 0  # of them, those that the text itself has, as that of wikitext-2
    shard: int = SHARD
    format: int = FORMAT
    checksums: dict[str, str] = field(default_factory=dict)  # by file; "" has that of the rest

    def sizes(self) -> dict[str, int]:
        """The bytes of each file that was written, by its name."""
        sizes = {"documents.bin": 8 * self.documents}
        for shard in range(-(-self.tokens // self.shard)):
            tokens = min(self.shard, self.tokens - shard * self.shard)
            sizes[_shard(shard)] = tokens * _dtype(self.vocabulary).itemsize
        return sizes

    @property
    def small(self) -> bool:
        """Whether all of it is looked at whenever it is opened."""
        return sum(self.sizes().values()) <= CHECKED

    def lacking(self, among: str) -> list[str]:
        """What the vocabulary lacks, and what the text itself left out, in sentences."""
        found = [
            (self.unknown - self.own, "unknown to the tokenizer"),
            (self.own, "the text's own <unk>"),
        ]
        return [f"{count:,} of {among} are {what}" for count, what in found if count]

    def seal(self) -> str:
        """A checksum of all that is in here."""
        content = {**asdict(self), "checksums": {**self.checksums, "": ""}}
        return _hash(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _shard(number: int) -> str:
    return f"tokens-{number:05}.bin"


def _hash(content: bytes = b"") -> "hashlib.blake2b":
    return hashlib.blake2b(content, digest_size=16)


class Tokens:
    """The token ids of one part, mapped from disk."""

    def __init__(self, folder: Path) -> None:
        try:
            self.stock = _stock(folder)
            self.starts = np.fromfile(folder / "documents.bin", dtype="<i8")
            self._shards = [
                np.memmap(folder / name, _dtype(self.stock.vocabulary), "r")
                for name in self.stock.sizes()
                if name != "documents.bin"
            ]
            if self.stock.small:
                _check_numbers(self.stock, self.starts, self._shards)
        except (RegardError, OSError, *STRANGE):
            raise RegardError(
                f"the prepared data in {folder} is damaged; delete {folder.parent} and it will be "
                "made again"
            ) from None

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

    def rows(self, starts: np.ndarray, width: int, fill: int, ring: bool = False) -> np.ndarray:
        """The ids from each of `starts` (rows,) on as int64 (rows, width), `fill` behind the end;
        with `ring` the first id follows the last one.

        All rows at once: a thread that reads them one by one keeps the trainer's from running.
        """
        places = starts[:, None] + np.arange(width)  # (rows, width)
        places = places % len(self) if ring else places
        beyond = places >= len(self)
        places[beyond] = 0
        shards, within = np.divmod(places, self.stock.shard)
        found = np.empty(places.shape, dtype=np.int64)
        for shard in np.unique(shards):
            here = shards == shard
            found[here] = self._shards[shard][within[here]]
        found[beyond] = fill
        return found

    def documents(self, start: int, stop: int) -> np.ndarray:
        """The number of the document that each place belongs to; (stop - start,) int64."""
        first, last = np.searchsorted(self.starts, (start, stop - 1), side="right") - 1
        inside = self.starts[first + 1 : last + 1]
        return first + np.searchsorted(inside, np.arange(start, stop), side="right")


def _stock(folder: Path) -> Stock:
    """What a part holds, if its files are those that were written; else a ValueError."""
    stock = Stock(**read_json(folder / "meta.json"))
    if stock.format != FORMAT or stock.checksums[""] != stock.seal():
        raise ValueError("meta.json is not what was written")
    counts = stock.tokens, stock.documents, stock.bytes, stock.unknown, stock.own, stock.shard - 1
    if not all(type(count) is int and 0 <= count < 1 << 62 for count in counts):
        raise ValueError("meta.json counts what nobody can")
    if stock.tokens > stock.shard * len(os.listdir(folder)):  # before a name is made for each shard
        raise ValueError("a file is missing")
    sizes = stock.sizes()
    if any((folder / name).stat().st_size != size for name, size in sizes.items()):
        raise ValueError("a file was cut off")
    if stock.small:
        for name in sizes:
            with (folder / name).open("rb") as file:
                if hashlib.file_digest(file, _hash).hexdigest() != stock.checksums[name]:
                    raise ValueError(f"{name} is not what was written")
    return stock


def _check_numbers(stock: Stock, starts: np.ndarray, shards: Sequence[np.ndarray]) -> None:
    """Raise a ValueError for numbers that no text gives, though their checksums may fit."""
    places = np.append(starts, stock.tokens)  # every document has a token at least
    if len(starts) and (starts[0] != 0 or (places[1:] <= places[:-1]).any()):
        raise ValueError("documents do not start one after another")
    if any(int(shard.max(initial=0)) >= stock.vocabulary for shard in shards):
        raise ValueError("there are tokens beyond the vocabulary")


def _dtype(vocabulary: int) -> np.dtype:
    return np.dtype("<u2" if vocabulary <= 1 << 16 else "<u4")


@dataclass
class _Writer:
    """Appends one part's ids to its files."""

    folder: Path
    stock: Stock
    starts: "array[int]" = field(default_factory=lambda: array("q"))
    inside: bool = False  # of a document
    hashes: "defaultdict[str, hashlib.blake2b]" = field(default_factory=lambda: defaultdict(_hash))

    def add(self, encoded: "_Encoded") -> None:
        """The next piece of a document, or of one and those after it."""
        begun = [] if self.inside else [BOS]
        if begun:
            self.starts.append(self.stock.tokens)
        self.starts.extend((self.stock.tokens + len(begun) + encoded.starts).tolist())
        dtype = _dtype(self.stock.vocabulary)
        self._append(np.concatenate((begun, encoded.ids), dtype=dtype, casting="unsafe"))
        self.inside = not encoded.ended
        self.stock.documents = len(self.starts)
        self.stock.bytes += encoded.bytes
        self.stock.unknown += encoded.unknown
        self.stock.own += encoded.own

    def _append(self, ids: np.ndarray) -> None:
        while len(ids):
            shard, place = divmod(self.stock.tokens, self.stock.shard)
            room = self.stock.shard - place
            self._write(_shard(shard), ids[:room])
            self.stock.tokens += len(ids[:room])
            ids = ids[room:]

    def _write(self, name: str, numbers: np.ndarray) -> None:
        with (self.folder / name).open("ab") as file:
            file.write(numbers.data)  # not tofile, whose errors do not say that a disk is full
        self.hashes[name].update(numbers.data)

    def close(self) -> None:
        self._write("documents.bin", np.array(self.starts, dtype="<i8"))
        self.stock.checksums = {name: found.hexdigest() for name, found in self.hashes.items()}
        self.stock.checksums[""] = self.stock.seal()
        write_json(asdict(self.stock), self.folder / "meta.json", inside=True)


def prepare(
    texts: Texts,
    tokenizer: Tokenizer,
    progress: Advance | None = None,
    cache: Path | None = None,
    shard: int = SHARD,
    lines: bool = False,
) -> dict[Part, Tokens]:
    """Both parts of some texts as tokens, from the cache or by encoding them now.

    With `lines`, each line is a document, empty ones too. Only a newline ends a line (`wc -l`), a
    carriage return before it or at the very end is dropped, and behind the last newline of a
    document no further line begins.
    """
    name = f"{FORMAT} {shard} {tokenizer.fingerprint} {texts.digest}{' lines' * lines}"
    key = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
    folder = (cache or cache_folder()) / f"tokens-{key}"
    try:
        return _open(folder, len(tokenizer))
    except RegardError:  # not there, or damaged: what is made now takes its place
        _make(folder, _Preparation(texts, tokenizer, progress, shard, lines))
    return _open(folder, len(tokenizer))


PARTS: tuple[Part, ...] = ("train", "valid")


def _open(folder: Path, vocabulary: int) -> dict[Part, Tokens]:
    found = {part: Tokens(folder / part) for part in PARTS}
    if any(tokens.stock.vocabulary != vocabulary for tokens in found.values()):
        raise RegardError(f"the prepared data in {folder} is of another vocabulary")
    return found


def _make(folder: Path, preparation: "_Preparation") -> None:
    try:
        sweep(folder.parent)
        with building(folder, replace=folder.exists()) as partial:
            preparation.write(partial)
    except OSError as error:
        raise RegardError(
            f"cannot keep prepared data in {folder.parent}: "
            f"{no_room(error, folder.parent, preparation.needed())}; set REGARD_CACHE to a folder "
            "with room"
        ) from None


class _Encoded(NamedTuple):
    """A piece of a document, without what begins it."""

    ids: np.ndarray  # (tokens,)
    bytes: int
    unknown: int
    own: int
    starts: np.ndarray  # (documents,) where among the ids further ones start
    ended: bool  # whether the last of them ends here


@dataclass
class _Preparation:
    """Encodes every passage on all cores, and writes them in order."""

    texts: Texts
    tokenizer: Tokenizer
    progress: Advance | None
    shard: int
    lines: bool
    done: int = 0  # characters
    writers: dict[Part, _Writer] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        for part in PARTS:
            (folder / part).mkdir()
            stock = Stock(len(self.tokenizer), shard=self.shard)
            self.writers[part] = _Writer(folder / part, stock)
        encode = self._lines if self.lines else self._document
        encode(Passage("train", "", True))  # made ready once, not by every worker
        for passage, encoded in in_order(encode, self.texts.passages()):
            self.writers[passage.part].add(encoded)
            self.done += len(passage.text)
            if self.progress:
                self.progress(self.done)
        for writer in self.writers.values():
            writer.close()

    def _document(self, passage: Passage) -> _Encoded:
        ids = self.tokenizer.encode(passage.text)
        return self._encoded(passage, ids, np.empty(0, np.int64), passage.last)

    def _lines(self, passage: Passage) -> _Encoded:
        left_open = not passage.text.endswith("\n")
        text = passage.text.removesuffix("\r") if passage.last else passage.text
        ids, ends = self.tokenizer.encode_lines(text)
        between = ends if left_open else ends[:-1]  # two lines of this passage
        return self._encoded(passage, ids, between, passage.last or not left_open)

    def _encoded(
        self, passage: Passage, ids: np.ndarray, between: np.ndarray, ended: bool
    ) -> _Encoded:
        """With `</s> <s>` at some places `between` the ids, and `</s>` behind them if `ended`."""
        size = len(passage.text.encode("utf-8", "surrogateescape"))
        unknown = self.tokenizer.unknown(ids)
        # Within other signs, as in (<unk>), it may be no word: there is no more of it than unknown.
        words = self.tokenizer.kind == "word"
        own = min(unknown, passage.text.count(SPECIALS[UNK])) if words else 0
        ids = np.insert(ids, np.repeat(between, 2), np.tile((EOS, BOS), len(between)))
        starts = between + 2 * np.arange(len(between)) + 1
        return _Encoded(np.append(ids, [EOS] * ended), size, unknown, own, starts, ended)

    def needed(self) -> int:
        """About how many bytes all will take, by the share that is done."""
        everything = sum(self.texts.characters(part) for part in PARTS)
        if not self.done:  # a token for each character, which is rather too many
            return everything * _dtype(len(self.tokenizer)).itemsize
        sizes = (writer.stock.sizes() for writer in self.writers.values())
        return sum(sum(size.values()) for size in sizes) * everything // self.done


def in_order(
    work: Callable[[Passage], _Encoded], passages: Iterator[Passage]
) -> Iterator[tuple[Passage, _Encoded]]:
    """Each passage with its encoding; a few are under way at once, on all cores."""
    workers = os.cpu_count() or 1
    waiting: deque[tuple[Passage, Future[_Encoded]]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for passage in passages:
            waiting.append((passage, pool.submit(work, passage)))
            if len(waiting) > 2 * workers:
                first, future = waiting.popleft()
                yield first, future.result()
        for first, future in waiting:
            yield first, future.result()

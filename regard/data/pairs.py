"""Aligned pairs of texts: read, filtered, divided, encoded; nothing is dropped without a count."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np

from regard.data import tasks
from regard.data.texts import Part
from regard.errors import Problems, RegardError
from regard.text.sources import broken, lines
from regard.text.specials import BOS, EOS
from regard.text.tokenizer import Tokenizer

MOST_HELD_OUT = 2000  # pairs: enough to tell half a BLEU point
LEAST_PAIRS = 2


class Pair(NamedTuple):
    source: str
    target: str


@dataclass
class Counts:
    """What became of the pairs that were read."""

    read: int = 0
    empty: int = 0  # one side or both
    broken: int = 0  # pairs with bytes that are no UTF-8, replaced
    long: int = 0
    uneven: int = 0
    kept: int = 0

    def sentences(self, longest: int = 0, ratio: float = 0.0) -> list[str]:
        """One sentence for each thing that happened to some pairs."""
        told = (
            (self.empty, "have an empty side and were left out"),
            (self.broken, "have bytes that are not UTF-8, replaced by �"),
            (self.long, f"have a side of more than {longest} tokens and were left out"),
            (self.uneven, f"have one side over {ratio:g} times the other and were left out"),
        )
        return [f"{count:,} of {self.read:,} pairs {what}" for count, what in told if count]


@dataclass(frozen=True)
class PairTexts:
    """Pairs as text, in two parts."""

    train: Sequence[Pair]
    valid: Sequence[Pair]
    counts: Counts
    rule: str

    @property
    def bytes(self) -> int:
        return sum(len(text.encode()) for pair in self.train for text in pair)

    def texts(self, side: int | None = None) -> Iterator[str]:
        """The training texts of one side, or of both, for a tokenizer to learn from."""
        for pair in self.train:
            yield from pair if side is None else (pair[side],)


def gather_pairs(
    train: Sequence[str | Path],
    valid: Sequence[str | Path] = (),
    held_out: float = 0.05,
    examples: int = 20_000,
    seed: int = 0,
) -> PairTexts:
    """Pairs to train on and to hold out: two aligned files, a TSV, a JSONL, or a built-in task."""
    counts = Counts()
    if len(train) == 1 and str(train[0]) in tasks.TASKS:
        name = str(train[0])
        return PairTexts(
            task_pairs(name, examples, seed, "train"),
            task_pairs(name, max(examples // 20, 1), 0, "valid"),
            counts,
            "held out: other examples, told apart by their source",
        )
    pairs = list(clean(read_pairs(train), counts))
    if len(pairs) < LEAST_PAIRS:
        raise RegardError(f"{_named(train)}: no pairs to train on ({counts.read} read)")
    if valid:
        return PairTexts(
            pairs, list(clean(read_pairs(valid), Counts())), counts, "held out: named files"
        )
    # By content, so that a pair that stands twice is never in both parts.
    marks = np.array([_mark(pair) for pair in pairs], dtype=np.uint64)
    share = min(held_out, MOST_HELD_OUT / len(pairs))
    bound = np.sort(marks)[max(int(len(pairs) * share), 1) - 1] if share else 0
    held = marks <= bound if share else np.zeros(len(pairs), dtype=bool)
    if held.all():
        raise RegardError(f"{_named(train)}: all pairs are the same; nothing can be held out")
    return PairTexts(
        [pair for pair, out in zip(pairs, held, strict=True) if not out],
        [pair for pair, out in zip(pairs, held, strict=True) if out],
        counts,
        f"held out: {share:.3g} of the pairs, chosen by content",
    )


def task_pairs(name: str, count: int, seed: int, part: tasks.Part) -> list[Pair]:
    """Examples of a built-in task as pairs."""
    return [Pair(e.source, e.target) for e in tasks.pairs(name, count, seed, part)]


def _mark(pair: Pair) -> int:
    raw = "\0".join(pair).encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "big")


def _named(given: Iterable[str | Path]) -> str:
    return " and ".join(str(path) for path in given)


def read_pairs(given: Sequence[str | Path]) -> Iterator[Pair]:
    """The pairs of two aligned files, or of one .tsv or .jsonl file (.gz too)."""
    paths = [Path(path) for path in given]
    problems = Problems("pairs")
    for path in paths:
        problems.require(path.is_file(), f"{path} is not a file")
    problems.report()
    if len(paths) == 2:
        return _aligned(*paths)
    if len(paths) == 1:
        suffixes = [suffix for suffix in paths[0].suffixes if suffix != ".gz"]
        if suffixes[-1:] == [".tsv"]:
            return _tsv(paths[0])
        if suffixes[-1:] in ([".jsonl"], [".ndjson"]):
            return _jsonl(paths[0])
    raise RegardError(
        f"{_named(given)}: pairs are two aligned files, one .tsv or .jsonl file, or one of "
        f"{', '.join(tasks.TASKS)}"
    )


def _aligned(source: Path, target: Path) -> Iterator[Pair]:
    counts = [0, 0]
    for pair in zip_longest(lines(source), lines(target)):
        for side, line in enumerate(pair):
            counts[side] += line is not None
        if None not in pair:
            yield Pair(*pair)
    if counts[0] != counts[1]:
        raise RegardError(
            f"{source} has {counts[0]:,} lines but {target} has {counts[1]:,}; aligned files have "
            "a line for a line"
        )


def _tsv(path: Path) -> Iterator[Pair]:
    for number, line in enumerate(lines(path), 1):
        fields = line.split("\t")
        if len(fields) != 2:
            raise RegardError(
                f"{path}, line {number}: {len(fields)} columns; a pair is source, tab, target"
            )
        yield Pair(*fields)


def _jsonl(path: Path) -> Iterator[Pair]:
    for number, line in enumerate(lines(path), 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
            pair = Pair(found["source"], found["target"])
        except (ValueError, KeyError, TypeError, RecursionError):
            pair = None
        if pair is None or not all(isinstance(text, str) for text in pair):
            raise RegardError(
                f"{path}, line {number}: a pair is an object with the texts `source` and `target`"
            )
        yield pair


def clean(pairs: Iterable[Pair], counts: Counts) -> Iterator[Pair]:
    """Pairs without blanks at their ends, whole and readable on both sides; the rest counted."""
    for pair in pairs:
        counts.read += 1
        if any(broken(text) for text in pair):
            counts.broken += 1
            pair = Pair(*(_readable(text) for text in pair))
        pair = Pair(*(text.strip() for text in pair))
        if not all(pair):
            counts.empty += 1
            continue
        counts.kept += 1
        yield pair


def _readable(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


@dataclass(frozen=True)
class EncodedPairs:
    """Pairs as ids: sources end in </s>, targets stand between <s> and </s>."""

    sources: Sequence[np.ndarray]  # each (tokens,)
    targets: Sequence[np.ndarray]
    texts: Sequence[Pair]
    unknown: int = 0
    counts: Counts = field(default_factory=Counts)

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """Tokens read and tokens to write of each pair; each (pairs,)."""
        source = np.array([len(ids) for ids in self.sources], dtype=np.int64)
        return source, np.array([len(ids) - 1 for ids in self.targets], dtype=np.int64)


def encode_pairs(
    pairs: Sequence[Pair],
    source: Tokenizer,
    target: Tokenizer,
    longest: int = 0,
    ratio: float = 0.0,
) -> EncodedPairs:
    """Pairs as ids, without those that are longer than `longest` tokens or more uneven than
    `ratio`; 0 keeps all."""
    counts = Counts(read=len(pairs))
    sources, targets, texts = [], [], []
    unknown = 0
    for pair in pairs:
        read = np.append(source.encode(pair.source).astype(np.int64), EOS)
        write = np.concatenate(([BOS], target.encode(pair.target).astype(np.int64), [EOS]))
        sizes = len(read), len(write) - 1
        if longest and max(sizes) > longest:
            counts.long += 1
        elif ratio and max(sizes) > ratio * min(sizes):
            counts.uneven += 1
        else:
            sources.append(read)
            targets.append(write)
            texts.append(pair)
            unknown += source.unknown(read) + target.unknown(write)
    counts.kept = len(texts)
    return EncodedPairs(sources, targets, texts, unknown, counts)


Parts = dict[Part, EncodedPairs]

"""Aligned pairs of texts: read, filtered, divided, encoded; nothing is dropped without a count."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np

from regard.data.builtin import tasks
from regard.data.readers.files import expanded, find, is_json_lines, lines, unpacked_name
from regard.data.readers.texts import chosen
from regard.errors import Problems, RegardError
from regard.storage import parse_line
from regard.text.invalid_utf8 import broken, replace_invalid_utf8
from regard.text.specials import BOS, EOS
from regard.text.tokenizer import Tokenizer

MOST_HELD_OUT = 2000  # pairs: enough to tell half a BLEU point


class Pair(NamedTuple):
    source: str
    target: str


@dataclass
class PairCounts:
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
    counts: PairCounts
    rule: str

    @property
    def bytes(self) -> int:
        return sum(len(text.encode()) for pair in self.train for text in pair)

    @property
    def digest(self) -> str:
        """Names content and division; no text holds a line end, so these part them."""
        found = hashlib.blake2b(digest_size=16)
        for part in (self.train, self.valid):
            for pair in part:
                found.update(f"{pair.source}\n{pair.target}\n".encode())
            found.update(b"\n")
        return found.hexdigest()

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
    counts = PairCounts()
    if len(train) == 1 and str(train[0]) in tasks.TASKS:
        name = str(train[0])
        return PairTexts(
            task_pairs(name, examples, seed, "train"),
            task_pairs(name, max(examples // 20, 1), 0, "valid"),
            counts,
            "held out: other examples, told apart by their source",
        )
    pairs = _usable(train, counts)
    if valid:
        held = _usable(valid, counts)
        known = set(pairs)
        shared = sum(pair in known for pair in held)
        also = f", {shared:,} of their {len(held):,} pairs are also trained on" if shared else ""
        return PairTexts(pairs, held, counts, f"held out: named files{also}")
    if not held_out:
        return PairTexts(pairs, [], counts, "nothing held out")
    # By content, so that a pair that stands twice is never in both parts.
    marks = np.array([_mark(pair) for pair in pairs], dtype=np.uint64)
    if (marks == marks[0]).all():
        raise RegardError(
            f"{_named(train)}: there is only one pair, or one over and over, so that none can be "
            "held out; give more, or files to hold out"
        )
    share = min(held_out, MOST_HELD_OUT / len(pairs))
    out = chosen(np.ones_like(marks, dtype=np.int64), marks, share).tolist()
    return PairTexts(
        [pair for pair, held in zip(pairs, out, strict=True) if not held],
        [pair for pair, held in zip(pairs, out, strict=True) if held],
        counts,
        f"held out: {sum(out) / len(pairs):.3g} of the pairs, chosen by their source",
    )


def _usable(given: Sequence[str | Path], counts: PairCounts) -> list[Pair]:
    pairs = list(clean(read_pairs(given), counts))
    if not pairs:
        raise RegardError(f"{_named(given)}: there are no pairs in it with text on both sides")
    return pairs


def task_pairs(name: str, count: int, seed: int, part: tasks.Part) -> list[Pair]:
    """Examples of a built-in task as pairs."""
    return [Pair(e.source, e.target) for e in tasks.pairs(name, count, seed, part)]


def _mark(pair: Pair) -> int:
    """By the source alone: translations of the same one stay together."""
    raw = pair.source.encode()
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "big")


def _named(given: Iterable[str | Path]) -> str:
    return " and ".join(str(path) for path in given)


def read_pairs(given: Sequence[str | Path]) -> Iterator[Pair]:
    """The pairs of two aligned files, or of one .tsv or .jsonl file (.gz too).

    What is wrong with the files as a whole is told at once, with their lines when all are read.
    """
    paths = [expanded(path) for path in given]
    problems = Problems("pairs")
    for path in paths:
        what = "is a folder" if path.is_dir() else "is no file" if path.exists() else "is not there"
        problems.require(path.is_file(), f"{path} {what}; give the files themselves")
    problems.report()
    if len(paths) == 2:
        find(paths)  # tells what is no text
        return _aligned(*paths)
    if len(paths) == 1:
        columns = unpacked_name(paths[0]).endswith(".tsv")
        if columns or is_json_lines(paths[0]):
            find(paths)
            return _one_a_line(paths[0], _columns if columns else _object)
    raise RegardError(
        f"{_named(given) or 'nothing'} was given, but pairs are two aligned files, one .tsv or "
        f".jsonl file, or one of {', '.join(tasks.TASKS)}"
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


def _one_a_line(path: Path, read: Callable[[str], Pair | str]) -> Iterator[Pair]:
    """The pairs of a file's lines; `read` gives a pair, or says what is wrong."""
    problems = Problems(str(path))
    for number, line in enumerate(lines(path), 1):
        found = read(line) if line.strip() else Pair("", "")
        if isinstance(found, Pair):
            yield found
        else:
            problems.add(f"line {number}: {found}")
    problems.report()


def _columns(line: str) -> Pair | str:
    fields = line.split("\t")
    if len(fields) != 2:
        return f"{len(fields)} column{'s' * (len(fields) > 1)}; a pair is source, tab, target"
    return Pair(*fields)


def _object(line: str) -> Pair | str:
    try:
        found = parse_line(line)
        pair = Pair(found["source"], found["target"])
    except (ValueError, KeyError, TypeError, RecursionError):
        pair = None
    if pair is None or not all(isinstance(text, str) for text in pair):
        return "a pair is an object with the texts `source` and `target`"
    return pair


def clean(pairs: Iterable[Pair], counts: PairCounts) -> Iterator[Pair]:
    """Pairs without blanks at their ends, whole and readable on both sides; the rest counted."""
    for pair in pairs:
        counts.read += 1
        if any(broken(text) for text in pair):
            counts.broken += 1
            pair = Pair(*(replace_invalid_utf8(text) for text in pair))
        pair = Pair(*(text.strip() for text in pair))
        if not all(pair):
            counts.empty += 1
            continue
        counts.kept += 1
        yield pair


@dataclass(frozen=True)
class EncodedPairs:
    """Pairs as ids: sources end in </s>, targets stand between <s> and </s>."""

    sources: Sequence[np.ndarray]  # each (tokens,)
    targets: Sequence[np.ndarray]
    texts: Sequence[Pair]
    unknown: int = 0
    counts: PairCounts = field(default_factory=PairCounts)

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
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
    counts = PairCounts(read=len(pairs))
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

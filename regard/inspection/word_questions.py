"""What a table of word vectors knows, by the usual questions: analogies and likeness of pairs.

Both count as gensim's `evaluate_word_analogies` and `evaluate_word_pairs` do: only the most
frequent words take part, case is ignored unless asked for (of words that differ in case alone the
most frequent is meant), and questions with other words are skipped and counted.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.data.readers.files import expanded, find, lines
from regard.errors import RegardError
from regard.inspection.word_table import WordTable

RESTRICT = 300_000  # words, the most frequent, among which answers are looked for
SECTION = ":"  # begins the line that names a section of a questions file
COMMENT = "#"  # begins a line to leave out
AT_ONCE = 1 << 24  # scores held at a time, 64 MB
Numbers = NDArray[np.float64]


@dataclass
class QuestionSection:
    """How many questions of one kind were answered rightly."""

    name: str
    correct: int = 0
    asked: int = 0
    skipped: int = 0  # those with a word that the table lacks

    @property
    def accuracy(self) -> float:
        """The share of right answers; NaN if nothing was asked."""
        return self.correct / self.asked if self.asked else math.nan

    @property
    def syntactic(self) -> bool:
        """Whether it is about grammar, by the names of Google's test set (gram1-…)."""
        return self.name.startswith("gram")


@dataclass(frozen=True)
class Analogies:
    """The answers to one file of questions."""

    sections: list[QuestionSection] = field(default_factory=list)

    @property
    def semantic(self) -> QuestionSection:
        return _sum("semantic", [one for one in self.sections if not one.syntactic])

    @property
    def syntactic(self) -> QuestionSection:
        return _sum("syntactic", [one for one in self.sections if one.syntactic])

    @property
    def total(self) -> QuestionSection:
        return _sum("total", self.sections)


@dataclass(frozen=True)
class Likeness:
    """How the cosines of pairs follow what people say of them."""

    spearman: float  # of their ranks, ties at their mean; NaN where one side is constant
    pearson: float
    pairs: int  # that were known
    unknown: int  # pairs with a word that the table lacks

    @property
    def unknown_share(self) -> float:
        return self.unknown / (self.pairs + self.unknown)


class Question(NamedTuple):
    """a is to b as c is to d, in section number `section`."""

    section: int
    a: str
    b: str
    c: str
    d: str


class Judgement(NamedTuple):
    """How alike people find two words."""

    a: str
    b: str
    likeness: float


def _sum(name: str, sections: Sequence[QuestionSection]) -> QuestionSection:
    counts = [(one.correct, one.asked, one.skipped) for one in sections]
    return QuestionSection(name, *(sum(column) for column in zip(*counts, strict=True)))


# Analogies


def evaluate_analogies(
    table: WordTable, path: str | Path, *, restrict: int = RESTRICT, case: bool = False
) -> Analogies:
    """Ask a file's questions "a is to b as c is to …"; with `case`, Paris is not paris."""
    names, questions = read_questions(path)
    known = _known(table, restrict, case)
    found = Analogies([QuestionSection(name) for name in names])
    kept, asked = [], []
    for question in questions:
        words = [known.get(_folded(word, case)) for word in question[1:]]
        section = found.sections[question.section]
        if None in words:
            section.skipped += 1
        else:
            section.asked += 1
            kept.append(words)
            asked.append(section)
    if kept:
        places = np.array(kept, np.int64)  # (questions, 4)
        right = _answers(table, places[:, :3], known, case, restrict) == places[:, 3]
        for section, correct in zip(asked, right.tolist(), strict=True):
            section.correct += correct
    return found


def _known(table: WordTable, restrict: int, case: bool) -> dict[str, int]:
    """The places of the most frequent words, by their folded spelling."""
    if restrict < 1:
        raise RegardError(f"answers must be looked for among at least one word, not {restrict}")
    known: dict[str, int] = {}
    for place, word in enumerate(islice(table.words, restrict)):
        known.setdefault(_folded(word, case), place)
    return known


def _folded(word: str, case: bool) -> str:
    return word if case else word.upper()  # as gensim does: ß and ss become one


def _answers(
    table: WordTable, given: NDArray[np.int64], known: dict[str, int], case: bool, restrict: int
) -> NDArray[np.int64]:
    """The best word for each of (questions, 3), by the first word of its folded spelling."""
    units = table.units[:restrict]
    first = np.array([known[_folded(word, case)] for word in table.words[:restrict]])  # (words,)
    answers = np.empty(len(given), np.int64)
    step = max(1, AT_ONCE // len(units))
    for start in range(0, len(given), step):
        places = given[start : start + step]  # (rows, 3)
        a, b, c = (units[places[:, column]] for column in range(3))
        scores = (b - a + c) @ units.T  # (rows, words)
        rows = np.arange(len(places))
        scores[rows[:, None], places] = -np.inf
        best = scores.argmax(1)
        while len(again := rows[_repeats(first[best], places) & (scores[rows, best] > -np.inf)]):
            scores[again, best[again]] = -np.inf
            best[again] = scores[again].argmax(1)
        answers[start : start + step] = first[best]
    return answers


def _repeats(answers: NDArray[np.int64], given: NDArray[np.int64]) -> NDArray[np.bool]:
    """Which answers (rows,) are words of their question (rows, 3), maybe in another case."""
    return (answers[:, None] == given).any(1)


# Likeness


def evaluate_similarity(
    table: WordTable, path: str | Path, *, restrict: int = RESTRICT, case: bool = False
) -> Likeness:
    """Compare the cosines of a file's pairs with how alike people find them."""
    judgements = read_judgements(path)
    known = _known(table, restrict, case)
    places = [[known.get(_folded(word, case)) for word in one[:2]] for one in judgements]
    kept = [i for i, pair in enumerate(places) if None not in pair]
    if len(kept) < 2:
        raise RegardError(
            f"{path}: of its {len(places):,} pairs the words know {len(kept)}, and two at least "
            "are needed to compare"
        )
    pairs = np.array([places[i] for i in kept])  # (pairs, 2)
    said = np.array([judgements[i].likeness for i in kept])
    found = table.similarities(pairs[:, 0].tolist(), pairs[:, 1].tolist())
    return Likeness(spearman(said, found), pearson(said, found), len(kept), len(places) - len(kept))


def pearson(x: Numbers, y: Numbers) -> float:
    """The correlation of two lists of numbers; NaN where one is constant."""
    if len(x) != len(y) or len(x) < 2:
        raise RegardError(f"two lists of two numbers or more are needed, not {len(x)} and {len(y)}")
    if not (np.ptp(x) > 0 and np.ptp(y) > 0):
        return math.nan
    u, v = ((side - side.mean()) / np.ptp(side) for side in (x, y))
    return float(np.clip(u @ v / math.sqrt((u @ u) * (v @ v)), -1.0, 1.0))


def spearman(x: Numbers, y: Numbers) -> float:
    """The correlation of two lists' ranks; equal numbers share the mean of theirs."""
    return pearson(_ranks(x), _ranks(y))


def _ranks(numbers: Numbers) -> Numbers:
    _, which, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[which]


# Files


def is_questions(path: str | Path) -> bool:
    """Whether a file has questions, which begin with a section's name."""
    return next((text.startswith(SECTION) for _, text in _lines(path)), False)


def read_questions(path: str | Path) -> tuple[list[str], list[Question]]:
    """The names of a file's sections (`: capitals`), and its questions, four words in a line."""
    names: list[str] = []
    questions: list[Question] = []
    for number, text in _lines(path):
        words = text.split()
        if text.startswith(SECTION):
            names.append(text.lstrip(SECTION).strip())
        elif not names:
            raise RegardError(
                f"{path}: line {number} has no section; begin with a line such as `: capitals`"
            )
        elif len(words) != 4:
            raise RegardError(f"{path}: line {number} has {len(words)} words; a question has four")
        else:
            questions.append(Question(len(names) - 1, *words))
    if not questions:
        raise RegardError(f"{path} has no questions")
    return names, questions


def read_judgements(path: str | Path) -> list[Judgement]:
    """A file's pairs, each two words and a number behind tabs, commas or blanks.

    A first line without a number names the columns.
    """
    found: list[Judgement] = []
    for order, (number, text) in enumerate(_lines(path)):
        separator = next((sign for sign in "\t," if sign in text), None)
        fields = [one.strip() for one in text.split(separator)]
        likeness = _number(fields[2]) if len(fields) == 3 else math.nan
        if math.isfinite(likeness) and all(fields):
            found.append(Judgement(fields[0], fields[1], likeness))
        elif order or any(map(math.isfinite, map(_number, fields))):
            raise RegardError(f"{path}: line {number} is not two words and a number")
    if not found:
        raise RegardError(f"{path} has no pairs of words")
    return found


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """A file's lines that say something, each with its number."""
    find([path])  # tells what is not there or no text
    for number, line in enumerate(lines(expanded(path)), 1):
        text = line.strip()
        if text and not text.startswith(COMMENT):
            yield number, text

"""`regard words`: what word vectors know."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.commands.arguments import check_writable
from regard.commands.printing import finite, note, put
from regard.data.readers.files import expanded, find
from regard.errors import Problems
from regard.inspection.word_pictures import plot
from regard.inspection.word_questions import (
    RESTRICT,
    Analogies,
    Likeness,
    QuestionSection,
    evaluate_analogies,
    evaluate_similarity,
    is_questions,
)
from regard.inspection.word_table import Neighbour, WordTable
from regard.interchange.word_vectors import write_vectors
from regard.runs.word_vectors import table_of

Action = Literal["nearest", "analogy", "similarity", "evaluate", "plot", "export"]
BINARY = (".bin", ".bin.gz")  # names of files that hold bytes unless told otherwise


class Asked(NamedTuple):
    """What an action is given behind its name."""

    words: int | None  # None: any number
    what: str
    options: tuple[str, ...]


ACTIONS: dict[str, Asked] = {
    "nearest": Asked(1, "one word", ("count", "json")),
    "analogy": Asked(3, "three words: paris france rome", ("count", "json")),
    "similarity": Asked(2, "two words", ("json",)),
    "evaluate": Asked(None, "files with questions or with pairs", ("restrict", "case", "json")),
    "plot": Asked(None, "words", ("pairs", "out")),
    "export": Asked(1, "one file to write", ("binary",)),
}


@dataclass(frozen=True)
class Words:
    """Look at word vectors: neighbours, analogies, tests and pictures.

    $ regard words runs/news nearest king
    $ regard words runs/news analogy paris france rome   as rome is to …
    $ regard words vectors.bin similarity king queen
    $ regard words runs/news evaluate questions-words.txt wordsim.tsv
    $ regard words runs/news plot --pairs france paris italy rome -o words.svg
    $ regard words runs/news export vectors.txt.gz
    """

    source: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SOURCE")]
    """A run's folder, or a file of vectors as word2vec (text or binary) and GloVe write them."""
    action: tyro.conf.Positional[Action]
    """What to do."""
    words: Annotated[
        tyro.conf.Positional[tuple[str, ...]],
        tyro.conf.arg(
            metavar="WORD…",
            help="The words; for `evaluate` files (analogies, their sections named by lines such "
            "as `: capitals`, or pairs of words with a number), for `export` the file to write.",
            help_behavior_hint="",
        ),
    ] = ()
    count: Annotated[int, tyro.conf.arg(metavar="N")] = 10
    """For nearest and analogy: how many words to tell."""
    restrict: Annotated[int, tyro.conf.arg(metavar="N")] = RESTRICT
    """For evaluate: only so many of the most frequent words take part."""
    case: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """For evaluate: Paris is not paris."""
    pairs: Annotated[
        tuple[str, ...], tyro.conf.arg(metavar="WORD WORD…", help_behavior_hint="")
    ] = ()
    """For plot: draw an arrow from the first to the second of each two."""
    out: Annotated[str, tyro.conf.arg(aliases=["-o"], metavar="FILE")] = "words.png"
    """For plot: the picture, PNG, SVG or PDF by its suffix."""
    binary: Annotated[
        bool, tyro.conf.arg(help_behavior_hint="(default: for names that end in .bin)")
    ] = False
    """For export: write word2vec's binary format."""
    json: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """For nearest, analogy, similarity and evaluate: print JSON, an object in each line."""

    def run(self, console: Console) -> None:
        self._check()
        table = table_of(Path(self.source), note)
        actions: dict[str, Callable[[WordTable, Console], None]] = {
            "nearest": self._nearest,
            "analogy": self._analogy,
            "similarity": self._similarity,
            "evaluate": self._evaluate,
            "plot": self._plot,
            "export": self._export,
        }
        actions[self.action](table, console)

    def _check(self) -> None:
        """What cannot be meant, before anything is loaded."""
        asked, problems = ACTIONS[self.action], Problems(f"words {self.action}")
        given = len(self.words)
        wrong = not (given or self.pairs) if asked.words is None else given != asked.words
        problems.require(not wrong, f"give {asked.what}, not {given}")
        problems.require(len(self.pairs) % 2 == 0, "--pairs needs two words for each arrow")
        options = {name for other in ACTIONS.values() for name in other.options}
        for name in sorted(options - {*asked.options}):
            same = getattr(self, name) == getattr(Words, name)
            problems.require(same, f"--{name} is not for `{self.action}`; leave it out")
        problems.report()
        if self.action == "evaluate":
            find(self.words)  # tells what is not there or no text
        if self.action in ("plot", "export"):
            export = self.action == "export"
            place = expanded(self.words[0]) if export else Path(self.out)
            check_writable(place, self.source, replaced=export)

    def _nearest(self, table: WordTable, console: Console) -> None:
        self._tell({"word": self.words[0]}, table.nearest(self.words[0], self.count))

    def _analogy(self, table: WordTable, console: Console) -> None:
        a, b, c = self.words
        self._tell({"a": a, "b": b, "c": c}, table.analogy(a, b, c, self.count))

    def _tell(self, asked: dict[str, str], found: Sequence[Neighbour]) -> None:
        if self.json:
            _put_json({**asked, "nearest": [one._asdict() for one in found]})
            return
        for word, similarity in found:
            put(f"{similarity:.4f}\t{word}\n")

    def _similarity(self, table: WordTable, console: Console) -> None:
        a, b = self.words
        found = table.similarity(a, b)
        if self.json:
            _put_json({"a": a, "b": b, "similarity": found})
        else:
            put(f"{found:.4f}\n")

    def _evaluate(self, table: WordTable, console: Console) -> None:
        for path in self.words:
            if is_questions(path):
                answers = evaluate_analogies(table, path, restrict=self.restrict, case=self.case)
                said, shown = _figures(answers), _answers(path, answers)
            else:
                likeness = evaluate_similarity(table, path, restrict=self.restrict, case=self.case)
                said, shown = _correlations(likeness), _likeness(path, likeness)
            if self.json:
                _put_json({"file": path, **said})
            else:
                console.print(shown)

    def _plot(self, table: WordTable, console: Console) -> None:
        pairs = list(zip(self.pairs[::2], self.pairs[1::2], strict=True))
        plot(table, self.words, Path(self.out), pairs=pairs)
        console.print(Text(f"wrote {self.out}"), soft_wrap=True)

    def _export(self, table: WordTable, console: Console) -> None:
        path = self.words[0]
        write_vectors(table, path, binary=self.binary or path.lower().endswith(BINARY))
        said = f"wrote {path}: {len(table):,} vectors of {table.width:,} numbers"
        console.print(Text(said), soft_wrap=True)


def _put_json(said: dict[str, Any]) -> None:
    put(json.dumps(said, allow_nan=False) + "\n")


# Evaluations


def _figures(answers: Analogies) -> dict[str, Any]:
    sums = (answers.semantic, answers.syntactic, answers.total)
    return {
        "kind": "analogies",
        "sections": [_section(section) for section in answers.sections],
        **{section.name: _section(section) for section in sums},
    }


def _section(section: QuestionSection) -> dict[str, Any]:
    return {
        "name": section.name,
        "accuracy": finite(section.accuracy),
        "correct": section.correct,
        "asked": section.asked,
        "skipped": section.skipped,
    }


def _correlations(likeness: Likeness) -> dict[str, Any]:
    return {
        "kind": "similarity",
        "spearman": finite(likeness.spearman),
        "pearson": finite(likeness.pearson),
        "pairs": likeness.pairs,
        "unknown": likeness.unknown,
    }


def _answers(path: str, answers: Analogies) -> Table:
    table = _table(path, ("accuracy", "correct", "asked", "skipped"))
    sums = (answers.semantic, answers.syntactic, answers.total)
    for section in (*answers.sections, *sums):
        if section is sums[0]:
            table.add_row()
        share = f"{section.accuracy:.1%}" if section.asked else "–"
        counts = (section.correct, section.asked, section.skipped)
        table.add_row(Text(section.name), share, *(f"{number:,}" for number in counts))
    return table


def _likeness(path: str, likeness: Likeness) -> Table:
    table = _table(path, ("Spearman", "Pearson", "pairs", "unknown"))
    table.add_row(
        Text("similarity"),
        f"{likeness.spearman:.4f}",
        f"{likeness.pearson:.4f}",
        f"{likeness.pairs:,}",
        f"{likeness.unknown:,} ({likeness.unknown_share:.1%})",
    )
    return table


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(Text(title), style="cyan", overflow="fold")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table

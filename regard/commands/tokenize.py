"""`regard tokenize` and `regard tokenizer`: how a text is cut, and learning how."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import tyro
from rich.console import Console
from rich.text import Text

from regard.commands.arguments import STREAM, check_writable, standard_input
from regard.commands.printing import as_note, note
from regard.data.progress import Progress
from regard.data.readers.files import find, pieces
from regard.data.readers.texts import gather
from regard.errors import RegardError
from regard.families.data.vocabularies import LEARN_FROM
from regard.runs.data_names import readable
from regard.runs.run_folder import TOKENIZER, is_folder
from regard.text.invalid_utf8 import escaped
from regard.text.learning import learn, vocabulary_for
from regard.text.tokenizer import KINDS, Tokenizer

COLOURS = tuple(
    f"white on {name}" for name in ("grey23", "dark_green", "dark_blue", "dark_red", "purple4")
)
SHOWN = 2000  # tokens; counts are of the whole text


@dataclass(frozen=True)
class Tokenize:
    """Show a text's tokens in colour, and count them.

    $ regard tokenize runs/notes "a text"   by the tokenizer of a run
    $ regard tokenize word notes.txt        by words, learned from the file itself
    """

    how: Annotated[
        tyro.conf.Positional[str],
        tyro.conf.arg(
            metavar="HOW",
            help="A run's folder, a tokenizer.json (a run may have a source_tokenizer.json too), "
            "or char, word, byte or bpe to learn it from the text.",
        ),
    ]
    text: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="TEXT")]
    """The text itself, a file with it, or - for standard input."""
    ids: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """Print the ids too."""

    def run(self, console: Console) -> None:
        read = _text(self.text)
        tokenizer = _tokenizer(self.how, read)
        found = _counted(tokenizer, read())
        console.print(_line(tokenizer.pieces(found.first), _coloured(console)), soft_wrap=True)
        if self.ids:
            console.print(Text(" ".join(map(str, found.first))), soft_wrap=True)
        if found.tokens > SHOWN:
            console.print(Text(f"… and {found.tokens - SHOWN:,} more", "dim"))
        per = f"{found.size / found.tokens:.2f} bytes a token" if found.tokens else "nothing to cut"
        console.print(
            Text(
                f"\n{found.tokens:,} tokens, {found.distinct:,} distinct, of {found.size:,} bytes "
                f"({per}); {tokenizer.kind}, {len(tokenizer):,} in the vocabulary"
            )
        )
        if found.unknown:
            console.print(Text(f"{found.unknown:,} unknown", "yellow"))


@dataclass
class _Counts:
    """What a text is cut into."""

    first: list[int]  # ids, SHOWN at most
    tokens: int = 0
    distinct: int = 0
    unknown: int = 0
    size: int = 0  # bytes


def _counted(tokenizer: Tokenizer, texts: Iterable[str]) -> _Counts:
    """The tokens of a text that is given in parts, counted."""
    found, seen = _Counts([]), np.zeros(len(tokenizer), bool)
    for text in texts:
        ids = tokenizer.encode(text)
        found.first += ids[: SHOWN - len(found.first)].tolist()
        found.tokens += len(ids)
        found.unknown += tokenizer.unknown(ids)
        found.size += len(escaped(text))
        seen[ids] = True
    found.distinct = int(seen.sum())
    return found


def _coloured(console: Console) -> bool:
    """Whether colours tell the tokens apart."""
    return console.is_terminal and console.color_system is not None and not console.no_color


def _line(shown: list[str], coloured: bool) -> Text:
    """Tokens in turning colours, or with a bar between each two; a newline ends a line."""
    line = Text()
    for place, piece in enumerate(shown):
        line.append(piece, COLOURS[place % len(COLOURS)] if coloured else None)
        if place + 1 < len(shown):
            line.append("" if coloured else "|").append("\n" if piece.endswith("↵") else "")
    return line


def _text(given: str) -> Callable[[], Iterable[str]]:
    """Reads the text, of a file in parts, as often as it is called."""
    if given == STREAM:
        whole = standard_input()
        return lambda: [whole]
    try:
        there = Path(given).is_file()
    except (OSError, ValueError):  # too long for a name: surely a text
        there = False
    if there:
        (path,) = find([given]).files
        return lambda: (text for text, _ in pieces(path))
    if len(given.split()) == 1 and ("/" in given or Path(given).suffix[1:].isalpha()):
        note(f"there is no file {given}; it is taken as the text itself")
    return lambda: [given]


def _tokenizer(how: str, read: Callable[[], Iterable[str]]) -> Tokenizer:
    if how in KINDS:
        kind = next(kind for kind in KINDS if kind == how)
        return learn(kind, read(), vocabulary_for(kind, sum(map(len, read()))))
    path = Path(how) / TOKENIZER if is_folder(Path(how)) else Path(how)
    if not path.is_file():
        raise RegardError(f"{how} is no run, no {TOKENIZER} and none of {', '.join(KINDS)}")
    return Tokenizer.load(path)


@dataclass(frozen=True)
class LearnTokenizer:
    """Learn a tokenizer from text and write it as tokenizer.json.

    $ regard tokenizer books/ --kind bpe --vocabulary 8000 -o books.json
    $ regard train books/ --set tokenizer.file=books.json
    """

    data: Annotated[
        tyro.conf.Positional[tuple[str, ...]],
        tyro.conf.arg(metavar="DATA…", help_behavior_hint="(required)"),
    ] = ()
    """Files, folders, globs (.gz and .jsonl too), - for standard input, or `python`."""
    out: Annotated[
        str,
        tyro.conf.arg(
            aliases=["-o"], metavar="FILE", help_behavior_hint=f"(default: {TOKENIZER}, if new)"
        ),
    ] = ""
    """Where to write it."""
    kind: Literal["bpe", "byte", "char", "word"] = "bpe"
    """How text is cut."""
    vocabulary: Annotated[
        int, tyro.conf.arg(metavar="N", help_behavior_hint="(default: by the size of the text)")
    ] = 0
    """How many tokens, specials included."""

    def run(self, console: Console) -> None:
        if not self.data:
            raise RegardError("name some text to learn from: files, folders, globs, or -")
        out = Path(self.out or TOKENIZER)
        check_writable(out, *self.data, replaced=True)
        if not self.out and os.path.lexists(out):  # that one may have come with somebody's model
            raise RegardError(f"{out} is already there; name it with --out to replace it")
        stages = Progress(console)
        with stages.stage("reading") as progress:
            texts = gather(readable(self.data), held_out=0.0, progress=progress)
        size = texts.census.characters
        vocabulary = self.vocabulary or vocabulary_for(self.kind, size)
        with stages.stage(f"learning {self.kind} tokens", min(size, LEARN_FROM)) as progress:
            found = learn(self.kind, texts.texts("train", LEARN_FROM), vocabulary, progress)
        try:
            found.save(out)
        except OSError as error:
            raise RegardError(f"cannot write {out}: {error.strerror or error}") from None
        for warning in texts.warnings:
            console.print(as_note(warning))
        console.print(
            Text(f"wrote {out}: {found.kind}, {len(found):,} tokens from {size:,} characters")
        )

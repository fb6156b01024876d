"""`regard tokenize` and `regard tokenizer`: how a text is cut, and learning how."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.text import Text

from regard.data.texts import gather
from regard.errors import RegardError
from regard.text.learning import learn
from regard.text.tokenizer import KINDS, Tokenizer
from regard.training.setup import LEARN_FROM, vocabulary_for
from regard.training.stages import Stages

COLOURS = ("on grey23", "on dark_green", "on dark_blue", "on dark_red", "on purple4")
SHOWN = 2000  # tokens; counts are of the whole text


@dataclass(frozen=True)
class Tokenize:
    """Show a text's tokens in colour, and count them."""

    how: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="HOW")]
    """A run's folder, a tokenizer.json, or char, word, byte or bpe to learn it from the text."""
    text: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="TEXT")]
    """The text itself, or a file with it."""
    ids: bool = False
    """Print the ids too."""

    def run(self, console: Console) -> None:
        text = _text(self.text)
        tokenizer = _tokenizer(self.how, text)
        ids = tokenizer.encode(text)
        shown = ids[:SHOWN]
        line = Text()
        for place, piece in enumerate(tokenizer.pieces(shown.tolist())):
            line.append(piece, COLOURS[place % len(COLOURS)] if console.is_terminal else None)
            if not console.is_terminal and place + 1 < len(shown):
                line.append("|")
            if piece.endswith("↵"):
                line.append("\n")
        console.print(line, soft_wrap=True)
        if len(ids) > SHOWN:
            console.print(Text(f"… and {len(ids) - SHOWN:,} more", "dim"))
        if self.ids:
            console.print(Text(" ".join(map(str, shown.tolist()))), soft_wrap=True)
        size = len(text)
        per = f"{size / len(ids):.2f} bytes a token" if len(ids) else "nothing to cut"
        console.print(
            Text(
                f"\n{len(ids):,} tokens, {len(set(ids.tolist())):,} distinct, of {size:,} bytes "
                f"({per}); {tokenizer.kind}, {len(tokenizer):,} in the vocabulary"
            )
        )
        if unknown := tokenizer.unknown(ids):
            console.print(Text(f"{unknown:,} unknown", "yellow"))


def _text(given: str) -> bytes:
    try:
        if Path(given).is_file():
            return Path(given).read_bytes()
    except (OSError, ValueError):  # too long for a name: surely a text
        pass
    return given.encode("utf-8", "surrogateescape")


def _tokenizer(how: str, text: bytes) -> Tokenizer:
    path = Path(how)
    if how in KINDS:
        kind = next(kind for kind in KINDS if kind == how)
        words = text.decode("utf-8", "surrogateescape")
        return learn(kind, [words], vocabulary_for(kind, len(words)))
    if path.is_dir():
        path = path / "tokenizer.json"
    if not path.is_file():
        raise RegardError(f"{how} is no run, no tokenizer.json and none of {', '.join(KINDS)}")
    return Tokenizer.load(path)


@dataclass(frozen=True)
class LearnTokenizer:
    """Learn a tokenizer from text and write it as tokenizer.json."""

    data: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="DATA")]
    """Files, folders, globs (.gz and .jsonl too), or `python`."""
    out: Annotated[str, tyro.conf.arg(aliases=["-o"])] = "tokenizer.json"
    """Where to write it."""
    kind: Literal["bpe", "byte", "char", "word"] = "bpe"
    """How text is cut."""
    vocabulary: int = 0
    """How many tokens, specials included; 0: by the size of the text."""

    def run(self, console: Console) -> None:
        stages = Stages(console)
        with stages.stage("reading") as progress:
            texts = gather(self.data, held_out=0.0, progress=progress)
        size = texts.census.characters
        vocabulary = self.vocabulary or vocabulary_for(self.kind, size)
        with stages.stage(f"learning {self.kind} tokens", min(size, LEARN_FROM)) as progress:
            found = learn(self.kind, texts.texts("train", LEARN_FROM), vocabulary, progress)
        found.save(Path(self.out))
        for warning in texts.warnings:
            console.print(Text(f"note: {warning}", "yellow"))
        console.print(
            Text(f"wrote {self.out}: {found.kind}, {len(found):,} tokens from {size:,} characters")
        )

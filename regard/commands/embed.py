"""`regard embed`: texts as vectors."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from numpy.typing import NDArray
from rich.console import Console
from rich.text import Text

from regard.commands.arguments import STREAM, check_writable
from regard.commands.printing import note_unknown, put
from regard.commands.texts import check_texts, given_texts
from regard.decoding.embedding import Pool, embedded, ids_of
from regard.errors import RegardError
from regard.loading import text_model_of
from regard.runs.plan import device_for
from regard.runs.stored_run import open_run
from regard.storage import no_room, replacing
from regard.text.invalid_utf8 import replace_invalid_utf8

SUFFIXES = (".npy", ".jsonl", ".tsv")
Vectors = NDArray[np.float32]  # (texts, width)


@dataclass(frozen=True)
class Embed:
    """Turn texts into vectors: a model's last layer, pooled over each text's tokens.

    $ regard embed runs/notes "the cat" "a dog"    a line of JSON each
    $ regard embed runs/notes --file notes.txt --out notes.npy
    """

    path: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """A run's folder."""
    texts: Annotated[
        tyro.conf.Positional[tuple[str, ...]],
        tyro.conf.arg(
            metavar="TEXT…",
            help="The texts; for runs on pairs, sources.",
            help_behavior_hint="(default: the lines of standard input)",
        ),
    ] = ()
    file: Annotated[str, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = ""
    """A file with a text in each line."""
    out: Annotated[
        str,
        tyro.conf.arg(
            aliases=["-o"],
            metavar="FILE",
            help="Where to write them: numpy's .npy (texts, width), .jsonl with texts and vectors, "
            "or .tsv with the numbers alone.",
            help_behavior_hint="(default: JSON lines, printed)",
        ),
    ] = ""
    pool: Pool = "mean"
    """Of the tokens' vectors: their mean, the first, or the last."""
    device: Annotated[str, tyro.conf.arg(metavar="NAME")] = "auto"
    """cpu, cuda, or what there is."""

    def run(self, console: Console) -> None:
        check_texts(self.texts, self.file)
        if self.out:
            _check_out(Path(self.out), self.file or STREAM)
        speaks = text_model_of(open_run(Path(self.path), device_for(self.device)))
        texts = given_texts(self.texts, self.file)
        read = [ids_of(speaks, text) for text in texts]
        vectors = embedded(speaks, read, pool=self.pool).numpy()
        if self.out:
            write(Path(self.out), texts, vectors)
            count, width = vectors.shape
            said = f"wrote {self.out}: {count:,} vector{'s' * (count != 1)} of {width:,} numbers"
            console.print(Text(said), soft_wrap=True)
        else:
            for line in _objects(texts, vectors):
                put(line)
        note_unknown(sum(map(speaks.unknown, read)), f"the {sum(map(len, read)):,} tokens")


def _check_out(path: Path, read: str) -> None:
    """Say before the work that a file cannot be written, nor what is `read` be written over."""
    if path.suffix.lower() not in SUFFIXES:
        raise RegardError(f"--out must end in {', '.join(SUFFIXES)}, but is {path}")
    check_writable(path, read, replaced=True)


def write(path: Path, texts: Sequence[str], vectors: Vectors) -> None:
    """The vectors in the format of the suffix, whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial, partial.open("wb") as file:
            if path.suffix.lower() == ".npy":
                np.save(file, vectors, allow_pickle=False)
            else:
                jsonl = path.suffix.lower() == ".jsonl"
                for line in _objects(texts, vectors) if jsonl else _rows(vectors):
                    file.write(line.encode("ascii"))
    except OSError as error:
        reason = no_room(error, path.parent, vectors.nbytes)
        raise RegardError(f"cannot write {path}: {reason}") from None


def _objects(texts: Sequence[str], vectors: Vectors) -> Iterator[str]:
    for text, numbers in zip(texts, _spelled(vectors), strict=True):
        vector = [float(number) for number in numbers]
        yield (
            json.dumps({"text": replace_invalid_utf8(text), "vector": vector}, allow_nan=False)
            + "\n"
        )


def _rows(vectors: Vectors) -> Iterator[str]:
    for numbers in _spelled(vectors):
        yield "\t".join(numbers) + "\n"


def _spelled(vectors: Vectors) -> Iterator[list[str]]:
    """Nine digits, which tell every float32 from its neighbours."""
    for vector in vectors:
        yield [f"{number:.9g}" for number in vector.tolist()]

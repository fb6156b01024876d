"""The command line: parse, call, print."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from functools import partial
from importlib import import_module
from io import StringIO, TextIOWrapper
from signal import Signals
from typing import Any, NamedTuple, Protocol

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from regard.commands.printing import ReaderGoneError, errors, fail, foreign_words, output
from regard.errors import RegardError, nearest
from regard.terminal import cut, in_one_line
from regard.training.memory.out_of_memory import is_full
from regard.training.signals import WORDS, StoppedError


class Command(Protocol):
    """What a command line stands for."""

    def run(self, console: Console) -> None: ...


class Listed(NamedTuple):
    """A command that is not imported yet: most need torch, which takes a second or two."""

    place: str  # its module in `regard.commands`, and the class there
    about: str  # the first line of the class's docstring; a test compares them

    def load(self) -> Callable[..., Command]:
        """The class, imported now."""
        module, _, name = self.place.partition(".")
        found: Callable[..., Command] = getattr(import_module(f"regard.commands.{module}"), name)
        return found


COMMANDS: dict[str, Listed] = {
    "train": Listed(
        "train.Train", "Train a model on text, on pairs of texts, or on images with captions."
    ),
    "evaluate": Listed(
        "evaluate.Evaluate",
        "Measure a run on whole texts, pairs or images: always the same figures.",
    ),
    "generate": Listed(
        "generate.Generate", "Continue a text; a translator writes from it as its source."
    ),
    "translate": Listed(
        "translate.Translate", "Translate a file, or standard input, line by line, by beam search."
    ),
    "caption": Listed(
        "caption.CaptionPictures", "Describe pictures, and show where each word looked."
    ),
    "align": Listed(
        "align.Align",
        "Show which source words each target word looked at, or how often that is right.",
    ),
    "score": Listed(
        "score.Score",
        "Tell how probable texts are: log-probability, tokens and text, a line for each.",
    ),
    "fill": Listed("fill.Fill", "Fill the gaps of a text, and list what else may stand in each."),
    "embed": Listed(
        "embed.Embed",
        "Turn texts into vectors: a model's last layer, pooled over each text's tokens.",
    ),
    "classify": Listed(
        "classify.Classify", "Label texts: label, probability and text, a line for each."
    ),
    "words": Listed(
        "words.Words", "Look at word vectors: neighbours, analogies, tests and pictures."
    ),
    "arpa": Listed(
        "arpa.Arpa", "Write an n-gram run as an ARPA file, or make a run of such a file."
    ),
    "plot": Listed("plot.Plot", "Draw training and validation loss of one or more runs."),
    "compare": Listed(
        "compare.Compare",
        "Train several models on the same data, measure them, and write one report.",
    ),
    "runs": Listed(
        "runs.Runs", "List runs: how they stand, how far they came, and which can go on."
    ),
    "recipes": Listed(
        "recipes.Recipes", "List the recipes, or every setting that a recipe or --set can change."
    ),
    "tokenize": Listed("tokenize.Tokenize", "Show a text's tokens in colour, and count them."),
    "tokenizer": Listed(
        "tokenize.LearnTokenizer", "Learn a tokenizer from text and write it as tokenizer.json."
    ),
    "models": Listed(
        "models.Models", "List the named models with their shapes and parameter counts."
    ),
    "describe": Listed(
        "models.Describe",
        "Print a model's tree with shapes and parameter counts; no weights are made.",
    ),
    "cost": Listed(
        "cost.Cost", "Tell what a model needs for a job: operations, memory, time; does it fit?"
    ),
    "calibrate": Listed(
        "calibrate.Calibrate",
        "Measure this machine, in a minute or two, for what `regard cost` predicts.",
    ),
}
REPEATED = 200  # characters of an argument that a message repeats
ABOUT = "Sequence models from n-grams to Transformers, trained, measured, looked into."


def main(arguments: list[str] | None = None) -> None:
    """Run one command; a user's mistake is one message and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a text may hold what a terminal cannot spell
            encoding = None if stream.isatty() else "utf-8"  # of files, whatever the terminal's is
            stream.reconfigure(encoding=encoding, errors="replace")
    with _mistakes_told(), foreign_words():
        _run(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()


def _run(arguments: Sequence[str]) -> None:
    console = output()
    name, *rest = arguments or ["--help"]
    if name == "--version":
        from importlib.metadata import version  # with a part of `email`: a fifth of a quick start

        print(f"regard {version('regard')}")
    elif name in ("--help", "-h", "help"):
        _help(console)
    elif name not in COMMANDS:
        raise RegardError(f"there is no command {name!r}; {nearest(name, COMMANDS)}")
    else:
        _parsed(name, rest).run(console)


def _parsed(name: str, typed: Sequence[str]) -> Command:
    """Parse the arguments of a command; messages show control characters in them spelled out."""
    parse = partial(
        tyro.cli,
        COMMANDS[name].load(),
        prog=f"regard {name}",
        config=(tyro.conf.FlagCreatePairsOff,),
        registry=_registry(),
    )
    try:
        with redirect_stderr(StringIO()):
            return parse(args=typed)
    except SystemExit as left:
        if not left.code:  # it was asked for help
            raise
    # The same again says what is wrong with them, spelled out, and exits.
    parse(args=[cut(in_one_line(word), REPEATED) for word in typed])
    raise RegardError(
        f"regard {name} does not understand these arguments; see regard {name} --help"
    )


def _registry() -> ConstructorRegistry:
    """How numbers are read from the command line: who gives none is told what is missing."""
    registry = ConstructorRegistry()

    @registry.primitive_rule
    def number(asked: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
        kinds: dict[type, str] = {int: "a whole number", float: "a number"}
        kind = next((kind for kind in kinds if asked.type in (kind, kind | None)), None)
        if kind is None:
            return None

        def read(given: list[str]) -> Any:
            try:
                return kind(given[0])
            except ValueError:
                raise ValueError(f"it must be {kinds[kind]}, not '{given[0][:40]}'") from None

        return PrimitiveConstructorSpec(
            nargs=1,
            metavar="N" if kind is int else "X",
            instance_from_str=read,
            is_instance=lambda held: held is None or isinstance(held, int | kind),
            str_from_instance=lambda held: [str(held)],
        )

    return registry


def _help(console: Console) -> None:
    console.print(Text("usage: regard COMMAND …\n", "bold").append(f"\n{ABOUT}\n", "not bold"))
    table = Table.grid(padding=(0, 2))
    for name, command in COMMANDS.items():
        table.add_row(Text(f"  {name}", "cyan"), Text(command.about))
    console.print(table)
    console.print("\n`regard COMMAND --help` tells the rest; `regard --version` the version.")


@contextmanager
def _mistakes_told() -> Iterator[None]:
    """Each way in which a command ends before its end, and its exit code."""
    try:
        yield
    except RegardError as error:
        _fail(str(error))
    except (ReaderGoneError, BrokenPipeError):  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except StoppedError as error:
        errors().print(f"\n{WORDS[Signals(error.number)]}")
        sys.exit(128 + error.number)
    except KeyboardInterrupt:
        errors().print("\ninterrupted")
        sys.exit(130)
    except OSError as error:  # a full disk, a name too long
        what = f"{error.filename}: " if error.filename else ""
        _fail(f"{what}{error.strerror or error}")
    except (MemoryError, RuntimeError) as error:
        if not is_full(error):
            raise
        _fail("memory is full; take less at once or a smaller model, or choose another device")


def _fail(sentence: str) -> None:
    fail(sentence)
    sys.exit(2)


if __name__ == "__main__":
    main()

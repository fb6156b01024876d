"""The command line: parse, call, print."""

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from functools import partial
from importlib.metadata import version
from io import StringIO, TextIOWrapper
from signal import Signals
from typing import Any, Protocol

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from regard.commands.align import Align
from regard.commands.arpa import Arpa
from regard.commands.calibrate import Calibrate
from regard.commands.caption import CaptionPictures
from regard.commands.classify import Classify
from regard.commands.compare import Compare
from regard.commands.cost import Cost
from regard.commands.embed import Embed
from regard.commands.evaluate import Evaluate
from regard.commands.fill import Fill
from regard.commands.generate import Generate
from regard.commands.models import Describe, Models
from regard.commands.plot import Plot
from regard.commands.printing import ReaderGoneError, errors, fail, foreign_words, output
from regard.commands.recipes import Recipes
from regard.commands.runs import Runs
from regard.commands.score import Score
from regard.commands.tokenize import LearnTokenizer, Tokenize
from regard.commands.train import Train
from regard.commands.translate import Translate
from regard.commands.words import Words
from regard.errors import RegardError, nearest
from regard.terminal import cut, in_one_line
from regard.training.memory.check import is_full
from regard.training.signals import WORDS, StoppedError


class Command(Protocol):
    """What a command line stands for."""

    def run(self, console: Console) -> None: ...


COMMANDS: dict[str, Callable[..., Command]] = {
    "train": Train,
    "evaluate": Evaluate,
    "generate": Generate,
    "translate": Translate,
    "caption": CaptionPictures,
    "align": Align,
    "score": Score,
    "fill": Fill,
    "embed": Embed,
    "classify": Classify,
    "words": Words,
    "arpa": Arpa,
    "plot": Plot,
    "compare": Compare,
    "runs": Runs,
    "recipes": Recipes,
    "tokenize": Tokenize,
    "tokenizer": LearnTokenizer,
    "models": Models,
    "describe": Describe,
    "cost": Cost,
    "calibrate": Calibrate,
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
        COMMANDS[name],
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
        about = (inspect.getdoc(command) or "").splitlines()[0]
        table.add_row(Text(f"  {name}", "cyan"), Text(about))
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

"""The command line: parse, call, print."""

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from io import TextIOWrapper
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
from regard.commands.plan import PlanCommand
from regard.commands.plot import Plot
from regard.commands.recipes import Recipes
from regard.commands.runs import Runs
from regard.commands.score import Score
from regard.commands.tokenize import LearnTokenizer, Tokenize
from regard.commands.train import Train
from regard.commands.translate import Translate
from regard.commands.words import Words
from regard.errors import RegardError, nearest
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
    "plan": PlanCommand,
    "calibrate": Calibrate,
}
ABOUT = "Sequence models from n-grams to Transformers, trained, measured, looked into."


class ReaderGoneError(KeyboardInterrupt):
    """Nobody reads what is printed any more (`| head`): stop, and keep what there is."""


class Output(Console):
    """A console that stops a command like Ctrl-C does when its reader has gone."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        raise ReaderGoneError


def main(arguments: list[str] | None = None) -> None:
    """Run one command; a user's mistake is one message and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a text may hold what a terminal cannot spell
            encoding = None if stream.isatty() else "utf-8"  # of files, whatever the terminal's is
            stream.reconfigure(encoding=encoding, errors="replace")
    with _mistakes_told():
        _run(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()


def _run(arguments: Sequence[str]) -> None:
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    console = Output(width=200 if piped else None)
    name, *rest = arguments or ["--help"]
    if name == "--version":
        print(f"regard {version('regard')}")
    elif name in ("--help", "-h", "help"):
        _help(console)
    elif name not in COMMANDS:
        raise RegardError(f"there is no command {name!r}; {nearest(name, COMMANDS)}")
    else:
        command = tyro.cli(
            COMMANDS[name],
            prog=f"regard {name}",
            args=rest,
            config=(tyro.conf.FlagCreatePairsOff,),
            registry=_registry(),
        )
        command.run(console)


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
                raise ValueError(f"it must be {kinds[kind]}, not {given[0][:40]!r}") from None

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
        Console(stderr=True).print(f"\n{WORDS[Signals(error.number)]}")
        sys.exit(128 + error.number)
    except KeyboardInterrupt:
        Console(stderr=True).print("\ninterrupted")
        sys.exit(130)
    except OSError as error:  # a full disk, a name too long
        what = f"{error.filename}: " if error.filename else ""
        _fail(f"{what}{error.strerror or error}")
    except MemoryError:  # a file whose lines are all held, as pairs are, may have too many
        _fail("there is not enough memory for this; give less at once, or use a larger machine")


def _fail(sentence: str) -> None:
    console = Console(stderr=True)
    words = Text("error: ", "bold red").append(sentence, "not bold default")
    console.print(words, soft_wrap=not console.is_terminal)  # a file gets one line
    sys.exit(2)


if __name__ == "__main__":
    main()

"""The command line: parse, call, print."""

import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Protocol

import tyro
from rich.console import Console
from rich.text import Text

from regard.commands.evaluate import Evaluate
from regard.commands.generate import Generate
from regard.commands.models import Describe, Models
from regard.commands.plot import Plot
from regard.commands.recipes import Recipes
from regard.commands.tokenize import LearnTokenizer, Tokenize
from regard.commands.train import Train
from regard.errors import RegardError


class Command(Protocol):
    """What a command line stands for."""

    def run(self, console: Console) -> None: ...


COMMANDS: dict[str, Callable[..., Command]] = {
    "train": Train,
    "evaluate": Evaluate,
    "generate": Generate,
    "plot": Plot,
    "recipes": Recipes,
    "tokenize": Tokenize,
    "tokenizer": LearnTokenizer,
    "models": Models,
    "describe": Describe,
}


def main(arguments: list[str] | None = None) -> None:
    """Run one command; a user's mistake is one message and exit code 2."""
    if (arguments or sys.argv[1:]) == ["--version"]:
        print(f"regard {version('regard')}")
        return
    command = tyro.extras.subcommand_cli_from_dict(
        COMMANDS,
        prog="regard",
        description="Sequence models from n-grams to Transformers, trained, measured, looked into.",
        args=arguments,
    )
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    try:
        command.run(Console(width=200 if piped else None))
        sys.stdout.flush()
    except RegardError as error:
        Console(stderr=True).print(
            Text("error: ", "bold red").append(str(error), "not bold default")
        )
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader (`| head`) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()

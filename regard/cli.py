"""The command line: parse, call, print."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from regard.errors import RegardError
from regard.inspection.anatomy import Part, anatomy, parameters
from regard.interchange.huggingface import open_folder
from regard.models.config import TransformerConfig
from regard.models.presets import DIALLED, PRESETS, preset
from regard.models.transformer import build


@dataclass(frozen=True)
class Models:
    """List the named models with their shapes and parameter counts."""

    def run(self, console: Console) -> None:
        table = Table(box=None, header_style="bold", pad_edge=False)
        table.add_column("model", style="cyan", no_wrap=True)
        table.add_column("parameters", justify="right")
        table.add_column("kind")
        for heading in ("layers", "width", "heads", "hidden", "vocabulary"):
            table.add_column(heading, justify="right")
        table.add_column("positions")
        table.add_column("norm")
        for name in (*DIALLED, *PRESETS):
            config = preset(name).resolved()
            layers, heads = f"{config.layers}", f"{config.heads}"
            if config.encoder_layers:
                layers = f"{config.encoder_layers} + {config.layers}"
            if config.kv_heads != config.heads:
                heads += f" / {config.kv_heads}"
            table.add_row(
                name,
                f"{parameters(build(config, 'meta')):,}",
                config.kind,
                layers,
                f"{config.width}",
                heads,
                f"{config.hidden}",
                f"{config.vocabulary}",
                config.positions,
                f"{config.norm_place} {config.norm}",
            )
        console.print(table)
        console.print(
            "\n`regard-N` exists for every depth N from 1 to 128, also as `regard-N-encoder` and "
            "`regard-N-encoder-decoder`.\n`regard describe NAME` shows a model's parts.",
            style="dim",
        )


@dataclass(frozen=True)
class Describe:
    """Print a model's tree with shapes and parameter counts; no weights are made or read."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]
    """A model that `regard models` lists, or a Hugging Face folder."""

    def run(self, console: Console) -> None:
        config = open_folder(Path(self.name))[1] if Path(self.name).is_dir() else preset(self.name)
        module = build(config, "meta")
        console.print(_tree(anatomy(module, self.name)))
        if module.config.tied and module.config.head != "none":
            console.print("\nthe output matrix is tied to embed.tokens and counted once")
        console.print(f"\n{_settings(module.config)}", style="dim")


def _tree(part: Part, tree: Tree | None = None) -> Tree:
    label = Text(part.name, "cyan")
    if part.times > 1:
        label.append(f"  × {part.times}", "bold")
    label.append(f"  {part.kind}", "dim")
    for name, shape in part.shapes:
        label.append(f"  {name} ").append(" × ".join(map(str, shape)), "green")
    if part.parameters:
        each = " each" if part.times > 1 else ""
        label.append(f"  {part.parameters:,}{each}", "bold yellow")
    tree = Tree(label) if tree is None else tree.add(label)
    for child in part.children:
        if child.parameters:  # dropout and the like have nothing to show
            _tree(child, tree)
    return tree


def _settings(config: TransformerConfig) -> str:
    """The settings that differ from the defaults, as one would write them."""
    usual = TransformerConfig().resolved()
    differing = [
        f.name for f in fields(config) if getattr(config, f.name) != getattr(usual, f.name)
    ]
    return ", ".join(f"{name}={getattr(config, name)!r}" for name in differing) or "all default"


COMMANDS: dict[str, Callable[..., Models | Describe]] = {"models": Models, "describe": Describe}


def main(arguments: list[str] | None = None) -> None:
    """Run one command; a user's mistake is one message and exit code 2."""
    command = tyro.extras.subcommand_cli_from_dict(
        COMMANDS,
        prog="regard",
        description="Sequence models from n-grams to Transformers, trained, measured, looked into.",
        args=arguments,
    )
    try:
        command.run(Console())
    except RegardError as error:
        Console(stderr=True).print(
            Text("error: ", "bold red").append(str(error), "not bold default")
        )
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader (`| head`) has seen enough
        sys.stderr.close()


if __name__ == "__main__":
    main()

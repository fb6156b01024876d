"""`regard models` and `regard describe`: what can be built, and the parts of it."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from regard.errors import RegardError
from regard.families.registry import family_of
from regard.inspection.anatomy import ModulePart, anatomy, parameters
from regard.interchange.huggingface.folder import open_folder
from regard.models.config import ModelConfig
from regard.models.construction import build
from regard.models.registry import all_presets, find, named, names
from regard.runs.run_folder import is_folder, is_run
from regard.runs.stored_run import config_of


@dataclass(frozen=True)
class Models:
    """List the named models with their shapes and parameter counts."""

    def run(self, console: Console) -> None:
        found = {name: named(name) for name in names()}
        rows = [_row(name, config) for name, config in found.items() if config.sizes]
        table = Table(box=None, header_style="bold", pad_edge=False)
        room = console.width
        for heading in rows[0]:  # as many as fit, the most wanted first
            room -= max(len(heading), *(len(row[heading]) for row in rows)) + 2
            if room < -2:  # the last column needs no gap behind it
                break
            words = heading in ("model", "kind", "positions", "norm")
            style = "cyan" if heading == "model" else None
            table.add_column(heading, justify="left" if words else "right", style=style)
        for row in rows:
            table.add_row(*list(row.values())[: len(table.columns)])
        console.print(table)
        others = Table(box=None, header_style="bold", pad_edge=False)
        others.add_column("other models", style="cyan")
        others.add_column("")
        for name, preset in all_presets().items():
            if not preset.config.sizes:
                others.add_row(name, preset.about)
        console.print("")
        console.print(others)
        console.print(
            "\n`regard-N` exists for every depth N from 1 to 128, also as `regard-N-encoder` and "
            "`regard-N-encoder-decoder`.\n`regard describe NAME` shows a model's parts.",
            style="dim",
        )


def _row(name: str, config: ModelConfig) -> dict[str, str]:
    """A model's line in the table, by column, the most wanted first."""
    count = parameters(build(config, "meta"))
    return {"model": name, "parameters": f"{count:,}", **config.sizes}


@dataclass(frozen=True)
class Describe:
    """Print a model's tree with shapes and parameter counts; no weights are made."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]
    """A model that `regard models` lists, a run, or a Hugging Face folder."""

    def run(self, console: Console) -> None:
        folder = None if find(self.name) is not None else Path(self.name)
        config = _config(self.name)
        lines = family_of(config).anatomy(self.name, config, folder)
        if lines:
            console.print(Text("\n".join(lines)))
            console.print(f"\n{_settings(config)}", style="dim")
            return
        module = build(config, "meta")
        console.print(_tree(anatomy(module, self.name)))
        if config.ties_output:
            console.print("\nthe output matrix is tied to embed.tokens and counted once")
        console.print(f"\n{_settings(module.config)}", style="dim")


def _config(name: str) -> ModelConfig:
    """The settings of a named model, else of a folder; a name wins over a folder of that name."""
    try:
        return named(name)
    except RegardError:
        if name and is_folder(Path(name)):
            folder = Path(name)
            return config_of(folder) if is_run(folder) else open_folder(folder)[1]
        raise


def _tree(part: ModulePart, tree: Tree | None = None) -> Tree:
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


def _settings(config: ModelConfig) -> str:
    """The settings that differ from the defaults, as one would write them."""
    usual = type(config)().resolved()
    differing = [
        f.name for f in fields(config) if getattr(config, f.name) != getattr(usual, f.name)
    ]
    return ", ".join(f"{name}={getattr(config, name)!r}" for name in differing) or "all default"

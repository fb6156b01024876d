"""`regard recipes`: named settings, and what can be set."""

import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.families.settings import Settings
from regard.models.registry import FAMILIES, defaults, presets
from regard.runs import recipes

LEARNED = ("vocabulary", "source_vocabulary")  # the tokenizer's: no setting of the model
NAMED = 3  # models of a family that are named


@dataclass(frozen=True)
class Recipes:
    """List the recipes, or every setting that a recipe or --set can change."""

    settings: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """List the settings with their defaults."""

    def run(self, console: Console) -> None:
        if self.settings:
            _list_all(console)
            return
        table = Table(box=None, header_style="bold", pad_edge=False)
        table.add_column("recipe", style="cyan", no_wrap=True)
        table.add_column("what it does")
        for name in recipes.names():
            table.add_row(Text(name), Text(recipes.about(name)))
        console.print(table)
        console.print(
            Text("\n`regard train DATA --recipe NAME` uses one; a TOML file or a run is one too.")
        )


def _list_all(console: Console) -> None:
    """Every setting of a run, table by table, and those of each family of models."""
    for name, section in vars(Settings()).items():
        console.print(Text(f"[{name}]", "bold"))
        _list(section, console, left_out=("changes",))
        if name == "model":
            for family in FAMILIES:
                named = [*presets(family).named]
                models = ", ".join(named[:NAMED]) + (", …" if len(named) > NAMED else "")
                said = f"  and in place of what the preset has, of {models}:"
                console.print(Text(said, "dim"))
                _list(defaults(family), console, LEARNED)


def _list(section: Any, console: Console, left_out: tuple[str, ...]) -> None:
    """One table of settings."""
    meanings = _meanings(inspect.getsource(type(section)))
    kinds = get_type_hints(type(section))
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for setting in fields(section):
        if setting.name in left_out:
            continue
        said = [meanings[setting.name]] if setting.name in meanings else []
        if get_origin(kinds[setting.name]) is Literal:
            said.insert(0, f"one of {', '.join(get_args(kinds[setting.name]))}")
        line = f"  {setting.name} = {toml(getattr(section, setting.name))}"
        table.add_row(Text(line), Text("; ".join(said), "dim"))
    console.print(table)


def _meanings(source: str) -> dict[str, str]:
    """What each setting means: the comment beside it in the source, or the one above it."""
    found = re.findall(r"^(?:    # (.+)\n)?    (\w+): [^#\n]*(?:# (.+))?$", source, re.MULTILINE)
    return {name: beside or above for above, name, beside in found if beside or above}


def toml(value: Any) -> str:
    """A value as a recipe or --set spells it."""
    if value is None:
        return "false"  # TOML has no none; so does run.toml write it
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {toml(inner)}" for key, inner in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)

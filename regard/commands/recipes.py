"""`regard recipes`: named settings, and what can be set."""

import inspect
import re
from dataclasses import dataclass, fields
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.training import recipes
from regard.training.settings import Settings


@dataclass(frozen=True)
class Recipes:
    """List the recipes, or every setting that a recipe or --set can change."""

    settings: bool = False
    """List the settings with their defaults."""

    def run(self, console: Console) -> None:
        if self.settings:
            for name, section in vars(Settings()).items():
                if name != "model":
                    _list(name, section, console)
            console.print(Text("[model]", "bold"))
            console.print("  preset and any field that `regard describe NAME` shows")
            return
        table = Table(box=None, header_style="bold", pad_edge=False)
        table.add_column("recipe", style="cyan")
        table.add_column("what it does")
        for name in recipes.names():
            table.add_row(Text(name), Text(recipes.about(name)))
        console.print(table)


def _list(name: str, section: Any, console: Console) -> None:
    """One table of settings; what each means is the comment beside it in the source."""
    source = inspect.getsource(type(section))
    console.print(Text(f"[{name}]", "bold"))
    for setting in fields(section):
        meaning = re.search(rf"^    {setting.name}:.*?#\s*(.+)$", source, re.MULTILINE)
        line = Text(f"  {setting.name} = {getattr(section, setting.name)!r}")
        if meaning:
            line.append(f"   {meaning[1]}", "dim")
        console.print(line)

"""`regard runs`: what runs there are, and how they stand."""

import glob
import json
import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.errors import Problems
from regard.formats import decimals, duration, size
from regard.runs.status import RunState, Word, states
from regard.terminal import literal

USUAL = "runs"
COLOURS: dict[Word, str] = {
    "running": "green",
    "finished": "dim",
    "stopped early": "dim",
    "interrupted": "yellow",
    "killed": "yellow",
    "failed": "red",
    "damaged": "red",
    "unreadable": "red",
}
COLUMNS = ("run", "state", "step", "best loss", "model", "data", "size", "changed")
WANTED = ("run", "state", "step", "best loss", "changed", "model", "data", "size")  # the most first
NUMBERS = ("step", "best loss", "size", "changed")
LONGEST = 28  # characters of a model's or the data's name
NAMED = 5  # runs that can go on, the others are counted
LEAST = 8  # columns for the names of runs, which go on in the next line


@dataclass(frozen=True)
class Runs:
    """List runs: how they stand, how far they came, and which can go on.

    $ regard runs                    those in runs/
    $ regard runs runs/books /big    one, and all below a folder
    """

    folders: Annotated[
        tyro.conf.Positional[tuple[str, ...]],
        tyro.conf.arg(metavar="FOLDER…", help_behavior_hint=f"(default: {USUAL})"),
    ] = ()
    """Folders with runs in them, or runs."""
    json: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """Print one JSON array and nothing else."""

    def run(self, console: Console) -> None:
        problems = Problems("runs")
        for folder in self.folders:
            problems.require(os.path.isdir(folder), f"there is no folder {folder}")
        problems.report()
        found = _found(self.folders or (USUAL,))
        if self.json:
            print(json.dumps([_figures(state) for state in found], allow_nan=False))
        elif not found:
            where = " or ".join(self.folders) or f"{USUAL}/"
            console.print(Text(f"there are no runs in {where}; `regard train` makes one"))
        else:
            _show(found, console)


def _found(folders: Sequence[str]) -> list[RunState]:
    """The runs in some folders, each once, the last changed first."""
    found: dict[str, RunState] = {}
    for state in chain(*(states(Path(folder)) for folder in folders)):
        found.setdefault(os.path.realpath(state.folder), state)
    return sorted(found.values(), key=lambda state: -state.updated)


def _figures(state: RunState) -> dict[str, Any]:
    """A state as JSON can hold it."""
    found = asdict(state)
    first = {"folder": str(found.pop("folder")), "state": found.pop("word")}
    if state.holder:
        since = state.holder.since
        found["holder"]["since"] = since.isoformat() if since else None
    return {**first, **found, "can_go_on": state.can_go_on}


def _show(found: Sequence[RunState], console: Console) -> None:
    """The table, what is wrong with some, and how to go on with others."""
    now = time.time()
    console.print(_table([_row(state, now) for state in found], console.width))
    lines = [Text(_trouble(state), COLOURS[state.word]) for state in found if state.reason]
    if waiting := [state.folder for state in found if state.can_go_on]:
        lines.append(Text(_going_on(waiting), "dim"))
    for i, line in enumerate(lines):
        console.print(Text("" if i else "\n").append(line), soft_wrap=not console.is_terminal)


def _trouble(state: RunState) -> str:
    """Why a run failed, or is damaged, which names the file."""
    why = _short(state.reason, 400)
    return f"{_line(state.folder)} failed: {why}" if state.word == "failed" else why


def _going_on(waiting: Sequence[Path]) -> str:
    if len(waiting) == 1:
        return f"`regard train --out {_line(shlex.quote(str(waiting[0])))}` goes on"
    named = ", ".join(_line(folder) for folder in waiting[:NAMED])
    more = f" and {len(waiting) - NAMED} more" if len(waiting) > NAMED else ""
    return f"`regard train --out RUN` goes on with {named}{more}"


def _row(state: RunState, now: float) -> dict[str, Text]:
    """A run's line in the table, by column."""
    steps = "" if state.steps is None else f" of {state.steps:,}"
    best = "" if state.best_loss is None else decimals(4)(state.best_loss)
    if state.best_bleu is not None:
        best = f"BLEU {decimals(1)(state.best_bleu)}"
    colour = COLOURS.get(state.word, "")
    return {
        "run": Text(_line(state.folder), "cyan"),
        "state": Text(state.word, colour),
        "step": Text(f"{state.step:,}{steps}"),
        "best loss": Text(best),
        "model": Text(_short(state.model)),
        "data": Text(_short(_data(state.data))),
        "size": Text(size(state.size)),
        "changed": Text(_ago(now - state.updated)),
    }


def _table(rows: Sequence[dict[str, Text]], width: int) -> Table:
    """As many columns as fit beside the names, the most wanted before others."""
    widths = {
        name: max(cell_len(name), *(cell_len(row[name].plain) for row in rows)) for name in COLUMNS
    }
    room = width - min(widths["run"], max(LEAST, width // 3))
    shown = {"run"}
    for name in WANTED[1:]:
        room -= widths[name] + 2
        if room >= 0:
            shown.add(name)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in COLUMNS:
        if name in shown:
            table.add_column(
                name,
                justify="right" if name in NUMBERS else "left",
                no_wrap=name != "run",
                overflow="fold",
            )
    for row in rows:
        table.add_row(*(row[name] for name in COLUMNS if name in shown))
    return table


def _data(names: Sequence[str]) -> str:
    """What a run was trained on, in a few words."""
    if not names:
        return ""
    parts = Path(names[0]).parts
    pattern = glob.has_magic(names[0])  # `*.txt` alone would not say much
    first = "/".join(parts[-2 if pattern else -1 :])
    if len(names) == 2:  # a source and a target, mostly
        return f"{first} {Path(names[1]).name}"
    return first + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _line(text: object) -> str:
    """Text that a terminal shows in one line and does not obey."""
    return literal(text).replace("\n", "\\n")


def _short(text: str, longest: int = LONGEST) -> str:
    text = _line(text[: longest + 1])
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _ago(seconds: float) -> str:
    """The largest unit of the time since: 3 min ago."""
    if seconds < 1:
        return "now"
    return f"{' '.join(duration(seconds).split()[:2])} ago"

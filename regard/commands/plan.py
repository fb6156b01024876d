"""`regard plan`: which model to train on some text in some time."""

import json
import re
import shlex
import sys
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.commands.cost import amount, many
from regard.cost.device.ceilings import device_named
from regard.cost.model_choice import Plan, plan
from regard.data.readers.files import find
from regard.errors import RegardError
from regard.formats import moment
from regard.training.optimization.precision import Precision

UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class PlanCommand:
    """Propose a model, tokens and batch for some text and some time, with reasons.

    $ regard plan books/ --budget 2h --device h200
    """

    data: Annotated[
        tyro.conf.Positional[tuple[str, ...]],
        tyro.conf.arg(metavar="DATA…", help_behavior_hint=""),
    ] = ()
    """Files, folders or globs of text."""
    budget: Annotated[str, tyro.conf.arg(metavar="TIME")] = "1h"
    """How long training may take: 90s, 30m, 2h, 1d."""
    device: Annotated[str, tyro.conf.arg(metavar="NAME")] = "auto"
    """A device by name, or the file that `regard calibrate` wrote."""
    precision: Literal["auto", "float32", "bf16", "bf16-weights"] = "auto"
    """As in training; auto: bf16 on GPUs."""
    json: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """Everything as JSON."""

    def run(self, console: Console) -> None:
        if not self.data:
            raise RegardError("name the text that is to be learned: files, folders or globs")
        seconds = budget_of(self.budget)
        device = device_named(self.device)
        usual: Precision = "bf16" if device.kind == "cuda" else "float32"
        precision = usual if self.precision == "auto" else self.precision
        size = sum(path.stat().st_size for path in find(self.data).files)
        found = plan(size, seconds, device, precision)
        if self.json:
            json.dump(asdict(found), sys.stdout, indent=2)
            print()
            return
        show(found, self.data, f"{device.name}, {precision}: {device.source}", console)


def budget_of(text: str) -> float:
    """A time such as 2h or 90s in seconds."""
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", text.strip().lower())
    if not parts or parts[2] not in UNITS or not float(parts[1]):
        raise RegardError(f"--budget {text!r} is no time; write it as 90s, 30m, 2h or 1d")
    return float(parts[1]) * UNITS[parts[2]]


def show(found: Plan, data: tuple[str, ...], device: str, console: Console) -> None:
    """The proposal, the reasons, and what to type."""
    table = Table.grid(padding=(0, 2))
    chosen = found.choice
    lines = {
        "device": device,
        "model": f"{chosen.name}, {chosen.parameters:,} parameters, {found.vocabulary:,} tokens",
        "reads": f"{found.tokens:,} tokens, {found.passes:.3g} times the text",
        "steps": f"{found.steps:,} of {found.tokens_per_step:,} tokens, "
        f"{many(chosen.rows, 'row')} of {found.context:,} at once",
        "takes": f"{moment(found.hours * 3600)}, {amount(chosen.memory, 'B')} of memory",
    }
    for name, said in lines.items():
        table.add_row(Text(name, "bold"), Text(said))
    console.print(table, soft_wrap=True)
    for reason in found.reasons:
        console.print(Text(f"because {reason}"))
    settings = f"training.tokens_per_step={found.tokens_per_step} training.context={found.context}"
    console.print(
        Text(
            f"\nnext: regard train {shlex.join(data)} --model {chosen.name} --steps {found.steps} "
            f"--set {settings} tokenizer.vocabulary={found.vocabulary}",
            "dim",
        ),
        soft_wrap=True,
    )

"""`regard fill`: what a run would write into the gaps of a text."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.commands.arguments import STREAM, standard_input
from regard.commands.printing import note_unknown, put
from regard.decoding.gaps import Filling, filled
from regard.errors import RegardError
from regard.formats import percent
from regard.loading import text_model_of
from regard.models.config import Ability
from regard.runs.plan import device_for
from regard.runs.stored_run import open_run
from regard.terminal import literal
from regard.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Fill:
    """Fill the gaps of a text, and list what else may stand in each.

    A gap is written [mask], [MASK] or <mask>. Probabilities are the model's own.

    $ regard fill runs/gaps "the [mask] sat on the [mask]"
    """

    path: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """The folder of a run that was trained to fill gaps."""
    text: Annotated[
        tyro.conf.Positional[str],
        tyro.conf.arg(metavar="TEXT", help_behavior_hint="(default: standard input)"),
    ] = STREAM
    """The text with its gaps."""
    top: Annotated[int, tyro.conf.arg(metavar="N")] = 5
    """List so many candidates of each gap."""
    device: Annotated[str, tyro.conf.arg(metavar="NAME")] = "auto"
    """cpu, cuda, or what there is."""
    json: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """Print one JSON object and nothing else."""

    def run(self, console: Console) -> None:
        if self.top < 1:
            raise RegardError(f"--top must be at least 1, not {self.top}")
        run = open_run(Path(self.path), device_for(self.device))
        speaks = text_model_of(run)
        speaks.require(Ability.FILL, who=self.path, what="fill gaps")
        text = standard_input() if self.text == STREAM else self.text
        found = filled(speaks, text, self.top)
        if self.json:
            put(as_json(found) + "\n")
        else:
            put(found.text + "\n")
            console.print()
            console.print(_table(found, run.tokenizer))
        note_unknown(found.unknown, f"the text's {found.tokens:,} tokens")


def as_json(found: Filling) -> str:
    """The filled text, and the candidates of each gap."""
    gaps = [
        [
            {"token": candidate.text, "id": token, "probability": candidate.probability}
            for candidate, token in zip(gap, ids, strict=True)
        ]
        for gap, ids in zip(found.gaps, found.ids, strict=True)
    ]
    return json.dumps({"text": found.text, "gaps": gaps}, allow_nan=False)


def _table(found: Filling, tokenizer: Tokenizer) -> Table:
    """A line for each candidate of each gap."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("gap", justify="right")
    table.add_column("token", style="cyan")
    table.add_column("probability", justify="right")
    for number, (gap, ids) in enumerate(zip(found.gaps, found.ids, strict=True), 1):
        shown = tokenizer.pieces(ids)
        for rank, (candidate, piece) in enumerate(zip(gap, shown, strict=True)):
            first = "" if rank else str(number)
            table.add_row(first, Text(literal(piece)), percent(candidate.probability, 3))
    return table

"""`regard compare`: several models on the same data, and one report of them."""

import json
import sys
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from signal import Signals
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.commands.printing import errors
from regard.comparison.compare_runs import Comparing
from regard.comparison.contestants import USUAL
from regard.comparison.report.summary import summary
from regard.comparison.report.write import REPORT, figures, write_report
from regard.comparison.request import BUDGET, CompareRequest
from regard.comparison.results import Comparison
from regard.errors import RegardError
from regard.formats import count, rate
from regard.training.signals import WORDS, StoppedError, listening

Names = tuple[str, ...]


@dataclass(frozen=True)
class Compare:
    """Train several models on the same data, measure them, and write one report.

    $ regard compare notes.txt                       from n-grams to a Transformer
    $ regard compare notes.txt --models lstm,conv,transformer --seeds 3
    $ regard compare --pairs de.txt en.txt --minutes 5 --out compared/de-en
    $ regard compare notes.txt --parameters 5M --set lstm:model.layers=1
    """

    data: Annotated[
        tyro.conf.Positional[Names], tyro.conf.arg(metavar="DATA…", help_behavior_hint="")
    ] = ()
    """Files, folders, globs (.gz and .jsonl too), - for standard input, or a built-in name."""
    pairs: Annotated[Names, tyro.conf.arg(metavar="FILE…", help_behavior_hint="")] = ()
    """A source and a target file, aligned line by line; or one .tsv or .jsonl file."""
    valid: Annotated[
        tyro.conf.UseAppendAction[tuple[Names, ...]],
        tyro.conf.arg(metavar="FILE…", help_behavior_hint="(default: a part of the data)"),
    ] = ()
    """Held-out files."""
    models: Annotated[
        str,
        tyro.conf.arg(
            metavar="A,B,…",
            help_behavior_hint=f"(default: {','.join(USUAL[False])}; "
            f"for pairs {','.join(USUAL[True])})",
        ),
    ] = ""
    """Models that `regard models` lists; `transformer` and `conv` stand for what fits the data."""
    seeds: Annotated[int, tyro.conf.arg(metavar="N")] = 1
    """Each model is trained so many times; figures are means with their spread."""
    parameters: Annotated[str, tyro.conf.arg(metavar="N")] = BUDGET
    """About so many for each, by its width (5M, 300k); 0 leaves models as their names have them."""
    minutes: Annotated[float | None, tyro.conf.arg(metavar="X", help_behavior_hint="")] = None
    """Each trains so long, in as many steps as a short measurement says, instead of --steps."""
    steps: Annotated[
        int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: 1000)")
    ] = None
    """Optimizer steps of each."""
    epochs: Annotated[float | None, tyro.conf.arg(metavar="X", help_behavior_hint="")] = None
    """Passes over the data, instead of steps."""
    out: Annotated[
        str,
        tyro.conf.arg(
            metavar="FOLDER", help_behavior_hint="(default: compared/ and the data's name)"
        ),
    ] = ""
    """Where runs, measurements and report.html go; there the same command goes on."""
    tokenizer: Annotated[
        Literal["auto", "bpe", "byte", "char", "word"],
        tyro.conf.arg(help_behavior_hint="(default: bpe; char for built-in tasks)"),
    ] = "auto"
    """How text is cut into tokens, for all models alike."""
    recipe: Annotated[str, tyro.conf.arg(metavar="NAME", help_behavior_hint="")] = ""
    """Settings by name or from a TOML file, for all models; their own stay what they are."""
    set: Annotated[
        tyro.conf.UseAppendAction[tuple[Names, ...]],
        tyro.conf.arg(
            metavar="[MODEL:]TABLE.KEY=VALUE…",
            help="Any setting, of all models or of one, e.g. training.device=cpu "
            "lstm:model.dropout=0.",
            help_behavior_hint="",
        ),
    ] = ()
    json: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """Print all figures as one JSON object; progress goes to standard error."""

    def run(self, console: Console) -> None:
        wanted = self.request.wanted()
        told = errors() if self.json else console
        with listening() as stop:
            try:
                comparison = Comparing.begin(wanted, told, stop).run()
            except StoppedError as error:
                word = WORDS[Signals(error.number)]
                told.print(Text(f"\n{word}; the same command goes on", "yellow"))
                sys.exit(128 + error.number)
        write_report(comparison, wanted.out)
        if self.json:
            print(json.dumps(figures(comparison), allow_nan=False))
        else:
            show(comparison, wanted.out / REPORT, console)
        if not comparison.good:
            raise RegardError("no model could be trained and measured; the report says why")

    @property
    def request(self) -> CompareRequest:
        """What is asked for."""
        return CompareRequest(
            self.data,
            self.pairs,
            tuple(chain(*self.valid)),
            self.models,
            self.seeds,
            self.parameters,
            self.minutes,
            self.steps,
            self.epochs,
            self.out,
            self.tokenizer,
            self.recipe,
            tuple(chain(*self.set)),
        )


def show(comparison: Comparison, report: Path, console: Console) -> None:
    """A small table, the summary, and where the report is."""
    metric = comparison.metric
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("model", style="cyan")
    for name in ("parameters", metric.name, "trains, tok/s", "writes, tok/s", "uses context"):
        table.add_column(name, justify="right")
    for one in comparison.ranked:
        table.add_row(
            one.name,
            "counts" if one.counts else count(one.parameters),
            one.scores[metric.key].shown(metric.digits),
            "" if one.pace is None else rate(one.pace.mean),
            rate(one.decoding["1"]),
            "" if one.used is None else f"{one.used:,.0f}",
        )
    console.print(table)
    for sentence in summary(comparison):
        console.print(Text(f"· {sentence}"), soft_wrap=not console.is_terminal)
    console.print(Text(f"\nreport: {report}", "bold"), soft_wrap=True)

"""`regard plot`: the curves of runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.text import Text

from regard.errors import Problems, RegardError
from regard.inspection.curves import plot
from regard.training.log import LOG


@dataclass(frozen=True)
class Plot:
    """Draw training and validation loss of one or more runs.

    $ regard plot runs/small runs/large -o curves.svg
    """

    runs: Annotated[
        tyro.conf.Positional[tuple[str, ...]],
        tyro.conf.arg(metavar="RUN…", help_behavior_hint="(required)"),
    ] = ()
    """Run folders."""
    out: Annotated[str, tyro.conf.arg(aliases=["-o"], metavar="FILE")] = "curves.png"
    """The picture: PNG, SVG or PDF by its suffix."""
    by: Literal["step", "tokens", "time"] = "step"
    """What the curves run along."""

    def run(self, console: Console) -> None:
        if not self.runs:
            raise RegardError("name at least one run to plot")
        problems = Problems("plot")
        for run in self.runs:
            problems.require(Path(run, LOG).is_file(), f"{run} is no run (it has no {LOG})")
        problems.report()
        plot([Path(run) for run in self.runs], Path(self.out), self.by)
        console.print(Text(f"wrote {self.out}"), soft_wrap=True)

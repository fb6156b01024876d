"""`regard plot`: the curves of runs, or how far back their gradients reach."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.text import Text

from regard.commands.arguments import check_writable
from regard.errors import Problems, RegardError
from regard.inspection import through_time
from regard.inspection.curves import plot
from regard.runs.stored_run import is_run, settings_of
from regard.storage.event_log import LOG


@dataclass(frozen=True)
class Plot:
    """Draw training and validation loss of one or more runs.

    $ regard plot runs/small runs/large -o curves.svg
    $ regard plot runs/elman runs/lstm --through-time -o reach.svg
    """

    runs: Annotated[
        tyro.conf.Positional[tuple[str, ...]],
        tyro.conf.arg(metavar="RUN…", help_behavior_hint="(required)"),
    ] = ()
    """Run folders."""
    out: Annotated[
        str,
        tyro.conf.arg(
            aliases=["-o"],
            metavar="FILE",
            help_behavior_hint="(default: curves.png or through-time.png)",
        ),
    ] = ""
    """The picture: PNG, SVG or PDF by its suffix."""
    by: Literal["step", "tokens", "time"] = "step"
    """What the curves run along."""
    through_time: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """Of recurrent language models: how far back gradients reach, and how large they were."""

    def run(self, console: Console) -> None:
        if not self.runs:
            raise RegardError("name at least one run to plot")
        problems = Problems("plot")
        for run in self.runs:
            problems.require(Path(run, LOG).is_file(), f"{run} is no run (it has no {LOG})")
        problems.report()
        if self.through_time and self.by != "step":
            raise RegardError(f"--through-time is drawn by step; leave out --by {self.by}")
        folders = [Path(run) for run in self.runs]
        out = self.out or ("through-time.png" if self.through_time else "curves.png")
        check_writable(Path(out))
        if self.through_time:
            through_time.plot(folders, Path(out), _clip)
        else:
            plot(folders, Path(out), self.by)
        console.print(Text(f"wrote {out}"), soft_wrap=True)


def _clip(folder: Path) -> float:
    """What the gradients of a run were clipped to; 0 of a folder with a log alone."""
    return settings_of(folder).optimizer.clip if is_run(folder) else 0.0

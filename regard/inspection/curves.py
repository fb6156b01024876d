"""The losses of runs as curves in one picture, from the logs they kept."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from regard.errors import RegardError
from regard.formats import count
from regard.inspection.drawing import check_kind, drawing
from regard.storage.event_log import LOG, read
from regard.terminal import literal

By = Literal["step", "tokens", "time"]
Numbers = NDArray[np.float64]

BESIDE = 6  # more runs than this have their legend beside the curves
# Okabe and Ito's colours, told apart by the colour-blind; without yellow, too pale for a line.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
RETURNS = {"back": "to", "resume": "step"}  # events, and where they say the checkpoint
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)))  # when the colours come round again
GREY = "#777777"
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#666666",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.7,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "svg.fonttype": "none",  # text stays text, which can be searched and read aloud
    "pdf.fonttype": 42,  # publishers reject the default, Type 3
}


@dataclass(frozen=True)
class Curve:
    """Numbers against steps, tokens or seconds."""

    x: Numbers
    y: Numbers


@dataclass(frozen=True)
class RunCurves:
    """What is drawn of one run."""

    name: str
    training: Curve
    validation: Curve
    learning_rate: Curve
    bleu: Curve  # where validations have no loss: they judge what a model writes

    @property
    def smoothed(self) -> Curve:
        return Curve(self.training.x, smooth(self.training.y))

    @property
    def reached(self) -> int:
        """How many points it has up to the last finite training loss."""
        finite = np.flatnonzero(np.isfinite(self.training.y))
        return int(finite[-1]) + 1 if len(finite) else 0

    @property
    def best(self) -> int | None:
        """Which validation was the best."""
        return (
            int(np.nanargmin(self.validation.y)) if np.isfinite(self.validation.y).any() else None
        )


def plot(runs: Sequence[str | Path], out: str | Path, by: By = "step") -> None:
    """Draw the runs' training and validation losses and learning rates to a PNG, SVG or PDF."""
    out = Path(out)
    check_kind(out)
    folders = list(dict.fromkeys(Path(os.path.abspath(run)) for run in runs))
    if not folders:
        raise RegardError("no run to plot: name at least one run's folder")
    drawn = [_run(folder, name, by) for folder, name in zip(folders, names(folders), strict=True)]
    with drawing(out, (7.2, 4.8), STYLE, dpi=200) as figure:
        _draw(figure, drawn, by)


def names(folders: Sequence[Path]) -> list[str]:
    """The folders' last names, and as many of those before as tell them apart."""

    def tail(folder: Path, parts: int) -> str:
        return "/".join(folder.parts[-parts:])

    found = []
    for folder in folders:
        parts = 1
        while sum(tail(other, parts) == tail(folder, parts) for other in folders) > 1:
            parts += 1
        found.append(literal(tail(folder, parts)))
    return found


def smooth(y: Numbers) -> Numbers:
    """A mean over the neighbours, some thirtieth of the curve; where it has gaps, they stay."""
    spread = len(y) / 60
    reach = min(math.ceil(3 * spread), (len(y) - 1) // 2)
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / spread) ** 2)
    known = np.isfinite(y)
    total = np.convolve(np.where(known, y, 0.0), weights, mode="same")
    weight = np.convolve(known.astype(float), weights, mode="same")
    return np.where(known, total / np.where(known, weight, 1.0), np.nan)


def limits(runs: Sequence[RunCurves]) -> tuple[float, float]:
    """From where to where the losses are drawn.

    The fall from the first losses is cut off where it would squash all that follows into the
    lower half, and so is what rises above them when a run diverges.
    """
    curves = [c for run in runs for c in (run.smoothed, run.validation) if np.isfinite(c.y).any()]
    if not curves:
        return 0.0, 1.0
    low = min(np.nanmin(curve.y) for curve in curves)
    low = min([low, *(np.nanquantile(run.training.y, 0.01) for run in runs if run.reached)])
    first = max(curve.y[np.isfinite(curve.y)][0] for curve in curves)
    high = min(first, max(np.nanmax(curve.y) for curve in curves))
    end = max(curve.x[-1] for curve in curves)
    later = [y for curve in curves for y in curve.y[curve.x > end / 10] if np.isfinite(y)]
    settled = min(high, max(later, default=high))
    if settled - low < (high - low) / 2:
        high = settled
    margin = (high - low) * 0.08 or abs(high) * 0.1 or 1.0
    return float(low - margin), float(high + margin)


# What a log says


def _run(folder: Path, name: str, by: By) -> RunCurves:
    events = _lasting(read(folder / LOG))
    steps = [event for event in events if event.get("event") == "step"]
    training = _curve(steps, "loss", by)
    if not len(training.x):
        missing = "steps with a loss" if by == "step" or not steps else f"losses by {by}"
        raise RegardError(f"{folder} has nothing to plot: its log has no {missing}")
    validations = [event for event in events if event.get("event") == "validation"]
    free = [event for event in validations if event.get("loss") is None]
    return RunCurves(
        name,
        training,
        _curve(validations, "loss", by),
        _curve(steps, "learning_rate", by),
        _curve(free, "bleu", by),
    )


def _curve(events: Sequence[Mapping[str, Any]], key: str, by: By) -> Curve:
    points = [
        (event[by], event[key])
        for event in events
        if event.get(by) is not None and event.get(key) is not None and math.isfinite(event[by])
    ]
    x, y = np.array(points, dtype=np.float64).reshape(-1, 2).T
    return Curve(x, np.where(np.isfinite(y), y, np.nan))  # a loss of infinity is a gap too


def _lasting(events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The measurements that led to the run's end.

    A run that was killed and resumed, or that stepped back after a fault, has gone back to a
    checkpoint: what it had logged beyond is replaced. If its clock started anew, that goes on from
    there. Older logs do not say that they were resumed, but their steps start again.
    """
    kept: list[dict[str, Any]] = []
    before = 0.0  # seconds, of the sessions that ended
    for event in events:
        kind, step, time = event["event"], event.get("step"), event.get("time", 0.0)
        if kind in RETURNS:
            place = event.get(RETURNS[kind])
        elif kind in ("step", "validation") and step is not None:
            place = step - 1 if kept and step < kept[-1]["step"] else None
        else:
            continue
        if isinstance(place, int):
            kept = [old for old in kept if old["step"] <= place]
            before = before if kind == "back" else 0.0
        last = kept[-1]["time"] if kept else 0.0
        if before + time < last:
            before = last
        if kind not in RETURNS:
            kept.append({**event, "step": step, "time": before + time})
    return kept


# How it looks


def _draw(figure: Any, runs: Sequence[RunCurves], by: By) -> None:
    panels = _panels(figure, runs)
    above, below = panels["loss"], list(panels.values())[-1]
    scale, label = _axis(runs, by)
    for i, run in enumerate(runs):
        _losses(above, run, scale, _look(i), small=len(runs) > BESIDE)
        if "BLEU" in panels:
            panels["BLEU"].plot(run.bleu.x * scale, run.bleu.y, "o:", **_dots(i))
        if "learning rate" in panels:
            rate = run.learning_rate
            panels["learning rate"].plot(rate.x * scale, rate.y, **_look(i), linewidth=1.2)
    above.set_ylim(limits(runs))
    above.set_xlim(0, 1.02 * scale * _end(runs) or 1)
    _legend(figure, above, runs)
    for name, axes in panels.items():
        axes.set_ylabel(name)
        if axes is not above:
            axes.set_ylim(bottom=0)
    if "learning rate" in panels:
        below.ticklabel_format(axis="y", style="sci", scilimits=(-2, 2), useMathText=True)
    below.set_xlabel(label)
    if by != "time":
        below.xaxis.set_major_formatter(lambda x, _: count(x).replace(".0", ""))
    figure.align_ylabels()


def _panels(figure: Any, runs: Sequence[RunCurves]) -> dict[str, Any]:
    """Places to draw in, one below the other, for what there is to draw."""
    heights = {"loss": 5}
    if any(len(run.bleu.x) for run in runs):
        heights["BLEU"] = 2
    if any(len(run.learning_rate.x) for run in runs):
        heights["learning rate"] = 1
    places = figure.subplots(
        len(heights), sharex=True, height_ratios=list(heights.values()), squeeze=False
    )
    return dict(zip(heights, places[:, 0], strict=True))


def _look(i: int) -> dict[str, Any]:
    colour, dash = i % len(COLOURS), i // len(COLOURS) % len(DASHES)
    return {"color": COLOURS[colour], "linestyle": DASHES[dash]}


def _dots(i: int) -> dict[str, Any]:
    return {"color": _look(i)["color"], "markersize": 4.5, "linewidth": 0.8}


def _losses(axes: Any, run: RunCurves, scale: float, look: dict[str, Any], small: bool) -> None:
    """The training loss as a line over its pale self, validations as dots, the best in a ring."""
    colour, dot = look["color"], 3.0 if small else 4.5
    raw, line, dots = run.training, run.smoothed, run.validation
    axes.plot(raw.x * scale, raw.y, color=colour, linewidth=0.6, alpha=0.2, zorder=2)
    axes.plot(line.x * scale, line.y, **look, linewidth=1.4, zorder=3)
    axes.plot(dots.x * scale, dots.y, "o:", color=colour, markersize=dot, linewidth=0.8, zorder=4)
    if run.best is not None:
        x, y = dots.x[run.best] * scale, dots.y[run.best]
        axes.plot(x, y, "o", markersize=2 * dot, mfc="none", mec=colour, mew=1.2, zorder=5)
    if 0 < run.reached < len(raw.x):
        last = run.reached - 1
        axes.plot(line.x[last] * scale, line.y[last], "x", color=colour, markersize=7, zorder=5)


def _legend(figure: Any, axes: Any, runs: Sequence[RunCurves]) -> None:
    """In the corner that falling curves leave free, else beside them in a wider figure."""
    from matplotlib.lines import Line2D

    labels = [_label(run) for run in runs] + ["training"]
    lines = [Line2D([], [], **_look(i), linewidth=2) for i in range(len(runs))]
    lines.append(Line2D([], [], color=GREY, linewidth=1.4))
    if any(run.best is not None for run in runs):
        labels.append("validation")
        lines.append(Line2D([], [], color=GREY, marker="o", ms=4.5, linestyle=":", linewidth=0.8))
    longest = max(map(len, labels))
    if len(runs) <= BESIDE and longest <= 44 and _corner_is_free(runs):
        legend = axes.legend(lines, labels, loc="upper right", framealpha=0.9, edgecolor="none")
    else:
        figure.set_figwidth(figure.get_figwidth() + 0.5 + 0.09 * longest)
        legend = figure.legend(lines, labels, loc="outside right upper", frameon=False)
    for text, label in zip(legend.get_texts(), labels, strict=True):
        text.set_parse_math(False)  # a run's name may hold a dollar sign
        text.set_text(label)


def _label(run: RunCurves) -> str:
    notes = [f"best {run.validation.y[run.best]:.3f}"] if run.best is not None else []
    notes += [f"best BLEU {np.nanmax(run.bleu.y):.1f}"] if np.isfinite(run.bleu.y).any() else []
    notes += ["× diverged"] if run.reached < len(run.training.x) else []
    return f"{run.name}  ({', '.join(notes)})" if notes else run.name


def _corner_is_free(runs: Sequence[RunCurves]) -> bool:
    low, high = limits(runs)
    start, free = 0.4 * _end(runs), low + 0.6 * (high - low)
    curves = [curve for run in runs for curve in (run.smoothed, run.validation)]
    return not any((curve.y[curve.x > start] > free).any() for curve in curves)


def _end(runs: Sequence[RunCurves]) -> float:
    curves = [curve for run in runs for curve in (run.training, run.validation)]
    return max(float(curve.x[-1]) for curve in curves if len(curve.x))


def _axis(runs: Sequence[RunCurves], by: By) -> tuple[float, str]:
    """What to multiply with, and what to write below."""
    if by != "time":
        return 1.0, {"step": "step", "tokens": "training tokens"}[by]
    longest = _end(runs)
    unit, seconds = next(
        (unit for unit in (("hours", 3600), ("minutes", 60)) if longest > 2 * unit[1]),
        ("seconds", 1),
    )
    return 1 / seconds, f"{unit} of training"

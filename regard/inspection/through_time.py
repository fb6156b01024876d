"""How far back gradients reach, and how large they are, as a picture from the logs of runs (M5)."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from regard.errors import RegardError
from regard.formats import count
from regard.inspection.curves import COLOURS, DASHES, GREY, STYLE, Curve, names
from regard.inspection.drawing import check_kind, drawing
from regard.storage.event_log import LOG, is_number, read

SHOWN = 6  # curves of one run
EARLY, LATE = 0.3, 1.0  # shades of one run's curves, of the colour map
TOP = 0.97  # where in the picture stands what is no number
ABOVE = 90  # letters of names that fit above the curves; longer ones stand beside them


@dataclass(frozen=True)
class Reach:
    """What is drawn of one run."""

    name: str
    steps: list[int]  # at which curves were recorded
    curves: list[Curve]  # norm against tokens back
    norms: Curve  # of each step's gradient, before it was clipped; NaN where it was no number
    faults: list[int]  # steps that were refused
    clip: float  # 0: never


def plot(
    runs: Sequence[str | Path],
    out: str | Path,
    clip: Callable[[Path], float] = lambda folder: 0.0,
) -> None:
    """Draw how far back runs' gradients reach, and how large they were, to a PNG, SVG or PDF.

    Of one run the curves show its training from early to late, of several each one's last. `clip`
    tells the norm that gradients of a run were clipped to; 0: none.
    """
    out = Path(out)
    check_kind(out)
    folders = list(dict.fromkeys(Path(os.path.abspath(run)) for run in runs))
    if not folders:
        raise RegardError("no run to plot: name at least one run's folder")
    named = zip(folders, names(folders), strict=True)
    drawn = [_reach(folder, name, clip(folder)) for folder, name in named]
    with drawing(out, (9.0, 4.0), STYLE, dpi=200) as figure:
        _draw(figure, drawn)


# What a log says


def _reach(folder: Path, name: str, clip: float = 0.0) -> Reach:
    events = read(folder / LOG)
    lasting = _lasting(events)
    recorded = [event for event in lasting if event["event"] == "through_time" and _drawable(event)]
    if not recorded:
        raise RegardError(
            f"{folder} has no gradients through time in its log: recurrent language models "
            "(elman, gru, lstm) record them with each validation"
        )
    steps = [event for event in lasting if event["event"] == "step" and "gradient_norm" in event]
    faults = [event.get("first") for event in events if event["event"] == "fault"]
    return Reach(
        name,
        [event["step"] for event in recorded],
        [_curve(range(len(event["norms"])), event["norms"]) for event in recorded],
        _curve([event["step"] for event in steps], [event["gradient_norm"] for event in steps]),
        [first for first in faults if type(first) is int and 0 <= first < 1 << 63],
        clip,
    )


def _curve(x: Sequence[int], y: Sequence[float | None]) -> Curve:
    """NaN for what is no number."""
    found = np.array(y, dtype=np.float64)  # None becomes NaN
    return Curve(np.array(x, dtype=np.float64), np.where(np.isfinite(found), found, np.nan))


def _lasting(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """What led to the run's end: not what was undone when it stepped back after a fault."""
    kept: list[Mapping[str, Any]] = []
    for event in events:
        if event["event"] == "back":
            to = event.get("to")
            kept = [old for old in kept if to is None or old["step"] <= to]
        elif event["event"] in ("step", "through_time") and event.get("step") is not None:
            kept.append(event)
    return kept


def _drawable(event: Mapping[str, Any]) -> bool:
    """Whether it has norms, of which null was no number."""
    norms = event.get("norms")
    return isinstance(norms, list) and all(n is None or is_number(n) for n in norms)


# How it looks


def _draw(figure: Any, runs: Sequence[Reach]) -> None:
    left, right = figure.subplots(1, 2)
    if len(runs) == 1:
        _from_early_to_late(left, runs[0])
    else:
        for i, run in enumerate(runs):
            left.plot(run.curves[-1].x, run.curves[-1].y, **_look(i), linewidth=1.6)
    for i, run in enumerate(runs):
        _norms(right, run, _look(i), alone=len(runs) == 1)
    left.set_xlabel("tokens back")
    left.set_ylabel("gradient of one loss, norm")
    right.set_xlabel("step")
    right.set_ylabel("gradient of each step, norm")
    for axes in (left, right):
        axes.set_yscale("log")
        axes.set_xlim(left=0)
    right.xaxis.get_major_locator().set_params(integer=True)
    right.xaxis.set_major_formatter(lambda x, _: count(x).replace(".0", ""))
    _down_to_the_edge(left)
    _clips(right, runs)
    _whole_decades(right)
    if len(runs) > 1:
        _legend(figure, runs)


def _look(i: int) -> dict[str, Any]:
    colour, dash = i % len(COLOURS), i // len(COLOURS) % len(DASHES)
    return {"color": COLOURS[colour], "linestyle": DASHES[dash]}


def _from_early_to_late(axes: Any, run: Reach) -> None:
    """Some of a run's curves, the first and the last among them, the later the darker."""
    import matplotlib

    chosen = np.unique(np.linspace(0, len(run.curves) - 1, SHOWN).round().astype(int)).tolist()
    shades = matplotlib.colormaps["Blues"](np.linspace(EARLY, LATE, max(len(chosen), 2)))
    for shade, place in zip(shades[-len(chosen) :], chosen, strict=True):
        curve, step = run.curves[place], run.steps[place]
        axes.plot(curve.x, curve.y, color=shade, linewidth=1.6, label=f"step {step:,}")
    axes.legend(framealpha=0.9, edgecolor="none")


def _down_to_the_edge(axes: Any) -> None:
    """A logarithm has no place for 0: such a line falls to the lower edge, a triangle where."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, high)
    for line in axes.get_lines():
        gone = line.get_ydata() == 0
        if gone.any():
            line.set_ydata(np.where(gone, low, line.get_ydata()))
            line.set(marker="v", markevery=[int(gone.argmax())], clip_on=False)


def _norms(axes: Any, run: Reach, look: dict[str, Any], alone: bool) -> None:
    """The norm of each step as a line; a cross above for what was refused or is no number."""
    axes.plot(run.norms.x, run.norms.y, **look, linewidth=0.9, alpha=1.0 if alone else 0.8)
    lost = sorted({*run.faults, *run.norms.x[np.isnan(run.norms.y)].astype(int).tolist()})
    places = axes.get_xaxis_transform()  # steps across, the share of the height upwards
    axes.plot(lost, [TOP] * len(lost), "x", color=look["color"], markersize=6, transform=places)


def _whole_decades(axes: Any) -> None:
    """Powers of ten to read the height by, also where all norms are of one size."""
    axes.margins(y=0)
    low, high = axes.get_ylim()
    axes.set_ylim(10.0 ** math.floor(math.log10(low)), 10.0 ** math.ceil(math.log10(high)))


def _clips(axes: Any, runs: Sequence[Reach]) -> None:
    """Where gradients are clipped: one line for all that do it there."""
    for clip in sorted({run.clip for run in runs if run.clip > 0}):
        axes.axhline(clip, color=GREY, linestyle="--", linewidth=1.1, zorder=1)
        axes.annotate(
            f"clip {clip:g}",
            (1, clip),
            xycoords=axes.get_yaxis_transform(),
            xytext=(3, 0),  # beside the picture, where it hides no spike
            textcoords="offset points",
            va="center",
            color=GREY,
            fontsize=8,
            annotation_clip=False,
        )


def _legend(figure: Any, runs: Sequence[Reach]) -> None:
    from matplotlib.lines import Line2D

    labels = [run.name if run.clip else f"{run.name} (not clipped)" for run in runs]
    lines = [Line2D([], [], **_look(i), linewidth=2) for i in range(len(runs))]
    if sum(len(label) + 6 for label in labels) <= ABOVE:
        place: dict[str, Any] = {"loc": "outside upper center", "ncols": len(runs)}
    else:
        place = {"loc": "outside right upper"}
        figure.set_figwidth(figure.get_figwidth() + 0.5 + 0.09 * max(map(len, labels)))
    legend = figure.legend(lines, labels, **place, frameon=False)
    for text, label in zip(legend.get_texts(), labels, strict=True):
        text.set_parse_math(False)  # a run's name may hold a dollar sign
        text.set_text(label)

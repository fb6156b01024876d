"""The view of a run for a person: a panel that updates in place, or plain lines."""

import math
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
)
from rich.text import Text

from regard.formats import count, decimals, duration, percent, rate, size
from regard.metrics.scores import FIGURES
from regard.runs.view.sparkline import mean, sparkline
from regard.storage.event_log import Sink
from regard.terminal import in_one_line, literal, message

PLAIN_WIDTH = 119  # characters in a line of the plain view
CELL_WIDTH = 26  # at least, for a name and its value in the panel: two fit 60 columns
GAP = 3  # between cells
CURVE, SAMPLE = 2, 4  # lines of the panel
SMOOTHED = 20  # steps whose mean loss is shown
REFRESH_SECONDS = 0.25
MESSAGES = ("counted", "vectors", "warning", "resume", "fault", "back", "cost")  # for people

Event = Mapping[str, Any]


def view(console: Console, every: int) -> Sink:
    """The view that suits the console: plain where nothing can be overwritten or drawn."""
    drawable = not console.is_dumb_terminal and not console.options.ascii_only
    return LiveView(console) if console.is_terminal and drawable else PlainView(console, every)


# The numbers of an event


class Metric(NamedTuple):
    """A number of an event: its words in a plain line, its name in the panel."""

    key: str
    words: str
    shown: Callable[[Any], str]
    name: str = ""


LOSS = Metric("loss", "loss {:>8}", decimals(4), "loss, smoothed")
# "valid" and its digits stand below "loss" and its digits.
VALID = Metric("loss", "valid {:>7}", decimals(4), "validation")
PACE = (  # the most wanted first
    Metric("learning_rate", "lr {}", "{:.1e}".format, "learning rate"),
    Metric("gradient_norm", "norm {:>4}", decimals(2), "gradient norm"),
    Metric("tokens_per_second", "{:>6} tok/s", rate, "tokens/s"),
    Metric("share_of_peak", "{:>4} of peak", percent, "share of peak"),
    Metric("memory", "{:>7}", size, "memory"),
    Metric("seconds_left", "left {:<8}", duration),
    Metric("epoch", "epoch {}", decimals(2), "epoch"),
    Metric("padding", "padding {}", percent, "padding"),
    Metric("tokens", "{} tokens", count, "tokens"),
)
SHORT = {"perplexity": "ppl {:>6}"}  # words in a plain line that are not just the name
QUALITY = tuple(
    Metric(
        one.key,
        SHORT.get(one.key, f"{one.name} {{}}"),
        partial(percent, digits=3) if one.share else decimals(one.digits),
        one.name,
    )
    for one in FIGURES
    if one.key != "loss"
)
BLEU = next(metric for metric in QUALITY if metric.key == "bleu")
COUNTED = ("parameters", "train_tokens", "valid_tokens")
OPENING = (  # the lines before the first step; a phrase is left out if its number is missing
    ("{run}",),
    ("{model}", "{parameters} parameters", "objective {objective}"),
    ("{train_tokens} tokens to train on", "{valid_tokens} to validate on"),
    (
        "{steps:,} steps",
        "{tokens_per_step:,} tokens each",
        "{rows:,} rows at once",
        "accumulated {accumulation:,}×",
    ),
    ("{device}", "{precision}"),
    ("peak: {peak}",),
)


def present(metrics: Sequence[Metric], event: Event) -> Iterator[tuple[Metric, str]]:
    """The metrics that the event has, each with its number as text."""
    for metric in metrics:
        if event.get(metric.key) is not None:
            yield metric, metric.shown(event[metric.key])


def in_words(metrics: Sequence[Metric], event: Event) -> list[str]:
    return [metric.words.format(shown) for metric, shown in present(metrics, event)]


def opening(event: Event) -> list[str]:
    """The model, its data and its steps, in a few lines."""
    known = {key: value for key, value in event.items() if value is not None}
    known |= {key: count(known[key]) for key in COUNTED if key in known}
    lines: list[list[str]] = [[] for _ in OPENING]
    for line, phrases in zip(lines, OPENING, strict=True):
        for phrase in phrases:
            with suppress(KeyError):
                line.append(phrase.format_map(known))
    return [", ".join(line) for line in lines if line]


def closing(event: Event) -> str:
    """The reason of the end, when it came, and the best that was reached."""
    words = f"{event.get('reason', 'ended')} at step {event.get('step', '?')}"
    if event.get("seconds") is not None:
        words += f" after {duration(event['seconds'])}"
    loss = event.get("best_loss", math.inf)
    if event.get("best_bleu") is not None or math.isfinite(loss):
        best = [Metric("best_bleu", "BLEU {}", BLEU.shown)]
        best += [Metric("best_loss", "validation loss {}", LOSS.shown)]
        words += f", best {in_words(best, event)[0]}"
        words += f" at step {event['best_step']}" if event.get("best_step") is not None else ""
    if event.get("tokens_per_second") is not None:
        words += f", {rate(event['tokens_per_second'])} tok/s"
    return words


def sample(event: Event, encoding: str) -> dict[str, str]:
    """The parts of a sample, spelled out: what was given, what was written, what was right."""
    names = ("prompt", "text", "source", "written", "target")
    return {name: literal(event[name], encoding) for name in names if event.get(name) is not None}


def judged_by(validation: Event) -> Metric:
    """The loss, or BLEU where validations judge what a model writes."""
    return VALID if validation.get("loss") is not None else BLEU


# One line after another


class PlainView(Sink):
    """Lines for a file or a pipe; the steps at most one for every `every`."""

    def __init__(self, console: Console, every: int) -> None:
        self.console = console
        self.every = max(1, every)
        self.steps: int | None = None
        self._printed: int | None = None

    def write(self, event: Event) -> None:
        kind = event["event"]
        if kind == "start":
            self.steps = event.get("steps")
            for line in opening(event):
                self._print(line)
        elif kind == "step":
            if self._is_due(event.get("step", 0)):
                self._print(_fitting([self._place(event), *in_words((LOSS, *PACE), event)]))
        elif kind == "validation":
            best = " best" if event.get("best") else "     "
            parts = [
                metric.words.format(shown) + best * (metric is judged_by(event))
                for metric, shown in present((VALID, *QUALITY), event)
            ]
            self._print(_fitting([self._place(event), *parts]))
        elif kind == "sample":
            self._print(self._place(event), "sample")
            for name, text in sample(event, self.console.encoding).items():
                for i, part in enumerate(Text(text).wrap(self.console, PLAIN_WIDTH - 12)):
                    self._print(f"    {'' if i else name:<8}{part.plain}")
        elif kind in MESSAGES:
            self._print(self._place(event), f"{kind}: {message(event.get('message', ''))}")
        elif kind == "checkpoint":
            self._print(self._place(event), f"saved {event.get('path', '')}")
        elif kind == "end":
            self._print(closing(event))

    def close(self) -> None:
        """Nothing is held back."""

    def _is_due(self, step: int) -> bool:
        before, self._printed = self._printed, step // self.every
        return before != self._printed or step == self.steps

    def _place(self, event: Event) -> str:
        if event.get("step") is None:
            return ""
        total = f"/{self.steps}" if self.steps is not None else ""
        return f"step {event['step']:>{max(len(total) - 1, 5)}}{total}"

    def _print(self, *parts: str) -> None:
        words = Text(literal("  ".join(filter(None, parts)), self.console.encoding))
        for line in words.wrap(self.console, PLAIN_WIDTH):
            line.rstrip()
            self.console.print(line, soft_wrap=True)


def _fitting(parts: Sequence[str]) -> str:
    """As many of the parts as a line holds."""
    line = ""
    for part in filter(None, parts):
        longer = f"{line}  {part}" if line else part
        if len(longer.rstrip()) > PLAIN_WIDTH:
            break
        line = longer
    return line


# A panel


class Cell(NamedTuple):
    """A name and its value in the panel."""

    name: str
    value: str
    style: str = ""

    def drawn(self, width: int) -> Text:
        gap = " " * max(1, width - len(self.name) - len(self.value))
        return Text(self.name, "dim").append(gap + self.value, f"not dim {self.style}")


class LiveView(Sink):
    """A panel at the foot of a terminal; warnings scroll away above it, the last state stays."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.losses = array("d")
        self._latest: dict[str, Event] = {}  # by kind
        self._best: Event | None = None
        self._drawn = -math.inf
        percentage = TaskProgressColumn("{task.percentage:.0f} %", style="default")
        clock = TextColumn("{task.fields[clock]}")
        self._bar = Progress(
            BarColumn(None),
            TextColumn("step"),
            MofNCompleteColumn(),
            percentage,
            clock,
            expand=True,
        )
        self._task = self._bar.add_task("", total=None, clock="")
        # Drawn by the events, not by a thread: no event changes while it is being drawn.
        self._live = Live(console=console, auto_refresh=False, get_renderable=self._panel)

    def write(self, event: Event) -> None:
        kind = event["event"]
        self._latest[kind] = event
        if kind == "start":
            for line in opening(event):
                self.console.print(Text(literal(line)))
        elif kind == "step" and event.get("loss") is not None:
            self.losses.append(event["loss"])
        elif kind == "validation" and event.get("best"):
            self._best = event
        elif kind in MESSAGES:
            self.console.print(Text(f"{kind}: {message(event.get('message', ''))}", "yellow"))
        self._live.start()
        if kind != "step" or time.monotonic() - self._drawn > REFRESH_SECONDS:
            self._drawn = time.monotonic()
            self._live.refresh()

    def close(self) -> None:
        """Draw the last state, leave it there, and print how it ended below."""
        self._live.stop()
        if end := self._latest.pop("end", None):
            self.console.print(Text(literal(closing(end))))

    def _panel(self) -> Panel:
        width = self.console.width - 4  # inside of the border and a space on either side
        columns = max(1, (width + GAP) // (CELL_WIDTH + GAP))
        each = (width - GAP * (columns - 1)) // columns
        cells = [cell.drawn(each) for cell in self._cells()]
        lines: list[RenderableType] = [
            self._progress(),
            Columns(cells, padding=(0, GAP), column_first=True),
            *(Text(line, "blue") for line in sparkline(self.losses, width, CURVE)),
            *self._sample(width),
        ]
        run = in_one_line(self._latest.get("start", {}).get("run", "training"))
        path = self._latest.get("checkpoint", {}).get("path")
        saved = Text(f"saved {in_one_line(path)}") if path else None
        return Panel(Group(*lines), title=Text(run), subtitle=saved, border_style="dim")

    def _progress(self) -> Progress:
        start, last, end = (self._latest.get(kind, {}) for kind in ("start", "step", "end"))
        step, left = end.get("step", last.get("step", 0)), last.get("seconds_left")
        clock = "" if end or left is None else f"{duration(left)} left"
        self._bar.update(self._task, total=start.get("steps"), completed=step, clock=clock)
        return self._bar

    def _cells(self) -> Iterator[Cell]:
        """The numbers there are: of the model's quality, then of the pace."""
        last, validation = self._latest.get("step", {}), self._latest.get("validation", {})
        if self.losses and math.isfinite(self.losses[-1]):
            yield Cell(LOSS.name, LOSS.shown(mean(self.losses[-SMOOTHED:])), "bold")
        elif self.losses:
            yield Cell("loss", LOSS.shown(self.losses[-1]), "bold red")
        judged, is_best = judged_by(validation), bool(validation.get("best"))
        for metric, shown in present((judged,), validation):
            yield Cell(metric.name, shown + " best" * is_best, "bold" + " green" * is_best)
        if self._best and not is_best:
            best = f"{judged.shown(self._best[judged.key])} at {self._best.get('step', '?')}"
            yield Cell("best", best, "green")
        beside = [metric for metric in QUALITY if metric is not judged]
        for metric, shown in (*present(beside, validation), *present(PACE, last)):
            if metric.name:  # the time left stands beside the bar
                yield Cell(metric.name, shown)

    def _sample(self, width: int) -> list[Text]:
        """A text after its prompt, or a line for each side of a pair."""
        parts = sample(self._latest.get("sample", {}), "utf-8")
        if "text" in parts:
            prompt = parts.get("prompt", "")
            text = Text(prompt, "bold").append(
                parts["text"].removeprefix(prompt), "not bold italic"
            )
            lines = [*text.wrap(self.console, width)]
            if len(lines) > SAMPLE:
                lines[SAMPLE - 1].append(" …")
        else:
            lines = [
                Text(f"{name:<8}", "dim").append(" ".join(text.split("\n")), "not dim")
                for name, text in parts.items()
            ]
        for line in lines:
            line.rstrip()
            line.truncate(width, overflow="ellipsis")
        return lines[:SAMPLE]

"""What a person sees while a model trains: a panel that updates in place, or plain lines."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from regard.formats import count, decimals, duration, percent, rate, size
from regard.runs.view.sparkline import History, mean, sparkline
from regard.storage.event_log import Sink
from regard.terminal import literal, message

PLAIN_WIDTH = 119  # characters in a line of the plain view
PANEL_HEIGHT = 16
CELL_WIDTH = 26  # at least, for a name and its value in the panel: two fit 60 columns
GAP = 3  # between cells
REFRESH_SECONDS = 0.25
TOLD = ("counted", "vectors", "warning", "resume", "fault", "back", "cost")  # for people


def view(console: Console, every: int) -> Sink:
    """The view that suits the console: plain where nothing can be overwritten or drawn."""
    drawable = not console.is_dumb_terminal and not console.options.ascii_only
    return LiveView(console) if console.is_terminal and drawable else PlainView(console, every)


# What an event's numbers are called


class Metric(NamedTuple):
    """A number of an event: its name in the panel, its words in a plain line."""

    key: str
    name: str
    words: str
    shown: Callable[[float], str]


LOSS = Metric("loss", "loss, smoothed", "loss {:>8}", decimals(4))
# "valid" and its digits stand below "loss" and its digits.
VALID = Metric("loss", "validation", "valid {:>7}", decimals(4))
PACE = (  # the most wanted first
    Metric("learning_rate", "learning rate", "lr {}", "{:.1e}".format),
    Metric("gradient_norm", "gradient norm", "norm {:>4}", decimals(2)),
    Metric("tokens_per_second", "tokens/s", "{:>6} tok/s", rate),
    Metric("share_of_peak", "share of peak", "{:>4} of peak", percent),
    Metric("memory", "memory", "{:>7}", size),
    Metric("seconds_left", "time left", "left {:<8}", duration),
    Metric("epoch", "epoch", "epoch {}", decimals(2)),
    Metric("padding", "padding", "padding {}", percent),
    Metric("tokens", "tokens", "{} tokens", count),
)
BLEU = Metric("bleu", "BLEU", "BLEU {}", decimals(1))
QUALITY = (
    Metric("perplexity", "perplexity", "ppl {:>6}", decimals(2)),
    Metric("bits_per_byte", "bits/byte", "bits/byte {}", decimals(4)),
    Metric("accuracy", "accuracy", "accuracy {}", partial(percent, digits=3)),
    Metric("exact", "exact", "exact {}", partial(percent, digits=3)),
    BLEU,
    Metric("chrf", "chrF", "chrF {}", decimals(1)),
)


def present(metrics: Sequence[Metric], event: Mapping[str, Any]) -> Iterator[tuple[Metric, str]]:
    """The metrics that the event has, each with its number as text."""
    for metric in metrics:
        if event.get(metric.key) is not None:
            yield metric, metric.shown(event[metric.key])


def opening(event: Mapping[str, Any]) -> list[str]:
    """What is going to be trained, on what, in a few lines."""

    def phrase(words: str, **shown: Callable[[Any], str]) -> str:
        if any(event.get(key) is None for key in shown):
            return ""
        return words.format(**{key: show(event[key]) for key, show in shown.items()})

    lines = (
        (phrase("{run}", run=str),),
        (
            phrase("{model}", model=str),
            phrase("{parameters} parameters", parameters=count),
            phrase("objective {objective}", objective=str),
        ),
        (
            phrase("{train_tokens} tokens to train on", train_tokens=count),
            phrase("{valid_tokens} to validate on", valid_tokens=count),
        ),
        (
            phrase("{steps} steps", steps="{:,}".format),
            phrase("{tokens_per_step} tokens each", tokens_per_step="{:,}".format),
            phrase("{rows} rows at once", rows="{:,}".format),
            phrase("accumulated {accumulation}×", accumulation="{:,}".format),
        ),
        (phrase("{device}", device=str), phrase("{precision}", precision=str)),
        (phrase("peak: {peak}", peak=str),),
    )
    return [", ".join(filter(None, line)) for line in lines if any(line)]


def closing(event: Mapping[str, Any]) -> str:
    """How it ended: why, when, and the best it reached."""
    words = f"{event.get('reason', 'ended')} at step {event.get('step', '?')}"
    if event.get("seconds") is not None:
        words += f" after {duration(event['seconds'])}"
    if best := best_of(event):
        words += f", best {best}"
        words += f" at step {event['best_step']}" if event.get("best_step") is not None else ""
    if event.get("tokens_per_second") is not None:
        words += f", {rate(event['tokens_per_second'])} tok/s"
    return words


def best_of(event: Mapping[str, Any]) -> str:
    """The best that a run reached, by its loss or by what it wrote; nothing if there is none."""
    if event.get("best_bleu") is not None:
        return f"BLEU {BLEU.shown(event['best_bleu'])}"
    loss = event.get("best_loss", math.inf)
    return f"validation loss {LOSS.shown(loss)}" if math.isfinite(loss) else ""


# One line after another


class PlainView(Sink):
    """Lines for a file or a pipe; the steps at most one for every `every`."""

    def __init__(self, console: Console, every: int) -> None:
        self.console = console
        self.every = max(1, every)
        self.steps: int | None = None
        self._printed: int | None = None

    def write(self, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        if kind == "start":
            self.steps = event.get("steps")
            for line in opening(event):
                self._print(line)
        elif kind == "step":
            self._step(event)
        elif kind == "validation":
            best = " best" if event.get("best") else "     "
            judged = VALID if event.get("loss") is not None else BLEU
            parts = [
                m.words.format(shown) + best * (m is judged)
                for m, shown in present((VALID, *QUALITY), event)
            ]
            self._print(_fitting([self._place(event), *parts]))
        elif kind == "sample":
            self._sample(event)
        elif kind in TOLD:
            self._print(self._place(event), f"{kind}: {message(event.get('message', ''))}")
        elif kind == "checkpoint":
            self._print(self._place(event), f"saved {event.get('path', '')}")
        elif kind == "end":
            self._print(closing(event))

    def close(self) -> None:
        """Nothing is held back."""

    def _step(self, event: Mapping[str, Any]) -> None:
        step = event.get("step", 0)
        turn = step // self.every
        if turn == self._printed and step != self.steps:
            return
        self._printed = turn
        parts = [metric.words.format(shown) for metric, shown in present((LOSS, *PACE), event)]
        self._print(_fitting([self._place(event), *parts]))

    def _place(self, event: Mapping[str, Any]) -> str:
        if event.get("step") is None:
            return ""
        total = f"/{self.steps}" if self.steps is not None else ""
        return f"step {event['step']:>{max(len(total) - 1, 5)}}{total}"

    def _sample(self, event: Mapping[str, Any]) -> None:
        self._print(self._place(event), "sample")
        for name in ("prompt", "text", "source", "written", "target"):
            if event.get(name) is None:
                continue
            text = Text(literal(event[name], self.console.encoding))
            for i, line in enumerate(text.wrap(self.console, PLAIN_WIDTH - 12)):
                self._print(f"    {'' if i else name:<8}{line.plain}")

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
        self.losses = History()
        self._recent: list[float] = []
        self._latest: dict[str, Mapping[str, Any]] = {}  # by kind
        self._best: Mapping[str, Any] | None = None
        self._drawn = -math.inf
        # Drawn by the events, not by a thread: no event changes while it is being drawn.
        self._live = Live(console=console, auto_refresh=False, get_renderable=self._panel)

    def __enter__(self) -> "LiveView":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def write(self, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        self._latest[kind] = event
        if kind == "start":
            for line in opening(event):
                self.console.print(Text(literal(line)))
        elif kind == "step" and event.get("loss") is not None:
            self.losses.add(event["loss"])
            self._recent = [*self._recent[-19:], event["loss"]]
        elif kind == "validation" and event.get("best"):
            self._best = event
        elif kind in TOLD:
            words = f"{kind}: {message(event.get('message', ''))}"
            self.console.print(Text(words, "yellow"))
        self._live.start()
        if kind != "step" or time.monotonic() - self._drawn > REFRESH_SECONDS:
            self._drawn = time.monotonic()
            self._live.refresh()

    def close(self) -> None:
        """Draw the last state, leave it there, and give the terminal back."""
        self._live.stop()

    def _panel(self) -> Panel:
        width = self.console.width - 4  # inside of the border and a space on either side
        cells = list(self._cells())
        columns = max(1, (width + GAP) // (CELL_WIDTH + GAP))
        rows = math.ceil(len(cells) / columns)
        room = PANEL_HEIGHT - 3 - rows  # for the curve and the sample
        curve = sparkline(self.losses.cells, width, height=min(2, max(1, room - 3)))
        lines: list[Any] = [self._progress(), *_in_columns(cells, columns, width)]
        lines += [Text(line, "blue") for line in curve]
        lines += self._sample(width, max(0, min(4, room - len(curve))))
        return Panel(
            Group(*lines),
            title=_title(literal(self._latest.get("start", {}).get("run", "training"))),
            subtitle=_title(self._news()),
            width=self.console.width,
            border_style="dim",
        )

    def _progress(self) -> Table:
        start, last = self._latest.get("start", {}), self._latest.get("step", {})
        end = self._latest.get("end", {})
        step, steps = end.get("step", last.get("step", 0)), start.get("steps")
        words = f"step {step}"
        if steps:
            words += f"/{steps}  {100 * step // steps} %"
        if end:
            words += f"  {duration(end['seconds'])}" if end.get("seconds") is not None else ""
        elif last.get("seconds_left") is not None:
            words += f"  {duration(last['seconds_left'])} left"
        grid = Table.grid(expand=True, padding=(0, 1))
        grid.add_column(ratio=1)
        grid.add_column(no_wrap=True, justify="right")
        grid.add_row(ProgressBar(total=steps or 1, completed=step if steps else 0), Text(words))
        return grid

    def _cells(self) -> Iterator[Cell]:
        """What there is to say in numbers: how good it is, then how fast it goes."""
        last, validation = self._latest.get("step", {}), self._latest.get("validation", {})
        if self._recent:
            now = self._recent[-1]
            if math.isfinite(now):
                yield Cell(LOSS.name, LOSS.shown(mean(self._recent)), "bold")
            else:
                yield Cell("loss", LOSS.shown(now), "bold red")
        is_best = bool(validation.get("best"))
        judged = VALID if validation.get("loss") is not None else BLEU
        for metric, shown in present((judged,), validation):
            yield Cell(metric.name, shown + " best" * is_best, "bold green" if is_best else "bold")
        if self._best and not is_best:
            best = f"{judged.shown(self._best[judged.key])} at {self._best.get('step', '?')}"
            yield Cell("best", best, "green")
        pace = [metric for metric in PACE if metric.key != "seconds_left"]  # beside the bar
        beside = [metric for metric in QUALITY if metric is not judged]
        for metric, shown in (*present(beside, validation), *present(pace, last)):
            yield Cell(metric.name, shown)

    def _sample(self, width: int, height: int) -> list[Text]:
        sample = self._latest.get("sample", {})
        if sample.get("text") is not None:
            prompt, text = literal(sample.get("prompt") or ""), literal(sample["text"])
            whole = Text(prompt, "bold").append(text.removeprefix(prompt), "not bold italic")
            lines = list(whole.wrap(self.console, width))
            if height and len(lines) > height:
                lines[height - 1].append(" …")
        else:
            lines = [
                Text(f"{name:<8}", "dim").append(
                    " ".join(literal(sample[name]).split("\n")), "not dim"
                )
                for name in ("source", "written", "target")
                if sample.get(name) is not None
            ]
        for line in lines:
            line.rstrip()
            line.truncate(width, overflow="ellipsis")
        return lines[:height]

    def _news(self) -> str:
        if "end" in self._latest:
            end = self._latest["end"]
            best = best_of(end)
            words = f", best {best.removeprefix('validation loss ')}" if best else ""
            words += f" at step {end['best_step']}" if words and end.get("best_step") else ""
            return f"{end.get('reason', 'ended')}{words}"
        path = self._latest.get("checkpoint", {}).get("path")
        return f"saved {literal(path)}" if path else ""


def _title(words: str) -> Text | None:
    return Text(words.replace("\n", " ")) if words else None


def _in_columns(cells: Sequence[Cell], columns: int, width: int) -> Iterator[Text]:
    """Lines of cells, to be read downwards."""
    rows = math.ceil(len(cells) / columns)
    each = (width - GAP * (columns - 1)) // columns
    for row in range(rows):
        line = Text(" " * GAP).join(cell.drawn(each) for cell in cells[row::rows])
        line.truncate(width, overflow="ellipsis")
        yield line

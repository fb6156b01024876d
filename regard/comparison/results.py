"""What a comparison found, gathered from runs and measurements: all that a report says."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any

from regard.comparison.context_use import used
from regard.comparison.growth import slope
from regard.comparison.measuring import Figures
from regard.metrics.scores import FIGURES

COSTS = ("flops", "seconds", "step_flops", "step_seconds")


@dataclass(frozen=True)
class Metric:
    """A measure of quality."""

    key: str
    name: str
    better: int  # 1: more is better, -1: less
    digits: int

    def shown(self, value: float) -> str:
        return f"{value:.{self.digits}f}"


METRICS = {one.key: Metric(one.key, one.words, one.better, one.beside) for one in FIGURES}


@dataclass(frozen=True)
class Spread:
    """A figure of several seeds."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float:
        """Between seeds; 0 of a single one."""
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0

    def shown(self, digits: int) -> str:
        """1.234 ± 0.005; of one seed the figure alone."""
        if len(self.values) == 1:
            return f"{self.mean:,.{digits}f}"
        return f"{self.mean:,.{digits}f} ± {self.deviation:,.{digits}f}"


@dataclass(frozen=True)
class Line:
    """A figure along something, its mean over seeds and their spread."""

    x: tuple[float, ...]
    y: tuple[float, ...]
    deviation: tuple[float, ...] = ()

    @classmethod
    def of(cls, x: Sequence[float], runs: Sequence[Sequence[float | None]]) -> "Line | None":
        """From one sequence of figures for each seed, as far as all go and have an end."""
        most = min((run.index(None) if None in run else len(run) for run in runs), default=0)
        cut = [[value for value in run[:most] if value is not None] for run in runs]
        columns = [Spread(column) for column in zip(*cut, strict=True)]
        if not columns:
            return None
        means, spreads = (c.mean for c in columns), (c.deviation for c in columns)
        return cls(tuple(x[:most]), tuple(means), tuple(spreads))


@dataclass(frozen=True)
class Result:
    """All that is known of one model."""

    name: str
    preset: str
    about: str
    parameters: int  # 0: it has none
    matched: str  # how its size was chosen
    failed: str = ""  # why there is nothing more
    seeds: tuple[int, ...] = ()
    scores: Mapping[str, Spread] = field(default_factory=dict)
    margin: float | None = None  # of BLEU: half of the 95 % interval of resampled test sets
    rules: str = ""
    steps: int = 0
    tokens: float = 0.0  # read in training
    pace: Spread | None = None  # tokens a second in training
    seconds: Spread | None = None  # of training, with what is between steps
    memory: Mapping[str, int] = field(default_factory=dict)
    decoding: Mapping[str, float] = field(default_factory=dict)  # rows at once: tokens a second
    curve: Line | None = None  # validation loss by seconds, of the first seed
    context: Line | None = None
    used: float | None = None  # tokens that give most of what context gives
    lengths: Line | None = None
    cost: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    powers: Mapping[str, float | None] = field(default_factory=dict)  # of growth
    samples: tuple[str, ...] = ()
    trained_on: int = 0  # tokens in a row of text; 0: it carries on, or counts, or reads pairs

    @property
    def counts(self) -> bool:
        return self.parameters == 0


@dataclass(frozen=True)
class Comparison:
    """All models, and what they have in common."""

    title: str
    pairs: bool
    facts: Mapping[str, str]
    results: tuple[Result, ...]
    given: tuple[str, ...] = ()  # prompts, or sources
    gold: tuple[str, ...] = ()  # what should be written for each source
    buckets: tuple[tuple[int, int], ...] = ()  # from and to, of the lengths in `Result.lengths`

    @property
    def good(self) -> list[Result]:
        return [result for result in self.results if not result.failed]

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the buckets of lengths."""
        return tuple(f"{a:,}–{b:,}" if a < b else f"{a:,}" for a, b in self.buckets)

    @property
    def metric(self) -> Metric:
        """BLEU, of targets too short for it chrF; bits per byte where each has them, else loss."""
        if self.pairs:
            judged = any("bleu" in result.scores for result in self.good)
            return METRICS["bleu" if judged else "chrf"]
        whole = all("bits_per_byte" in result.scores for result in self.good)
        return METRICS["bits_per_byte" if whole else "loss"]

    @property
    def ranked(self) -> list[Result]:
        """Those that have a figure, the best first."""
        key, sign = self.metric.key, -self.metric.better
        there = [result for result in self.good if key in result.scores]
        return sorted(there, key=lambda result: sign * result.scores[key].mean)

    def figures(self) -> dict[str, Any]:
        """All of it as JSON has it."""
        return {**_plain(self), "labels": list(self.labels), "metric": asdict(self.metric)}


def _plain(value: Any) -> Any:
    """Values within values as JSON has them, each spread with its mean."""
    if isinstance(value, Spread):
        figures = {"mean": value.mean, "deviation": value.deviation}
        return {"values": list(value.values), **figures}
    if is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def result(
    base: Result,
    training: Mapping[int, Figures],
    measured: Mapping[int, Mapping[str, Figures]],
    once: Mapping[str, Figures],
    memory: Mapping[str, int],
) -> Result:
    """What one model's runs (by seed) and measurements tell together."""
    seeds = tuple(training)
    qualities = [measured[seed]["quality"] for seed in seeds]
    first = qualities[0]
    contexts = [measured[seed]["context"] for seed in seeds]
    context = Line.of(contexts[0]["tokens"], [one["loss"] for one in contexts])
    cost = once["cost"]
    one = training[seeds[0]]
    return replace(
        base,
        seeds=seeds,
        scores=_scores(qualities),
        margin=first.get("bleu_margin"),
        rules=str(first.get("rules", "")),
        steps=int(one["steps"] or 0),
        tokens=float(one["tokens"] or 0),
        pace=_spread(run["tokens_per_second"] for run in training.values()),
        seconds=_spread(run["seconds"] for run in training.values()),
        memory=memory,
        decoding=once["speed"],
        curve=_curve(one["curve"]),
        context=context,
        used=used(context.x, context.y) if context else None,
        lengths=_lengths(qualities, [measured[seed]["lengths"] for seed in seeds]),
        cost=cost,
        powers={name: slope(cost["lengths"], cost[name]) for name in COSTS},
        samples=tuple(once["samples"]["written"]),
    )


def _scores(qualities: Sequence[Figures]) -> dict[str, Spread]:
    """Every figure that all seeds have."""
    found = {}
    for key in METRICS:
        values = [quality.get(key) for quality in qualities]
        if all(isinstance(value, int | float) and math.isfinite(value) for value in values):
            found[key] = Spread(tuple(float(value) for value in values if value is not None))
    return found


def _spread(values: Iterable[float | None]) -> Spread | None:
    there = tuple(float(value) for value in values if value is not None)
    return Spread(there) if there else None


def _curve(points: Sequence[Sequence[float]]) -> Line | None:
    if not points:
        return None
    x, y = zip(*points, strict=True)
    return Line(tuple(x), tuple(y))


def _lengths(qualities: Sequence[Figures], positions: Sequence[Figures]) -> Line | None:
    """BLEU by the length of a source, or the loss by position; x counts the buckets."""
    if "by_length" in qualities[0]:
        runs = [[bucket["bleu"] for bucket in _with_bleu(one)] for one in qualities]
    else:
        runs = [one["loss"] for one in positions if one.get("loss")]
    return Line.of(range(len(runs[0]) if runs else 0), runs)


def buckets_of(quality: Figures, positions: Figures) -> tuple[tuple[int, int], ...]:
    """From and to of each bucket of lengths."""
    buckets = [(one["first"], one["last"]) for one in _with_bleu(quality)]
    return tuple(buckets or ((low, high) for low, high in positions.get("positions", ())))


def _with_bleu(quality: Figures) -> list[Figures]:
    """Buckets with targets long enough for BLEU: the same ones for every model."""
    return [one for one in quality.get("by_length", ()) if one["bleu"] is not None]

"""What a job needs, how long it takes on a device, whether it fits, and what to change first."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from regard.costs import jobs
from regard.costs.device.ceilings import Device, device_named
from regard.costs.generation import Generation, generation
from regard.costs.jobs import Counted, Model, Shape
from regard.costs.largest_fit import TRIES, largest, on_a_line
from regard.costs.predict import Bound, How, Prediction, predicted, timed
from regard.costs.trace.memory import USES
from regard.costs.trace.tracer import Total
from regard.errors import RegardError
from regard.models.config import ModelConfig
from regard.training.objectives import PLAIN, Criterion
from regard.training.optimization.precision import Precision
from regard.training.settings import OptimizerSettings

Work = Literal["train", "read", "generate"]
LOOKUP = "table::lookup"  # an operation that searches and does not multiply
DIGITS = re.compile(r"(?<=\.)\d+(?=\.|$)")
MOST_ROWS = 1 << 20
FEW_ROWS, FEW_TOKENS = 8, 32  # from which on more are alike


@dataclass(frozen=True)
class Asked:
    """A job as somebody asks for it."""

    work: Work
    shape: Shape
    device: Device
    precision: Precision = "float32"
    new: int = 0  # tokens to write
    steps: int = 1  # of training
    processes: int = 1  # each with a copy of the model and a part of the rows
    recompute: bool = False
    optimizer: OptimizerSettings | None = None
    criterion: Criterion = PLAIN

    @property
    def share(self) -> Shape:
        """What one of the processes has."""
        return replace(self.shape, rows=-(-self.shape.rows // self.processes))


@dataclass(frozen=True)
class Part:
    """What stands at one place, or at places that are alike."""

    place: str
    products: int
    moved: int  # bytes read and written
    seconds: float

    @property
    def intensity(self) -> float:
        """Operations for each byte."""
        return self.products / max(self.moved, 1)


class Fitting(NamedTuple):
    """What a device has room for."""

    rows: int  # of the asked length
    tokens: int  # of the asked number of rows
    rows_extrapolated: bool = False  # a trace of so many would take too long
    tokens_extrapolated: bool = False


@dataclass(frozen=True)
class Report:
    """All that is told of a job."""

    asked: Asked
    counted: Counted  # of one process; of a generation, the step or prompt that holds the most
    total: Total
    prediction: Prediction
    seconds: float  # of a step, a pass, or a whole generation
    tokens: int  # read or written in that time
    parts: tuple[Part, ...]
    fitting: Fitting
    apart: tuple[Part, ...] = ()  # of a generation, the parts of the prompt and of the steps

    @property
    def rows_that_fit(self) -> int:
        return self.fitting.rows

    @property
    def tokens_that_fit(self) -> int:
        return self.fitting.tokens

    @property
    def memory(self) -> int:
        """Bytes held at most, with what libraries hold."""
        return self.counted.peak + self.asked.device.fixed

    @property
    def fits(self) -> bool:
        return self.memory <= self.asked.device.memory

    @property
    def bound(self) -> Bound:
        return self.prediction.bound

    @property
    def intensity(self) -> float:
        """Operations for each byte that is moved."""
        return self.total.products / max(self.total.read + self.total.written, 1)

    def to_json(self) -> dict[str, Any]:
        """Plain numbers under plain names."""
        device, shape = self.asked.device, self.asked.shape
        return {
            "work": self.asked.work,
            "rows": shape.rows,
            "tokens": shape.tokens,
            "source": shape.source,
            "new": self.asked.new,
            "precision": self.asked.precision,
            "processes": self.asked.processes,
            "device": device.name,
            "device_source": device.source,
            "parameters": self.counted.parameters,
            "operations": self.total.operations,
            "products": self.total.products,
            "bytes_read": self.total.read,
            "bytes_written": self.total.written,
            "least_bytes_read": self.total.least_read,
            "least_bytes_written": self.total.least_written,
            "kept_bytes": self.counted.kept,
            "cache_bytes": self.counted.state,
            "memory_bytes": self.memory,
            "memory": {use: self.counted.memory[use] for use in USES},
            "device_memory_bytes": device.memory,
            "fits": self.fits,
            "rows_that_fit": self.rows_that_fit,
            "tokens_that_fit": self.tokens_that_fit,
            "rows_extrapolated": self.fitting.rows_extrapolated,
            "tokens_extrapolated": self.fitting.tokens_extrapolated,
            "intensity": self.intensity,
            "seconds": self.seconds,
            "seconds_in_all": self.seconds * self.asked.steps,
            "tokens_per_second": self.tokens / self.seconds if self.seconds else 0.0,
            "bound": self.bound,
            "parts": [vars(part) for part in self.parts],
            "advice": advice(self),
        }


def report(model: Model, asked: Asked) -> Report:
    """Count a job, predict its time, and find what would fit: all on one module."""
    if asked.processes < 1 or asked.steps < 1:
        raise RegardError("there must be at least one process and one step")
    if isinstance(model, ModelConfig):
        model = jobs.module_of(model)
    device = asked.device
    if asked.work == "generate":
        found = generation(model, asked.share, asked.new, device.kind, asked.precision)
        prediction = _whole(found, device)
        counted, whole, tokens = found.largest, found.total, asked.new * asked.shape.rows
        parts, apart = _parts_of(found, device)
    else:
        counted = counted_for(model, asked, asked.share)
        prediction = predicted(counted, device, "train" if asked.work == "train" else "write")
        whole, tokens = counted.total, asked.shape.rows * asked.shape.tokens
        parts = _parts([(counted, 1.0)], device, "train" if asked.work == "train" else "write")
        apart = parts
    seconds = prediction.seconds + _together(counted, asked)
    first = found.prompt if asked.work == "generate" else counted
    fitting = _that_fit(model, asked, first)
    return Report(asked, counted, whole, prediction, seconds, tokens, parts, fitting, apart)


def of_counted(counted: Counted, asked: Asked) -> Report:
    """A report of something that was counted in its own way: an n-gram, word vectors."""
    if any(record.name == LOOKUP for record in counted.records) and asked.device.kind == "cuda":
        # A table is searched in main memory, whatever else the machine has.
        asked = replace(asked, device=device_named("cpu"), precision="float32")
    prediction = predicted(counted, asked.device, "write")
    tokens = asked.shape.rows * (asked.new or asked.shape.tokens)
    parts = _parts([(counted, 1.0)], asked.device, "write")
    fitting = Fitting(asked.shape.rows, asked.shape.tokens)
    seconds = prediction.seconds
    return Report(asked, counted, counted.total, prediction, seconds, tokens, parts, fitting)


def counted_for(model: Model, asked: Asked, shape: Shape) -> Counted:
    """One pass over a batch of this shape, of training if that is asked for."""
    kind, precision = asked.device.kind, asked.precision
    if asked.work == "train":
        return jobs.train_step(
            model,
            shape,
            kind,
            precision,
            asked.optimizer,
            checkpointed=asked.recompute,
            criterion=asked.criterion,
        )
    return jobs.read(model, shape, kind, precision)


def _whole(found: Generation, device: Device) -> Prediction:
    """The time of a prompt and all steps behind it."""
    prompt = predicted(found.prompt, device, "write")
    names = ("seconds", "arithmetic", "traffic", "launching")
    if not found.probes:
        return prompt
    each = {
        name: found.summed(lambda c, name=name: getattr(predicted(c, device, "write"), name))  # type: ignore[misc]
        for name in names
    }
    return Prediction(*(getattr(prompt, name) + each[name] for name in names))


def _together(counted: Counted, asked: Asked) -> float:
    """Seconds in which processes add up their gradients: each sends and gets all of them once."""
    if asked.work != "train" or asked.processes == 1 or not asked.device.link:
        return 0.0
    return 2 * counted.weights * (asked.processes - 1) / asked.processes / asked.device.link


def _parts_of(found: Generation, device: Device) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """Those of a generation, and prompt and steps apart: the traced steps stand for all."""
    times = found.new / max(len(found.probes), 1)
    prompt, steps = [(found.prompt, 1.0)], [(one, times) for one in found.probes.values()]
    apart = [
        replace(part, place=f"{doing} {part.place}")
        for doing, done in (("reading:", prompt), ("writing:", steps))
        for part in _parts(done, device, "write")
    ]
    longest = tuple(sorted(apart, key=lambda part: -part.seconds))
    return _parts([*prompt, *steps], device, "write"), longest


def _parts(
    jobs_done: Sequence[tuple[Counted, float]], device: Device, how: How
) -> tuple[Part, ...]:
    """Jobs, each so many times, by place; layers that are alike together, longest first."""
    found: dict[str, list[float]] = {}
    for counted, times in jobs_done:
        for record, took in zip(counted.records, timed(counted.records, device, how), strict=True):
            place = DIGITS.sub("*", record.place) or f"({record.phase})"
            sums = found.setdefault(place, [0, 0, 0.0])
            sums[0] += times * record.products
            sums[1] += times * (record.read + record.written)
            sums[2] += times * took.seconds
    parts = (Part(place, int(a), int(b), c) for place, (a, b, c) in found.items())
    return tuple(sorted(parts, key=lambda part: -part.seconds))


def _that_fit(model: Model, asked: Asked, first: Counted) -> Fitting:
    """The most rows of this length, and the longest rows of this number, that the device holds.

    `first` is the job as it was asked for. (A prompt holds more than a step behind it.)
    """
    room = asked.device.memory - asked.device.fixed
    shape = asked.share
    most = max(int(jobs.settings_of(model).context) - asked.new, shape.tokens)
    known = {(shape.rows, shape.tokens): first}

    def count(rows: int, tokens: int) -> Counted:
        at = replace(shape, rows=rows, tokens=tokens)
        if (rows, tokens) not in known:
            known[rows, tokens] = _first(model, asked, at)
        return known[rows, tokens]

    def by_rows(n: int) -> Counted:
        return count(n, shape.tokens)

    def by_tokens(n: int) -> Counted:
        return count(shape.rows, n)

    fits = first.peak <= room
    lengths = _near(by_tokens, FEW_TOKENS, shape.tokens, most)
    numbers = _near(by_rows, FEW_ROWS, shape.rows, MOST_ROWS)
    tries = TRIES // 2 if lengths or numbers else TRIES  # one of them takes long then
    rows = _most(by_rows, numbers if fits else {}, room, shape.rows, MOST_ROWS, tries)
    tokens = _most(by_tokens, lengths if fits else {}, room, shape.tokens, most, tries)
    return Fitting(rows[0] * asked.processes, tokens[0], rows[1], tokens[1])


def _near(
    count: Callable[[int], Counted], few: int, size: int, most: int
) -> Mapping[int, int] | None:
    """What is held at some sizes not above this one, where each more is more operations.

    So it is with tokens where a model goes from one to the next, and with rows where a loss is
    computed a few at a time: a trace of many would take too long, where others are traced in no
    time at any size.
    """
    size = max(few, size)
    if size > most:  # no trace of what is possible takes long
        return None
    try:
        short, long = count(size // 2), count(size)
        if len(long.records) - len(short.records) < size - size // 2:
            return None
        return {n: count(n).peak for n in (size // 2, size * 3 // 4, size)}
    except RegardError:
        return None  # too large to be counted


def _most(
    count: Callable[[int], Counted],
    near: Mapping[int, int] | None,
    room: int,
    size: int,
    most: int,
    tries: int,
) -> tuple[int, bool]:
    """The largest size that fits, and whether it is read off a line through what is `near`."""

    def held(n: int) -> int | None:
        try:
            return count(n).peak
        except RegardError:
            return None  # too large to be counted

    if not near:
        return largest(held, room, size, most, tries), False
    guess = on_a_line(near, room)
    return max(size, min(guess or 0, most)), guess is not None


def _first(model: Model, asked: Asked, shape: Shape) -> Counted:
    """The job in another shape; of a generation, the prompt."""
    if asked.work != "generate":
        return counted_for(model, asked, shape)
    kind, precision = asked.device.kind, asked.precision
    return jobs.write(model, shape, 0, kind, precision, room=shape.tokens + asked.new)


def advice(found: Report) -> str:
    """What to change first."""
    asked = found.asked
    if not found.fits:
        return _to_fit(found)
    if found.bound == "launching":
        return "take more rows at once: most of the time goes to beginning operations"
    if found.bound == "memory traffic" and asked.work == "generate":
        return "write more rows at once: they share the weights that each step reads"
    if found.bound == "memory traffic":
        half = "compute in bf16, or " if asked.precision == "float32" else ""
        return f"{half}take more rows at once: moving numbers takes longest"
    if asked.precision == "float32" and asked.device.kind == "cuda":
        return "compute in bf16: arithmetic takes longest"
    return "nothing stands idle: arithmetic takes longest"


def _to_fit(found: Report) -> str:
    """What to change first where the job has no room."""
    asked, held = found.asked, found.counted.memory
    training = asked.work == "train"
    if found.rows_that_fit:
        return f"take {found.rows_that_fit:,} rows at once"
    standing = sum(held[use] for use in ("weights", "gradients", "optimizer"))
    if standing + asked.device.fixed > asked.device.memory:
        # In training, bf16-weights has float32 masters beside them: that is not less.
        half = not training and asked.precision != "bf16-weights"
        first = "hold the weights in bf16 (precision bf16-weights), or " if half else ""
        shared = ", or share the weights out (training.distribution=fsdp)" if training else ""
        return f"{first}choose a smaller model{shared}"
    if training and not asked.recompute:
        return "let blocks be computed again (training.recompute=true)"
    return "take shorter rows" if found.tokens_that_fit else "choose a smaller model"

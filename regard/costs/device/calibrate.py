"""Measuring what a device can do: a minute or two of products, copies, kernels and small steps.

Everything is timed as it will be predicted: products over a grid of shapes and types, attention
there and back, recurrence, what is bound by memory by operation and size, and what the host takes,
from models so small that they do little else (`host_overhead.py`). Of operations bound by memory,
what a call takes on a CPU with next to nothing in it is taken off, since the host's time is counted
apart.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import product as every

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.costs import measured
from regard.costs.device.ceilings import (
    Device,
    Grid,
    cache_bytes,
    here,
    main_memory,
    processor,
)
from regard.costs.device.host_overhead import launching
from regard.costs.trace.fake_device import Kind
from regard.costs.trace.tracer import tracing
from regard.models.kernels.dropout import WORDS
from regard.models.kernels.linear import product, products_by_onednn, trained_by_onednn
from regard.training.datasheets import SHEETS, named_in
from regard.training.memory.allocator import keep_freed

aten = torch.ops.aten
Advance = Callable[[str], None]
Axes = Sequence[Sequence[int]]
MEASURED = (torch.float32, torch.bfloat16)  # bfloat16 on CPUs too, where it is often slow

# Sizes of products: rows, inner, columns. Shapes that would take too long are left out, and their
# rate is taken to be that of the nearest smaller one.
PRODUCTS = {
    "cpu": ((1, 8, 64, 512, 2048), (64, 256, 1024, 4096), (64, 256, 1024, 4096, 16384)),
    "cuda": ((1, 16, 256, 2048, 16384), (64, 256, 1024, 4096), (64, 256, 1024, 4096, 32768)),
}
BATCHED = ((1, 16, 128, 512), (32, 64, 128), (16, 128, 512))
ATTENTION = ((1, 64, 512, 2048), (32, 64, 128), (64, 512, 2048))
TIMES = 32  # small products, or heads of all rows, at once
RECURRENCE = ((1, 8, 64), (1, 8, 64), (64, 256, 1024))  # steps, rows, hidden
BYTES = {
    "cpu": (1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28),
    "cuda": (1 << 16, 1 << 20, 1 << 24, 1 << 26, 1 << 28, 1 << 30),
}
LONGEST = 0.06  # seconds of one call
FAR = 1 << 29  # bytes, more than caches hold, and than the largest matrix has


class Clock:
    """Times calls, each for a share of the whole budget."""

    def __init__(self, device: torch.device, budget: float) -> None:
        self.device, self.each = device, max(budget / 1500, 0.005)

    def seconds(self, run: Callable[[], object]) -> float:
        return measured.seconds(run, self.device, self.each)

    def beyond(self, run: Callable[[], object], least: float) -> float:
        """The same without what the smallest such call takes."""
        found = self.seconds(run)
        return max(found - least, found / 20)

    def least(self, run: Callable[[], object]) -> float:
        """What such a call takes with next to nothing in it; on a GPU that hides behind others."""
        return 0.0 if self.device.type == "cuda" else self.seconds(run)


def _grid(
    axes: Sequence[Sequence[int]], rate: Callable[..., float], work: Callable[..., float]
) -> Grid:
    """Rates over all sizes; the longest are not tried once a smaller one was slow enough."""
    found: dict[tuple[int, ...], float] = {}
    best = 1e9
    for sizes in every(*axes):
        if work(*sizes) / best <= LONGEST:
            found[sizes] = rate(*sizes)
            best = max(best, found[sizes])
    filled = [found.get(sizes) or _nearest(sizes, found) for sizes in every(*axes)]
    return Grid(tuple(tuple(axis) for axis in axes), tuple(filled))


def _nearest(sizes: Sequence[int], found: Mapping[tuple[int, ...], float]) -> float:
    """The rate of the largest shape that is in no direction larger."""
    below = [s for s in found if all(a <= b for a, b in zip(s, sizes, strict=True))]
    nearest = max(below, key=lambda s: (torch.Size(s).numel(), s))
    return found[nearest]


class Pool:
    """Numbers to compute with: always the same, or always others, which no cache holds any more."""

    def __init__(self, device: torch.device, kind: torch.dtype, far: bool = False) -> None:
        self.numbers = torch.randn(FAR // 4, device=device).to(kind)
        self.far, self.at = far, 0

    def begin(self) -> None:
        """A new call."""
        self.at = self.at if self.far else 0

    def take(self, *shape: int) -> Tensor:
        """The next ones, in this shape."""
        count = torch.Size(shape).numel()
        if self.at + count > len(self.numbers):
            self.at = 0
        found = self.numbers[self.at : self.at + count]
        self.at += -(-count // 64) * 64
        return found.view(shape)


Product = Callable[[Tensor, Tensor], Tensor]


def _trained(x: Tensor, weight: Tensor) -> Tensor:
    """A product as training has it, there and back (`models/kernels/linear.py`)."""
    alone = x.dim() == 2  # else there are many small ones at once
    with products_by_onednn() if alone and trained_by_onednn(x, weight) else nullcontext():
        return x @ weight.mT


def _products(
    clock: Clock,
    pool: Pool,
    times: int,
    axes: Axes,
    multiply: Product = _trained,
    turned: bool = False,
) -> Grid:
    """Rates of x (rows, inner) times a weight (columns, inner); turned: both by columns."""

    def call(rows: int, inner: int, columns: int) -> Callable[[], object]:
        many = () if times == 1 else (times,)

        def run() -> Tensor:
            pool.begin()
            if turned:
                return multiply(
                    pool.take(*many, inner, rows).mT, pool.take(*many, inner, columns).mT
                )
            return multiply(pool.take(*many, rows, inner), pool.take(*many, columns, inner))

        return run

    def rate(rows: int, inner: int, columns: int) -> float:
        return work(rows, inner, columns) / clock.seconds(call(rows, inner, columns))

    def work(rows: int, inner: int, columns: int) -> float:
        return 2.0 * times * rows * inner * columns

    with torch.no_grad():
        return _grid(axes, rate, work)


def _all_products(clock: Clock, kinds: Mapping[str, torch.dtype], axes: Axes) -> dict[str, Grid]:
    """Of all types; also with what lies far, with gradients' layout, and for writing."""
    found: dict[str, Grid] = {}
    cpu = clock.device.type == "cpu"
    for name, kind in kinds.items():
        for place in ("", "/far"):
            pool = Pool(clock.device, kind, far=bool(place))
            found[f"{name}{place}"] = _products(clock, pool, 1, axes)
            if cpu and name != "float32":
                break  # it is seldom used there
            found[f"{name}/turned{place}"] = _products(clock, pool, 1, axes, turned=True)
            if cpu:  # another kernel where no gradient is asked for
                found[f"{name}/write{place}"] = _products(clock, pool, 1, axes, product)
    return found


def _there_and_back(
    run: Callable[[], Tensor], inputs: Sequence[Tensor], back: bool
) -> Callable[[], object]:
    """A call that computes, or one that goes back through what was computed."""
    if not back:
        return run
    out = run()
    grad = torch.ones_like(out)
    return lambda: torch.autograd.grad(out, inputs, grad, retain_graph=True)


def _attention(clock: Clock, kind: torch.dtype, back: bool, causal: bool = False) -> Grid:
    def call(queries: int, width: int, keys: int) -> Callable[[], object]:
        parts = [
            torch.randn(1, TIMES, count, width, device=clock.device).to(kind).requires_grad_(back)
            for count in (queries, keys, keys)
        ]
        q, k, v = parts
        run = partial(F.scaled_dot_product_attention, q, k, v, is_causal=causal)
        return _there_and_back(run, parts, back)

    def rate(queries: int, width: int, keys: int) -> float:
        queries = keys if causal else queries
        return work(queries, width, keys) / clock.seconds(call(queries, width, keys))

    def work(queries: int, width: int, keys: int) -> float:
        share = (keys + 1) / (2 * keys) if causal else 1.0
        return (10.0 if back else 4.0) * TIMES * queries * width * keys * share

    return _grid(((1,), *ATTENTION[1:]) if causal else ATTENTION, rate, work)


def _all_attention(clock: Clock, kinds: Mapping[str, torch.dtype], back: bool) -> dict[str, Grid]:
    found = {name: _attention(clock, kind, back) for name, kind in kinds.items()}
    causal = {f"{name}/causal": _attention(clock, kind, back, True) for name, kind in kinds.items()}
    return found | causal


def _recurrence(clock: Clock, kind: torch.dtype, variant: str = "") -> Grid:
    """Rates of an LSTM layer as wide as what it reads: there, `back`, or there to `write`."""
    back = variant == "back"

    def rate(steps: int, rows: int, hidden: int) -> float:
        layer = nn.LSTM(hidden, hidden, batch_first=True, device=clock.device, dtype=kind)
        x = torch.randn(rows, steps, hidden, device=clock.device, dtype=kind, requires_grad=True)
        inputs = [x, *layer.parameters()]
        with torch.set_grad_enabled(variant != "write"):
            call = _there_and_back(lambda: layer(x)[0], inputs, back)
            return work(steps, rows, hidden) / clock.seconds(call)

    def work(steps: int, rows: int, hidden: int) -> float:
        return (2.0 if back else 1.0) * 2 * steps * rows * 8 * hidden * hidden

    return _grid(RECURRENCE, rate, work)


def _all_recurrence(clock: Clock, kinds: Mapping[str, torch.dtype]) -> dict[str, Grid]:
    names = kinds if clock.device.type == "cuda" else {"float32": torch.float32}
    return {
        f"{name}/{variant}".strip("/"): _recurrence(clock, kind, variant)
        for name, kind in names.items()
        for variant in ("", "back", "write")
    }


WIDTH = 512  # of rows that are normalised, looked up and so on


def _samples(numbers: int, device: torch.device) -> Iterator[Callable[[], object]]:
    """Operations that are bound by memory, on so many numbers."""
    rows = max(1, numbers // WIDTH)
    x, y = (torch.ones(rows, WIDTH, device=device) for _ in range(2))
    scale = torch.ones(WIDTH, device=device)
    mean = torch.ones(rows, 1, device=device)
    ids = torch.zeros(rows, dtype=torch.long, device=device)
    step, rate = torch.ones((), device=device), 1e-9
    moments = [torch.ones_like(x) for _ in range(2)]
    yield lambda: y.copy_(x)
    yield lambda: x + y
    yield lambda: x * y
    yield lambda: x.clone()
    yield lambda: torch.cat([x, y])
    yield lambda: x.sum(0)
    yield lambda: torch.tanh(x)
    yield lambda: torch.sigmoid(x)
    yield lambda: F.gelu(x)
    yield lambda: aten.gelu_backward(x, y)
    yield lambda: F.silu(x)
    yield lambda: aten.silu_backward(x, y)
    yield lambda: F.relu(x)
    yield lambda: aten._softmax(x, -1, False)
    yield lambda: aten._softmax_backward_data(x, y, -1, torch.float32)
    yield lambda: aten._log_softmax(x, -1, False)
    yield lambda: aten._log_softmax_backward_data(x, y, -1, torch.float32)
    yield lambda: aten.native_layer_norm(x, [WIDTH], scale, scale, 1e-5)
    yield lambda: aten.native_layer_norm_backward(
        x, y, [WIDTH], mean, mean, scale, scale, [True, True, True]
    )
    yield lambda: torch.empty_like(x).bernoulli_(0.9)
    yield lambda: x.new_empty(x.numel(), dtype=torch.int64).random_(WORDS, None)
    yield lambda: x.pow(2)
    yield lambda: x.mean(-1, keepdim=True)
    yield lambda: torch.rsqrt(x)
    yield lambda: F.embedding(ids, y)
    yield lambda: aten.embedding_dense_backward(x, ids, rows, -1, False)
    yield lambda: torch._foreach_mul_([x], 1.0)
    yield lambda: torch._foreach_norm([x], 2.0)
    yield lambda: x.masked_fill(ids[:, None] > 0, 0.0)
    yield lambda: aten._fused_adamw_(
        [x],
        [y],
        [moments[0]],
        [moments[1]],
        [],
        [step],
        lr=rate,
        beta1=0.9,
        beta2=0.9,
        weight_decay=0.0,
        eps=1e-8,
        amsgrad=False,
        maximize=False,
    )


def _moved(numbers: int) -> list[tuple[str, int]]:
    """The name of each sample, and the bytes that a trace says it moves."""
    found = []
    with torch.no_grad(), tracing(nn.Module()) as tracer:
        for run in _samples(numbers, torch.device("meta")):
            tracer.records.clear()
            run()
            record = max(tracer.records, key=lambda r: r.read + r.written)
            found.append((record.name, record.read + record.written))
    return found


def _traffic(clock: Clock, sizes: Sequence[int]) -> dict[str, Grid]:
    """Bytes a second of each sample, over the bytes that it moves."""
    found: dict[str, dict[int, float]] = {}
    with torch.no_grad():
        least = [clock.least(run) for run in _samples(WIDTH, clock.device)]
        for size in sizes:
            numbers = max(2 * WIDTH, size // 12)  # two tensors in, one out
            runs = zip(_moved(numbers), _samples(numbers, clock.device), least, strict=True)
            for (name, moved), run, small in runs:
                found.setdefault(name, {})[moved] = moved / clock.beyond(run, small)
    return {
        name: Grid((tuple(sorted(rates)),), tuple(rates[size] for size in sorted(rates)))
        for name, rates in found.items()
    }


def _kind(device: torch.device) -> Kind:
    return "cuda" if device.type == "cuda" else "cpu"


def _kernel(clock: Clock) -> float:
    x = torch.zeros(1, device=clock.device)
    return clock.seconds(lambda: [x.add_(1.0) for _ in range(100)]) / 100


def calibrate(
    device: torch.device, budget: float = 60.0, tell: Advance = lambda what: None
) -> Device:
    """Measure a device for about so many seconds."""
    kind = _kind(device)
    clock, begin = Clock(device, budget), time.strftime("%Y-%m-%d")
    kinds = {str(k).removeprefix("torch."): k for k in MEASURED}
    if kind == "cpu":
        keep_freed()
    tell("products")
    products = _all_products(clock, kinds, PRODUCTS[kind])
    tell("many small products")
    batched = {name: _products(clock, Pool(device, k), TIMES, BATCHED) for name, k in kinds.items()}
    tell("attention")
    attention, back = (_all_attention(clock, kinds, back) for back in (False, True))
    tell("recurrence")
    recurrence = _all_recurrence(clock, kinds)
    tell("memory")
    traffic = _traffic(clock, BYTES[kind])
    tell("what the host takes")
    kernel = _kernel(clock)
    fixed, memory = _memory(device)
    near = cache_bytes(device)
    sheet = named_in(here(device.type))
    link = SHEETS[sheet].link if sheet else 0.0
    found = Device(
        here(device.type),
        kind,
        f"measured {begin} on {processor(device)}",
        memory,
        products,
        batched,
        attention,
        back,
        recurrence,
        traffic,
        {},
        kernel,
        fixed,
        link,
        near,
        {"torch": torch.__version__},
    )
    return replace(found, launch=launching(found, device, budget / 60))


def _memory(device: torch.device) -> tuple[int, int]:
    """Bytes that libraries hold once they have multiplied, and bytes that there are."""
    if device.type != "cuda":
        return 0, main_memory()
    torch.cuda.empty_cache()
    there = torch.cuda.get_device_properties(device).total_memory
    return torch.cuda.memory_allocated(device), there

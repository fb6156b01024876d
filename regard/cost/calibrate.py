"""Measuring what a device can do: about a minute of products, copies, kernels and small steps.

Everything is timed as it will be predicted: products over a grid of shapes and types, attention
there and back, what is bound by memory by operation and size, and what it takes to begin an
operation, from a model so small that it does nothing else.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.cost import jobs, real
from regard.cost.device import SHEETS, Device, Grid, here, main_memory
from regard.cost.jobs import Shape
from regard.cost.stand_in import Kind
from regard.cost.trace import tracing
from regard.models.presets import PRESETS

aten = torch.ops.aten
Progress = Callable[[str], None]

# Sizes of products: rows, inner, columns. Shapes that would take too long are left out, and their
# rate is taken to be that of the nearest smaller one.
PRODUCTS = {
    "cpu": ((1, 8, 64, 512, 2048), (64, 256, 1024, 4096), (64, 256, 1024, 4096, 16384)),
    "cuda": ((1, 16, 256, 2048, 16384), (64, 256, 1024, 4096), (64, 256, 1024, 4096, 32768)),
}
BATCHED = ((1, 16, 128, 512), (32, 64, 128), (16, 128, 512))
ATTENTION = ((1, 64, 512, 2048), (32, 64, 128), (64, 512, 2048))
TIMES = 32  # small products, or heads of all rows, at once
BYTES = {
    "cpu": (1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 27),
    "cuda": (1 << 16, 1 << 20, 1 << 24, 1 << 28, 1 << 30),
}
LONGEST = 0.06  # seconds of one call


class Clock:
    """Times calls, each for a share of the whole budget."""

    def __init__(self, device: torch.device, budget: float) -> None:
        self.device, self.each = device, max(budget / 400, 0.005)

    def seconds(self, run: Callable[[], object]) -> float:
        return real.seconds(run, self.device, self.each)


def kinds_for(device: torch.device) -> tuple[torch.dtype, ...]:
    """The types that are measured: bfloat16 on CPUs too, where it is often slow."""
    return torch.float32, torch.bfloat16


def _grid(
    axes: Sequence[Sequence[int]], rate: Callable[..., float], work: Callable[..., float]
) -> Grid:
    """Rates over all sizes; the longest are not tried once a smaller one was slow enough."""
    found: dict[tuple[int, ...], float] = {}
    best = 1e9
    for sizes in product(*axes):
        if work(*sizes) / best <= LONGEST:
            found[sizes] = rate(*sizes)
            best = max(best, found[sizes])
    filled = [found.get(sizes) or _nearest(sizes, found) for sizes in product(*axes)]
    return Grid(tuple(tuple(axis) for axis in axes), tuple(filled))


def _nearest(sizes: Sequence[int], found: Mapping[tuple[int, ...], float]) -> float:
    """The rate of the largest shape that is in no direction larger."""
    below = [s for s in found if all(a <= b for a, b in zip(s, sizes, strict=True))]
    nearest = max(below, key=lambda s: (torch.Size(s).numel(), s))
    return found[nearest]


def _products(clock: Clock, kind: torch.dtype, times: int, axes: Sequence[Sequence[int]]) -> Grid:
    def rate(rows: int, inner: int, columns: int) -> float:
        shape = () if times == 1 else (times,)
        a = torch.randn(*shape, rows, inner, device=clock.device).to(kind)
        b = torch.randn(*shape, columns, inner, device=clock.device).to(kind)
        return work(rows, inner, columns) / clock.seconds(lambda: a @ b.mT)

    def work(rows: int, inner: int, columns: int) -> float:
        return 2.0 * times * rows * inner * columns

    return _grid(axes, rate, work)


def _attention(clock: Clock, kind: torch.dtype, back: bool) -> Grid:
    def rate(queries: int, width: int, keys: int) -> float:
        parts = [
            torch.randn(1, TIMES, count, width, device=clock.device).to(kind).requires_grad_(back)
            for count in (queries, keys, keys)
        ]
        q, k, v = parts

        def forward() -> Tensor:
            return F.scaled_dot_product_attention(q, k, v)

        if not back:
            with torch.no_grad():
                return work(queries, width, keys) / clock.seconds(forward)
        mixed = forward()
        grad = torch.ones_like(mixed)

        def backward() -> Any:
            return torch.autograd.grad(mixed, parts, grad, retain_graph=True)

        return work(queries, width, keys) / clock.seconds(backward)

    def work(queries: int, width: int, keys: int) -> float:
        return (10.0 if back else 4.0) * TIMES * queries * width * keys

    return _grid(ATTENTION, rate, work)


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
    for size in sizes:
        numbers = max(WIDTH, size // 12)  # two tensors in, one out
        with torch.no_grad():
            runs = _samples(numbers, clock.device)
            for (name, moved), run in zip(_moved(numbers), runs, strict=True):
                found.setdefault(name, {})[moved] = moved / clock.seconds(run)
    return {
        name: Grid((tuple(sorted(rates)),), tuple(rates[size] for size in sorted(rates)))
        for name, rates in found.items()
    }


def _launch(device: torch.device) -> dict[str, float]:
    """What it takes to begin an operation: a tiny model's time over the number of them."""
    config = replace(PRESETS["gpt2-tiny"], dropout=0.0, attention_dropout=0.0)
    shape = Shape(1, 4)
    kind = _kind(device)
    train = real.seconds(real.training(config, shape, device), device, 1.0)
    write = real.seconds(real.writing(config, shape, device), device, 1.0)
    return {
        "train": train / len(jobs.train_step(config, shape, kind).records),
        "write": write / len(jobs.step(config, shape, kind).records),
    }


def _kind(device: torch.device) -> Kind:
    return "cuda" if device.type == "cuda" else "cpu"


def _kernel(clock: Clock) -> float:
    x = torch.zeros(1, device=clock.device)
    return clock.seconds(lambda: [x.add_(1.0) for _ in range(100)]) / 100


def calibrate(
    device: torch.device, budget: float = 60.0, tell: Progress = lambda what: None
) -> Device:
    """Measure a device for about so many seconds."""
    kind = _kind(device)
    clock, begin = Clock(device, budget), time.strftime("%Y-%m-%d")
    kinds = {str(k).removeprefix("torch."): k for k in kinds_for(device)}
    tell("products")
    products = {name: _products(clock, k, 1, PRODUCTS[kind]) for name, k in kinds.items()}
    tell("many small products")
    batched = {name: _products(clock, k, TIMES, BATCHED) for name, k in kinds.items()}
    tell("attention")
    attention = {name: _attention(clock, k, False) for name, k in kinds.items()}
    back = {name: _attention(clock, k, True) for name, k in kinds.items()}
    tell("memory")
    traffic = _traffic(clock, BYTES[kind])
    tell("overheads")
    launch, kernel = _launch(device), _kernel(clock)
    fixed, memory = _memory(device)
    link = next((s.link for name, s in SHEETS.items() if name in here(device.type).split("-")), 0.0)
    return Device(
        here(device.type),
        kind,
        f"measured {begin}",
        memory,
        products,
        batched,
        attention,
        back,
        traffic,
        launch,
        kernel,
        fixed,
        link,
        {"torch": torch.__version__},
    )


def _memory(device: torch.device) -> tuple[int, int]:
    """Bytes that libraries hold once they have multiplied, and bytes that there are."""
    if device.type != "cuda":
        return 0, main_memory()
    torch.cuda.empty_cache()
    there = torch.cuda.get_device_properties(device).total_memory
    return torch.cuda.memory_allocated(device), there

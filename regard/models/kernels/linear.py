"""The product of every layer, xWᵀ + b, by the fastest kernel."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.models.kernels.switches import PLAIN, Switch

# Multiplications from which our own way back pays; of half as many it costs a sixth.
LARGE = 1 << 21


def _onednn() -> bool:
    """Whether torch has the product of oneDNN that takes weights as they are."""
    try:
        _ = torch.ops.mkldnn._linear_pointwise
    except (AttributeError, RuntimeError):
        return False
    return torch.backends.mkldnn.is_available()


ONEDNN = not PLAIN and _onednn()


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (..., inputs), weight (outputs, inputs), bias (outputs,) -> (..., outputs).

    On a CPU, float32 products go to MKL, which has half of oneDNN's speed on AMD's processors: with
    gradients 7.2 against 3.2 ms for 2,048 rows of 128 -> 512, and 125 against 61 for 1,024 of 768
    -> 3,072. Without gradients oneDNN takes them all: it is quicker from about a million
    multiplications on, and what its call costs more for fewer is 10 µs (docs/measurements.md).
    """
    if ONEDNN and _plain(x) and _plain(weight) and x.numel() and not watched():
        if not torch.is_grad_enabled():
            return by_onednn(x, weight, bias)
        if trained_by_onednn(x, weight):
            return ByOneDNN.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    if x.is_cuda and not PLAIN and _uneven(x, weight):
        return _evened(x, weight, bias)
    return F.linear(x, weight, bias)


def trained_by_onednn(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN makes the product of x (..., inputs) with a weight in training."""
    large = x.numel() * len(weight) >= LARGE
    return large and _plain(x) and _plain(weight) and onednn_is_exact()


def by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The product by oneDNN, without a way back."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def onednn_is_exact() -> bool:
    """Whether `products_by_onednn` is of use: on AMD's processors, where it keeps float32."""
    return ONEDNN and bool(torch.backends.mkldnn.enabled) and _tried()


@cache
def _tried() -> bool:
    """With less than AVX-512 the switch does nothing, and with bfloat16 at hand it takes that.

    MKL is slow on AMD's processors only; on Intel's nothing was measured.
    """
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or "AuthenticAMD" not in processor():
        return False
    numbers = torch.Generator().manual_seed(0)
    a, b = (
        torch.randn(128, 128, generator=numbers, dtype=torch.float32, device="cpu")
        for _ in range(2)
    )
    with products_by_onednn():
        found = a @ b
    return bool((found - a.double() @ b.double()).abs().max() < 1e-3)  # in bfloat16 it is 0.1


def processor() -> str:
    """What Linux says of the first processor; nothing elsewhere."""
    try:
        return Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return ""


@contextmanager
def _onednn_for_products() -> Iterator[None]:
    onednn: Any = torch.backends.mkldnn
    before = onednn.matmul.fp32_precision
    onednn.matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        onednn.matmul.fp32_precision = before


_switch = Switch(_onednn_for_products)


def products_by_onednn() -> AbstractContextManager[None]:
    """Products of matrices in float32 on a CPU by oneDNN meanwhile, in all threads."""
    return _switch.on()


def quick_products() -> AbstractContextManager[None]:
    """The same where it is of use; for work that has no attention in it."""
    return products_by_onednn() if onednn_is_exact() else nullcontext()


class ByOneDNN(torch.autograd.Function):
    """The product and its way back by oneDNN, but for a few rows.

    oneDNN keeps a program for each shape, half a megabyte, so that a thousand batches of different
    sizes took gigabytes. So it gets a number of rows of which there are eight from each power of 2
    to the next, and MKL the rest.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        rows = x.reshape(-1, x.shape[-1])  # (rows, inputs)
        first = _first(len(rows))
        if first == len(rows):  # 20 µs less, which the bias would take by itself
            return by_onednn(x, weight, bias)
        whole = x.new_empty(*x.shape[:-1], len(weight))
        out = whole.view(len(rows), -1)
        with products_by_onednn():
            torch.mm(rows[:first], weight.mT, out=out[:first])
        torch.mm(rows[first:], weight.mT, out=out[first:])
        return whole if bias is None else whole.add_(bias)  # addmm takes a little longer

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """grad (..., outputs) -> those of x, weight and bias."""
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        grads, rows = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
        of_bias = grads.sum(0) if of_bias else None
        if torch.is_grad_enabled() or watched() or _many(grad):  # somebody wants more of it
            with torch.autocast("cpu", enabled=False):
                back = grad.to(weight.dtype) @ weight if of_x else None
                change = grads.to(x.dtype).mT @ rows if of_weight else None
            return back, change, of_bias
        first = _first(len(rows))
        flat = torch.empty_like(rows) if of_x else None
        with products_by_onednn():
            if flat is not None:
                torch.mm(grads[:first], weight, out=flat[:first])
            change = grads[:first].mT @ rows[:first] if of_weight else None
        if first < len(rows):
            if flat is not None:
                torch.mm(grads[first:], weight, out=flat[first:])
            if change is not None:
                change.addmm_(grads[first:].mT, rows[first:])
        return None if flat is None else flat.view(x.shape), change, of_bias


def _many(grad: Tensor) -> bool:
    """Whether many gradients are asked for at once."""
    return bool(torch._C._functorch.is_legacy_batchedtensor(grad))


def _first(rows: int) -> int:
    """So many rows go to oneDNN: those that the first four digits of the number, in twos, say."""
    step = 1 << max(rows.bit_length() - 4, 0)
    return rows // step * step


# Matrices of a vocabulary have as many rows as there are words. Tensor cores want a multiple of 8:
# with 32,661 the three products of a step of 5,600 tokens took 5.8 ms in bf16.
EVEN = 8
MANY = 512  # outputs, and rows, from which a copy of the weight is little beside the product


def _uneven(x: Tensor, weight: Tensor) -> bool:
    outputs, rows = len(weight), x.numel() // x.shape[-1]
    return outputs % EVEN != 0 and min(outputs, rows) >= MANY


def _evened(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The same product with rows of zeros added to the weight, whose results are left out."""
    outputs = len(weight)
    more = -outputs % 64
    bias = None if bias is None else F.pad(bias, (0, more))
    return F.linear(x, F.pad(weight, (0, 0, 0, more)), bias)[..., :outputs]


def _plain(tensor: Tensor) -> bool:
    """Numbers in this machine's memory, and no share of something else."""
    return (
        tensor.dtype == torch.float32
        and tensor.device.type == "cpu"
        and type(tensor) in (Tensor, nn.Parameter)
    )


def watched() -> bool:
    """Whether other derivatives, a compiler, autocast or a counter want to see the product."""
    return (
        transformed()
        or torch.is_autocast_enabled("cpu")
        or torch._C._len_torch_dispatch_stack() > 0
    )


def transformed() -> bool:
    """Whether other derivatives or a compiler read what is computed."""
    return (
        torch.autograd.forward_ad._current_level >= 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch.jit.is_tracing()
        or torch.compiler.is_compiling()
    )


class Linear(nn.Linear):
    """`nn.Linear` by `product`."""

    def forward(self, x: Tensor) -> Tensor:
        return product(x, self.weight, self.bias)

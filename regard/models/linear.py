"""The product of every layer, xWᵀ + b, by the fastest kernel."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

LARGE = (
    1 << 21
)  # multiplications from which our own way back pays; of half as many it costs a sixth


def _onednn() -> bool:
    """Whether torch has the product of oneDNN that takes weights as they are."""
    try:
        _ = torch.ops.mkldnn._linear_pointwise
    except (AttributeError, RuntimeError):
        return False
    return torch.backends.mkldnn.is_available()


ONEDNN = _onednn()


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (..., inputs), weight (outputs, inputs), bias (outputs,) -> (..., outputs).

    On a CPU, float32 products go to MKL, which has half of oneDNN's speed on AMD's processors: with
    gradients 7.2 against 3.2 ms for 2,048 rows of 128 -> 512, and 125 against 61 for 1,024 of 768
    -> 3,072. Without gradients oneDNN is never slower from one row on (docs/measurements.md).
    """
    if ONEDNN and _plain(x) and _plain(weight) and x.numel() and not _watched():
        if not torch.is_grad_enabled():
            return by_onednn(x, weight, bias)
        if x.numel() * len(weight) >= LARGE and onednn_is_exact():
            return ByOneDNN.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    if x.is_cuda and len(weight) % EVEN and len(weight) >= MANY <= x.numel() // x.shape[-1]:
        return _evened(x, weight, bias)
    return F.linear(x, weight, bias)


def by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The product by oneDNN, without a way back."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


@cache
def onednn_is_exact() -> bool:
    """Whether `products_by_onednn` keeps float32: processors that have bfloat16 take that."""
    if not ONEDNN:
        return False
    numbers = torch.Generator().manual_seed(0)
    a, b = (torch.randn(128, 128, generator=numbers) for _ in range(2))
    with products_by_onednn():
        found = a @ b
    return bool((found - a.double() @ b.double()).abs().max() < 1e-3)  # in bfloat16 it is 0.1


@contextmanager
def products_by_onednn() -> Iterator[None]:
    """Products of matrices in float32 on a CPU by oneDNN meanwhile, in all threads."""
    onednn: Any = torch.backends.mkldnn
    before = onednn.matmul.fp32_precision
    onednn.matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        onednn.matmul.fp32_precision = before


@contextmanager
def quick_products() -> Iterator[None]:
    """The same where it keeps float32; for work that has no attention in it."""
    with products_by_onednn() if onednn_is_exact() else nullcontext():
        yield


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
        out = rows.new_empty(len(rows), len(weight))
        with products_by_onednn():
            _multiply(rows[:first], weight.mT, bias, out[:first])
        _multiply(rows[first:], weight.mT, bias, out[first:])
        return out.view(*x.shape[:-1], len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """grad (..., outputs) -> those of x, weight and bias."""
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        grads, rows = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
        first = _first(len(rows))
        back = torch.empty_like(rows) if of_x else None
        with products_by_onednn():
            if back is not None:
                _multiply(grads[:first], weight, None, back[:first])
            change = grads[:first].mT @ rows[:first] if of_weight else None
        if back is not None:
            _multiply(grads[first:], weight, None, back[first:])
        if change is not None and first < len(rows):
            change.addmm_(grads[first:].mT, rows[first:])
        back = None if back is None else back.view(x.shape)
        return back, change, grads.sum(0) if of_bias else None


def _first(rows: int) -> int:
    """So many rows go to oneDNN: those that the first four digits of the number, in twos, say."""
    step = 1 << max(rows.bit_length() - 4, 0)
    return rows // step * step


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """out (rows, outputs) = x (rows, inputs) times a weight (inputs, outputs), plus a bias."""
    if len(x) and bias is not None:
        torch.addmm(bias, x, weight, out=out)
    elif len(x):
        torch.mm(x, weight, out=out)


# Matrices of a vocabulary have as many rows as there are words. Tensor cores want a multiple of 8:
# with 32,661 the three products of a step of 5,600 tokens took 5.8 ms in bf16.
EVEN = 8
MANY = 512  # outputs, and rows, from which a copy of the weight is little beside the product


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


def _watched() -> bool:
    """Whether other derivatives, a compiler, autocast or a counter want to see the product."""
    return (
        torch.autograd.forward_ad._current_level >= 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch.jit.is_tracing()
        or torch.compiler.is_compiling()
        or torch.is_autocast_enabled("cpu")
        or torch._C._len_torch_dispatch_stack() > 0
    )


class Linear(nn.Linear):
    """`nn.Linear` by `product`."""

    def forward(self, x: Tensor) -> Tensor:
        return product(x, self.weight, self.bias)

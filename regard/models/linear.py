"""The product of every layer, xWᵀ + b, by the fastest kernel."""

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
    gradients 7.2 against 3.5 ms for 2,048 rows of 128 -> 512, and 125 against 61 for 1,024 of 768
    -> 3,072. Without gradients oneDNN is never slower from one row on (docs/measurements.md).
    """
    if ONEDNN and _plain(x) and _plain(weight) and x.numel() and not _watched():
        if not torch.is_grad_enabled():
            return by_onednn(x, weight, bias)
        if x.numel() * len(weight) >= LARGE:
            return ByOneDNN.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    if x.is_cuda and len(weight) % EVEN and len(weight) >= MANY <= x.numel() // x.shape[-1]:
        return _evened(x, weight, bias)
    return F.linear(x, weight, bias)


def by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The same by oneDNN, without a way back."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class ByOneDNN(torch.autograd.Function):
    """The same there and back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return by_onednn(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """grad (..., outputs) -> those of x, weight and bias."""
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        flat = grad.reshape(-1, grad.shape[-1])  # (rows, outputs)
        return (
            by_onednn(grad, weight.mT) if of_x else None,
            by_onednn(flat.mT, x.reshape(-1, x.shape[-1]).mT) if of_weight else None,
            flat.sum(0) if of_bias else None,
        )


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

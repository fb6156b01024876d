"""The product of every layer, xWᵀ + b, by the fastest kernel where no gradient is asked for."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


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

    On a CPU, float32 products go to MKL, which is slower than oneDNN at the sizes of decoding: at
    128 rows and two threads 13.7 against 8.6 ms for 512 -> 10,261, a third less for the others, and
    never more from one row on (docs/measurements.md).
    """
    if ONEDNN and not _watched() and _plain(x) and _plain(weight) and x.numel():
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    if x.is_cuda and len(weight) % EVEN and len(weight) >= MANY <= x.numel() // x.shape[-1]:
        return _evened(x, weight, bias)
    return F.linear(x, weight, bias)


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
    """Whether derivatives, a compiler, autocast or a counter want to see the product."""
    return (
        torch.is_grad_enabled()
        or torch.autograd.forward_ad._current_level >= 0
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

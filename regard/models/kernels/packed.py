"""Weights laid out once as the CPU's kernel wants them, for writing with a float32 model.

oneDNN takes weights as they are, too (`models/kernels/linear.py`), and lays them out anew in each
product: a step of a `transformer-base` with 128 rows takes about a tenth longer that way. On AMD's
processors MKL's layout is half as quick (docs/measurements.md); on Intel's it was a tenth quicker
where it was tried, of which the log has no figures. The plain weights are not kept beside the
packed ones, so a packed model takes no more memory, but for a tied head, whose embedding stays
beside it. It can be neither moved, saved nor trained.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from regard.errors import RegardError
from regard.models.kernels.converted import Converted, M, converted
from regard.models.kernels.linear import ONEDNN, processor
from regard.models.transformer.model import Transformer

ROWS = 128  # what the layout is chosen for; any number may come


class Layout(Protocol):
    """A kernel's way to hold a weight."""

    def __init__(self, weight: Tensor) -> None:
        """Take in a weight (out, in)."""

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x (..., in), bias (out,) -> (..., out)."""
        ...


class OneDNN:
    """That of oneDNN."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, bias, "none", [], "")


class MKL:
    """That of MKL, which serves any number of rows if the call says that it is the right one."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = torch.ops.mkl._mkl_reorder_linear_weight(weight.contiguous(), ROWS)
        self.shape = weight.new_zeros(1).expand_as(weight)  # asked for its shape only

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        rows = x.numel() // x.shape[-1]
        return torch.ops.mkl._mkl_linear(x, self.weight, self.shape, bias, rows)


@cache
def quickest() -> type[Layout]:
    """The layout for this machine's processor."""
    there = hasattr(torch.ops.mkl, "_mkl_linear") and torch.backends.mkl.is_available()
    return MKL if there and "GenuineIntel" in processor() else OneDNN


class PackedLinear(Converted):
    """`nn.Linear` with its weight in a kernel's own layout."""

    bias: Tensor | None  # (out,)

    def __init__(
        self, weight: Tensor, bias: Tensor | None = None, layout: type[Layout] | None = None
    ) -> None:
        """Lay out a weight (out, in), as is quickest here; the bias (out,) stays as it is."""
        super().__init__()
        self.training = False
        self.outputs, self.inputs = weight.shape
        self.weight = (layout or quickest())(weight.detach())
        self.register_buffer("bias", None if bias is None else bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """x (..., in) -> (..., out)."""
        if self.training or (x.requires_grad and torch.is_grad_enabled()):
            raise RegardError("packed weights cannot be trained; load the model without packing")
        if not x.numel():
            return x.new_zeros(*x.shape[:-1], self.outputs)
        return self.weight.product(x, self.bias)

    def extra_repr(self) -> str:
        return f"{self.inputs}, {self.outputs}, bias={self.bias is not None}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        return _stay()

    def _save_to_state_dict(self, *args: Any) -> None:
        raise RegardError("packed weights are not for saving; save the model they were made from")


def packed(module: M, *, keep: bool = True) -> M:
    """A copy for writing on this CPU, as `converted` makes it; the module if nothing is gained."""
    if not (ONEDNN and _plain(module)):
        return module
    made = converted(module, PackedLinear, keep=keep)
    # Of the whole model too: else its other parts would have moved when the first layer refuses.
    setattr(made, "_apply", _stay)  # noqa: B010
    return made


def _plain(module: nn.Module) -> bool:
    """Whether all weights of products are there as they are, in float32 and in main memory."""
    if any(isinstance(part, Converted) for part in module.modules()):
        return False
    weights = [part.weight for part in module.modules() if isinstance(part, nn.Linear)]
    if isinstance(module, Transformer):
        weights.append(module.embed.tokens.weight)
    return bool(weights) and all(
        weight.dtype == torch.float32 and weight.device.type == "cpu" for weight in weights
    )


def _stay(*_: Any, **__: Any) -> Any:
    raise RegardError("packed weights stay where they are; load the model on the other device")

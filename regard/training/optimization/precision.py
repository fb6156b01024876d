"""In which numbers a model is trained.

`float32` everywhere; `bf16`: float32 weights, products in bfloat16 (autocast); `bf16-weights`:
weights in bfloat16 too, with float32 masters that the optimizer changes, half the traffic.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Literal, cast, get_args

import torch
from torch import Tensor, nn

from regard.errors import RegardError, nearest
from regard.models.kernels.attention import any_shape
from regard.training.distributed.sharding import local

Precision = Literal["float32", "bf16", "bf16-weights"]


def choose(asked: str, device: torch.device) -> Precision:
    """What "auto" stands for here: bf16 where the machine has it in hardware."""
    if asked == "auto":
        fast = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return "bf16" if fast else "float32"
    for known in get_args(Precision):
        if asked == known:
            return cast(Precision, known)
    raise RegardError(f"precision cannot be {asked!r}; {nearest(asked, get_args(Precision))}")


@contextmanager
def computing(precision: Precision, device: torch.device, varied: bool = False) -> Iterator[None]:
    """Where a forward pass is to run: in this precision, ready for `varied` shapes if need be."""
    with (
        any_shape() if varied else nullcontext(),
        torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext(),
    ):
        yield


class Weights:
    """The float32 numbers that training changes, and the module that computes with them.

    They are the module's own parameters, or masters beside parameters in bfloat16.
    """

    def __init__(self, module: nn.Module, precision: Precision) -> None:
        self.module = module
        self.own: dict[str, Tensor] = dict(module.named_parameters())
        self.masters = self.own
        if precision == "bf16-weights":
            self.masters = {name: w.detach().float().clone() for name, w in self.own.items()}
            module.to(torch.bfloat16)
            self.own = dict(module.named_parameters())

    def gather(self) -> None:
        """Hand the gradients of the last pass to the masters."""
        if self.masters is not self.own:
            for name, weight in self.own.items():
                self.masters[name].grad = None if weight.grad is None else weight.grad.float()
                weight.grad = None

    @torch.no_grad()
    def publish(self) -> None:
        """Let the module compute with what the masters now hold."""
        if self.masters is not self.own:
            torch._foreach_copy_(list(self.own.values()), list(self.masters.values()))

    @torch.no_grad()
    def load(self, values: Mapping[str, Tensor]) -> None:
        """Take over the numbers of some tensors, name by name; of shares, this process's rows."""
        for name, master in self.masters.items():
            local(master).copy_(local(values[name]))
        self.publish()

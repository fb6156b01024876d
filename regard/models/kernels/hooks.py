"""Who reads, or changes, what passes through a module: a fused kernel would show them nothing."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from regard.models.kernels.linear import watched


class Part(nn.Module):
    """A place in a computation where a tape can read and change what passes; it has no weights."""

    def __init__(self, compute: Callable[..., Any]) -> None:
        super().__init__()
        self.compute = compute

    def forward(self, *given: Any) -> Any:
        return self.compute(*given)


def listened(*modules: nn.Module) -> bool:
    """Whether anybody has hooks on one of these modules."""
    return any(module._forward_hooks or module._forward_pre_hooks for module in modules)


def undisturbed(module: nn.Module) -> bool:
    """Whether nobody looks on who would see only one of several threads."""
    every = nn.modules.module._global_forward_hooks or nn.modules.module._global_forward_pre_hooks
    seen = torch._C._autograd._profiler_enabled() or torch._C._len_torch_function_stack() > 0
    return not (every or listened(*module.modules()) or seen or watched())

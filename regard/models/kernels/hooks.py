"""Who reads, or changes, what passes through a module: a fused kernel would show them nothing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from regard.models.kernels.linear import watched


class Part(nn.Module):
    """A place in a computation where a tape can read and change what passes; it has no weights."""

    listeners = 0  # who want it to be called, instead of a kernel that does all at once

    def __init__(self, compute: Callable[..., Any]) -> None:
        super().__init__()
        self.compute = compute

    def forward(self, *given: Any) -> Any:
        return self.compute(*given)


@contextmanager
def heard(part: nn.Module, hook: Callable[..., Any]) -> Iterator[None]:
    """Meanwhile `hook` is called behind a part, with (part, args, kwargs, output).

    Other hooks, as the tracer of costs has them, leave kernels as they are.
    """
    handle = part.register_forward_hook(hook, with_kwargs=True)
    held: Any = part
    held.listeners = getattr(part, "listeners", 0) + 1
    try:
        yield
    finally:
        held.listeners -= 1
        handle.remove()


def undisturbed(module: nn.Module) -> bool:
    """Whether nobody looks on who would see only one of several threads."""
    hooks = [nn.modules.module._global_forward_hooks, nn.modules.module._global_forward_pre_hooks]
    for part in module.modules():
        hooks += [part._forward_hooks, part._forward_pre_hooks]
    seen = torch._C._autograd._profiler_enabled() or torch._C._len_torch_function_stack() > 0
    return not (any(hooks) or seen or watched())

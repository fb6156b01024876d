"""Where modules are made: on a device that this machine has, or on `meta`, of shapes alone."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.errors import RegardError
from regard.models.config import ModelConfig


def usable(device: torch.device | str) -> torch.device:
    """The device, if this machine has it."""
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        reason = str(error).splitlines()[0]
        raise RegardError(f"device {str(device)!r} cannot be used here: {reason}") from None


@contextmanager
def made_on(device: torch.device | str | None) -> Iterator[None]:
    """Modules made meanwhile lie there; without a device, where torch makes tensors anyway."""
    with usable(device or torch.get_default_device()), Undrawn():
        yield


def build(config: ModelConfig, device: torch.device | str | None = None) -> Any:
    """The module that settings describe, freshly initialised; on `meta` it takes no memory."""
    if not isinstance(config, ModelConfig):
        raise RegardError(f"build needs a model's settings, not a {type(config).__name__}")
    with made_on(device):
        return config.module()


class Prebuilt:
    """A module that is built before its run begins, so that it can be tried.

    The run takes it as if it were built then: nobody changes its weights until `take`, which also
    puts the generators of random numbers where building a module leaves them.
    """

    def __init__(self, config: ModelConfig, device: torch.device, seed: int) -> None:
        torch.manual_seed(seed)
        self.module: Any = build(config, device)
        self._random = torch.get_rng_state()
        self._gpu = device if device.type == "cuda" else None
        self._gpu_random = torch.cuda.get_rng_state(device) if self._gpu else self._random

    def take(self) -> Any:
        """The module for the one who asks first; None for all others."""
        module, self.module = self.module, None
        if module is not None:
            torch.set_rng_state(self._random)
            if self._gpu:
                torch.cuda.set_rng_state(self._gpu_random, self._gpu)
        return module


class Undrawn(TorchFunctionMode):
    """Nothing is drawn on `meta`, where there is nothing to fill.

    torch imports its compiler and sympy for it: 1.3 s and 58 MB, of every command that opens a run.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = kwargs or {}
        if func in DRAWS:
            filled = args[0] if args else named["tensor"]
            if filled.is_meta:
                return filled
        return func(*args, **named)


# A call of the function asks first, and then the method that it calls does not.
DRAWS = (nn.init.normal_, Tensor.normal_)

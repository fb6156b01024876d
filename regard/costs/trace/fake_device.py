"""Meta tensors that stand in for a device: no numbers, no memory, and yet the same path.

A model asks its tensors where they are, and chooses kernels by the answer. Under `FakeDevice` meta
tensors answer as those of a CPU or of a CUDA device would, mixed precision casts as there, and what
torch decides below Python (which kernel attention or an LSTM runs on) is decided in `kernels.py`.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from regard.costs.trace.kernels import KERNELS, Kernel

Kind = Literal["cpu", "cuda"]

# What autocast computes in half precision, and what in float32 (ATen/autocast_mode.h).
LOWER = frozenset(
    [
        "linear",
        "matmul",
        "mm",
        "bmm",
        "mv",
        "addmm",
        "addbmm",
        "baddbmm",
        "einsum",
        "conv1d",
        "conv2d",
        "conv3d",
        "scaled_dot_product_attention",
        "lstm_cell",
        "gru_cell",
        "rnn_tanh_cell",
    ]
)
UPPER = frozenset(
    [
        "layer_norm",
        "rms_norm",
        "group_norm",
        "softmax",
        "log_softmax",
        "cross_entropy",
        "nll_loss",
        "logsumexp",
        "exp",
        "log",
        "pow",
        "rsqrt",
        "reciprocal",
        "sum",
        "prod",
        "cumsum",
        "norm",
    ]
)


class FakeDevice(TorchFunctionMode):
    """While it lasts, meta tensors say that they are on a device of this kind."""

    def __init__(self, kind: Kind, written_out: bool = False) -> None:
        """`written_out`: attention is computed without a fused kernel, every part of it."""
        super().__init__()
        self.kind: Kind = kind
        # With a number: code that says "cpu" means the host, whose tensors stay real.
        self.device = torch.device(kind, 0)
        self.kernels: Mapping[Any, Kernel] = KERNELS[kind, written_out]
        self.read: Callable[[Tensor], Tensor | None] = lambda tensor: None  # what is known of it
        self.tell: Callable[[Tensor, Tensor], None] = lambda tensor, numbers: None
        self._cast: dict[int, tuple[Tensor, Tensor]] = {}  # weights that are cast already

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "__get__":
            return self._told(func, args[0])
        if name == "tolist" and args[0].is_meta and (known := self.read(args[0])) is not None:
            return known.tolist()
        if name == "tensor" and kwargs.get("device") == self.device:
            return self._made(func(*args, **{**kwargs, "device": "cpu"}))
        args = tuple(self._placed(value) for value in args)
        if "device" in kwargs:
            kwargs["device"] = self._placed(kwargs["device"])
        if torch.is_autocast_enabled(self.kind):
            args, kwargs = self._mixed(name, args, kwargs)
        return self.kernels.get(func, func)(*args, **kwargs)

    def _told(self, getter: Any, tensor: Tensor) -> Any:
        """An attribute of a tensor, as the device would have it."""
        if tensor.is_meta:
            match getter.__self__.__name__:
                case "device":
                    return self.device
                case "is_cuda":
                    return self.kind == "cuda"
                case "is_cpu":
                    return self.kind == "cpu"
        return getter(tensor)

    def _made(self, numbers: Tensor) -> Tensor:
        """A tensor of numbers that the host has."""
        made = torch.empty_like(numbers, device="meta")
        self.tell(made, numbers)
        return made

    def _placed(self, value: Any) -> Any:
        same = isinstance(value, torch.device) and value == self.device
        return torch.device("meta") if same else value

    def _mixed(self, name: str, args: Any, kwargs: Any) -> Any:
        """The arguments as autocast would hand them on."""
        if name in LOWER:
            return tree_map(self._lowered, (args, kwargs))
        if name in UPPER:
            return tree_map(_raised, (args, kwargs))
        return args, kwargs

    def _lowered(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dtype != torch.float32 or not value.is_meta:
            return value
        if not (value.is_leaf and value.requires_grad):
            return value.to(torch.bfloat16)
        if id(value) not in self._cast:  # a weight is cast once for a whole pass
            self._cast[id(value)] = value, value.to(torch.bfloat16)
        return self._cast[id(value)][1]

    @contextmanager
    def mixed(self) -> Iterator[None]:
        """A pass in mixed precision. (`torch.autocast` does nothing where there is no GPU.)"""
        before = torch.is_autocast_enabled(self.kind)
        torch.set_autocast_enabled(self.kind, True)
        try:
            yield
        finally:
            torch.set_autocast_enabled(self.kind, before)
            self._cast.clear()

    def twice(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """A function that is computed again going back, on this device then too.

        Autograd takes no function modes along, nor the autocast of a device that is not there.
        """
        mixed = False

        def run(*given: Any, **named: Any) -> Any:
            nonlocal mixed
            if torch._C._len_torch_function_stack():
                mixed = torch.is_autocast_enabled(self.kind)
                return forward(*given, **named)
            with self, self.mixed() if mixed else nullcontext():
                return forward(*given, **named)

        return run


def _raised(value: Any) -> Any:
    half = isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16)
    return value.float() if half else value

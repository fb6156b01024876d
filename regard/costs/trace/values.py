"""The few numbers that are known although nothing is computed: lengths, positions, document ids.

Meta tensors have no numbers. But what a mask hides follows from small tensors of whole numbers, and
those are computed beside them on the host, operation by operation, as long as all that goes into
one is known.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakIdKeyDictionary

from regard.costs.trace.rules import tensors

MOST = 1 << 22  # elements; larger ones are not needed to know who sees whom
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


class Values:
    """What is known of meta tensors."""

    def __init__(self) -> None:
        self.known = WeakIdKeyDictionary()

    def of(self, tensor: Tensor) -> Tensor | None:
        """The numbers of a tensor on the host, if they are known."""
        if not tensor.is_meta:
            return tensor
        return self.known.get(tensor)

    def result(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What an operation gives, if all it is given is known; else nothing."""
        given = tensors((args, kwargs))
        if not all(map(self._usable, given)) or torch.Tag.nondeterministic_seeded in func.tags:
            return None
        if not given and not _creates_numbers(func, args, kwargs):
            return None
        kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory"}
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        args, kwargs = tree_map(self._found, (args, kwargs))
        return func(*args, **kwargs)

    def note(self, out: Any, result: Any) -> None:
        """Remember the numbers of what an operation gave."""
        for tensor, found in zip(tree_leaves(out), tree_leaves(result), strict=False):
            both = isinstance(tensor, Tensor) and isinstance(found, Tensor) and tensor.is_meta
            if both and found.dtype in WHOLE and found.numel() <= MOST:
                self.known[tensor] = found

    def tell(self, tensor: Tensor, numbers: Tensor) -> None:
        """The numbers of a tensor, from outside."""
        self.known[tensor] = numbers

    def _usable(self, tensor: Tensor) -> bool:
        whole = tensor.dtype in WHOLE and tensor.numel() <= MOST
        return whole and self.of(tensor) is not None

    def _found(self, value: Any) -> Any:
        return self.of(value) if isinstance(value, Tensor) else value


CREATORS = ("arange", "zeros", "ones", "full", "scalar_tensor")


def _creates_numbers(func: Any, args: Sequence[Any], kwargs: Any) -> bool:
    """Whether whole numbers, and not too many, are made of nothing."""
    name = func.overloadpacket.__name__
    if name not in CREATORS:
        return False
    if name == "arange":
        return all(isinstance(value, int) for value in args) and (
            kwargs.get("dtype") in (None, *WHOLE) and max(args) <= MOST
        )
    size = args[0] if isinstance(args[0], list | tuple) else ()
    wanted = kwargs.get("dtype") in WHOLE
    return wanted and torch.Size(size).numel() <= MOST

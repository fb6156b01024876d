"""A model rebuilt for writing: the same modules around other products."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any, TypeVar

from torch import Tensor, nn

from regard.models.transformer import Transformer

M = TypeVar("M", bound=nn.Module)


def converted(module: M, layer: Callable[[Tensor, Tensor | None], nn.Module]) -> M:
    """A copy with `layer(weight, bias)` in place of every `nn.Linear`; the original is untouched.

    A tied output head gets a layer of its own: it is the largest product of a small model. The
    embedding it was tied to stays as it is, to look tokens up in; so do norms and positions.
    """
    # What the copy finds in its memo it takes as copied: no weight is copied to be dropped.
    memo: dict[int, Any] = {
        id(part): layer(part.weight, part.bias)
        for part in module.modules()
        if isinstance(part, nn.Linear)
    }
    copy = deepcopy(module, memo).requires_grad_(False).eval()
    if isinstance(copy, Transformer) and copy.head.kind != "none" and copy.head.project is None:
        copy.head.project = layer(copy.embed.tokens.weight, copy.head.bias)
        copy.head.bias = None
    return copy

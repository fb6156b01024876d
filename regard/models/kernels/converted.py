"""A model rebuilt for writing: the same modules around other products."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any, TypeVar

from torch import Tensor, nn

from regard.errors import RegardError
from regard.models.transformer.model import Head, Transformer

M = TypeVar("M", bound=nn.Module)
Layer = Callable[[Tensor, Tensor | None], nn.Module]


class Converted(nn.Module):
    """A product that stands for an `nn.Linear`, with its weights in another form."""


def converted(module: M, layer: Layer, *, keep: bool = True) -> M:
    """The module with `layer(weight, bias)` in place of every `nn.Linear`.

    A copy, the original being untouched; or without `keep` the module itself, whose weights go one
    by one as the new ones come, so that both are never held. A tied output head gets a layer of its
    own: it is the largest product of a small model. The embedding it was tied to stays as it is, to
    look tokens up in; so do norms and positions.
    """
    if any(isinstance(part, Converted) and type(part) is not layer for part in module.modules()):
        raise RegardError("the model's weights are packed or int8 already; convert the plain one")
    if keep:  # what is in the memo counts as copied: no weight is copied to be dropped
        linears = [part for part in module.modules() if isinstance(part, nn.Linear)]
        numbers = [x for part in linears for x in (part.weight, part.bias) if x is not None]
        module = deepcopy(module, {id(x): x for x in numbers})
    made = _replaced(module, layer).requires_grad_(False).eval()
    head = getattr(made, "head", None)
    if isinstance(head, Head) and head.kind != "none" and head.project is None:
        assert isinstance(made, Transformer)
        head.project, head.bias = layer(made.embed.tokens.weight, head.bias), None
    return made


def _replaced(module: Any, layer: Layer) -> Any:
    """The same with other layers; a module that is an `nn.Linear` itself becomes one."""
    if isinstance(module, nn.Linear):
        return layer(module.weight, module.bias)
    for parent in module.modules():
        for name, part in list(parent.named_children()):
            if isinstance(part, nn.Linear):
                setattr(parent, name, layer(part.weight, part.bias))
    return module

"""What one operation of torch costs, by the shapes of what it is given and gives.

products   multiplications and additions of matrix products and of what is made of them: an (n × m)
           matrix times an (m × k) one is 2nmk operations
others     of all else, one operation for each element of the largest tensor it reads or writes; an
           optimizer's fused update counts the steps that it does for each number
traffic    every tensor that is given is read once, every one that comes back is written once; a
           repeated row (stride 0) counts once, and a lookup reads the rows that it picks out

What only looks at a tensor in another way costs nothing, and neither does getting memory.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from torch import Tensor

Found = int | tuple[int, int]  # products that are needed, and those that the kernel does


def extent(tensor: Tensor) -> int:
    """Different elements of a tensor, which may repeat some."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return prod(size for size, stride in sizes if stride)


def touched(tensor: Tensor) -> int:
    """Their bytes."""
    return extent(tensor) * tensor.element_size()


def _matrices(out: Any, a: Tensor, b: Tensor, *_: Any) -> int:
    """(…, n, m) times (…, m, k)."""
    return 2 * a.numel() * b.shape[-1]


def _vectors(out: Any, a: Tensor, *_: Any) -> int:
    return 2 * a.numel()


def _added(out: Any, bias: Tensor, a: Tensor, b: Tensor, *_: Any) -> int:
    return 2 * a.numel() * (b.shape[-1] if b.dim() > 1 else 1)


def _linear(out: Any, x: Tensor, weight: Tensor, *_: Any) -> int:
    return 2 * x.numel() * len(weight)


def _convolution(out: Tensor, x: Tensor, weight: Tensor, *rest: Any) -> int:
    return _at_places(weight, x if rest[4] else out)


def _convolution_back(out: Any, grad: Tensor, x: Tensor, weight: Tensor, *rest: Any) -> int:
    wanted = rest[-1]  # gradients of x, of the weight, of the bias
    return _at_places(weight, x if rest[4] else grad) * (bool(wanted[0]) + bool(wanted[1]))


def _at_places(weight: Tensor, places: Tensor) -> int:
    """Each number of a weight is used once at each place (rows, channels, places…)."""
    return 2 * weight.numel() * places.shape[0] * prod(places.shape[2:])


def _attention(out: Any, query: Tensor, key: Tensor, value: Tensor, *_: Any) -> Found:
    """QKᵀ, then its softmax times V."""
    rows = query.shape[:-1].numel()
    return 2 * rows * key.shape[-2] * (query.shape[-1] + value.shape[-1])


def _attention_back(
    out: Any, grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any
) -> Found:
    """Two products for each of forward's; the kernel also makes the scores again."""
    pairs = query.shape[:-1].numel() * key.shape[-2]
    needed = 4 * pairs * (query.shape[-1] + value.shape[-1])
    return needed, needed + 2 * pairs * query.shape[-1]


def _recurrence(x: Tensor, weights: Sequence[Tensor]) -> int:
    """x (…, width): W times every vector, and U times as many."""
    return 2 * x.shape[:-1].numel() * sum(w.numel() for w in weights if w.dim() == 2)


def _layer(out: Any, x: Tensor, begun: Any, weights: Sequence[Tensor], *_: Any) -> int:
    return _recurrence(x, weights)


def _layer_back(
    out: Any,
    grad: Tensor,
    x: Tensor,
    begun: Any,
    weights: Sequence[Tensor],
    kept: Any,
    first: bool,
) -> Found:
    """Two products for each of forward's; of what was there first, only if somebody asks."""
    both = 2 * _recurrence(x, weights)
    return both - (0 if first else 2 * x.shape[0] * weights[1].numel()), both


PRODUCTS: dict[str, Callable[..., Found]] = {
    "aten::mm": _matrices,
    "aten::bmm": _matrices,
    "aten::mv": _vectors,
    "aten::dot": _vectors,
    "aten::addmm": _added,
    "aten::addmv": _added,
    "aten::baddbmm": _added,
    "aten::linear": _linear,
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_back,
    "regard::recurrence": _layer,
    "regard::recurrence_backward": _layer_back,
}
ATTENTION: dict[str, Callable[..., Found]] = {
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention_back,
    "aten::_scaled_dot_product_flash_attention": _attention,
    "aten::_scaled_dot_product_flash_attention_backward": _attention_back,
    "aten::_scaled_dot_product_efficient_attention": _attention,
    "aten::_scaled_dot_product_efficient_attention_backward": _attention_back,
}
RULES = {**PRODUCTS, **ATTENTION}

# Steps of an update for each number: two means, a root, a quotient, decay, and what goes with them.
STEPS = {"aten::_fused_adamw_": 14, "aten::_fused_adam_": 14}
# Only rows that are picked out are read of the first argument.
LOOKUPS = (
    "aten::embedding",
    "aten::index",
    "aten::index_select",
    "aten::gather",
    "aten::nll_loss_forward",
    "aten::_embedding_bag",
    "aten::_embedding_bag_forward_only",
)
# Only what is given is written into the first argument.
PLACED = ("aten::index_put_", "aten::_index_put_impl_", "aten::index_add_", "aten::scatter_add_")
# They write all, and read nothing of what was there.
FRESH = (
    "aten::zero_",
    "aten::fill_",
    "aten::copy_",
    "aten::bernoulli_",
    "aten::uniform_",
    "aten::normal_",
    "aten::random_",
    "aten::_foreach_copy_",
)
EMPTY = (
    "aten::empty",
    "aten::empty_like",
    "aten::empty_strided",
    "aten::new_empty",
    "aten::new_empty_strided",
)


def products(name: str, args: Sequence[Any], out: Any) -> tuple[int, int]:
    """The products that are needed for an operation's result, and those that its kernel does."""
    rule = RULES.get(name)
    if rule is None:
        return 0, 0
    found = rule(out, *args)
    return found if isinstance(found, tuple) else (found, found)


def others(name: str, args: Sequence[Any], given: Sequence[Tensor], back: Sequence[Tensor]) -> int:
    """Operations that are no products."""
    if name in RULES or name in EMPTY:
        return 0
    if isinstance(args[0], list | tuple) if args else False:  # the same for each of a list
        return STEPS.get(name, 1) * sum(tensor.numel() for tensor in tensors(args[0]))
    if name.startswith("aten::_embedding_bag"):  # each picked row times its weight, added up
        return 2 * given[1].numel() * given[0].shape[-1]
    if name in LOOKUPS:
        return 0
    return max((extent(tensor) for tensor in (*given, *back)), default=0)


def tensors(value: Any) -> list[Tensor]:
    """All tensors of some arguments, in order. (torch's own way takes five times as long.)"""
    found: list[Tensor] = []
    _gather(value, found)
    return found


def _gather(value: Any, found: list[Tensor]) -> None:
    if isinstance(value, Tensor):
        found.append(value)
    elif isinstance(value, list | tuple):
        for part in value:
            _gather(part, found)
    elif isinstance(value, dict):
        for part in value.values():
            _gather(part, found)

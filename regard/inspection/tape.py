"""A recording of what attention did (M24): queries, keys, values, scores, mask, probabilities.

The weights are never computed in a normal pass. Under `record`, a hook beside each `Attend`
recomputes them from the very arguments the kernel was given; the kernel still makes the output,
which is therefore the same to the bit. Without a recording there is no hook and no cost.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.errors import RegardError, nearest
from regard.models.transformer.attention import Attend


@dataclass(frozen=True, eq=False)
class Look:
    """One call of one attention; heads come second where there are any."""

    queries: Tensor  # (rows, heads, queries, width)
    keys: Tensor  # (rows, kv_heads, keys, width)
    values: Tensor  # (rows, kv_heads, keys, width)
    scores: Tensor  # (rows, heads, queries, keys): similarity, before bias and mask
    bias: Tensor | None  # (rows or 1, heads, queries, keys): what positions added
    allowed: Tensor  # (rows, heads, queries, keys): the mask, True where the query may see
    probabilities: Tensor  # (rows, heads, queries, keys)


@dataclass
class Tape:
    """What was recorded: for each attention, by its place in the model, one `Look` per call."""

    looks: dict[str, list[Look]] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The attentions that ran, such as `decoder.blocks.0.cross`, in the model's order."""
        return [name for name, looks in self.looks.items() if looks]

    def __getitem__(self, name: str) -> Look:
        """The last call of the attention at `name`."""
        return self.calls(name)[-1]

    def calls(self, name: str) -> list[Look]:
        """Every call of the attention at `name`; generation makes one for each step."""
        if not self.names:
            raise RegardError("nothing was recorded: run the model inside the `with` block")
        if not self.looks.get(name):
            raise RegardError(f"no attention {name!r} was recorded; {nearest(name, self.names)}")
        return self.looks[name]

    def probabilities(self, name: str) -> Tensor:
        """All calls as one matrix (rows, heads, all queries, keys).

        For rows of one length it is as if made in a single pass; padding stays where it was.
        """
        looks = self.calls(name)
        most = max(look.probabilities.shape[-1] for look in looks)
        parts = [F.pad(p, (0, most - p.shape[-1])) for p in (k.probabilities for k in looks)]
        return torch.cat(parts, dim=-2)


@contextmanager
def record(model: nn.Module) -> Iterator[Tape]:
    """Record every attention in `model` while the block runs: `with record(model) as tape:`.

    A compiled model runs uncompiled meanwhile, because compiled code has no place for hooks.
    """
    if not isinstance(model, nn.Module):
        raise RegardError(f"record a module, not a {type(model).__name__}: `record(model.module)`")
    places = {
        name.replace("_orig_mod.", "").removesuffix(".attend") or "attend": module
        for name, module in model.named_modules()
        if isinstance(module, Attend)
    }
    if not places:
        raise RegardError(f"{type(model).__name__} has no attention to record")
    tape = Tape({name: [] for name in places})
    with ExitStack() as stack:
        if "torch._dynamo" in sys.modules:  # a second to import, and else nothing is compiled
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        for name, module in places.items():
            hook = _hook(tape.looks[name])
            stack.callback(module.register_forward_hook(hook, with_kwargs=True).remove)
        yield tape


def _hook(looks: list[Look]) -> Callable[..., None]:
    @torch.no_grad()
    def listen(attend: Attend, args: Any, kwargs: Any, output: Tensor) -> None:
        queries, keys, values, over = _arguments(*args, **kwargs)
        overlay = attend.overlay(queries, keys, over)
        weights = attend.weigh(queries, keys, overlay)
        bias = overlay.bias
        # Copies, since a cache goes on changing the keys and values it lends.
        q, k, v = (t.detach().clone() for t in (queries, keys, values))
        bias = None if bias is None else bias.detach()
        looks.append(Look(q, k, v, weights.scores, bias, weights.allowed, weights.probabilities))

    return listen


def _arguments(
    queries: Tensor, keys: Tensor, values: Tensor, over: Any = None
) -> tuple[Tensor, Tensor, Tensor, Any]:
    return queries, keys, values, over

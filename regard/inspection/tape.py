"""A recording of a forward pass (M24): what attention did, and what went through every part.

The weights of attention are never computed in a normal pass. Under `record`, a hook beside each
`Attend` recomputes them from the very arguments the kernel was given; the kernel still makes the
output, which is therefore the same to the bit. Parts inside of fused kernels (a cell's `gates` and
`state`, an attention's `probabilities`) exist only where somebody reads or changes them: meanwhile
their layer is computed step by step, which agrees to rounding. Else there is no hook and no cost.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.errors import RegardError, nearest
from regard.models.kernels.hooks import heard


class Passed(NamedTuple):
    """One call of a part."""

    given: tuple[Tensor, ...]
    made: tuple[Tensor, ...]


@dataclass
class Tape:
    """What was recorded: by place in the model, one entry for each call."""

    looks: dict[str, list[Any]] = field(default_factory=dict)  # what parts explained
    passed: dict[str, list[Passed]] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The attentions that ran, such as `decoder.blocks.0.cross`, in the model's order."""
        return [name for name, looks in self.looks.items() if looks]

    @property
    def parts(self) -> dict[str, tuple[int, ...]]:
        """The parts of which activations were kept, and the shape of what each made last."""
        return {
            name: tuple(calls[-1].made[0].shape)
            for name, calls in self.passed.items()
            if calls and calls[-1].made
        }

    def __getitem__(self, name: str) -> Any:
        """What the attention at `name` did in its last call, a `Look`.

        Of an n-gram, how each token of each row came to its probability.
        """
        return self.calls(name)[-1]

    def calls(self, name: str) -> list[Any]:
        """Every call of the attention at `name`; generation makes one for each step."""
        if not self.names:
            raise RegardError("nothing was recorded: run the model inside the `with` block")
        if not self.looks.get(name):
            raise RegardError(f"no attention {name!r} was recorded; {nearest(name, self.names)}")
        return self.looks[name]

    def activations(self, name: str) -> list[Passed]:
        """What went into and out of the part at `name`, call by call."""
        if not self.passed.get(name):
            there = [part for part, calls in self.passed.items() if calls]
            raise RegardError(f"no part {name!r} was recorded; {nearest(name, there)}")
        return self.passed[name]

    def over_time(self, name: str) -> tuple[Tensor, ...]:
        """What a part made that runs once a step, each (rows, steps, width).

        Of an LSTM's `gates` these are i, f, g and o, of its `state` h and c.
        """
        steps = [call.made for call in self.activations(name)]
        return tuple(torch.stack(made, dim=1) for made in zip(*steps, strict=True))

    def probabilities(self, name: str) -> Tensor:
        """All calls as one matrix (rows, heads, all queries, keys).

        For rows of one length it is as if made in a single pass; padding stays where it was.
        """
        looks = self.calls(name)
        most = max(look.probabilities.shape[-1] for look in looks)
        parts = [F.pad(p, (0, most - p.shape[-1])) for p in (k.probabilities for k in looks)]
        return torch.cat(parts, dim=-2)


@contextmanager
def record(model: nn.Module, parts: str | Sequence[str] = ()) -> Iterator[Tape]:
    """Record every attention in `model` while the block runs: `with record(model) as tape:`.

    With `parts`, names or patterns such as `decoder.blocks.*.feedforward` or `*`, what goes into
    and out of these parts as well. A compiled model runs uncompiled meanwhile, because compiled
    code has no place for hooks.
    """
    modules = _named(model)
    patterns = [parts] if isinstance(parts, str) else list(parts)
    explaining = {name: part for name, part in modules.items() if hasattr(part, "explain")}
    chosen = {name: modules[name] for name in _matching(modules, patterns)}
    if not explaining and not chosen:
        raise RegardError(f"{type(model).__name__} has no attention to record; name some `parts`")
    tape = Tape()
    with _listening() as stack:
        for name, part in explaining.items():
            looks = tape.looks.setdefault(name.removesuffix(".attend"), [])
            stack.enter_context(heard(part, _explain(looks)))
        for name, part in chosen.items():
            calls = tape.passed.setdefault(name, [])
            stack.enter_context(heard(part, _keep(calls)))
        yield tape


@contextmanager
def change(model: nn.Module, parts: Mapping[str, Callable[[Any], Any]]) -> Iterator[None]:
    """Replace what parts make while the block runs: a part's output becomes `function(output)`.

    `with change(model, {"decoder.blocks.0.attention.attend": without_head(3)}):`
    """
    modules = _named(model)
    with _listening() as stack:
        for pattern, function in parts.items():
            for name in _matching(modules, [pattern]):
                stack.enter_context(heard(modules[name], _replace(function)))
        yield


def _named(model: nn.Module) -> dict[str, nn.Module]:
    """All parts by their place; the whole by the name of its class."""
    if not isinstance(model, nn.Module):
        raise RegardError(f"record a module, not a {type(model).__name__}: `record(model.module)`")
    named = {name.replace("_orig_mod.", ""): part for name, part in model.named_modules()}
    return {name or type(part).__name__.lower(): part for name, part in named.items()}


def _matching(modules: Mapping[str, nn.Module], patterns: Sequence[str]) -> list[str]:
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in modules):
            raise RegardError(f"no part is called {pattern!r}; {nearest(pattern, list(modules))}")
    return [name for name in modules if any(fnmatchcase(name, one) for one in patterns)]


@contextmanager
def _listening() -> Iterator[ExitStack]:
    """Where hooks are called, whatever was compiled; they are gone behind it."""
    with ExitStack() as stack:
        if "torch._dynamo" in sys.modules:  # a second to import, and else nothing is compiled
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield stack


def _explain(looks: list[Any]) -> Callable[..., None]:
    def listen(part: Any, args: Any, kwargs: Any, output: Any) -> None:
        looks.append(part.explain(*args, **kwargs))

    return listen


def _keep(calls: list[Passed]) -> Callable[..., None]:
    def listen(part: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        calls.append(Passed(tuple(_copies([args, kwargs])), tuple(_copies(output))))

    return listen


def _replace(function: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda part, args, kwargs, output: function(output)


def _copies(given: object) -> Iterator[Tensor]:
    """All tensors of what may be tuples, lists or dictionaries of them."""
    if isinstance(given, Tensor):
        yield given.detach().clone()
    elif isinstance(given, Mapping):
        yield from _copies(list(given.values()))
    elif isinstance(given, list | tuple):
        for each in given:
            yield from _copies(each)

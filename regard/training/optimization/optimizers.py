"""Optimizers: AdamW for everything, Muon for the matrices of the blocks and AdamW for the rest, or
plain steps down the gradient (SGD), which recurrent models of few words generalise best with.

Muon (Jordan 2024) makes each update of a matrix orthogonal, so that all its directions move alike.
torch has one too; ours does all matrices of a shape in one batched product, which matters where a
step is short (see docs/measurements.md), and agrees with torch's.

A step can be refused by a bool that is still on the device, so that nobody waits for the verdict.
Weights may be shares of many processes (DTensors): all is elementwise then, but for the norm of
the gradients and for what makes a matrix orthogonal.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import RegardError
from regard.training.distributed.sharding import local
from regard.training.settings import OptimizerSettings

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # Jordan's quintic: fast towards 1, not exactly there
NEWTON_SCHULZ = 5  # steps of it


def orthogonal(matrices: Tensor) -> Tensor:
    """Each matrix (..., m, n) with its singular values brought near 1, directions kept."""
    a, b, c = COEFFICIENTS
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.to(torch.bfloat16 if matrices.is_cuda else torch.float32)
    x = x.mT if tall else x  # the smaller side first: smaller products
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(NEWTON_SCHULZ):
        gram = x @ x.mT  # (..., m, m)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).to(matrices.dtype)


def gathered(parts: Tensor, weight: Any) -> Tensor:
    """Stacked matrices (matrices, own rows, columns) with the rows of all processes.

    `parts` are shared as `weight` is; what is not shared is whole.
    """
    if not hasattr(weight, "device_mesh"):
        return parts
    from torch.distributed.tensor import DTensor

    shared = DTensor.from_local(
        parts,
        weight.device_mesh,
        _stacked(weight),
        run_check=False,
        shape=torch.Size((len(parts), *weight.shape)),  # else it is a multiple of this part's
        stride=(weight.numel(), weight.shape[1], 1),
    )
    return shared.full_tensor()


def own(matrices: Tensor, weight: Any) -> Tensor:
    """The way back from `gathered`: what this process has of stacked matrices that all have."""
    if not hasattr(weight, "device_mesh"):
        return matrices
    from torch.distributed.tensor import DTensor

    everywhere = DTensor.from_local(matrices, weight.device_mesh, run_check=False)
    return local(everywhere.redistribute(placements=_stacked(weight)))


def _stacked(weight: Any) -> list[Any]:
    """How a stack of such weights is shared: as they are, one dimension further in."""
    from torch.distributed.tensor import Shard

    return [Shard(p.dim + 1) if p.is_shard() else p for p in weight.placements]


def total_norm(grads: Sequence[Any]) -> Tensor:
    """The norm of some gradients as one vector; if they are shared, all of them are alike."""
    # As `torch.nn.utils.get_total_norm` has it, which refuses the meta device.
    norms = torch._foreach_norm([local(grad) for grad in grads], 2.0)
    total: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    if not hasattr(grads[0], "device_mesh"):
        return total
    from torch.distributed.tensor import DTensor, Partial

    # One sum over the processes; torch's norm of DTensors takes one for each of them.
    summed = [Partial() if p.is_shard() else p for p in grads[0].placements]
    square = total.double() ** 2
    shared = DTensor.from_local(square, grads[0].device_mesh, summed, run_check=False)
    return shared.full_tensor().sqrt().to(total.dtype)


class AdamW(torch.optim.AdamW):
    """torch's, with steps that can be refused on the device."""

    KEYS = ("step", "exp_avg", "exp_avg_sq")

    def room(self, weight: Tensor, key: str) -> Tensor:
        """What is remembered of a weight under one of the keys, before the first step."""
        if key != "step":
            return torch.zeros_like(weight)
        place = weight.device if self.defaults["fused"] else "cpu"  # as torch has it
        return torch.zeros((), dtype=torch.float32, device=place)

    @torch.no_grad()
    def step(self, refused: Tensor | None = None) -> None:  # type: ignore[override]
        """One update; where `refused` (a bool on the device) is true, nothing at all changes."""
        if refused is None or self.defaults["fused"]:
            # The fused kernels look at this one, on CPUs and GPUs, and take the step count back.
            self.found_inf = None if refused is None else refused.float()
            super().step()
            return
        changed = [local(tensor) for tensor in self._changed()]
        before = [tensor.clone() for tensor in changed]
        super().step()
        for tensor, was in zip(changed, before, strict=True):
            here = refused.to(tensor.device)  # waits, as step counts are on the CPU then
            torch.where(here, was, tensor, out=tensor)

    def _changed(self) -> Iterator[Tensor]:
        """All that a step changes."""
        for weight in (w for group in self.param_groups for w in group["params"]):
            if weight.grad is not None:
                yield weight
                yield from remembered(self, weight).values()


class Muon(torch.optim.Optimizer):
    """Momentum, made orthogonal, scaled by √(rows / columns) where a matrix is taller than wide."""

    KEYS = ("momentum",)

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.02,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        for group in self.param_groups:
            for weight in group["params"]:
                assert weight.dim() == 2, "Muon is for matrices"

    def room(self, weight: Tensor, key: str) -> Tensor:
        return torch.zeros_like(weight)

    @torch.no_grad()
    def step(self, refused: Tensor | None = None) -> None:  # type: ignore[override]
        """One update; where `refused` (a bool on the device) is true, nothing at all changes."""
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[Tensor]] = {}
            for weight in group["params"]:
                if weight.grad is not None:
                    by_shape.setdefault(tuple(weight.shape), []).append(weight)
            for weights in by_shape.values():
                self._move(weights, group, refused)

    def _move(
        self, weights: list[Tensor], group: Mapping[str, Any], refused: Tensor | None
    ) -> None:
        """One step of all matrices of a shape."""
        rows, columns = weights[0].shape
        rate = group["lr"] * max(1.0, rows / columns) ** 0.5
        stay = 1 - group["lr"] * group["weight_decay"]
        ahead = self._nesterov(weights, group["momentum"], refused)
        updates = own(orthogonal(gathered(ahead, weights[0])), weights[0])
        if refused is not None:  # then weights are multiplied by 1 and nothing is added
            stay = updates.new_full((), stay).masked_fill(refused, 1.0)
            updates = updates.masked_fill(refused, 0.0)
        parts = [local(weight) for weight in weights]
        torch._foreach_mul_(parts, stay)
        torch._foreach_add_(parts, list(updates.unbind()), alpha=-rate)

    def _nesterov(self, weights: list[Tensor], momentum: float, refused: Tensor | None) -> Tensor:
        """Update the running means of gradients, and look one step ahead along them."""
        means = [local(remembered(self, weight)["momentum"]) for weight in weights]
        before = torch.stack(means)  # (matrices, own rows, columns)
        grads = torch.stack([local(weight.grad) for weight in weights if weight.grad is not None])
        after = before.lerp(grads, 1 - momentum)
        ahead = grads.lerp_(after, momentum)
        if refused is not None:
            torch.where(refused, before, after, out=after)
        torch._foreach_copy_(means, list(after.unbind()))
        return ahead


class SGD(torch.optim.Optimizer):
    """Down the gradient, to which `l2` times the weight is added; nothing is remembered.

    AdamW's usual decay is not for it: rates are 1 and more here.
    """

    KEYS = ()

    def __init__(self, params: Iterable[Any], lr: float, l2: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "l2": l2})

    def room(self, weight: Tensor, key: str) -> Tensor:
        raise NotImplementedError

    @torch.no_grad()
    def step(self, refused: Tensor | None = None) -> None:  # type: ignore[override]
        """One update; where `refused` (a bool on the device) is true, nothing at all changes."""
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if not weights:
                continue
            parts = [local(weight) for weight in weights]
            grads = [local(weight.grad) for weight in weights]
            if group["l2"]:
                torch._foreach_add_(grads, parts, alpha=group["l2"])
            if refused is not None:
                grads = [grad.masked_fill_(refused, 0.0) for grad in grads]
            torch._foreach_add_(parts, grads, alpha=-group["lr"])


def remembered(optimizer: AdamW | Muon | SGD, weight: Tensor) -> dict[str, Tensor]:
    """What an optimizer remembers of a weight, made at first."""
    state: dict[str, Tensor] = optimizer.state[weight]
    if not state:
        state.update({key: optimizer.room(weight, key) for key in optimizer.KEYS})
    return state


def roles(module: nn.Module) -> dict[str, list[str]]:
    """The names of all parameters by how they are trained, each in exactly one list.

    `matrix`: weights of linear layers but the last; `table`: embeddings and the output matrix;
    `vector`: biases, norm scales and all else that is not a matrix.
    """
    tables = {
        f"{name}.weight" for name, part in module.named_modules() if isinstance(part, nn.Embedding)
    } | {"head.project.weight"}
    found: dict[str, list[str]] = {"matrix": [], "table": [], "vector": []}
    for name, weight in module.named_parameters():
        if weight.dim() != 2:
            found["vector"].append(name)
        else:
            found["table" if name in tables else "matrix"].append(name)
    return found


class Optimizers:
    """One or two optimizers that step together; learning rates are peaks times a factor."""

    def __init__(
        self, module: nn.Module, weights: Mapping[str, Tensor], settings: OptimizerSettings
    ) -> None:
        by_role = roles(module)
        listed = [name for names in by_role.values() for name in names]
        assert sorted(listed) == sorted(weights), "each parameter is in exactly one group"
        layouts = {getattr(weight, "placements", None) for weight in weights.values()}
        assert len(layouts) == 1, "all weights are shared among processes alike, or none is"
        decay = settings.weight_decay
        matrices = [weights[name] for name in by_role["matrix"]]
        groups = [
            {"params": [weights[n] for n in by_role["table"]], "weight_decay": 0.0},
            {"params": [weights[n] for n in by_role["vector"]], "weight_decay": 0.0},
        ]
        self.parts: list[AdamW | Muon | SGD] = []
        if settings.kind != "muon":
            groups.append({"params": matrices, "weight_decay": decay})
        elif matrices:
            self.parts.append(Muon(matrices, settings.muon_learning_rate, settings.momentum, decay))
        groups = [group for group in groups if group["params"]]
        if groups and settings.kind == "sgd":
            self.parts.append(SGD(weights.values(), settings.learning_rate, settings.l2))
        elif groups:
            fused = all(weight.device.type in ("cuda", "cpu") for weight in weights.values())
            betas = settings.beta1, settings.beta2
            peak = settings.learning_rate
            self.parts.append(
                AdamW(groups, lr=peak, betas=betas, eps=settings.epsilon, fused=fused)
            )
        self.names = {id(weight): name for name, weight in weights.items()}
        self.weights = list(weights.values())
        self.clip = settings.clip
        for group in self._groups():
            group["peak"] = group["lr"]

    def _groups(self) -> list[dict[str, Any]]:
        return [group for part in self.parts for group in part.param_groups]

    def _grads(self) -> list[Tensor]:
        return [weight.grad for weight in self.weights if weight.grad is not None]

    @torch.no_grad()
    def norm(self) -> Tensor:
        """The norm of all gradients as one vector, unclipped."""
        grads = self._grads()
        return total_norm(grads) if grads else torch.zeros((), device=self.weights[0].device)

    @torch.no_grad()
    def step(self, factor: float, norm: Tensor, allowed: Tensor | None = None) -> None:
        """One update at `factor` of the peak learning rates, clipped by the gradients' `norm`.

        Where `allowed` (a bool on the device) is false, nothing changes, whatever the gradients
        are; they are gone in any case.
        """
        grads = [local(grad) for grad in self._grads()]
        if self.clip and grads:
            torch._foreach_mul_(grads, (self.clip / (norm + 1e-6)).clamp(max=1.0))
        for group in self._groups():
            group["lr"] = group["peak"] * factor
        refused = None if allowed is None else ~allowed
        for part in self.parts:
            part.step(refused)
            part.zero_grad(set_to_none=True)

    def rate(self) -> float:
        """The learning rate of the last step; with Muon, AdamW's."""
        return float(self.parts[-1].param_groups[0]["lr"])

    def tensors(self) -> dict[str, Tensor]:
        """All that the optimizers remember, by parameter and kind: `NAME/exp_avg`."""
        return {
            f"{self.names[id(weight)]}/{key}": value
            for part in self.parts
            for weight, state in part.state.items()
            for key, value in state.items()
            if isinstance(value, Tensor)
        }

    def prepare(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Room for what `tensors` had under these names, to copy its numbers into; the rest is
        forgotten."""
        named = set(names)
        chosen = {name.rpartition("/")[0] for name in named}
        holders = [
            (part, weight, self.names[id(weight)])
            for part in self.parts
            for group in part.param_groups
            for weight in group["params"]
        ]
        known = {
            f"{name}/{key}" for part, _, name in holders for key in part.KEYS if name in chosen
        }
        _require_equal(named, known)
        for part, weight, name in holders:
            if name in chosen:
                remembered(part, weight)
            else:
                part.state.pop(weight, None)
        return self.tensors()


def _require_equal(given: set[str], known: set[str]) -> None:
    """What was remembered is what these optimizers remember, or the user hears which is not."""
    wrong = sorted(given - known) + sorted(known - given)
    if wrong:
        what = "not known to" if wrong[0] in given else "missing for"
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise RegardError(
            f"what the optimizer remembered does not fit: {wrong[0]!r}{more} is {what} this model "
            "and optimizer.kind; go on with those that it was saved with"
        )


STEEP = 20.0  # SGD's learning rate when none is given: of recurrent language models,
GENTLE = 0.1  # and of all others


def learning_rate_for(width: int) -> float:
    """AdamW's learning rate for a width when none is given: GPT-2's and GPT-3's, interpolated.

    6e-4 at 768 and inverse in the width, as μP has it, at most 3e-3.
    """
    return min(6e-4 * 768 / width, 3e-3)

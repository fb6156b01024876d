"""Optimizers: AdamW for everything, or Muon for the matrices of the blocks and AdamW for the rest.

Muon (Jordan 2024) makes each update of a matrix orthogonal, so that all its directions move alike.
torch has one too; ours does all matrices of a shape in one batched product, which matters where a
step is short (see docs/measurements.md), and agrees with torch's.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

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


class Muon(torch.optim.Optimizer):
    """Momentum, made orthogonal, scaled by √(rows / columns) where a matrix is taller than wide."""

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

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[Tensor]] = {}
            for weight in group["params"]:
                if weight.grad is not None:
                    by_shape.setdefault(tuple(weight.shape), []).append(weight)
            for (rows, columns), weights in by_shape.items():
                rate = group["lr"] * max(1.0, rows / columns) ** 0.5
                updates = orthogonal(torch.stack(self._nesterov(weights, group["momentum"])))
                torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(weights, list(updates.unbind()), alpha=-rate)

    def _nesterov(self, weights: list[Tensor], momentum: float) -> list[Tensor]:
        """Update the running means of gradients, and look one step ahead along them."""
        grads = [weight.grad for weight in weights if weight.grad is not None]
        for weight in weights:
            if "momentum" not in self.state[weight]:
                self.state[weight]["momentum"] = torch.zeros_like(weight)
        means = [self.state[weight]["momentum"] for weight in weights]
        torch._foreach_lerp_(means, grads, 1 - momentum)
        return list(torch._foreach_lerp(grads, means, momentum))


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
        decay = settings.weight_decay
        matrices = [weights[name] for name in by_role["matrix"]]
        groups = [
            {"params": [weights[n] for n in by_role["table"]], "weight_decay": 0.0},
            {"params": [weights[n] for n in by_role["vector"]], "weight_decay": 0.0},
        ]
        self.parts: list[torch.optim.Optimizer] = []
        if settings.kind == "adamw":
            groups.append({"params": matrices, "weight_decay": decay})
        elif matrices:
            self.parts.append(Muon(matrices, settings.muon_peak, settings.momentum, decay))
        groups = [group for group in groups if group["params"]]
        if groups:
            fused = all(weight.device.type in ("cuda", "cpu") for weight in weights.values())
            betas = settings.beta1, settings.beta2
            peak = settings.peak
            self.parts.append(
                torch.optim.AdamW(groups, lr=peak, betas=betas, eps=settings.epsilon, fused=fused)
            )
        self.names = {id(weight): name for name, weight in weights.items()}
        self.weights = list(weights.values())
        self.clip = settings.clip
        for group in self._groups():
            group["peak"] = group["lr"]

    def _groups(self) -> list[dict[str, Any]]:
        return [group for part in self.parts for group in part.param_groups]

    def step(self, factor: float) -> Tensor:
        """One update at `factor` of the peak learning rates; the gradient's norm, unclipped."""
        grads = [weight.grad for weight in self.weights if weight.grad is not None]
        norm = torch.nn.utils.get_total_norm(grads, foreach=True)
        if self.clip and grads:
            torch._foreach_mul_(grads, (self.clip / (norm + 1e-6)).clamp(max=1.0))
        for group in self._groups():
            group["lr"] = group["peak"] * factor
        for part in self.parts:
            part.step()
            part.zero_grad(set_to_none=True)
        return norm

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


def peak_for(width: int) -> float:
    """AdamW's learning rate for a width when none is given: GPT-2's and GPT-3's, interpolated.

    6e-4 at 768 and inverse in the width, as μP has it, at most 3e-3.
    """
    return min(6e-4 * 768 / width, 3e-3)

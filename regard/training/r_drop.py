"""The loss of rows that are read twice, each time with other dropout, and must agree (R-Drop).

Dropout makes a model answer differently each time; R-Drop (Wu et al., 2021) asks for the right
answer twice and for both distributions, p and q, to be alike: the mean of both losses, plus
`consistency` times a quarter of KL(p‖q) + KL(q‖p), the paper's proportion (its α is 5 in
translation).

Written with torch's own operations it keeps six tables as large as the logits. Here the gradient
is computed on the way there, some rows at a time, and is all that is kept: 24 ms instead of 39 for
992 positions of 10,261 words on a CPU core.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data.feeds.masking import IGNORE

NUMBERS = 1 << 18  # looked at at once on a CPU, so that they stay in its caches


def r_drop_loss(logits: Tensor, targets: Tensor, smoothing: float, consistency: float) -> Tensor:
    """The sum over all targets (rows, positions) in nats; a scalar.

    logits (2 · rows, positions, vocabulary): all rows, and then all of them again.
    """
    flat = logits.flatten(0, 1).float()  # (2 · rows · positions, vocabulary)
    found: Tensor = RDrop.apply(flat, targets.flatten(), smoothing, consistency / 4)  # type: ignore[no-untyped-call]
    return found


class RDrop(torch.autograd.Function):
    """The same of logits (2 · places, vocabulary) and targets (places,)."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, smoothing: float, share: float
    ) -> Tensor:
        places, words = len(targets), logits.shape[-1]
        each = max(1, NUMBERS // words) if logits.device.type == "cpu" else places
        grad, total = torch.empty_like(logits), logits.new_zeros(())
        halves, grads = logits.split(places), grad.split(places)
        for start in range(0, places, each):
            here = slice(start, start + each)
            total += _piece(
                [half[here] for half in halves],
                [half[here] for half in grads],
                targets[here],
                smoothing,
                share,
            )
        ctx.save_for_backward(grad)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.saved_tensors[0] * grad, None, None, None


def _piece(
    logits: list[Tensor], grads: list[Tensor], targets: Tensor, smoothing: float, share: float
) -> Tensor:
    """The summed loss of some places, logits of both readings (places, vocabulary) each.

    The gradient of the first's is (p - t) / 2 + share · (p (d - KL(p‖q)) + p - q), where t is the
    target, d = log p - log q; the second's likewise. It goes to `grads`.
    """
    asked = (targets != IGNORE).to(logits[0].dtype)[:, None]
    right = targets.clamp(min=0)[:, None]
    first, second = (F.log_softmax(half, -1) for half in logits)
    found = torch.zeros_like(asked)
    for logs in (first, second):
        found -= (1 - smoothing) / 2 * logs.gather(1, right)
        found -= smoothing / 2 * logs.mean(-1, keepdim=True)
    p, q = first.exp(), second.exp()
    apart = first.sub_(second)  # d
    between = (p - q).mul_(share)
    for own, sign, grad in ((p, 1.0, grads[0]), (q, -1.0, grads[1])):
        divergence = sign * (own * apart).sum(-1, keepdim=True)  # KL(p‖q), KL(q‖p)
        found += share * divergence
        torch.mul(own, (sign * share) * apart + (0.5 - share * divergence), out=grad)
        grad.add_(between, alpha=sign).sub_(smoothing / 2 / grad.shape[-1])
        grad.scatter_add_(1, right, torch.full_like(asked, (smoothing - 1) / 2))
        grad.mul_(asked)
    return (found * asked).sum()

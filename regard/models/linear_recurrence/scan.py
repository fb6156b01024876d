"""The linear recurrence h_t = a_t ⊙ h_{t−1} + b_t, all positions of a row at once.

Two steps make one: h_{t+2} = (a_{t+2} a_{t+1}) h_t + (a_{t+2} b_{t+1} + b_{t+2}). So a row of n is
half as long a row of every other vector, and the vectors between follow from their neighbours: 3n
multiplications in 4 log₂ n operations. Factors from 0 to 1 are only ever multiplied: nothing
overflows, and nothing is divided by what may be 0.
"""

from typing import Any

import torch
from torch import Tensor


def scan(a: Tensor, b: Tensor, first: Tensor) -> Tensor:
    """a, b (rows, n, width) and h before them (rows, width) -> all of h, (rows, 1 + n, width)."""
    h: Tensor = Scan.apply(a, b, first, False)  # type: ignore[no-untyped-call]
    return h


class Scan(torch.autograd.Function):
    """The recurrence from left to right, or with `back` from right to left, as gradients go.

    Step by step torch would keep both factors of every product; a and h are enough.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, first: Tensor, back: bool) -> Tensor:
        rows, n, width = a.shape
        h = a.new_empty(rows, 1 + n, width)
        h[:, -1 if back else 0] = first
        (_leftward if back else _rightward)(a, b, h)
        ctx.back = back
        ctx.save_for_backward(a, h)
        return h

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """grad (rows, 1 + n, width) -> the gradients of a, b and first."""
        a, h = ctx.saved_tensors
        if ctx.back:
            g = Scan.apply(a, grad[:, 1:], grad[:, 0], False)  # type: ignore[no-untyped-call]
            return g[:, :-1] * h[:, 1:], g[:, :-1], g[:, -1], None
        g = Scan.apply(a, grad[:, :-1], grad[:, -1], True)  # type: ignore[no-untyped-call]
        return g[:, 1:] * h[:, :-1], g[:, 1:], g[:, 0], None


def _rightward(a: Tensor, b: Tensor, h: Tensor) -> None:
    """Fill h (rows, 1 + n, width), of which the first is there: h_{t+1} = a_t h_t + b_t."""
    n = a.shape[1]
    if n > 1:
        one, two = slice(0, n - n % 2, 2), slice(1, n, 2)
        both = torch.addcmul(b[:, two], a[:, two], b[:, one])
        _rightward(a[:, two] * a[:, one], both, h[:, ::2])
    h[:, 1::2] = torch.addcmul(b[:, ::2], a[:, ::2], h[:, :n:2])


def _leftward(a: Tensor, b: Tensor, h: Tensor) -> None:
    """Fill h (rows, n + 1, width), of which the last is there: h_t = a_t h_{t+1} + b_t."""
    n = a.shape[1]
    odd = n % 2
    if n > 1:
        one, two = slice(odd + 1, n, 2), slice(odd, n, 2)
        both = torch.addcmul(b[:, two], a[:, two], b[:, one])
        _leftward(a[:, two] * a[:, one], both, h[:, odd::2])
    rest = slice(1 - odd, n, 2)
    h[:, rest] = torch.addcmul(b[:, rest], a[:, rest], h[:, 2 - odd :: 2])

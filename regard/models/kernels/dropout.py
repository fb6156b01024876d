"""Dropout whose draws are cheap on a CPU.

torch draws a double of 53 bits for each number, 7 ns on AMD's processors, a fifth of a small
Transformer's step. Sixteen bits are enough to tell a share of 0.3 from one of 0.300003, and four
of them come with each word of the generator: 1.6 ns. On Intel's processors torch lets MKL draw.
"""

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.models.kernels.linear import processor, transformed
from regard.models.kernels.switches import PLAIN

DRAWS = 1 << 16  # values of a draw, half of them below 0
WORDS = -(1 << 63)  # the least of a word
FEW = 2048  # numbers for which torch's own way is as fast


def dropout(x: Tensor, share: float, training: bool = True) -> Tensor:
    """x with a share of its numbers set to 0, and the others as much larger; of any shape."""
    if not training or not share:
        return x
    hidden = round(share * DRAWS)
    quick = x.device.type == "cpu" and x.numel() >= FEW and 0 < hidden < DRAWS
    if PLAIN or not quick or transformed() or drawn_by_mkl():
        return F.dropout(x, share)
    words = torch.empty(-(-x.numel() // 4), dtype=torch.int64, device=x.device)
    draws = words.random_(WORDS, None).view(torch.int16)[: x.numel()].view(x.shape)
    kept = (draws >= hidden - DRAWS // 2).to(x.dtype).mul_(DRAWS / (DRAWS - hidden))
    return x * kept


@cache
def drawn_by_mkl() -> bool:
    """Whether torch has a quick way of its own here."""
    return torch.backends.mkl.is_available() and "GenuineIntel" in processor()


class Dropout(nn.Dropout):
    """`nn.Dropout` by `dropout`."""

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p, self.training)

"""Numbers that go wrong: a loss or a gradient that is not finite, or a loss far above those before.

They are judged on the device, each step, and the host looks when it likes: asking for the loss
after each step would let the device stand still until the host has heard.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

DECAY = 0.98  # of the losses' running mean and variance: they span about the last 50 steps
WARM = 32  # good steps before a loss can be a spike
RIPPLE = 1e-3  # a loss varies at least by this share of itself: rounding is no spike

# The state is one vector, so that it is saved, restored and looked at as one:
MOMENTS = slice(0, 3)  # decayed sums of 1, loss, loss²; the first corrects the bias of the others
COUNTS = slice(3, 6)  # of faults in a row, of all, and of those that are not finite
FIRST = slice(6, 9)  # step, loss and norm of the first fault


class Faults(NamedTuple):
    """What went wrong so far."""

    not_finite: int  # in all
    spikes: int  # in all
    in_a_row: int  # since the last update that was made
    first: int  # the step of the first one since it was forgiven, or -1
    loss: float  # at that step
    norm: float


class Guard:
    """Says of each step whether its update may be made.

    `spike`: how many standard deviations above the mean of those before make a loss a fault;
    0: no loss that is finite does. `sticky`: after a fault no update is made until `forgive`, so
    that the weights are still those of before it when the host looks.
    """

    def __init__(self, device: torch.device | str, spike: float, sticky: bool) -> None:
        self.spike, self.sticky = spike, sticky
        # Steps and counts beyond 2**24 need float64, which Apple's GPUs do not have.
        wide = torch.float32 if torch.device(device).type == "mps" else torch.float64
        self.state = torch.zeros(9, dtype=wide, device=device)
        self.powers = torch.arange(3, dtype=wide, device=device)
        # Views made once: making one takes the host about as long as launching a kernel.
        self.moments, counts, first = (self.state[part] for part in (MOMENTS, COUNTS, FIRST))
        self.in_a_row, self.not_finite = counts[0], counts[2]
        self.growing = counts[:2]  # with every fault
        self.first, self.seen = first[0], first[1:]
        self.forgive()

    @torch.no_grad()
    def judge(self, step: int, loss: Tensor, norm: Tensor) -> Tensor:
        """Whether the update may be made: a bool on the device, which nobody waits for."""
        seen = torch.stack((loss, norm))
        broken = ~(torch.linalg.vector_norm(seen, math.inf) < math.inf)  # NaN is not below
        fault = broken | self._high(loss) if self.spike else broken
        new = fault & (self.first < 0)
        self.first.masked_fill_(new, step)
        torch.where(new, seen, self.seen, out=self.seen)
        refused = self.first >= 0 if self.sticky else fault
        self.growing.add_(fault)
        self.not_finite.add_(broken)
        self.in_a_row.mul_(refused)
        if self.spike:
            moved = self.moments.lerp(loss**self.powers, 1 - DECAY)
            torch.where(refused, self.moments, moved, out=self.moments)
        return ~refused

    def _high(self, loss: Tensor) -> Tensor:
        """Whether a loss is a spike among those before it."""
        mean, square = (self.moments[1:] / self.moments[0]).unbind()  # NaN at first: nothing is
        # The ripple is relative, and its square absolute, for losses of 0.
        variance = torch.addcmul(square, mean, mean, value=RIPPLE**2 - 1) + RIPPLE**4
        warm = self.moments[0] > 1 - DECAY ** (WARM - 0.5)  # the sum of n weights: 1 - DECAY ** n
        return warm & (loss - mean > self.spike * variance.sqrt())

    def look(self) -> Faults:
        """What went wrong so far, in plain numbers; waits for the device, changes nothing."""
        state = self.state.tolist()
        in_a_row, faults, not_finite = map(int, state[COUNTS])
        first, loss, norm = state[FIRST]
        return Faults(not_finite, faults - not_finite, in_a_row, int(first), loss, norm)

    def forgive(self) -> None:
        """Updates may be made again, and the next fault is a first one; what was counted stays."""
        self.state[FIRST].fill_(-1)

    def tensors(self) -> dict[str, Tensor]:
        """All that the guard remembers, by name, as it is: to save, or to copy numbers into."""
        return {"faults/state": self.state}

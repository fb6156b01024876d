"""The three recurrent cells (M5): h_t = f(x_t, h_{t−1}), with no gate, two, or three.

`Cell.step` is the cell written out. Called, a cell computes many positions at once by a fused
kernel that takes the same weights, or step by step while somebody reads or changes its `gates` or
its `state`; the two agree to rounding.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from regard.models.kernels.hooks import Part
from regard.models.kernels.linear import product
from regard.models.kernels.recurrent import Held, many_steps, one_step
from regard.models.kernels.switches import PLAIN

Gates = tuple[Tensor, ...]  # each (rows, hidden)


class Cell(nn.Module):
    """One recurrent layer: its weights, and one step of it."""

    name: ClassVar[str]
    blocks: ClassVar[int]  # of hidden rows that its matrices have: one for each gate
    parts: ClassVar[int] = 1  # tensors that it remembers
    gated: ClassVar[Callable[..., Gates]]
    """Wx + b and Uh + d, each (rows, blocks · hidden) -> the gates."""
    combined: ClassVar[Callable[..., Held]]
    """The gates, then what was remembered -> what is remembered now."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.width, self.hidden = width, hidden
        self.input = nn.Parameter(torch.empty(self.blocks * hidden, width))  # W
        self.recurrent = nn.Parameter(torch.empty(self.blocks * hidden, hidden))  # U
        self.input_bias = nn.Parameter(torch.empty(self.blocks * hidden))  # b
        self.recurrent_bias = nn.Parameter(torch.empty(self.blocks * hidden))  # d
        for weight in self.parameters():
            nn.init.uniform_(weight, -(hidden**-0.5), hidden**-0.5)
        self.gates, self.state = Part(type(self).gated), Part(type(self).combined)

    def forward(
        self,
        x: Tensor,
        held: Held,
        counts: Sequence[int] | None = None,
        recurrent: Tensor | None = None,
    ) -> tuple[Tensor, Held]:
        """x (rows, new, width) -> h at every position, (rows, new, hidden), and what is remembered
        at the end, or behind `counts[r]` tokens of row r.

        `recurrent` stands in for U, where dropout has changed it.
        """
        x = x.to(self.input.dtype)
        if not self._written_out:
            return many_steps(self.name, x, held, self._weights(recurrent), counts)
        found = []
        for place, token in enumerate(x.unbind(1)):
            after = self.step(token, held, recurrent)
            found.append(after[0])
            if counts is not None:
                real = torch.tensor([place < count for count in counts], device=x.device)[:, None]
                after = tuple(torch.where(real, *both) for both in zip(after, held, strict=True))
            held = after
        return torch.stack(found, dim=1), held

    def step(self, x: Tensor, held: Held, recurrent: Tensor | None = None) -> Held:
        """x (rows, width) and what was remembered -> what is remembered now.

        A GPU has a kernel for all this.
        """
        weights = self._weights(recurrent)
        if x.is_cuda and not self._written_out:
            return one_step(self.name, x, held, weights)
        matrix, of_input, of_recurrent = weights[1:]
        given = product(x, self.input, of_input)  # (rows, blocks · hidden)
        found: Held = self.state(self.gates(given, product(held[0], matrix, of_recurrent)), *held)
        return found

    def blank(self, rows: int) -> Held:
        """What is remembered before anything was read."""
        return tuple(self.input.new_zeros(rows, self.hidden) for _ in range(self.parts))

    def _weights(self, recurrent: Tensor | None) -> list[Tensor]:
        matrix = self.recurrent if recurrent is None else recurrent
        return [self.input, matrix, self.input_bias, self.recurrent_bias]

    @property
    def _written_out(self) -> bool:
        return PLAIN or bool(self.gates.listeners or self.state.listeners)


class Elman(Cell):
    """h' = tanh(Wx + b + Uh + d)."""

    name, blocks = "elman", 1

    @staticmethod
    def gated(given: Tensor, before: Tensor) -> Gates:
        """None: the new vector alone."""
        return (torch.tanh(given + before),)

    @staticmethod
    def combined(gates: Gates, h: Tensor) -> Held:
        return gates


class GRU(Cell):
    """Two gates: r decides what of h is used for the new vector n, z how much of h stays."""

    name, blocks = "gru", 3

    @staticmethod
    def gated(given: Tensor, before: Tensor) -> Gates:
        """r, z and n."""
        wr, wz, wn = given.chunk(3, -1)
        ur, uz, un = before.chunk(3, -1)
        r, z = torch.sigmoid(wr + ur), torch.sigmoid(wz + uz)
        return r, z, torch.tanh(wn + r * un)

    @staticmethod
    def combined(gates: Gates, h: Tensor) -> Held:
        _, z, n = gates
        return (n + z * (h - n),)


class LSTM(Cell):
    """Three gates around a sum c: gradients pass through it unchanged where f is 1."""

    name, blocks = "lstm", 4
    parts = 2

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__(width, hidden)
        with torch.no_grad():
            self.input_bias[hidden : 2 * hidden] = 1.0  # begins by remembering (Gers 2000)

    @staticmethod
    def gated(given: Tensor, before: Tensor) -> Gates:
        """i, f, the new vector g, and o."""
        i, f, g, o = (given + before).chunk(4, -1)
        return torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)

    @staticmethod
    def combined(gates: Gates, h: Tensor, c: Tensor) -> Held:
        i, f, g, o = gates
        c = f * c + i * g
        return o * torch.tanh(c), c


CELLS: dict[str, type[Cell]] = {"elman": Elman, "gru": GRU, "lstm": LSTM}

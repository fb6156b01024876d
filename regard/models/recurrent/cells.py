"""The three recurrent cells (M5): h_t = f(x_t, h_{t−1}), with no gate, two, or three.

`Cell.step` is the cell written out. `Cell.run` computes many positions at once by torch's kernels,
on a GPU cuDNN's, which take the same weights; the two agree to rounding.
"""

import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from regard.models.kernels.linear import product

Held = tuple[Tensor, ...]  # what a layer remembers: h, an LSTM also c; each (rows, hidden)

# cuDNN copies the four weights of a layer together at each call: 14 MB for one of 650, nothing
# beside a step of 20 ms.
warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous")


class Cell(nn.Module):
    """One recurrent layer: its weights, and one step of it."""

    gates: ClassVar[int]
    parts: ClassVar[int] = 1  # tensors that it remembers
    kernel: ClassVar[Any]  # of many positions
    single: ClassVar[Any]  # of one

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.width, self.hidden = width, hidden
        self.input = nn.Parameter(torch.empty(self.gates * hidden, width))  # W
        self.recurrent = nn.Parameter(torch.empty(self.gates * hidden, hidden))  # U
        self.input_bias = nn.Parameter(torch.empty(self.gates * hidden))  # b
        self.recurrent_bias = nn.Parameter(torch.empty(self.gates * hidden))  # d
        for weight in self.parameters():
            nn.init.uniform_(weight, -(hidden**-0.5), hidden**-0.5)

    def step(self, x: Tensor, held: Held, recurrent: Tensor | None = None) -> Held:
        """x (rows, width) and what was remembered -> what is remembered now.

        `recurrent` stands in for U, where dropout has changed it. A GPU has a kernel for all this.
        """
        matrix = self.recurrent if recurrent is None else recurrent
        if x.is_cuda:
            weights = self.input, matrix, self.input_bias, self.recurrent_bias
            found = self.single(x, _lone(list(held)), *weights)
            return found if isinstance(found, tuple) else (found,)
        given = product(x, self.input, self.input_bias)  # (rows, gates · hidden)
        return self.combine(given, product(held[0], matrix, self.recurrent_bias), held)

    def run(
        self,
        x: Tensor,
        held: Held,
        counts: Sequence[int] | None = None,
        recurrent: Tensor | None = None,
    ) -> tuple[Tensor, Held]:
        """x (rows, new, width) -> h at every position, (rows, new, hidden), and what is remembered
        at the end, or behind `counts[r]` tokens of row r."""
        matrix = self.recurrent if recurrent is None else recurrent
        weights = [self.input, matrix, self.input_bias, self.recurrent_bias]
        # With biases, one layer, no dropout, in training (else cuDNN keeps nothing for gradients),
        # one direction.
        how = True, 1, 0.0, torch.is_grad_enabled(), False
        x = x.to(self.input.dtype)
        # Each (1, rows, hidden); cuDNN takes no piece of a larger tensor, as a decoder's start is.
        begun = [part[None].contiguous() for part in held]
        if counts is None:
            y, *ends = self.kernel(x, _lone(begun), weights, *how, True)
            return y, tuple(part[0] for part in ends)
        # A row of nothing is computed as if it had one token, and then has what it had.
        lengths = torch.tensor([max(count, 1) for count in counts], device="cpu")
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        order, back = packed.sorted_indices, packed.unsorted_indices
        assert order is not None
        given = _lone([part[:, order] for part in begun])
        data, *ends = self.kernel(packed.data, packed.batch_sizes, given, weights, *how)
        y, _ = pad_packed_sequence(
            PackedSequence(data, packed.batch_sizes, order, back),
            batch_first=True,
            total_length=x.shape[1],
        )
        idle = torch.tensor([count == 0 for count in counts], device=x.device)[:, None]
        after = [end[0, back] for end in ends]
        return y, tuple(torch.where(idle, *both) for both in zip(held, after, strict=True))

    def combine(self, given: Tensor, before: Tensor, held: Held) -> Held:
        """Wx + b and Uh + d, each (rows, gates · hidden) -> what is remembered now."""
        raise NotImplementedError

    def blank(self, rows: int) -> Held:
        """What is remembered before anything was read."""
        return tuple(self.input.new_zeros(rows, self.hidden) for _ in range(self.parts))


class Elman(Cell):
    """h' = tanh(Wx + b + Uh + d)."""

    gates = 1
    kernel, single = staticmethod(torch.rnn_tanh), staticmethod(torch.rnn_tanh_cell)

    def combine(self, given: Tensor, before: Tensor, held: Held) -> Held:
        return (torch.tanh(given + before),)


class GRU(Cell):
    """Two gates: r decides what of h is used for the new vector n, z how much of h stays."""

    gates = 3
    kernel, single = staticmethod(torch.gru), staticmethod(torch.gru_cell)

    def combine(self, given: Tensor, before: Tensor, held: Held) -> Held:
        wr, wz, wn = given.chunk(3, -1)
        ur, uz, un = before.chunk(3, -1)
        r, z = torch.sigmoid(wr + ur), torch.sigmoid(wz + uz)
        n = torch.tanh(wn + r * un)
        return (n + z * (held[0] - n),)


class LSTM(Cell):
    """Three gates around a sum c: gradients pass through it unchanged where f is 1."""

    gates = 4
    parts = 2
    kernel, single = staticmethod(torch.lstm), staticmethod(torch.lstm_cell)

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__(width, hidden)
        with torch.no_grad():
            self.input_bias[hidden : 2 * hidden] = 1.0  # begins by remembering (Gers 2000)

    def combine(self, given: Tensor, before: Tensor, held: Held) -> Held:
        i, f, g, o = (given + before).chunk(4, -1)
        c = torch.sigmoid(f) * held[1] + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


CELLS: dict[str, type[Cell]] = {"elman": Elman, "gru": GRU, "lstm": LSTM}


def _lone(parts: list[Tensor]) -> Any:
    """What kernels are given to begin with: one tensor, or for an LSTM a list of two."""
    return parts if len(parts) > 1 else parts[0]

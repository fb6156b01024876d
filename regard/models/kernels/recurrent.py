"""Recurrent cells by torch's kernels, on a GPU cuDNN's: all gates and positions in one call."""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

# cuDNN copies the four weights of a layer together at each call: 14 MB for one of 650, nothing
# beside a step of 20 ms.
warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous")

MANY = {"elman": torch.rnn_tanh, "gru": torch.gru, "lstm": torch.lstm}
ONE = {"elman": torch.rnn_tanh_cell, "gru": torch.gru_cell, "lstm": torch.lstm_cell}
Held = tuple[Tensor, ...]  # what a layer remembers: h, an LSTM also c; each (rows, hidden)


def one_step(cell: str, x: Tensor, held: Held, weights: Sequence[Tensor]) -> Held:
    """x (rows, width) and what was remembered -> what is remembered now; on a GPU."""
    found = ONE[cell](x, _lone(list(held)), *weights)  # type: ignore[operator]
    return found if isinstance(found, tuple) else (found,)


def many_steps(
    cell: str, x: Tensor, held: Held, weights: Sequence[Tensor], counts: Sequence[int] | None
) -> tuple[Tensor, Held]:
    """x (rows, new, width) -> h at every position, (rows, new, hidden), and what is remembered
    at the end, or behind `counts[r]` tokens of row r."""
    kernel: Any = MANY[cell]
    # With biases, one layer, no dropout, in training (else cuDNN keeps nothing for gradients),
    # one direction.
    how = True, 1, 0.0, torch.is_grad_enabled(), False
    weights = list(weights)
    # Each (1, rows, hidden); cuDNN takes no piece of a larger tensor, as a decoder's start is.
    begun = [part[None].contiguous() for part in held]
    if counts is None:
        y, *ends = kernel(x, _lone(begun), weights, *how, True)
        return y, tuple(part[0] for part in ends)
    # A row of nothing is computed as if it had one token, and then has what it had.
    lengths = torch.tensor([max(count, 1) for count in counts], device="cpu")
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    order, back = packed.sorted_indices, packed.unsorted_indices
    assert order is not None
    given = _lone([part[:, order] for part in begun])
    data, *ends = kernel(packed.data, packed.batch_sizes, given, weights, *how)
    y, _ = pad_packed_sequence(
        PackedSequence(data, packed.batch_sizes, order, back),
        batch_first=True,
        total_length=x.shape[1],
    )
    idle = torch.tensor([count == 0 for count in counts], device=x.device)[:, None]
    after = [end[0, back] for end in ends]
    return y, tuple(torch.where(idle, *both) for both in zip(held, after, strict=True))


def _lone(parts: list[Tensor]) -> Any:
    """What kernels are given to begin with: one tensor, or for an LSTM a list of two."""
    return parts if len(parts) > 1 else parts[0]

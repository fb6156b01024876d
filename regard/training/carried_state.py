"""What rows of text remember from step to step: truncated backpropagation through time (M5).

Gradients go back to where a step's tokens begin; the numbers that stand there come from the step
before, and are kept in checkpoints with all else.
"""

from typing import Any

import torch
from torch import Tensor

from regard.data.batch import Batch
from regard.models.network import Network
from regard.training.distributed.processes import Processes


class CarriedState:
    """The hidden vectors of all rows of a step; of other processes' rows, once gathered."""

    def __init__(self, module: Network, rows: int, processes: Processes) -> None:
        self.module, self.processes = module, processes
        begun: Any = module.start(batch_size=rows, capacity=1)
        self.whole: list[Tensor] = begun.tensors()
        self.mine = torch.zeros(rows, dtype=torch.bool, device="cpu")  # rows computed here

    def part(self, batch: Batch, first: int) -> Any:
        """What the rows of a part, from `first` on, begin with."""
        assert batch.fresh is not None
        anew, here = batch.fresh[:, None], slice(first, first + batch.rows)
        return self.module.resume([rows[here].masked_fill(anew, 0.0) for rows in self.whole])

    def keep(self, state: Any, first: int) -> None:
        """Remember what the same rows end with."""
        self.mine[first : first + state.rows] = True
        found = state.tensors()
        if state.rows == len(self.mine):
            self.whole = found
            return
        for mine, all_rows in zip(found, self.whole, strict=True):
            all_rows[first : first + state.rows] = mine

    def settle(self, good: Tensor) -> None:
        """Begin anew where a step was refused: what it left may be no number any more."""
        self.whole = [torch.where(good, rows, torch.zeros_like(rows)) for rows in self.whole]

    def tensors(self) -> dict[str, Tensor]:
        """All that is remembered, by name."""
        return {f"carried/{number}": tensor for number, tensor in enumerate(self.whole)}

    def gather(self) -> None:
        """Let every process have the rows of all; all processes must ask."""
        # Before its first step each has them all, from a checkpoint.
        if self.processes.count == 1 or not self.processes.any(bool(self.mine.any())):
            return
        for tensor in self.whole:
            tensor[~self.mine.to(tensor.device)] = 0.0
            tensor.copy_(self.processes.summed(tensor))

    def forget(self) -> None:
        """Begin anew."""
        for tensor in self.whole:
            tensor.zero_()

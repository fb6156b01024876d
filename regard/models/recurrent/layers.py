"""What recurrent models are made of: embeddings, layers, outputs, and the dropout of each."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from regard.errors import RegardError
from regard.models.kernels.dropout import dropout
from regard.models.kernels.linear import Linear, product
from regard.models.recurrent.cells import CELLS, Cell, Held
from regard.models.recurrent.config import RecurrentConfig
from regard.models.validation import check_ids


class Embedding(nn.Module):
    """Token ids to vectors; dropout takes numbers of them, or whole words wherever they stand."""

    def __init__(self, config: RecurrentConfig, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, config.width)
        self.words = config.embedding_dropout
        self.share, self.alike = config.input_dropout, config.variational

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens (rows, new) -> (rows, new, width)."""
        check_ids("token", tokens, self.tokens)
        if not tokens.shape[1]:
            raise RegardError("there is no token to read; give each row at least one")
        x = self.tokens(tokens)
        if self.words and self.training:
            kept = torch.full((self.tokens.num_embeddings,), 1 - self.words, device=x.device)
            x = x * (torch.bernoulli(kept) / kept)[tokens][..., None]
        return dropped(x, self.share if self.training else 0.0, self.alike)


class Head(nn.Module):
    """Hidden vectors to logits."""

    def __init__(self, config: RecurrentConfig, width: int) -> None:
        super().__init__()
        self.width = width
        self.project = None if config.tied else Linear(width, config.vocabulary, bias=False)
        self.bias = nn.Parameter(torch.zeros(config.vocabulary))

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """x (..., width) and the embedding to be tied to, (vocabulary, width) -> logits."""
        return product(x, embedding if self.project is None else self.project.weight, self.bias)


class Layers(nn.Module):
    """Recurrent layers on top of one another, from left to right."""

    def __init__(self, config: RecurrentConfig, width: int, sizes: Sequence[int]) -> None:
        super().__init__()
        kind = CELLS[config.cell]
        inputs = [width, *sizes[:-1]]
        self.cells = nn.ModuleList(kind(a, b) for a, b in zip(inputs, sizes, strict=True))
        self.share, self.alike = config.dropout, config.variational
        self.weight_share = config.weight_dropout

    def blank(self, rows: int) -> tuple[Held, ...]:
        """What is remembered before anything was read."""
        return tuple(cell.blank(rows) for cell in self._cells)

    def forward(
        self, x: Tensor, held: Sequence[Held], counts: Sequence[int] | None = None
    ) -> tuple[Tensor, tuple[Held, ...]]:
        """x (rows, new, width) -> the last layer's h (rows, new, hidden), and what all remember.

        `counts[r]` tokens of row r are real, all if not given; the rest is not remembered.
        """
        # cuDNN could run all layers in one call. That is not faster (docs/measurements.md), and its
        # dropout between them follows from no seed that we could set.
        found: list[Held] = []
        layers = zip(self._cells, held, self._recurrent(), strict=True)
        for i, (cell, before, matrix) in enumerate(layers):
            x, after = cell(self._between(x) if i else x, before, counts, matrix)
            found.append(after)
        return x, tuple(found)

    def steps(self, rows: int) -> "Steps":
        """The same one step after the other, where each needs what the last one gave."""
        masks = None
        if self.alike:
            blank = [cell.recurrent.new_ones(rows, 1, cell.hidden) for cell in self._cells[:-1]]
            masks = [self._between(ones) for ones in blank]
        return Steps(self, self._recurrent(), masks)

    def _between(self, x: Tensor) -> Tensor:
        return dropped(x, self.share if self.training else 0.0, self.alike)

    def _recurrent(self) -> list[Tensor]:
        """The matrices from step to step, as dropout leaves them for one pass."""
        share = self.weight_share if self.training else 0.0
        matrices = [cell.recurrent for cell in self._cells]
        if not share:
            return list(matrices)
        return [dropout(matrix, share) for matrix in matrices]

    @property
    def _cells(self) -> list[Cell]:
        return list(self.cells)  # type: ignore[arg-type]


class Steps:
    """Layers step by step; what dropout takes for a whole pass is drawn once."""

    def __init__(
        self, layers: Layers, recurrent: Sequence[Tensor], masks: Sequence[Tensor] | None
    ) -> None:
        self.layers, self.recurrent, self.masks = layers, recurrent, masks

    def __call__(self, x: Tensor, held: Sequence[Held]) -> tuple[Held, ...]:
        """x (rows, width) -> what the layers remember behind it."""
        found: list[Held] = []
        for i, cell in enumerate(self.layers._cells):
            if i and self.masks is not None:
                x = x * self.masks[i - 1][:, 0]
            elif i:
                x = self.layers._between(x)
            found.append(cell.step(x, held[i], self.recurrent[i]))
            x = found[-1][0]
        return tuple(found)


def dropped(x: Tensor, share: float, alike: bool) -> Tensor:
    """x (rows, new, width) after dropout: each number, or the same places at all positions."""
    if not share:
        return x
    if not alike:
        return dropout(x, share)
    return x * dropout(torch.ones_like(x[:, :1]), share)


def unmixed(x: Tensor) -> AbstractContextManager[object]:
    """Recurrence in the weights' own precision: rounding at each step would add up."""
    kind = x.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)


@torch.no_grad()
def initialise(module: nn.Module) -> None:
    """Embeddings between −0.1 and 0.1, matrices by Xavier, biases 0; cells have begun already."""
    for part in module.modules():
        if isinstance(part, nn.Embedding):
            nn.init.uniform_(part.weight, -0.1, 0.1)
        elif isinstance(part, nn.Linear):
            nn.init.xavier_uniform_(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)

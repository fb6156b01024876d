"""Heads that say something else than the next token, for any `Network`: `network.head = Tagger(…)`.

A network's vectors come from `hidden`, whatever its family, and its `head` turns them into logits.
Who puts another head there trains it by an objective that knows what its targets are
(`training/objectives.py`: `Tagging`, `Classifying`).
"""

from torch import Tensor, nn

from regard.models.kernels.dropout import Dropout
from regard.models.kernels.linear import Linear


class Tagger(nn.Module):
    """A linear layer over hidden vectors: a tag for each of them, or a label for their mean."""

    def __init__(self, width: int, tags: int, dropout: float = 0.0) -> None:
        """`width` of the network's last hidden vectors."""
        super().__init__()
        self.dropout = Dropout(dropout)
        self.project = Linear(width, tags)

    def forward(self, hidden: Tensor, embedding: Tensor | None = None) -> Tensor:
        """hidden (..., width) -> logits (..., tags); it is tied to no embedding."""
        logits: Tensor = self.project(self.dropout(hidden))
        return logits

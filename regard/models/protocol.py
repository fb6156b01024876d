"""What every sequence model answers, from an n-gram to a Transformer.

Search, scoring, training and serving know these few calls and nothing else about a model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from regard.models.masks import Mask


@dataclass(frozen=True, eq=False)
class Memory:
    """A source that has been read: one vector for each of its positions, and which are real."""

    values: Tensor  # (rows, positions, width)
    mask: Mask | None = None

    @property
    def rows(self) -> int:
        return self.values.shape[0]


class State(Protocol):
    """What a model keeps between steps: a cache, a hidden vector, the last few tokens."""

    @property
    def rows(self) -> int: ...

    def reorder(self, rows: Tensor | Sequence[int]) -> None:
        """Row i becomes what row `rows[i]` was; rows may repeat, and their number may change."""

    def free(self) -> None:
        """Give the memory back."""


@runtime_checkable
class SequenceModel(Protocol):
    """A model of sequences of token ids."""

    def forward(
        self,
        tokens: Tensor,
        memory: Memory | None = None,
        state: State | None = None,
        *,
        lengths: Tensor | Sequence[int] | None = None,
        mask: Mask | None = None,
    ) -> Tensor:
        """tokens (rows, new) -> logits (rows, new, vocabulary).

        Without a state: all positions at once. With one: `tokens` continue what it holds, one or
        many at a time, and it is advanced. `lengths` (rows,) says how many tokens of each row are
        real, the rest being padding on the right, whose logits mean nothing.
        """
        ...

    def encode(
        self,
        source: Tensor,
        lengths: Tensor | Sequence[int] | None = None,
        mask: Mask | None = None,
    ) -> Memory:
        """Read a source (rows, positions) once, for any number of `forward` calls."""
        ...

    def start(self, rows: int, room: int) -> State:
        """An empty state for `rows` sequences of up to `room` tokens."""
        ...

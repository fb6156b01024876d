"""What every sequence model answers, from an n-gram to a Transformer.

Search, scoring, training and serving know these few calls and nothing else about a model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from regard.errors import RegardError
from regard.models.masks import Mask, whole_numbers


@dataclass(frozen=True, eq=False)
class Memory:
    """A source that has been read: one vector for each of its positions, and which are real."""

    values: Tensor  # (rows, positions, width)
    mask: Mask | None = None
    whole: Tensor | None = None  # (rows, width): the source as one vector, where a model makes one

    @property
    def rows(self) -> int:
        return self.values.shape[0]


class State(Protocol):
    """What a model keeps between steps: a cache, a hidden vector, the last few tokens."""

    @property
    def rows(self) -> int: ...

    @property
    def attention(self) -> Tensor | None:
        """How the tokens of the last call looked at the source, if the state returns it.

        (rows, layers, heads, new, source positions); each row of it sums to 1.
        """

    def reorder(self, rows: Tensor | Sequence[int]) -> None:
        """Row i becomes what row `rows[i]` was; rows may repeat, and their number may change."""

    def rollback(self, counts: Sequence[int]) -> None:
        """Row r forgets its last `counts[r]` tokens, of those that came with the last call."""

    def free(self) -> None:
        """Give the memory back."""


def chosen_rows(rows: Tensor | Sequence[int], there: int) -> list[int]:
    """The rows that a state of so many is to consist of, if it has them."""
    given = whole_numbers(rows, "rows")
    if given.dim() != 1:
        raise RegardError(f"reorder needs a list of rows, not shape {tuple(given.shape)}")
    wanted: list[int] = given.tolist()
    if not wanted or not 0 <= min(wanted) <= max(wanted) < there:
        raise RegardError(f"the state has rows 0 to {there - 1}, not {wanted}")
    return wanted


def forgotten(counts: Sequence[int], there: Sequence[int]) -> list[int]:
    """How many tokens each row is to forget, if so many came with the last call."""
    given = whole_numbers(counts, "counts")
    taken: list[int] = given.tolist()
    fits = given.shape == (len(there),) and all(
        0 <= count <= most for count, most in zip(taken, there, strict=True)
    )
    if not fits:
        raise RegardError(f"rows that last took in {list(there)} tokens cannot forget {taken}")
    return taken


@runtime_checkable
class SequenceModel(Protocol):
    """A model of sequences of token ids; called, it runs `forward`, as every module does."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def forward(
        self,
        tokens: Tensor,
        memory: Memory | None = None,
        state: State | None = None,
        *,
        lengths: Tensor | Sequence[int] | None = None,
        mask: Mask | None = None,
        last: bool = False,
    ) -> Tensor:
        """tokens (rows, new) -> logits (rows, new, vocabulary).

        Without a state: all positions at once. With one: `tokens` continue what it holds, one or
        many at a time, and it is advanced. `lengths` (rows,) says how many tokens of each row are
        real, the rest being padding on the right, whose logits mean nothing. With `last` only the
        logits behind each row's last real token are worked out, (rows, 1, vocabulary).
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

    def start(self, rows: int, room: int, *, return_attention: bool = False) -> State:
        """An empty state for `rows` sequences of up to `room` tokens."""
        ...

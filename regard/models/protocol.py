"""What every sequence model answers, from an n-gram to a Transformer.

Search, scoring, training and serving know these few calls and nothing else about a model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

import torch
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


SEVERAL = Memory(torch.empty(0, device="cpu"))  # of rows whose sources were read by several calls


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

    def admit(self, other: Self) -> None:
        """Take in the rows of another state of the same model, after those here.

        They have read their prompts (and source) there; `other` is free afterwards. The source of
        the rows is no longer one that was given, so that later calls leave `memory` out.
        """

    def release(self, rows: Sequence[int]) -> list[int]:
        """Let rows go, all of them if need be; others fill their places from the end.

        Row i is then what row `result[i]` was. A state without rows can still admit some.
        """

    def rollback(self, counts: Sequence[int]) -> None:
        """Row r forgets its last `counts[r]` tokens, of those that came with the last call."""

    def free(self) -> None:
        """Give the memory back."""


class BaseState:
    """What all states share: rows that are asked for are checked, then chosen or taken in."""

    attention: Tensor | None = None  # see the protocol

    @property
    def rows(self) -> int:
        raise NotImplementedError

    def reorder(self, rows: Tensor | Sequence[int]) -> None:
        """Row i becomes what row `rows[i]` was; rows may repeat, and their number may change."""
        wanted = chosen_rows(rows, self.rows)
        if wanted != list(range(self.rows)):
            self._choose(wanted)
            self.attention = None  # of the rows as they were

    def release(self, rows: Sequence[int]) -> list[int]:
        """Let rows go; others fill their places from the end, and come from what is returned."""
        going = set(chosen_rows(rows, self.rows) if len(rows) else [])
        kept = closed_up([row not in going for row in range(self.rows)])
        if going:
            self._choose(kept)
            self.attention = None
        return kept

    def admit(self, other: Self) -> None:
        """Take in the rows of another state of the same model, after those here; it is freed."""
        if other is self or type(other) is not type(self) or other._model() != self._model():
            raise RegardError(
                "rows can be admitted only from another state of the same model, not yet freed"
            )
        self._admit(other)
        self.attention = None
        other.free()

    def free(self) -> None:
        raise NotImplementedError

    def _model(self) -> object:
        """What all states of one model have in common, and no state of another model."""
        raise NotImplementedError

    def _choose(self, rows: list[int]) -> None:
        """Consist of these rows, which are there; they may be none."""
        raise NotImplementedError

    def _admit(self, other: Self) -> None:
        """Take in the rows of a state of the same model."""
        raise NotImplementedError


def closed_up(staying: Sequence[bool]) -> list[int]:
    """Where those that stay come from, when the others leave: the last ones fill the gaps.

    All others keep their places, and what is kept for them is not copied.
    """
    count = sum(staying)
    last = (index for index in range(count, len(staying)) if staying[index])
    return [index if staying[index] else next(last) for index in range(count)]


def with_rows(held: Tensor, rows: int, more: Tensor, spare: int = 0) -> Tensor:
    """`held`, of whose rows the first `rows` are in use, with `more` after them.

    It is the same memory if it has free rows; else new memory, with `spare` rows left over. Where
    one is longer than the other (sources have different lengths), it is filled up with numbers that
    a mask has to hide.
    """
    end = rows + len(more)
    shape = [max(sizes) for sizes in zip(held.shape[1:], more.shape[1:], strict=True)]
    if end > len(held) or shape != list(held.shape[1:]):
        before, held = held[:rows], held.new_zeros(end + spare, *shape)
        _corner(held[:rows], before).copy_(before)
    _corner(held[rows:end], more).copy_(more)
    return held


def _corner(large: Tensor, small: Tensor) -> Tensor:
    """The part of a tensor that has the shape of a smaller one and begins where it begins."""
    return large[tuple(slice(size) for size in small.shape)]


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

    def start(self, batch_size: int, capacity: int, *, return_attention: bool = False) -> State:
        """An empty state for `batch_size` sequences of up to `capacity` tokens each."""
        ...

"""An n-gram model in the protocol (M4): its state is the last few tokens, its logits are exact.

Logits are log-probabilities over the whole vocabulary, so that search, sampling and scoring treat
it as any other model. Whoever needs the given tokens' own probabilities only asks the `Table`.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from regard.errors import RegardError
from regard.models.counting import Table
from regard.models.masks import Mask, whole_numbers
from regard.models.protocol import Memory, State


class LastTokens:
    """What an n-gram remembers: as many tokens as its order needs, back to a beginning."""

    seen: Tensor | None = None  # it reads no source

    def __init__(self, rows: int, keep: int) -> None:
        self.keep = keep
        self.texts: list[list[int]] = [[] for _ in range(rows)]
        self.undoable: list[list[int]] = [[] for _ in range(rows)]  # what came with the last call

    @property
    def rows(self) -> int:
        return len(self.texts)

    def take(self, row: int, tokens: Sequence[int]) -> None:
        """Row `row` has read these tokens, which are all kept until the next call."""
        kept = self.texts[row][-self.keep :] if self.keep else []
        self.texts[row] = [*kept, *tokens]
        self.undoable[row] = list(tokens)

    def reorder(self, rows: Tensor | Sequence[int]) -> None:
        """Row i becomes what row `rows[i]` was; rows may repeat, and their number may change."""
        wanted = whole_numbers(rows, "rows").tolist()
        if not wanted or not 0 <= min(wanted) <= max(wanted) < self.rows:
            raise RegardError(f"the state has rows 0 to {self.rows - 1}, not {wanted}")
        self.texts = [list(self.texts[row]) for row in wanted]
        self.undoable = [list(self.undoable[row]) for row in wanted]

    def undo(self, counts: Sequence[int]) -> None:
        """Row r forgets its last `counts[r]` tokens, of those that came with the last call."""
        taken = whole_numbers(counts, "counts").tolist()
        there = [len(tokens) for tokens in self.undoable]
        if len(taken) != self.rows or any(
            not 0 <= count <= most for count, most in zip(taken, there, strict=True)
        ):
            raise RegardError(f"rows that last took in {there} tokens cannot forget {taken}")
        for row, count in enumerate(taken):
            if count:
                del self.texts[row][-count:], self.undoable[row][-count:]

    def free(self) -> None:
        """Give the memory back."""
        self.texts, self.undoable = [], []


class NGram(nn.Module):
    """A `Table` as a sequence model."""

    def __init__(self, table: Table) -> None:
        super().__init__()
        self.table = table
        self.eval()

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
        """tokens (rows, new) -> log-probabilities (rows, new, vocabulary); see `SequenceModel`."""
        if memory is not None or mask is not None:
            raise RegardError("an n-gram reads no source and has no mask; leave them out")
        rows, new = tokens.shape
        real = [new] * rows if lengths is None else whole_numbers(lengths, "lengths").tolist()
        held = self._mine(state, rows)
        given = tokens.tolist()
        if any(not 0 <= token < self.table.vocabulary for row in given for token in row):
            raise RegardError(f"token ids must be from 0 to {self.table.vocabulary - 1}")
        wanted = 1 if last else new
        logits = np.zeros((rows, wanted, self.table.vocabulary), np.float32)
        for row, (text, count) in enumerate(zip(given, real, strict=True)):
            before = [] if held is None else held.texts[row]
            for place in [count - 1] if last else range(count):
                context = [*before, *text[: place + 1]]
                logits[row, 0 if last else place] = self.following(context)
            if held is not None:
                held.take(row, text[:count])
        return torch.from_numpy(logits).to(tokens.device)

    def following(self, context: Sequence[int]) -> np.ndarray:
        """The log-probabilities (vocabulary,) of all tokens behind a context."""
        table = self.table
        reach = list(context)[len(context) - min(len(context), table.order - 1) :]
        if table.begin in reach:  # nothing is known of what stood before a beginning
            reach = reach[len(reach) - 1 - reach[::-1].index(table.begin) :]
        found = table.levels[0].logprobs.copy()
        for size in range(1, len(reach) + 1):
            place = table.place(reach[len(reach) - size :])
            if place < 0:
                break  # then no longer context is known either
            found += table.levels[size - 1].backoffs[place]
            level = table.levels[size]
            low, high = np.searchsorted(
                level.keys, [place * table.vocabulary, (place + 1) * table.vocabulary]
            )
            found[level.keys[low:high] - place * table.vocabulary] = level.logprobs[low:high]
        return found

    def encode(
        self,
        source: Tensor,
        lengths: Tensor | Sequence[int] | None = None,
        mask: Mask | None = None,
    ) -> Memory:
        raise RegardError("an n-gram reads no source; give it tokens only")

    def start(self, rows: int, room: int, *, watch: bool = False) -> State:
        """An empty state; it needs the same little room for any length."""
        if watch:
            raise RegardError("an n-gram reads no source, so there is nothing to watch")
        if rows < 1 or room < 1:
            raise RegardError(f"a state needs rows and room, not {rows} rows × {room} tokens")
        return LastTokens(rows, self.table.order - 1)

    def _mine(self, state: State | None, rows: int) -> LastTokens | None:
        if state is None:
            return None
        if not isinstance(state, LastTokens) or state.keep != self.table.order - 1:
            raise RegardError("the state is another model's; start one with this model")
        if state.rows != rows:
            raise RegardError(f"the state has {state.rows} rows, the tokens have {rows}")
        return state

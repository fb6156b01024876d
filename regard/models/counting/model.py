"""An n-gram model in the protocol (M4): its state is the last few tokens, its logits are exact.

Logits are log-probabilities over the whole vocabulary, so that search, sampling and scoring treat
it as any other model. Whoever needs the given tokens' own probabilities only asks the `Table`.
"""

from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np
import torch
from torch import Tensor

from regard.errors import RegardError
from regard.models.counting.config import NGramConfig
from regard.models.counting.estimate import Level, Table
from regard.models.counting.table import Tried
from regard.models.masks import Mask, whole_numbers
from regard.models.network import SequenceModule
from regard.models.protocol import BaseState, Memory, State, forgotten
from regard.models.validation import check_room


class LastTokens(BaseState):
    """What an n-gram remembers: as many tokens as its order needs, back to a beginning."""

    def __init__(self, rows: int, keep: int) -> None:
        self.keep = keep
        self.texts: list[list[int]] = [[] for _ in range(rows)]
        self.undoable: list[list[int]] = [[] for _ in range(rows)]  # what came with the last call

    @property
    def rows(self) -> int:
        return len(self.texts)

    @property
    def bytes(self) -> int:
        """What the last tokens of all rows occupy as 64-bit numbers."""
        return 8 * sum(len(text[-self.keep :]) for text in self.texts if self.keep)

    def take(self, row: int, tokens: Sequence[int]) -> None:
        """Row `row` has read these tokens, which are all kept until the next call."""
        kept = self.texts[row][-self.keep :] if self.keep else []
        self.texts[row] = [*kept, *tokens]
        self.undoable[row] = list(tokens)

    def rollback(self, counts: Sequence[int]) -> None:
        """Row r forgets its last `counts[r]` tokens, of those that came with the last call."""
        taken = forgotten(counts, [len(tokens) for tokens in self.undoable])
        for row, count in enumerate(taken):
            if count:
                del self.texts[row][-count:], self.undoable[row][-count:]

    def free(self) -> None:
        """Give the memory back."""
        self.texts, self.undoable = [], []

    def _model(self) -> object:
        return self.keep

    def _choose(self, rows: list[int]) -> None:
        self.texts = [list(self.texts[row]) for row in rows]
        self.undoable = [list(self.undoable[row]) for row in rows]

    def _admit(self, other: Self) -> None:
        self.texts += other.texts
        self.undoable += other.undoable


class NGram(SequenceModule):
    """A `Table` as a sequence model; without one it has not counted anything yet."""

    def __init__(self, config: NGramConfig, table: Table | None = None) -> None:
        super().__init__()
        self.config = config
        self.counted = table
        self.eval()

    @classmethod
    def of(cls, table: Table) -> "NGram":
        """A table that was estimated or read, however that was."""
        return cls(NGramConfig(table.vocabulary, table.order), table)

    @property
    def table(self) -> Table:
        if self.counted is None:
            raise RegardError("this n-gram model has not counted anything yet; train it first")
        return self.counted

    @property
    def device(self) -> torch.device:
        """Tables are searched where they are, in main memory."""
        return torch.device("cpu")

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
        if tokens.dim() != 2 or tokens.dtype not in (torch.int64, torch.int32):
            raise RegardError(
                f"tokens must be whole numbers (rows, new), not {tokens.dtype} of shape "
                f"{tuple(tokens.shape)}"
            )
        rows, new = tokens.shape
        real = [new] * rows if lengths is None else whole_numbers(lengths, "lengths").tolist()
        if len(real) != rows or not all(0 <= count <= new for count in real):
            raise RegardError(f"lengths must be {rows} numbers up to {new}, not {real}")
        held = self._mine(state, rows)
        given = tokens.tolist()
        if any(not 0 <= token < self.table.vocabulary for row in given for token in row):
            raise RegardError(f"token ids must be from 0 to {self.table.vocabulary - 1}")
        wanted = 1 if last else new
        logits = np.zeros((rows, wanted, self.table.vocabulary), np.float32)
        for row, (text, count) in enumerate(zip(given, real, strict=True)):
            before = [] if held is None else held.texts[row]
            # A row that takes in nothing has no last token; its logits mean nothing and stay 0.
            for place in range(max(count - 1, 0) if last else 0, count):
                context = [*before, *text[: place + 1]]
                logits[row, 0 if last else place] = self.table.following(context)
            if held is not None:
                held.take(row, text[:count])
        return torch.from_numpy(logits).to(tokens.device)

    def explain(
        self,
        tokens: Tensor,
        memory: Memory | None = None,
        state: State | None = None,
        *,
        lengths: Tensor | Sequence[int] | None = None,
        **_: object,
    ) -> list[list[tuple[Tried, ...]]]:
        """What a recording keeps of a call that is over: of each row's tokens, how they came."""
        rows, new = tokens.shape
        real = [new] * rows if lengths is None else whole_numbers(lengths, "lengths").tolist()
        found = []
        for row, (given, count) in enumerate(zip(tokens.tolist(), real, strict=True)):
            text = state.texts[row] if isinstance(state, LastTokens) else given[:count]
            places = range(len(text) - count, len(text))
            found.append([self.table.back_off(text[:place], text[place]) for place in places])
        return found

    def logprobs(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        """Of each token of rows that start with `begin`, which itself is left out."""
        found, _ = self.table.logprobs(np.concatenate([np.asarray(row) for row in rows]))
        ends = np.cumsum([len(row) for row in rows])
        return [part[1:].tolist() for part in np.split(found, ends[:-1])]

    def encode(
        self,
        source: Tensor,
        lengths: Tensor | Sequence[int] | None = None,
        mask: Mask | None = None,
    ) -> Memory:
        raise RegardError("an n-gram reads no source; give it tokens only")

    def start(self, batch_size: int, capacity: int, *, return_attention: bool = False) -> State:
        """An empty state; it takes as little memory for any capacity."""
        if return_attention:
            raise RegardError("an n-gram reads no source, so there is no attention to return")
        check_room(batch_size, capacity)
        return LastTokens(batch_size, self.table.order - 1)

    def _mine(self, state: State | None, rows: int) -> LastTokens | None:
        if state is None:
            return None
        if not isinstance(state, LastTokens) or state.keep != self.table.order - 1:
            raise RegardError("the state is another model's; start one with this model")
        if state.rows != rows:
            raise RegardError(f"the state has {state.rows} rows, the tokens have {rows}")
        return state


def tensors_of(table: Table) -> dict[str, Tensor]:
    """A table's arrays by name, as a run keeps them; single tokens need no keys."""
    found: dict[str, np.ndarray] = {}
    for n, level in enumerate(table.levels, 1):
        if n > 1:
            found[f"{n}.keys"] = level.keys
        found[f"{n}.logprobs"] = level.logprobs
        if n < table.order:  # the longest are nobody's context
            found[f"{n}.backoffs"] = level.backoffs
    return {name: torch.from_numpy(values) for name, values in found.items()}


def shapes_of(sizes: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """The shapes of such arrays, by how many n-grams of each length there are."""
    found: dict[str, tuple[int, ...]] = {}
    for n, size in enumerate(sizes, 1):
        kinds = ("keys", "logprobs", "backoffs")[n == 1 : 2 if n == len(sizes) else 3]
        found |= {f"{n}.{kind}": (size,) for kind in kinds}
    return found


def table_of(tensors: Mapping[str, Tensor], config: NGramConfig, begin: int) -> Table:
    """The table of such arrays, which may be mapped from a file."""
    levels = []
    for n in range(1, config.order + 1):
        keys = np.arange(config.vocabulary) if n == 1 else tensors[f"{n}.keys"].numpy()
        last = n == config.order
        backoffs = np.empty(0, np.float32) if last else tensors[f"{n}.backoffs"].numpy()
        levels.append(Level(keys, tensors[f"{n}.logprobs"].numpy(), backoffs))
    rule = config.rule
    return Table(tuple(levels), config.vocabulary, begin, rule.normalised, rule.unseen)

"""A classifier of bags of words (M3, M25): which words a text has, and how often, gives its label.

The bag is the relative frequency of each word, so order is lost. A linear layer over it is
multinomial logistic regression, p(label) ∝ exp(w·bag + b); with hidden layers it is a multi-layer
perceptron. In the protocol the text is a source and its label a target of one token: `encode` works
the label's logits out, `forward` gives them at the first position and </s> at every later one, so
that training, scoring and search treat it as any encoder–decoder.
"""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.errors import RegardError
from regard.models.bag.config import SPECIALS, BagConfig
from regard.models.kernels.dropout import dropout
from regard.models.kernels.linear import Linear
from regard.models.masks import Mask
from regard.models.network import SequenceModule
from regard.models.protocol import SEVERAL, BaseState, Memory, State, forgotten
from regard.models.validation import check_room, checked_lengths

END = 2
# The log-probability of what cannot be: nothing beside 1 in 32 bits, and yet a finite loss, for a
# held-out label that the vocabulary lacks (<unk>) or with smoothing, which asks for all tokens.
NEVER = -100.0


class LabelState(BaseState):
    """What a bag's label needs between steps: its logits, and how many tokens stand already."""

    def __init__(self, rows: int) -> None:
        self.counts = [0] * rows  # tokens of each row
        self.undoable = [0] * rows  # those that came with the last call
        self.labels: Tensor | None = None  # (rows, 1, vocabulary)
        self.memory: Memory | None = None  # that it was begun with

    @property
    def rows(self) -> int:
        return len(self.counts)

    def take(self, new: Sequence[int]) -> None:
        """Each row has so many tokens more."""
        self.counts = [count + more for count, more in zip(self.counts, new, strict=True)]
        self.undoable = list(new)

    def rollback(self, counts: Sequence[int]) -> None:
        """Row r forgets its last `counts[r]` tokens, of those that came with the last call."""
        taken, there = forgotten(counts, self.undoable), self.undoable
        self.counts = [count - less for count, less in zip(self.counts, taken, strict=True)]
        self.undoable = [most - less for most, less in zip(there, taken, strict=True)]

    def free(self) -> None:
        """Give the memory back."""
        self.counts, self.undoable, self.labels, self.memory = [], [], None, None

    def _model(self) -> object:
        labels = self.labels
        return None if labels is None else (labels.shape[1:], labels.dtype, labels.device)

    def _choose(self, rows: list[int]) -> None:
        self.counts = [self.counts[row] for row in rows]
        self.undoable = [self.undoable[row] for row in rows]
        if self.labels is not None:
            index = torch.tensor(rows, dtype=torch.long, device=self.labels.device)
            self.labels = self.labels[index]

    def _admit(self, other: Self) -> None:
        self.counts += other.counts
        self.undoable += other.undoable
        if self.labels is not None and other.labels is not None:
            self.labels = torch.cat([self.labels, other.labels])
        self.memory = SEVERAL


class Words(nn.Embedding):
    """The first layer."""

    def forward(self, source: Tensor, weights: Tensor) -> Tensor:  # type: ignore[override]
        """source and weights (rows, positions) -> the weighted sum of their rows, (rows, width)."""
        return F.embedding_bag(source, self.weight, per_sample_weights=weights, mode="sum")


class Bag(SequenceModule):
    """A linear classifier or a perceptron over the words of a source."""

    def __init__(self, config: BagConfig) -> None:
        super().__init__()
        self.config = config
        hidden = [config.width] * config.layers
        first, *others = [*hidden, config.vocabulary]
        # The first layer's weights, transposed: its product with a bag is a mean of some rows.
        self.words = Words(config.source_vocabulary or config.vocabulary, first)
        self.bias = nn.Parameter(torch.zeros(first))
        self.layers = nn.ModuleList(Linear(a, b) for a, b in zip(hidden, others, strict=True))
        if not hidden:  # no symmetry to break, and no label has an advantage
            nn.init.zeros_(self.words.weight)

    @property
    def device(self) -> torch.device:
        """Where tokens must lie."""
        return self.bias.device

    def encode(
        self,
        source: Tensor,
        lengths: Tensor | Sequence[int] | None = None,
        mask: Mask | None = None,
    ) -> Memory:
        """Read a source (rows, positions): the label's logits are all there is to remember."""
        if mask is not None:
            raise RegardError("a bag of words has no mask; leave it out")
        source = self._checked(source)
        if not source.shape[1]:  # an empty bag, for which the kernel has no case
            source = source.new_zeros(len(source), 1)
        weights = bag_weights(source, lengths, self.words.weight.dtype)
        x = self.words(source, weights) + self.bias  # (rows, width or vocabulary)
        for layer in self.layers:
            x = dropout(F.relu(x), self.config.dropout, self.training)
            x = layer(x)
        return Memory(_only_labels(x)[:, None])  # (rows, 1, vocabulary)

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
        """tokens (rows, new) -> logits (rows, new, vocabulary); see `SequenceModel`."""
        if mask is not None:
            raise RegardError("a bag of words has no mask; leave it out")
        rows, new = tokens.shape
        held = self._mine(state, rows)
        labels = self._labels(held, memory, rows)
        before = torch.tensor([0] * rows if held is None else held.counts, device=tokens.device)
        real = torch.full((rows,), new) if lengths is None else checked_lengths(lengths, rows, new)
        if last:
            places = (before + real.to(tokens.device) - 1)[:, None]  # (rows, 1)
        else:
            places = before[:, None] + torch.arange(new, device=tokens.device)  # (rows, new)
        if held is not None:
            held.take(real.tolist())
            held.labels, held.memory = labels, held.memory or memory
        ends = labels.new_full((self.config.vocabulary,), NEVER)
        ends[END] = 0.0
        return torch.where((places <= 0)[..., None], labels, ends)

    def start(self, batch_size: int, capacity: int, *, return_attention: bool = False) -> State:
        """An empty state; it takes as little memory for any capacity."""
        if return_attention:
            raise RegardError(
                "a bag looks at all its words alike, so there is no attention to return"
            )
        check_room(batch_size, capacity)
        return LabelState(batch_size)

    def _labels(self, held: LabelState | None, memory: Memory | None, rows: int) -> Tensor:
        """The label's logits (rows, 1, vocabulary): what the state holds, or the memory."""
        if held is not None and held.labels is not None:
            if memory is not None and memory is not held.memory:
                raise RegardError("the state was begun with another source; start a new one")
            return held.labels
        if memory is None:
            raise RegardError("this model labels a source; give `memory=model.encode(source)`")
        wanted = (rows, 1, self.config.vocabulary)
        if memory.values.shape != wanted:
            shape = tuple(memory.values.shape)
            raise RegardError(
                f"the source was read as {shape}, not {wanted}; read it with this model"
            )
        return memory.values

    def _mine(self, state: State | None, rows: int) -> LabelState | None:
        if state is None:
            return None
        if not isinstance(state, LabelState):
            raise RegardError("the state is another model's; start one with this model")
        if state.rows != rows:
            raise RegardError(f"the state has {state.rows} rows, the tokens have {rows}")
        return state

    def _checked(self, source: Tensor) -> Tensor:
        if source.dim() != 2 or source.dtype not in (torch.int64, torch.int32):
            raise RegardError(
                f"a source must be whole numbers (rows, positions), not {source.dtype} of shape "
                f"{tuple(source.shape)}"
            )
        # On an accelerator the question would stop it at every step; data is checked when prepared.
        if source.device.type == "cpu" and source.numel() and not torch.compiler.is_compiling():
            low, high = (int(end) for end in source.aminmax())
            if low < 0 or high >= self.words.num_embeddings:
                raise RegardError(
                    f"source id {low if low < 0 else high} is out of range; this model knows 0 to "
                    f"{self.words.num_embeddings - 1}"
                )
        return source


def bag_weights(
    source: Tensor,
    lengths: Tensor | Sequence[int] | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """What each token of a source (rows, positions) adds to its word's relative frequency.

    Padding and special tokens add nothing; a source of nothing else is an empty bag, all 0.
    """
    real = source >= SPECIALS
    if lengths is not None:
        counts = checked_lengths(lengths, *source.shape).to(source.device)
        real = real & (torch.arange(source.shape[1], device=source.device) < counts[:, None])
    return real.to(dtype) / real.sum(1, keepdim=True).clamp(min=1)  # (rows, positions)


def _only_labels(logits: Tensor) -> Tensor:
    """Logits (rows, vocabulary) that leave nothing to special tokens.

    No gradient comes from them: the constant is added to what all labels have together.
    """
    labels = logits[:, SPECIALS:]
    never = labels.logsumexp(1, keepdim=True) + NEVER  # (rows, 1)
    return torch.cat([never.expand(-1, SPECIALS), labels], dim=1)

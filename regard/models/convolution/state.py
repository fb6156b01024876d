"""What a convolutional model remembers between steps: the last few inputs of each layer."""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.models.convolution.config import ConvolutionConfig
from regard.models.protocol import BaseState, forgotten, with_rows
from regard.models.transformer.sources import CrossAttentionCache, chosen_source, joined_source


class LastInputs(BaseState):
    """For `rows` sequences, of each layer as many inputs as its next output looks back at."""

    def __init__(
        self, config: ConvolutionConfig, held: Sequence[Tensor], *, return_attention: bool = False
    ) -> None:
        """`held` (rows, reach of the layer, width) for each layer, zeros where nothing was read."""
        self.config, self.return_attention = config, return_attention
        self.held = list(held)
        self.reading: CrossAttentionCache | None = None  # the source's keys and values, once read
        self.lengths = [0] * len(held[0])  # tokens read by each row
        self.undoable = [0] * len(held[0])  # those that came with the last call
        self._joined: list[Tensor] = []  # what was held before the last call, and its inputs

    @property
    def rows(self) -> int:
        return len(self.lengths)

    @property
    def bytes(self) -> int:
        """What the held inputs occupy, all layers and rows, however long the text was."""
        return sum(tensor.nbytes for tensor in self.held)

    def take(self, joined: Sequence[Tensor], counts: Sequence[int]) -> None:
        """Row r has read `counts[r]` tokens more; `joined` are (rows, reach + new, width)."""
        self._joined = [tensor.detach() for tensor in joined]
        self.lengths = [held + more for held, more in zip(self.lengths, counts, strict=True)]
        self.undoable = list(counts)
        self._cut()

    def _cut(self) -> None:
        """Of what is joined, hold what ends behind the tokens that each row has read."""
        counts = self.undoable
        for layer, joined in enumerate(self._joined):
            reach = self.held[layer].shape[1]
            if len(set(counts)) == 1:
                self.held[layer] = joined[:, counts[0] : counts[0] + reach]
                continue
            starts = torch.tensor(counts, device=joined.device)[:, None]  # (rows, 1)
            places = starts + torch.arange(reach, device=joined.device)  # (rows, reach)
            index = places[..., None].expand(-1, -1, joined.shape[2])
            self.held[layer] = joined.gather(1, index)

    def rollback(self, counts: Sequence[int]) -> None:
        """Row r forgets its last `counts[r]` tokens, of those that came with the last call."""
        taken = forgotten(counts, self.undoable)
        if not any(taken):
            return
        self.lengths = [held - less for held, less in zip(self.lengths, taken, strict=True)]
        self.undoable = [there - less for there, less in zip(self.undoable, taken, strict=True)]
        self.attention = None
        self._cut()

    def free(self) -> None:
        """Give the memory back; the state must not be used again."""
        self.held, self._joined, self.lengths, self.undoable = [], [], [], []
        self.reading, self.attention = None, None

    def _model(self) -> object:
        return self.held and (self.config, self.held[0].dtype, self.held[0].device)

    def _choose(self, rows: list[int]) -> None:
        index = torch.tensor(rows, dtype=torch.long, device=self.held[0].device)
        self.held = [tensor[index] for tensor in self.held]
        self._joined = [tensor[index] for tensor in self._joined]
        self.lengths = [self.lengths[row] for row in rows]
        self.undoable = [self.undoable[row] for row in rows]
        self.reading = chosen_source(self.reading, rows)

    def _admit(self, other: Self) -> None:
        # What was not called yet has no inputs beside those before them, none of which can go.
        reading = joined_source(self.reading, other.reading, self.rows)
        both = zip(self._joined or self.held, other._joined or other.held, strict=True)
        self._joined = [with_rows(mine, self.rows, theirs) for mine, theirs in both]
        both = zip(self.held, other.held, strict=True)
        self.held = [torch.cat(pair) for pair in both]
        self.reading = reading
        self.lengths += other.lengths
        self.undoable += other.undoable

    def check(self, config: ConvolutionConfig, rows: int, like: Tensor) -> None:
        """Refuse a state that does not fit a model of such weights, or its tokens."""
        if not self.held or self.config != config:
            raise RegardError(
                "the state was freed or is another model's; start one with this model"
            )
        if self.rows != rows:
            raise RegardError(f"the state has {self.rows} rows, the tokens have {rows}")
        held = self.held[0]
        if (held.dtype, held.device) != (like.dtype, like.device):
            raise RegardError(
                f"the state holds {held.dtype} on {held.device}, but the model is now {like.dtype} "
                f"on {like.device}; start a new one"
            )

"""What all models with hidden vectors share, whatever makes the vectors."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.errors import RegardError
from regard.models.masks import Mask
from regard.models.protocol import Memory, State
from regard.models.validation import Lengths, last_real


class BaseModel(nn.Module):
    """Any model of ours: a module with its settings."""

    config: Any  # a ModelConfig

    @property
    def device(self) -> torch.device:
        """Where tokens must lie."""
        raise NotImplementedError

    def word_rows(self, first: int) -> tuple[list[int], np.ndarray] | None:
        """The ids from `first` on that have a vector, and the vectors (ids, width), if any have."""
        return None


class SequenceModule(BaseModel):
    """A model that answers the protocol (`SequenceModel`), whatever it is made of."""

    def encode(self, source: Tensor, *given: Any, **named: Any) -> Memory:
        """Read a source (rows, positions) once, for any number of calls."""
        raise RegardError(f"this model ({self.config.kind}) reads no source; give it tokens only")

    def start(self, batch_size: int, capacity: int, *, return_attention: bool = False) -> State:
        """An empty state for `batch_size` sequences of up to `capacity` tokens each."""
        raise NotImplementedError

    def logprobs(self, rows: Sequence[Sequence[int]]) -> list[list[float]] | None:
        """The log-probability of each token but the first of each row, where that takes less than
        the logits of all tokens; else nothing."""
        return None


class Network(SequenceModule):
    """A sequence model trained by gradients: `hidden` gives the last vectors, `forward` logits."""

    embed: Any  # with the table `tokens`
    head: Any  # (hidden, the table) -> logits; another may be put there (`models/heads.py`)

    @property
    def device(self) -> torch.device:
        """Where tokens must lie."""
        device: torch.device = self.embed.tokens.weight.device
        return device

    def forward(
        self,
        tokens: Tensor,
        memory: Memory | None = None,
        state: State | None = None,
        *,
        lengths: Lengths = None,
        mask: Mask | None = None,
        last: bool = False,
        **more: Any,
    ) -> Tensor:
        """tokens (rows, new) -> logits (rows, new, vocabulary); see `SequenceModel`.

        `more` is what `hidden` knows beside the protocol.
        """
        hidden = self.hidden(tokens, memory, state, lengths=lengths, mask=mask, **more)
        return self.logits(last_real(hidden, lengths) if last else hidden)

    def hidden(
        self,
        tokens: Tensor,
        memory: Memory | None = None,
        state: State | None = None,
        *,
        lengths: Lengths = None,
        mask: Mask | None = None,
    ) -> Tensor:
        """The same up to the last hidden vectors (rows, new, width)."""
        raise NotImplementedError

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden (..., width) -> (..., vocabulary), or what else the head tells."""
        logits: Tensor = self.head(hidden, self.embed.tokens.weight)
        return logits

    def resume(self, tensors: Sequence[Tensor]) -> Any:
        """A state that holds these tensors, where rows carry theirs on (`Ability.CARRY`)."""
        raise NotImplementedError

    def word_rows(self, first: int) -> tuple[list[int], np.ndarray] | None:
        weights = self.embed.tokens.weight.detach().float().cpu().numpy()  # (tokens, width)
        return list(range(first, len(weights))), weights[first:]

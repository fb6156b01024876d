"""What stands already, read once (M22): every search begins with prompts and goes on from them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.models.kernels.attention import any_shape
from regard.models.protocol import Memory, SequenceModel, State


def check_fits(prompts: Sequence[Sequence[int]], context: int) -> None:
    """Refuse prompts longer than what a model was made for."""
    longest = max(map(len, prompts), default=0)
    if longest > context:
        raise RegardError(
            f"the prompt has {longest:,} tokens, but the model's context holds {context:,}; "
            "shorten it"
        )


@dataclass
class DecoderSession:
    """Rows of tokens that a model has taken in: all that a search knows of the model."""

    model: SequenceModel
    state: State
    logits: Tensor  # (rows, vocabulary): what may follow each row
    device: torch.device
    ends: Sequence[int] | None = None  # where each row's last token stood in a ragged last call

    @classmethod
    def read(
        cls,
        model: SequenceModel,
        prompts: Sequence[Sequence[int]],
        room: int,
        device: torch.device | str = "cpu",
        memory: Memory | None = None,
        return_attention: bool = False,
    ) -> "DecoderSession":
        """Prompts of any lengths, at least one token each; `room` for them and what follows."""
        lengths = [len(prompt) for prompt in prompts]
        if not lengths or min(lengths) < 1:
            raise RegardError("there is nothing to begin with: give each row at least one token")
        longest = max(lengths)
        if longest > room:
            raise RegardError(
                f"a prompt has {longest:,} tokens, but there is room for {room:,}; shorten it"
            )
        state = model.start(
            batch_size=len(prompts), capacity=room, return_attention=return_attention
        )
        begun = cls(model, state, torch.empty(0), torch.device(device))
        begun.logits = begun.take(prompts, memory, last=True)[:, -1]
        return begun

    @property
    def look(self) -> Tensor | None:
        """How each row's last token looked at the source: (rows, layers, heads, positions)."""
        seen = self.state.attention  # (rows, layers, heads, new, positions)
        if seen is None or self.ends is None:
            return seen if seen is None else seen[..., -1, :]
        return seen[torch.arange(len(seen)), :, :, torch.tensor(self.ends)]

    def follow(self, tokens: Sequence[int]) -> None:
        """Take in one more token for each row; `logits` then say what may follow it."""
        self.logits = self.take([[token] for token in tokens], last=True)[:, -1]

    def reorder(self, rows: Sequence[int]) -> None:
        """Row i becomes what row `rows[i]` was."""
        if list(rows) != list(range(len(self.logits))):
            self.state.reorder(rows)
            self.logits = self.logits[torch.tensor(rows, device=self.logits.device)]

    def admit(self, other: "DecoderSession") -> None:
        """Go on with the rows of another session of this model as well, after those here."""
        self.state.admit(other.state)
        self.logits, self.ends = torch.cat([self.logits, other.logits]), None

    def release(self, rows: Sequence[int]) -> list[int]:
        """Let rows go; row i is then what row `result[i]` was (see `State`)."""
        kept = self.state.release(rows)
        index = torch.tensor(kept, dtype=torch.long, device=self.logits.device)
        self.logits, self.ends = self.logits[index], None
        return kept

    def take(
        self, tokens: Sequence[Sequence[int]], memory: Memory | None = None, last: bool = False
    ) -> Tensor:
        """Take in any number of tokens for each row: logits (rows, most, vocabulary).

        What stands behind a row's own means nothing; with `last` there is only that of its last.
        """
        lengths = [len(row) for row in tokens]
        most = max(lengths)
        ragged = None if min(lengths) == most else lengths
        padded = [[*row, *[0] * (most - len(row))] for row in tokens]
        new = torch.tensor(padded, dtype=torch.long, device=self.device)  # (rows, most)
        with any_shape():
            logits = self.model(new, memory, self.state, lengths=ragged, last=last)
        self.ends = ragged and [length - 1 for length in ragged]
        return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits

"""Several models that write one text together (M21): the mean of what they expect.

An `Ensemble` answers the protocol of a single model, so every search runs on it unchanged.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.decoding.attention_weights import attended
from regard.decoding.sampling import log_probabilities
from regard.decoding.text_model import TextModel
from regard.errors import RegardError
from regard.models.config import Ability, ModelConfig
from regard.models.masks import Mask
from regard.models.network import SequenceModule
from regard.models.protocol import Memory, State
from regard.models.validation import Lengths


@dataclass(frozen=True, eq=False)
class Memories(Memory):
    """A source that each member has read in its own way; as a `Memory`, the first member's."""

    parts: tuple[Memory, ...] = ()


class States:
    """What each member keeps between steps."""

    def __init__(self, parts: Sequence[State]) -> None:
        self.parts = tuple(parts)

    @property
    def rows(self) -> int:
        return self.parts[0].rows

    @property
    def attention(self) -> Tensor | None:
        """How the newest tokens looked at the source: (rows, 1, 1, new, source positions).

        Layers and heads of different members have nothing to do with one another: what each member
        attended to, then the mean over the members.
        """
        looks = [part.attention for part in self.parts]
        means = [attended(look)[:, None, None] for look in looks if look is not None]
        return torch.stack(means).mean(0) if len(means) == len(looks) else None

    def reorder(self, rows: Tensor | Sequence[int]) -> None:
        for part in self.parts:
            part.reorder(rows)

    def admit(self, other: "States") -> None:
        if not isinstance(other, States) or len(other.parts) != len(self.parts):
            raise RegardError("rows can be admitted only from a state of the same models")
        for part, more in zip(self.parts, other.parts, strict=True):
            part.admit(more)

    def release(self, rows: Sequence[int]) -> list[int]:
        *_, kept = [part.release(rows) for part in self.parts]  # each says the same
        return kept

    def rollback(self, counts: Sequence[int]) -> None:
        for part in self.parts:
            part.rollback(counts)

    def free(self) -> None:
        for part in self.parts:
            part.free()


class Ensemble(SequenceModule):
    """Models of one kind and vocabulary as one; they may differ in everything else."""

    def __init__(self, members: Sequence[SequenceModule]) -> None:
        super().__init__()
        if not members:
            raise RegardError("an ensemble needs at least one model")
        _agree("kind", [member.config.kind for member in members])
        _agree("vocabulary", [member.config.vocabulary for member in members])
        _agree("source vocabulary", [_read_words(member.config) for member in members])
        _agree("device", [member.device for member in members])
        self.members = nn.ModuleList(members)
        self.training = any(member.training for member in members)

    @property
    def config(self) -> ModelConfig:
        """That of the member with the smallest context."""
        return min((member.config for member in self.writers), key=lambda one: one.context)

    @property
    def device(self) -> torch.device:
        """The first member's: where tokens must lie."""
        return self.writers[0].device

    def forward(
        self,
        tokens: Tensor,
        memory: Memory | None = None,
        state: State | None = None,
        *,
        lengths: Lengths = None,
        mask: Mask | None = None,
        last: bool = False,
    ) -> Tensor:
        """tokens (rows, new) -> logits (rows, new, vocabulary): the log of the mean probability."""
        memories = self._parts(memory, Memories, "memory", "encode")
        states = self._parts(state, States, "state", "start")
        logprobs = [
            _logprobs(member(tokens, source, held, lengths=lengths, mask=mask, last=last))
            for member, source, held in zip(self.writers, memories, states, strict=True)
        ]
        return torch.stack(logprobs).logsumexp(0) - math.log(len(logprobs))

    def encode(self, source: Tensor, lengths: Lengths = None, mask: Mask | None = None) -> Memories:
        """Read a source (rows, positions) with every member."""
        parts = tuple(member.encode(source, lengths, mask) for member in self.writers)
        return Memories(parts[0].values, parts[0].mask, parts=parts)

    def start(self, batch_size: int, capacity: int, *, return_attention: bool = False) -> States:
        """An empty state of every member."""
        return States(
            [
                member.start(batch_size, capacity, return_attention=return_attention)
                for member in self.writers
            ]
        )

    @property
    def writers(self) -> list[SequenceModule]:
        """The members."""
        return list(self.members)  # type: ignore[arg-type]

    def _parts(
        self, given: Any, kind: type[Memories] | type[States], what: str, maker: str
    ) -> Sequence[Any]:
        """What each member gets of a memory or a state."""
        if given is None:
            return [None] * len(self.members)
        if not isinstance(given, kind) or len(given.parts) != len(self.members):
            raise RegardError(
                f"the {what} is another model's; use what this ensemble's `{maker}` gave"
            )
        return given.parts


def together(speakers: Sequence[TextModel], names: Sequence[str]) -> TextModel:
    """Speakers of the same words as one, who says what all expect in the mean; names for errors."""
    if not speakers:
        raise RegardError("an ensemble needs at least one model")
    first = speakers[0]
    for name, other in zip(names, speakers, strict=True):
        other.require(Ability.CONTINUE, Ability.TRANSLATE, what="be of an ensemble")
        first.require_words_of(other, name)
    joint = Ensemble([one.module for one in speakers])
    for name, other in zip(names, speakers, strict=True):
        if other.signs != first.signs:
            raise RegardError(f"{name} begins or ends texts with other ids than {names[0]}")
    return first.with_module(joint)


def _logprobs(logits: Tensor) -> Tensor:
    """Log-probabilities; halves are not precise enough to be summed up."""
    half = logits.dtype in (torch.float16, torch.bfloat16)
    return log_probabilities(logits, torch.float32 if half else None)


def _read_words(config: ModelConfig) -> int:
    return getattr(config, "source_vocabulary", 0) or config.vocabulary


def _agree(what: str, values: Sequence[object]) -> None:
    if len(set(values)) > 1:
        both = " and ".join(sorted({f"{value}" for value in values})[:2])
        raise RegardError(f"the models of an ensemble must have the same {what}, not {both}")

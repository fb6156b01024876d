"""Rows written together, a token at a time (M21), each with its own settings, seed and end.

A row that ends leaves; the others do not notice. Nothing that stands is computed twice.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from regard.decoding.sampling import (
    SamplingBatch,
    best_tokens,
    check_numbers,
    dice,
    distribution,
    draw,
)
from regard.decoding.session import DecoderSession, check_fits
from regard.decoding.settings import TEXT, Sampling, SpecialTokens
from regard.decoding.stable_topk import stable_topk
from regard.errors import RegardError
from regard.models.network import SequenceModule
from regard.models.protocol import Memory, SequenceModel

End = Literal["end", "limit", "room", "stop"]  # </s>; enough; the context is full; a stop string


@dataclass(frozen=True)
class Token:
    """One token that was written."""

    row: int  # as the prompts were given
    id: int
    logprob: float | None = None  # by the model itself, before temperature and filters
    top: tuple[tuple[int, float], ...] = ()  # the most probable ones and theirs, if asked for
    end: End | None = None  # why the row ends with it


@dataclass
class DecodeRow:
    """One text on its way."""

    number: int
    asked: Sampling
    most: int  # tokens, by its limit or its room
    short: End  # why it ends when it has so many
    rng: np.random.Generator
    written: int = 0
    last: int = -1
    ended: bool = False


@dataclass
class DecodeBatch:
    """The rows that are not at their end yet, and how to take them a step further."""

    prefix: DecoderSession
    rows: list[DecodeRow]
    columns: SamplingBatch
    signs: SpecialTokens
    standing: Tensor | None  # (rows, vocabulary): tokens that a row holds, if any is penalised
    fresh: bool = field(default=True, init=False)  # the prompts' logits are not used yet

    @classmethod
    @torch.inference_mode()
    def begin(
        cls,
        model: SequenceModel,
        prompts: Sequence[Sequence[int]],
        asked: Sequence[Sampling],
        *,
        context: int,
        signs: SpecialTokens = TEXT,
        device: torch.device | str = "cpu",
        memory: Memory | None = None,
        copies: Sequence[int] | None = None,
    ) -> "DecodeBatch":
        """Read the prompts (token ids, at least one each; for a target its first token).

        `context`: as many positions as the model has. `copies` says which prompt each row goes on
        from (each from its own, if not given), so that a prompt of many rows is read once.
        """
        copies = range(len(prompts)) if copies is None else copies
        if len(copies) != len(asked):
            raise RegardError(f"{len(copies)} rows need as many settings, not {len(asked)}")
        check_fits(prompts, context)
        strange = [which for which in copies if not 0 <= which < len(prompts)]
        if strange:
            raise RegardError(f"prompt {strange[0]} does not exist: there are {len(prompts)}")
        given = [prompts[which] for which in copies]
        rows = [
            _row(number, len(prompt), one, context)
            for number, (prompt, one) in enumerate(zip(given, asked, strict=True))
        ]
        ends = (len(prompt) + row.most for prompt, row in zip(given, rows, strict=True))
        needed = max((*map(len, prompts), *ends), default=0)
        prefix = DecoderSession.read(model, prompts, min(context, needed), device, memory)
        prefix.reorder(copies)
        columns = SamplingBatch.of(asked, signs, prefix.logits.shape[-1], prefix.logits.device)
        standing = None
        if any(one.repetition_penalty != 1 for one in asked):
            standing = torch.zeros_like(columns.forbidden)
            for row, prompt in enumerate(given):
                standing[row, list(prompt)] = True
        return cls(prefix, rows, columns, signs, standing)

    @property
    def open(self) -> bool:
        """Whether any row is not at its end."""
        return any(not row.ended for row in self.rows)

    def stop(self, number: int) -> None:
        """Row `number` has written enough."""
        for row in self.rows:
            row.ended = row.ended or row.number == number

    @torch.inference_mode()
    def step(self) -> list[Token]:
        """One more token for each open row; those that reach their end say so."""
        self.leave()
        if not self.rows:
            return []
        if not self.fresh:
            self.prefix.follow([row.last for row in self.rows])
        self.fresh = False
        logits = self.prefix.logits
        chosen = self._choose(logits)
        noted = logprobs(logits, chosen, [row.asked.logprobs for row in self.rows])
        return [
            self.took(index, row, token, *note)
            for index, (row, token, note) in enumerate(zip(self.rows, chosen, noted, strict=True))
        ]

    def leave(self) -> None:
        """Rows that have ended give their place away."""
        ended = [index for index, row in enumerate(self.rows) if row.ended]
        if len(ended) == len(self.rows):
            self.rows = []
            self.prefix.state.free()
        elif ended:
            kept = self.prefix.release(ended)
            self.rows = [self.rows[index] for index in kept]
            self.columns = self.columns.kept(kept)
            if self.standing is not None:
                self.standing = self.standing[torch.tensor(kept, device=self.standing.device)]

    def _choose(self, logits: Tensor) -> list[int]:
        """A token for each row, of logits (rows, vocabulary)."""
        if all(row.asked.plain for row in self.rows):  # nothing to weigh or to draw
            return most_probable(logits, self.columns)
        uniform = [row.rng.random() if row.asked.temperature else 0.0 for row in self.rows]
        return draw(distribution(logits, self.columns, self.standing), uniform)

    def took(
        self,
        index: int,
        row: DecodeRow,
        token: int,
        logprob: float | None = None,
        top: tuple[tuple[int, float], ...] = (),
    ) -> Token:
        """Row `index` has a new token; it may be its last."""
        row.written += 1
        row.last = token
        end: End | None = None
        if token in self.signs.ends:
            end = "end"
        elif row.written == row.most:
            end = row.short
        row.ended = end is not None
        if self.standing is not None:
            self.standing[index, token] = True
        return Token(row.number, token, logprob, top, end)


def _row(number: int, prompt: int, asked: Sampling, context: int) -> DecodeRow:
    room = context - prompt + 1  # the last token written need not be read
    most, short = min((asked.limit, "limit"), (room, "room"))
    return DecodeRow(number, asked, most, short, dice(asked.seed), ended=not most)  # type: ignore[arg-type]


def most_probable(logits: Tensor, columns: SamplingBatch) -> list[int]:
    """What each row takes that neither weighs nor draws, of logits (rows, vocabulary)."""
    check_numbers(logits.amax(-1))
    best, _ = best_tokens(logits.masked_fill(columns.forbidden, -torch.inf))
    return best[:, 0].tolist()


Noted = tuple[float | None, tuple[tuple[int, float], ...]]


def logprobs(logits: Tensor, chosen: Sequence[int], wanted: Sequence[int | None]) -> list[Noted]:
    """What the model itself says of the chosen tokens and of its favourites, for who asks."""
    if all(count is None for count in wanted):
        return [(None, ())] * len(chosen)
    scores = logits.log_softmax(-1)  # (rows, vocabulary)
    index = torch.tensor(chosen, device=logits.device)[:, None]
    own = scores.gather(-1, index)[:, 0].tolist()
    most = min(max(count or 0 for count in wanted), logits.shape[-1])
    values, places = stable_topk(scores, most)
    favourites = zip(places.tolist(), values.tolist(), strict=True)
    return [
        (None, ()) if count is None else (mine, tuple(zip(ids, values, strict=True))[:count])
        for count, mine, (ids, values) in zip(wanted, own, favourites, strict=True)
    ]


def continued(
    module: SequenceModule, prompt: Sequence[int], asked: Sampling, signs: SpecialTokens = TEXT
) -> Iterator[int]:
    """Token ids that follow a prompt, as they are written, without what begins and ends a text."""
    writing = DecodeBatch.begin(
        module,
        [[signs.begin, *prompt]],
        [asked],
        context=module.config.context,
        signs=signs,
        device=module.device,
    )
    while writing.open:
        for token in writing.step():
            if token.id not in signs.ends:
                yield token.id

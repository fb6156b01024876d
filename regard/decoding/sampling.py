"""Drawing the next token (M21): each row by its own settings, whatever its neighbours do."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.decoding.settings import Sampling, SpecialTokens
from regard.decoding.stable_topk import first_of_equals
from regard.errors import RegardError

# Of a vocabulary this many tokens are looked at first; they nearly always hold a top_p. A full sort
# of 50,000 logits takes longer than all the rest of the choice.
FIRST_LOOK = 1024
NOTHING = "the model gives no probability to any token that may be written"


@dataclass(frozen=True)
class SamplingBatch:
    """The settings of many rows, as columns (rows, 1) on the logits' device."""

    asked: Sequence[Sampling]
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    penalty: Tensor
    forbidden: Tensor  # (rows, vocabulary), True for what is never drawn

    @classmethod
    def of(
        cls, asked: Sequence[Sampling], signs: SpecialTokens, vocabulary: int, device: torch.device
    ) -> "SamplingBatch":
        def column(name: str, dtype: torch.dtype = torch.float64) -> Tensor:
            values = [[getattr(row, name)] for row in asked]
            return torch.tensor(values, dtype=dtype).to(device)

        forbidden = torch.zeros(len(asked), vocabulary, dtype=torch.bool)
        forbidden[:, [token for token in signs.never if token < vocabulary]] = True
        for row, settings in enumerate(asked):
            strange = [token for token in settings.banned if token >= vocabulary]
            if strange:
                raise RegardError(
                    f"banned token {strange[0]} does not exist: there are {vocabulary:,} tokens"
                )
            forbidden[row, list(settings.banned)] = True
        if forbidden.all(-1).any():
            raise RegardError("every token is banned, so nothing can be written")
        most = torch.tensor([[min(row.top_k or vocabulary, vocabulary)] for row in asked])
        return cls(
            asked,
            column("temperature"),
            most.to(device),
            column("top_p"),
            column("min_p"),
            column("repetition_penalty"),
            forbidden.to(device),
        )

    def kept(self, rows: Sequence[int]) -> "SamplingBatch":
        """Of the given rows."""
        index = torch.tensor(rows, device=self.top_k.device)
        columns = (
            self.temperature,
            self.top_k,
            self.top_p,
            self.min_p,
            self.penalty,
            self.forbidden,
        )
        return SamplingBatch(
            [self.asked[row] for row in rows], *(column[index] for column in columns)
        )


def distribution(logits: Tensor, columns: SamplingBatch, standing: Tensor | None = None) -> Tensor:
    """What each row draws from: logits (rows, vocabulary) -> probabilities, in float64.

    `standing` (rows, vocabulary) is True for the tokens that a row holds already, for the
    repetition penalty. A temperature of 0 leaves one token, the first of equals.
    """
    check_numbers(logits.amax(-1))
    scores = logits.double()
    if standing is not None:
        weighed = torch.where(scores > 0, scores / columns.penalty, scores * columns.penalty)
        scores = torch.where(standing, weighed, scores)
    scores = scores.masked_fill(columns.forbidden, -torch.inf)
    best, highest = best_tokens(scores)
    scores = scores - highest  # downwards, so that no temperature makes numbers overflow
    greedy = columns.temperature == 0
    scores = scores / torch.where(greedy, 1.0, columns.temperature)
    keep = _kept_by_rank(scores, columns)
    if keep is not None:
        scores = scores.masked_fill(~keep, -torch.inf)
    if any(row.min_p for row in columns.asked):
        scores = scores.masked_fill(scores.exp() < columns.min_p, -torch.inf)  # the best has 1
    probabilities = scores.softmax(-1)
    chosen = torch.zeros_like(probabilities).scatter_(-1, best, 1.0)
    return torch.where(greedy, chosen, probabilities)


def best_tokens(scores: Tensor) -> tuple[Tensor, Tensor]:
    """The best of scores (rows, vocabulary), the first of equals, and its score: (rows, 1) both.

    Every row must have one: where all is -inf there is nothing that could be written.
    """
    best = scores.argmax(-1, keepdim=True)
    highest = scores.gather(-1, best)
    if bool((highest == -torch.inf).any()):
        raise RegardError(NOTHING)
    return best, highest


def _kept_by_rank(scores: Tensor, columns: SamplingBatch) -> Tensor | None:
    """What top_k and top_p leave of scores (rows, vocabulary): True there; None for everything."""
    vocabulary = scores.shape[-1]
    filtering = [
        row
        for row, asked in enumerate(columns.asked)
        if asked.temperature and (0 < asked.top_k < vocabulary or asked.top_p < 1)
    ]
    if not filtering:
        return None
    index = torch.tensor(filtering, device=scores.device)
    some, top_k, top_p = scores[index], columns.top_k[index], columns.top_p[index]
    far = any(FIRST_LOOK < columns.asked[row].top_k < vocabulary for row in filtering)
    values, sums, total = _ranked(some, top_k, top_p, far)
    ranks = torch.arange(values.shape[-1], device=scores.device)
    before = F.pad(sums[:, :-1], (1, 0))  # of all that are more probable
    count = ((ranks < top_k) & (before < top_p * total)).sum(-1, keepdim=True)
    kept = torch.ones_like(scores, dtype=torch.bool)
    kept[index] = first_of_equals(some, count, values.gather(-1, count - 1))
    return kept


Ranked = tuple[Tensor, Tensor, Tensor]  # best scores first; sums of weights; what top_p is part of


def _ranked(scores: Tensor, top_k: Tensor, top_p: Tensor, far: bool) -> Ranked:
    """As many of the best of scores (rows, vocabulary) as hold every row's top_k and top_p.

    A first look takes a few, which nearly always do; `far` says that a top_k goes beyond it. Sums
    are made in one order, whatever the width: else a neighbour would move a share by its last bit.
    """
    vocabulary = scores.shape[-1]
    whole = scores.exp().sum(-1, keepdim=True)  # of what no top_k cuts

    def look(width: int) -> Ranked:
        values = scores.topk(width, dim=-1).values
        ranks = torch.arange(width, device=scores.device)
        sums = values.exp().masked_fill(ranks >= top_k, 0.0).cumsum(-1)
        cut = (top_k < vocabulary) & (top_k <= width)
        return values, sums, torch.where(cut, sums[:, -1:], whole)

    if far or vocabulary <= FIRST_LOOK:
        return look(vocabulary)
    values, sums, total = look(FIRST_LOOK)
    enough = sums[:, -1:] >= top_p * total
    return (values, sums, total) if bool(enough.all()) else look(vocabulary)


def draw(probabilities: Tensor, uniform: Sequence[float]) -> list[int]:
    """A token for each row of probabilities (rows, vocabulary), by a number in [0, 1) for each.

    The token at which the sum, in the order of the vocabulary, passes that number: it depends on
    the row alone.
    """
    sums = probabilities.cumsum(-1)
    total = sums[:, -1:]
    aim = torch.tensor(uniform, dtype=torch.float64).to(sums.device)[:, None] * total
    index = (sums <= aim).sum(-1)  # (rows,)
    # Rounding may carry the aim behind the last token that has any probability.
    last = probabilities.shape[-1] - 1 - (probabilities > 0).flip(-1).int().argmax(-1)
    return torch.minimum(index, last).tolist()


def dice(seed: int) -> np.random.Generator:
    """Where a row's random numbers come from."""
    return np.random.default_rng(seed)


def check_numbers(best: Tensor) -> None:
    """Refuse a model that has gone mad, by the best of its logits: NaN and inf are above all."""
    if bool(best.isnan().any()) or bool((best == torch.inf).any()):
        raise RegardError("the model gives no numbers (NaN or infinity); its weights are damaged")


def log_probabilities(logits: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The log-softmax over the last dimension; -inf, and not NaN, where all logits are -inf.

    What is no number stays none, for `check_numbers` to find.
    """
    logprobs = logits.log_softmax(-1, dtype=dtype)
    if bool(logprobs[..., 0].isnan().any()):  # one such logit spoils all of its row
        nothing = logits.amax(-1, keepdim=True) == -torch.inf
        logprobs = logprobs.masked_fill(nothing, -torch.inf)
    return logprobs

"""How probable texts are to a model: every token given those before it, and the end of the text."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from regard.decoding.sampling import check_numbers
from regard.decoding.search.ensemble import Ensemble
from regard.decoding.text_model import Given, TextModel, batches, padded_rows
from regard.errors import Problems, RegardError
from regard.models.config import Ability
from regard.models.kernels.attention import any_shape
from regard.models.network import Network

LOGITS = 1 << 24  # there at once: 64 MB, however many texts are read together


@dataclass(frozen=True)
class Score:
    """What a model thinks of one text; natural logarithms."""

    logprob: float  # of the whole text, its end included
    tokens: int  # that were counted: those of the text and its end
    logprobs: tuple[float, ...]  # of each token, given those before it
    ids: tuple[int, ...]  # the tokens, the last being the end
    unknown: int = 0  # how many stand for what the vocabulary lacks

    @property
    def per_token(self) -> float:
        """The mean log-probability."""
        return self.logprob / self.tokens

    @property
    def perplexity(self) -> float:
        return perplexity(self.logprob, self.tokens)


def perplexity(logprob: float, tokens: int) -> float:
    """exp of the mean surprise; infinite where a float ends."""
    mean = -logprob / tokens
    return math.inf if mean >= 700 else math.exp(mean)


def scored(
    speaker: TextModel,
    texts: Sequence[Given],
    *,
    sources: Sequence[Given] | None = None,
    rows: int = 32,
) -> list[Score]:
    """The log-probability of each text (text or token ids), for encoder–decoders given its source.

    A text begins with what begins texts, which is not counted, and ends with the (first) sign that
    ends them, which is; ids that end with such a sign already get no other. `rows` are computed at
    once, without a state; a score does not depend on which (but for rounding).
    """
    speaker.require(Ability.SCORE, what="score texts")
    read = _sources(speaker, texts, sources)
    written = _targets(speaker, texts)
    found: dict[int, Score] = {}
    both = [len(ids) for ids in written]
    if read is not None:
        both = [one + len(other) for one, other in zip(both, read, strict=True)]
    with torch.inference_mode(), any_shape():
        for some in batches(both, rows):
            given = None if read is None else [read[index] for index in some]
            lines = _logprobs(speaker, [written[index] for index in some], given)
            for index, logprobs in zip(some, lines, strict=True):
                found[index] = _score(speaker, written[index], logprobs)
    return [found[index] for index in range(len(texts))]


def _targets(speaker: TextModel, texts: Sequence[Given]) -> list[list[int]]:
    """The tokens that a model has to write for each text, its end included."""
    if isinstance(texts, str):
        raise RegardError("give a list of texts, not one text")
    problems, found = Problems("score"), []
    for number, text in enumerate(texts, 1):
        ids = _numbered(speaker, text, number)
        if not ids or ids[-1] not in speaker.signs.ends:
            ids.append(speaker.signs.ends[0])
        # What ends a text is written but not read, what begins it the other way round.
        problems.require(
            len(ids) <= speaker.context,
            f"text {number} has {len(ids):,} tokens; this model writes at most {speaker.context:,}",
        )
        found.append(ids)
    problems.report()
    return found


def _numbered(speaker: TextModel, text: Given, number: int, source: bool = False) -> list[int]:
    """The ids of a text or a whole source; what is wrong with it is told with its number."""
    try:
        return speaker.source(text) if source else speaker.ids(text)
    except RegardError as error:
        raise RegardError(f"{'source' if source else 'text'} {number}: {error}") from None


def _sources(
    speaker: TextModel, texts: Sequence[Given], sources: Sequence[Given] | None
) -> list[list[int]] | None:
    if not speaker.reads:
        if sources is not None:
            raise RegardError("this model reads no sources; give texts only")
        return None
    if sources is None:
        raise RegardError("this model writes from a source; give a source for each text")
    if isinstance(sources, str) or len(sources) != len(texts):
        count = 1 if isinstance(sources, str) else len(sources)
        raise RegardError(f"there must be a source for each of {len(texts)} texts, not {count}")
    return [_numbered(speaker, one, number, source=True) for number, one in enumerate(sources, 1)]


def _logprobs(
    speaker: TextModel, written: Sequence[list[int]], read: Sequence[list[int]] | None
) -> list[list[float]]:
    """The log-probability of each token of each row."""
    if isinstance(speaker.module, Ensemble):
        members = map(speaker.with_module, speaker.module.writers)
        return _mean([_logprobs(member, written, read) for member in members])
    known = speaker.module.logprobs([[speaker.signs.begin, *ids] for ids in written])
    if known is not None:
        return known
    module = speaker.require_one("score")
    memory = None if read is None else speaker.encode(read)
    begun = [[speaker.signs.begin, *ids[:-1]] for ids in written]
    tokens, lengths = padded_rows(begun, speaker.device)  # (rows, positions)
    hidden = module.hidden(tokens, memory, lengths=lengths)
    real = torch.arange(tokens.shape[1]) < lengths[:, None]  # (rows, positions)
    wanted = torch.tensor([token for ids in written for token in ids], device=speaker.device)
    found = _of_tokens(module, hidden[real.to(hidden.device)], wanted)
    check_numbers(found)
    return [part.tolist() for part in found.split(lengths.tolist())]


def _mean(members: Sequence[list[list[float]]]) -> list[list[float]]:
    """The log of the mean probability, by row and token, of each member's log-probabilities."""
    lines = zip(*members, strict=True)
    return [(np.logaddexp.reduce(line) - math.log(len(line))).tolist() for line in lines]


def _of_tokens(module: Network, hidden: Tensor, wanted: Tensor) -> Tensor:
    """How probable each wanted token (tokens,) is behind its hidden vector (tokens, width)."""
    count = max(1, LOGITS // module.config.vocabulary)
    found = []
    for some, ids in zip(hidden.split(count), wanted.split(count), strict=True):
        logits = module.logits(some)  # (some tokens, vocabulary)
        kind = torch.promote_types(logits.dtype, torch.float32)
        found.append(logits.log_softmax(-1, dtype=kind).gather(-1, ids[:, None])[:, 0])
    return torch.cat(found).cpu()  # (tokens,)


def _score(speaker: TextModel, ids: list[int], logprobs: list[float]) -> Score:
    unknown = 0 if speaker.tokenizer is None else speaker.tokenizer.unknown(ids)
    return Score(math.fsum(logprobs), len(ids), tuple(logprobs), tuple(ids), unknown)

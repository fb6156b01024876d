"""Small models that write, and the searches written out again: one row, lists, nothing kept.

Every weight is drawn wide: freshly initialised, a model gives nearly the same to all tokens, and
a mistake would drown.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from regard.decoding.search.beam import Hypothesis, SearchResult, search
from regard.decoding.settings import TARGET, TEXT, Beam, Sampling, SpecialTokens
from regard.models.construction import build
from regard.models.counting.estimate import estimate
from regard.models.counting.model import NGram, NGramConfig
from regard.models.protocol import Memory
from regard.models.transformer.model import Transformer
from regard.models.transformer.presets import preset
from regard.text.specials import BOS, EOS

VOCABULARY, CONTEXT = 24, 40
DECODERS = ("gpt2-tiny", "llama-tiny")
READERS = ("t5-tiny", "marian-tiny")
WRITERS = (*DECODERS, *READERS)


@cache
def writer(
    name: str,
    seed: int = 0,
    ends: float = 0.0,
    vocabulary: int = VOCABULARY,
    dtype: torch.dtype = torch.float32,
) -> Transformer:
    """A tiny model with a liking `ends` for </s>; shared between tests, so do not change it."""
    config = replace(preset(name), vocabulary=vocabulary, context=CONTEXT, head_bias=True)
    # A head of its own: tied to random embeddings, a model repeats its last token for ever.
    module = build(replace(config, tied=False, scale_head=False))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for part, weight in module.named_parameters():
            centre = 1.0 if "norm" in part and part.endswith("weight") else 0.0
            weight.copy_(centre + 0.3 * torch.randn(weight.shape, generator=generator))
        module.head.bias.zero_()
        module.head.bias[EOS] = ends
    return module.to(dtype).eval()


def disliking(module: Transformer, token: int, size: float = -1e4) -> Transformer:
    """A copy of the model with a liking or dislike for one token."""
    other = build(module.config).to(module.head.bias.dtype).eval()
    other.load_state_dict(module.state_dict())
    with torch.no_grad():
        other.head.bias[token] = size
    return other


def only_counted(texts: Sequence[Sequence[int]], order: int = 3) -> NGram:
    """An n-gram that gives no probability to what it has not met; texts without begin and end."""
    config = NGramConfig(VOCABULARY, order, "maximum-likelihood")
    ids = np.array([token for text in texts for token in (BOS, *text, EOS)])
    return NGram(config, estimate(ids, order, VOCABULARY, BOS, config.rule))


def words(count: int, seed: int, vocabulary: int = VOCABULARY) -> list[int]:
    """Ordinary tokens, the same for the same seed."""
    return np.random.default_rng(seed).integers(5, vocabulary, count).tolist()


def sources(rows: int, seed: int, vocabulary: int = VOCABULARY) -> list[list[int]]:
    """Sources of different lengths."""
    counts = np.random.default_rng(seed).integers(1, 9, rows).tolist()
    return [[*words(count, seed + row, vocabulary), EOS] for row, count in enumerate(counts)]


@torch.no_grad()
def read(module: Transformer, texts: Sequence[Sequence[int]] | None) -> Memory | None:
    """Sources of any lengths, padded with a token that must not be seen."""
    if texts is None:
        return None
    longest = max(map(len, texts))
    padded = [[*text, *[5] * (longest - len(text))] for text in texts]
    return module.encode(torch.tensor(padded), [len(text) for text in texts])


def signs_of(module: Transformer) -> SpecialTokens:
    return TARGET if module.config.kind == "encoder-decoder" else TEXT


@cache
def _read_alone(module: Transformer, source: tuple[int, ...]) -> Memory | None:
    return read(module, [source])


@cache
@torch.no_grad()
def _logits(module: Transformer, text: tuple[int, ...], source: tuple[int, ...]) -> Tensor:
    memory = _read_alone(module, source) if source else None
    return module(torch.tensor([text]), memory)[0, -1]


def following(module: Transformer, text: Sequence[int], source: Sequence[int] | None) -> Tensor:
    """The logits (vocabulary,) behind a text: a whole pass over it alone, no state, no padding."""
    return _logits(module, tuple(text), tuple(source or ())).clone()


@cache
@torch.no_grad()
def _alignment(module: Transformer, text: tuple[int, ...], source: tuple[int, ...]) -> Tensor:
    with regard.record(module) as tape:
        module(torch.tensor([text]), _read_alone(module, source))
    layers = module.config.layers
    upper = [
        tape[f"decoder.blocks.{layer}.cross"].probabilities[0].mean(0)
        for layer in range(layers // 2, layers)
    ]
    return torch.stack(upper).mean(0)


def alignment(module: Transformer, text: Sequence[int], source: Sequence[int]) -> Tensor:
    """How a text looks at its source, in the upper half of the layers: (tokens, positions)."""
    return _alignment(module, tuple(text), tuple(source))


# --- drawing ---------------------------------------------------------------------------------


def plain_distribution(
    logits: Sequence[float],
    asked: Sampling,
    never: Sequence[int] = (),
    standing: Sequence[int] = (),
) -> np.ndarray:
    """The rules of `Sampling` one after the other, for one row."""
    scores = {}
    for token, score in enumerate(map(float, logits)):
        if token in standing:
            penalty = asked.repetition_penalty
            score = score / penalty if score > 0 else score * penalty
        if token not in never and token not in asked.banned:
            scores[token] = score
    ranked = sorted(scores, key=lambda token: (-scores[token], token))
    if not asked.temperature:
        ranked = ranked[:1]
    best = scores[ranked[0]]
    weights = {
        token: math.exp((scores[token] - best) / (asked.temperature or 1)) for token in ranked
    }
    if asked.top_k:
        ranked = ranked[: asked.top_k]
    sums = np.cumsum([weights[token] for token in ranked])
    count = 1
    while count < len(ranked) and sums[count - 1] < asked.top_p * sums[-1]:
        count += 1
    ranked = [token for token in ranked[:count] if weights[token] >= asked.min_p]
    result = np.zeros(len(logits))
    for token in ranked:
        result[token] = weights[token]
    return result / result.sum()


def written(
    module: Transformer,
    prompt: Sequence[int],
    asked: Sampling,
    source: Sequence[int] | None = None,
) -> list[int]:
    """What a row is continued with, its end included."""
    text, rng, signs = list(prompt), np.random.default_rng(asked.seed), signs_of(module)
    most = min(asked.limit, module.config.context - len(prompt) + 1)
    while len(text) - len(prompt) < most:
        logits = following(module, text, source).tolist()
        chances = plain_distribution(logits, asked, signs.never, text)
        aim = rng.random() if asked.temperature else 0.0
        text.append(int(np.searchsorted(chances.cumsum(), aim * chances.sum(), side="right")))
        if text[-1] in signs.ends:
            break
    return text[len(prompt) :]


# --- searching -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """A hypothesis of the twin."""

    ids: list[int]  # the end included, where there is one
    logprob: float
    worth: float


def searched(
    module: Transformer,
    prompt: Sequence[int],
    limit: int,
    beam: Beam,
    source: Sequence[int] | None = None,
    signs: SpecialTokens | None = None,
) -> list[Answer]:
    """Beam search by its rules, one row: the best `beams` finished hypotheses, best first."""
    signs = signs or signs_of(module)
    banned = {*signs.never, *beam.banned}
    open_ones: list[tuple[float, list[int]]] = [(0.0, [])]
    found: list[Answer] = []
    for length in range(1, limit + 1):
        grown = []
        for score, ids in open_ones:
            text, lost = [*prompt, *ids], 0.0
            if beam.coverage_penalty:
                looks = alignment(module, text, source)
                lost = beam.coverage_penalty * covered(looks)
            logprobs = following(module, text, source).double().log_softmax(-1).tolist()
            grown += [
                (score + value, [*ids, token], lost)
                for token, value in enumerate(logprobs)
                if token not in banned
            ]
        grown.sort(key=lambda one: -one[0])
        for score, ids, lost in grown[: beam.beams]:
            if ids[-1] in signs.ends or length == limit:
                found.append(Answer(ids, score, score / length**beam.length_penalty + lost))
        found = sorted(found, key=lambda one: -one.worth)[: beam.beams]
        going = [one for one in grown if one[1][-1] not in signs.ends][: beam.beams]
        open_ones = [(score, ids) for score, ids, _ in going]
        best = open_ones[0][0] / length**beam.length_penalty if open_ones else -math.inf
        if len(found) == beam.beams and found[-1].worth >= best:
            break
    return found


def covered(looks: Tensor) -> float:
    """Σ log min(attention, 1) over the source, of looks (tokens, source positions)."""
    return float(looks.double().sum(0).clamp(max=1.0).log().sum())


def found_by(
    module: Transformer,
    prompts: Sequence[Sequence[int]],
    limits: Sequence[int],
    beam: Beam,
    texts: Sequence[Sequence[int]] | None = None,
    signs: SpecialTokens | None = None,
) -> list[SearchResult]:
    signs = signs or signs_of(module)
    return search(module, prompts, limits, beam, signs=signs, memory=read(module, texts))


def sources_for(module: Transformer, rows: int, seed: int) -> list[list[int]] | None:
    if module.config.kind != "encoder-decoder":
        return None
    return sources(rows, seed, module.config.vocabulary)


def whole(one: Hypothesis) -> list[int]:
    """With its end."""
    return [*one.ids, EOS] if one.ended else one.ids


def assert_as_the_twin(module, prompts, limits, beam, texts=None, signs=None) -> list[SearchResult]:
    found = found_by(module, prompts, limits, beam, texts, signs)
    assert len(found) == len(prompts)
    ends = (signs or signs_of(module)).ends
    for row, one in enumerate(found):
        source = texts and texts[row]
        wanted = searched(module, prompts[row], limits[row], beam, source, signs)[: beam.n_best]
        without = [a.ids[:-1] if a.ids[-1] in ends else a.ids for a in wanted]
        assert [h.ids for h in one.hypotheses] == without
        assert [h.ended for h in one.hypotheses] == [a.ids[-1] in ends for a in wanted]
        for ours, theirs in zip(one.hypotheses, wanted, strict=True):
            assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)
            assert ours.worth == pytest.approx(theirs.worth, rel=1e-5, abs=1e-4)
    return found

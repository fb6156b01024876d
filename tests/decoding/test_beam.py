"""Beam search against loops that recompute everything, and against trying every sequence."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from regard.decoding.beam import NEVER, translate
from regard.errors import RegardError
from regard.models.presets import preset
from regard.models.transformer import Transformer, build
from regard.text.specials import BOS, EOS

VOCABULARY = 9
WORDS = [token for token in range(VOCABULARY) if token not in NEVER]


def model(seed: int, **changes: object) -> Transformer:
    """Weights drawn wide, so that no two answers are nearly alike; in float64."""
    tiny = {"vocabulary": VOCABULARY, "context": 32, "layers": 1, "width": 16, "heads": 2}
    config = replace(preset("transformer-tiny"), **{**tiny, "hidden": 16, **changes})
    module = build(config).double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in module.parameters():
            if weight.dim() == 2:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.7)
    return module


def sources(rows: int, width: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(5, VOCABULARY, (rows, width), generator=generator)
    lengths = torch.randint(1, width + 1, (rows,), generator=generator)
    lengths[0] = width
    return source.masked_fill(torch.arange(width) >= lengths[:, None], 0), lengths


@torch.no_grad()
def following(module: Transformer, source: Tensor, written: list[int]) -> Tensor:
    """Log-probabilities of the next token, everything computed anew; (vocabulary,)."""
    tokens = torch.tensor([[BOS, *written]])
    answer = module(tokens, module.encode(source[None]))[0, -1].float()
    answer[list(NEVER)] = -torch.inf
    return answer.log_softmax(-1)


def greedy(module: Transformer, source: Tensor, limit: int) -> list[int]:
    written: list[int] = []
    while len(written) < limit:
        token = int(following(module, source, written).argmax())
        if token == EOS:
            return written
        written.append(token)
    return written


def every_end(module: Transformer, source: Tensor, limit: int, penalty: float):
    """All that can be written with `</s>` within the limit, and what it is worth."""
    for length in range(1, limit + 1):
        for words in itertools.product([w for w in WORDS if w != EOS], repeat=length - 1):
            ids = [*words, EOS]
            total = sum(
                float(following(module, source, ids[:place])[token])
                for place, token in enumerate(ids)
            )
            yield total / length**penalty, list(words)


@pytest.mark.parametrize("seed", range(6))
def test_one_beam_is_the_most_probable_token_each_time(seed):
    module = model(seed)
    source, lengths = sources(4, 6, seed)
    found = translate(module, source, lengths)
    for row in range(4):
        length = int(lengths[row])
        assert found[row] == greedy(module, source[row, :length], int(1.5 * length) + 10)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
def test_with_beams_for_everything_it_finds_the_best_of_all_sequences(seed, penalty):
    module, limit = model(seed), 3
    source, lengths = sources(2, 4, seed)
    found = translate(module, source, lengths, beams=150, limit=limit, penalty=penalty)
    for row in range(2):
        ends = every_end(module, source[row, : int(lengths[row])], limit, penalty)
        assert found[row] == max(ends, key=lambda end: end[0])[1]


def reference(module, source: Tensor, beams: int, limit: int, penalty: float) -> list[int]:
    """Beam search over lists, one source at a time, nothing kept from step to step."""
    open_ones: list[tuple[float, list[int]]] = [(0.0, [])]
    ended: list[tuple[float, list[int]]] = []
    for length in range(1, limit + 1):
        grown = [
            (score + float(value), [*ids, token])
            for score, ids in open_ones
            for token, value in enumerate(following(module, source, ids))
            if token in WORDS
        ]
        best = sorted(grown, key=lambda one: -one[0])[:beams]
        ended += [(score / length**penalty, ids[:-1]) for score, ids in best if ids[-1] == EOS]
        ended = sorted(ended, key=lambda one: -one[0])[:beams]
        open_ones = [one for one in best if one[1][-1] != EOS]
        if not open_ones:
            break
        if len(ended) == beams and ended[-1][0] >= open_ones[0][0] / length**penalty:
            break
    return ended[0][1] if ended else open_ones[0][1]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("beams", [2, 3, 5])
def test_it_is_beam_search_written_with_lists(seed, beams):
    module = model(seed)
    source, lengths = sources(3, 5, seed + 50)
    found = translate(module, source, lengths, beams=beams, penalty=0.8)
    for row in range(3):
        length = int(lengths[row])
        alone = source[row, :length]
        assert found[row] == reference(module, alone, beams, int(1.5 * length) + 10, 0.8)


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("seed", range(4))
def test_rows_of_a_batch_do_not_influence_one_another(seed, beams):
    module = model(seed)
    source, lengths = sources(6, 9, seed)
    together = translate(module, source, lengths, beams=beams)
    for row in range(6):
        length = int(lengths[row])
        assert translate(module, source[row : row + 1, :length], [length], beams=beams) == [
            together[row]
        ]


def biased(module: Transformer, token: int, size: float) -> Transformer:
    """The model with a liking or dislike for one token."""
    with torch.no_grad():
        module.head.bias[token] = size
    return module


@pytest.mark.parametrize("beams", [1, 3])
def test_a_model_that_never_ends_stops_at_the_limit_and_at_its_context(beams):
    module = biased(model(0, head_bias=True), EOS, -1e4)
    source, lengths = sources(3, 4, 0)
    for limit, wanted in ((5, 5), (1, 1), (1000, module.config.context)):
        found = translate(module, source, lengths, beams=beams, limit=limit)
        assert [len(ids) for ids in found] == [wanted] * 3
    own = translate(module, source, lengths, beams=beams)
    assert [len(ids) for ids in own] == [int(1.5 * length) + 10 for length in lengths.tolist()]


@pytest.mark.parametrize("beams", [1, 3])
def test_a_model_that_ends_at_once_writes_nothing(beams):
    module = biased(model(0, head_bias=True), EOS, 1e4)
    assert translate(module, *sources(3, 4, 0), beams=beams) == [[], [], []]


@pytest.mark.parametrize("beams", [1, 4, 50])
def test_what_a_target_never_holds_is_not_written(beams):
    module = model(1, head_bias=True)
    for token in NEVER:
        biased(module, token, 1e4)
    for ids in translate(module, *sources(4, 5, 1), beams=beams):
        assert not {*ids} & {*NEVER, EOS}


def test_more_beams_than_there_are_tokens_are_no_harm():
    module = model(2)
    source, lengths = sources(2, 3, 2)
    found = translate(module, source, lengths, beams=5 * VOCABULARY, limit=2)
    for row in range(2):
        ends = every_end(module, source[row, : int(lengths[row])], 2, 1.0)
        assert found[row] == max(ends, key=lambda end: end[0])[1]


def test_nothing_to_translate_is_nothing():
    assert translate(model(0), torch.zeros(0, 3, dtype=torch.long), []) == []


@pytest.mark.parametrize("wrong", [{"beams": 0}, {"beams": -1}, {"limit": -1}])
def test_no_beams_or_a_negative_limit_is_one_sentence(wrong):
    with pytest.raises(RegardError, match="a search needs beams and a limit"):
        translate(model(0), *sources(1, 3, 0), **wrong)

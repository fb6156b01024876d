"""A model in half precision: what it says is rounded, what is made of it is not."""

import pytest
import torch
from test_speculative import Bigrams, written
from torch import Tensor

from regard.decoding.decode_batch import DecodeBatch
from regard.decoding.search.beam import search
from regard.decoding.search.speculative import Speculation
from regard.decoding.settings import Beam, Sampling
from regard.text.specials import BOS, EOS

HALVES = [torch.bfloat16, torch.float16]
PROMPTS = [[BOS, 7], [BOS, 9, 8]]


def bigrams(seed: int, dtype: torch.dtype) -> Bigrams:
    """What follows each token, rounded; never the end."""
    model = Bigrams(seed, vocabulary=40)
    model.table[:, EOS] = -20
    return model.to(dtype)


def exact(model: Bigrams, texts: list[list[int]]) -> Tensor:
    """The log-probability of each token behind the first: of the rounded numbers, exactly."""
    logprobs = model.table.double().log_softmax(-1)
    tokens = torch.tensor(texts)  # (rows, positions)
    return logprobs[tokens[:, :-1], tokens[:, 1:]]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("beams", [1, 4])
def test_the_score_of_a_long_answer_is_the_sum_of_what_the_model_says(dtype, beams):
    model = bigrams(3, dtype)
    for prompt, found in zip(
        PROMPTS, search(model, PROMPTS, [60] * 2, Beam(beams, n_best=beams)), strict=True
    ):
        sums = exact(model, [[prompt[-1], *one.ids] for one in found.hypotheses]).sum(-1)
        assert [len(one.ids) for one in found.hypotheses] == [60] * beams
        assert [one.logprob for one in found.hypotheses] == pytest.approx(sums.tolist(), rel=1e-5)
        worths = (sums / 60).tolist()
        assert [one.worth for one in found.hypotheses] == pytest.approx(worths, rel=1e-5)
        assert worths == sorted(worths, reverse=True)
        assert max(abs(sums.to(dtype).double() - sums)) > 1e-3  # what rounding would make of them


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("drafted", [False, True])
@pytest.mark.parametrize("temperature", [0, 1])
def test_the_log_probability_of_a_token_is_what_the_model_says(dtype, drafted, temperature):
    model = bigrams(3, dtype)
    asked = [Sampling(limit=30, temperature=temperature, logprobs=2, seed=row) for row in range(2)]
    if drafted:
        steps = Speculation.begin(model, bigrams(4, dtype), PROMPTS, asked, context=99)
    else:
        steps = DecodeBatch.begin(model, PROMPTS, asked, context=99)
    for prompt, tokens in zip(PROMPTS, written(steps, 2), strict=True):
        (wanted,) = exact(model, [[prompt[-1], *(token.id for token in tokens)]])
        assert [token.logprob for token in tokens] == pytest.approx(wanted.tolist(), rel=1e-5)
        assert max(abs(wanted.to(dtype).double() - wanted)) > 1e-4

"""Recurrent and convolutional models in float32: a row beside others, and without what is kept."""

from copy import deepcopy
from dataclasses import replace
from functools import cache

import pytest
import torch
from test_convolution_decoding import PAIRS as CONVOLUTIONS
from test_convolution_decoding import TEXTS as CONVOLUTION_TEXTS
from test_convolution_decoding import convolution
from test_recurrent_decoding import recurrent
from test_written_rows import begun, together, tokens_of, wish
from twins import found_by, read, sources_for, whole, words, written

from regard.decoding.settings import Beam
from regard.models.network import Network
from regard.text.specials import BOS

NAMES = ("lstm", "bahdanau", "text", "text near", "pairs")
ROWS = 33


@cache
def single(name: str) -> Network:
    """The model of that name in float32."""
    of_convolutions = name in (*CONVOLUTIONS, *CONVOLUTION_TEXTS)
    module = convolution(name, 2, 0.0) if of_convolutions else recurrent(name, 2, 0.0)
    return deepcopy(module).float()


def prompts() -> list[list[int]]:
    return [[BOS, *words(row * 5 % 13, row)] for row in range(ROWS)]


@pytest.mark.parametrize("name", NAMES)
def test_a_row_alone_is_the_row_beside_32_others_and_the_one_that_is_worked_out_anew(name):
    module = single(name)
    texts = sources_for(module, ROWS, 5)
    asked = [wish(row) for row in range(ROWS)]
    found = together(module, prompts(), asked, texts)
    for row, (prompt, one) in enumerate(zip(prompts(), asked, strict=True)):
        source = texts and texts[row]
        if row % 3 == 0:
            assert found[row] == together(module, [prompt], [one], source and [source])[0]
            assert found[row] == written(module, prompt, one, source)
    assert len({len(ids) for ids in found}) > 8
    assert len({token for ids in found for token in ids}) > 12


@pytest.mark.parametrize("name", NAMES)
def test_with_what_is_kept_a_token_is_as_probable_as_in_a_pass_over_the_whole(name):
    module = single(name)
    texts = sources_for(module, ROWS, 5)
    asked = [replace(wish(row), logprobs=0) for row in range(ROWS)]
    writing = begun(module, prompts(), asked, texts)
    for row, tokens in tokens_of(writing).items():
        text, source = [*prompts()[row], *(token.id for token in tokens)], texts and [texts[row]]
        with torch.no_grad():
            logprobs = module(torch.tensor([text[:-1]]), read(module, source))[0].log_softmax(-1)
        first = len(prompts()[row]) - 1
        wanted = [float(logprobs[first + i, token.id]) for i, token in enumerate(tokens)]
        assert [token.logprob for token in tokens] == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_a_search_alone_is_the_search_beside_32_others(name):
    module = single(name)
    texts = sources_for(module, ROWS, 5)
    limits = [3 + row * 5 % 13 for row in range(ROWS)]
    found = found_by(module, prompts(), limits, Beam(3, n_best=3), texts)
    for row in range(0, ROWS, 4):
        source = texts and [texts[row]]
        (alone,) = found_by(module, [prompts()[row]], [limits[row]], Beam(3, n_best=3), source)
        for one, other in zip(found[row].hypotheses, alone.hypotheses, strict=True):
            assert whole(one) == whole(other)
            assert one.worth == pytest.approx(other.worth, abs=1e-4)

"""An n-gram as a sequence model says what its table says."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.errors import RegardError
from regard.models.counting.estimate import estimate
from regard.models.counting.model import NGram

UNKNOWN, BEGIN, END, VOCABULARY = 0, 1, 2, 9
TEXTS = st.lists(st.integers(3, 7), max_size=7)


def model(order: int, seed: int = 0) -> NGram:
    rng = np.random.default_rng(seed)
    texts = [(3 + rng.zipf(1.5, rng.integers(1, 8)) % 5).tolist() for _ in range(60)]
    ids = np.array([token for words in texts for token in (BEGIN, *words, END)])
    return NGram.of(estimate(ids, order, VOCABULARY, BEGIN))


@pytest.mark.parametrize("order", [1, 2, 3, 5])
@settings(max_examples=25, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=3))
def test_its_distribution_holds_what_the_table_says_of_each_token(order, texts):
    ngram = model(order)
    ids = np.array([token for words in texts for token in (BEGIN, *words, END)])
    wanted, _ = ngram.table.logprobs(ids)
    found = ngram(torch.from_numpy(ids)[None])[0].double()  # (tokens, vocabulary)
    torch.testing.assert_close(found.exp().sum(-1), torch.ones(len(ids), dtype=torch.float64))
    for place in range(1, len(ids)):
        if ids[place] != BEGIN:
            assert float(found[place - 1, ids[place]]) == pytest.approx(wanted[place], abs=1e-5)


def test_a_state_of_longer_n_grams_is_refused():
    with pytest.raises(RegardError, match="the state is another model's"):
        model(3)(torch.tensor([[3]]), state=model(5).start(1, 5))

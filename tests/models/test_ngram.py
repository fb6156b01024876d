"""An n-gram answers the protocol, so that every search runs on it unchanged."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.decoding.decode_batch import DecodeBatch
from regard.decoding.search.beam import search
from regard.decoding.search.speculative import Speculation
from regard.decoding.settings import Beam, Sampling, SpecialTokens
from regard.errors import RegardError
from regard.models.counting.estimate import estimate
from regard.models.counting.model import NGram
from regard.models.protocol import SequenceModel

UNKNOWN, BEGIN, END, VOCABULARY = 0, 1, 2, 9
SIGNS = SpecialTokens(begin=BEGIN, ends=(END,), never=(BEGIN,))
TEXTS = st.lists(st.integers(3, 7), max_size=7)


def model(order: int, seed: int = 0) -> NGram:
    rng = np.random.default_rng(seed)
    texts = [(3 + rng.zipf(1.5, rng.integers(1, 8)) % 5).tolist() for _ in range(60)]
    ids = np.array([token for words in texts for token in (BEGIN, *words, END)])
    return NGram.of(estimate(ids, order, VOCABULARY, BEGIN))


def test_it_is_a_sequence_model():
    assert isinstance(model(2), SequenceModel)


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


def test_a_row_that_takes_in_nothing_stays_as_it_is():
    ngram = model(3)
    state = ngram.start(2, 50)
    ngram(torch.tensor([[BEGIN, 3], [BEGIN, 4]]), state=state)
    empty = ngram(torch.tensor([[0, 0], [5, 6]]), state=state, lengths=[0, 2], last=True)
    assert empty[0].eq(0).all()
    after = ngram(torch.tensor([[5], [7]]), state=state)
    torch.testing.assert_close(after[0, 0], ngram(torch.tensor([[BEGIN, 3, 5]]))[0, -1])
    torch.testing.assert_close(after[1, 0], ngram(torch.tensor([[BEGIN, 4, 5, 6, 7]]))[0, -1])


@pytest.mark.parametrize("order", [1, 3])
@settings(max_examples=25, deadline=None)
@given(TEXTS, st.data())
def test_step_by_step_with_ragged_rows_undone_and_reordered_it_is_the_same(order, words, drawn):
    ngram = model(order)
    text = [BEGIN, *words, END]
    whole = ngram(torch.tensor([text]))
    cut = drawn.draw(st.integers(1, len(text)))
    state = ngram.start(2, 50)
    padded = torch.tensor([text[:cut] + [0] * (len(text) - cut), text])
    found = ngram(padded, state=state, lengths=[cut, len(text)], last=True)
    torch.testing.assert_close(found[0, 0], whole[0, cut - 1])
    back = drawn.draw(st.integers(0, cut - 1))
    state.rollback([back, 0])
    state.reorder([1, 0, 0])
    for token in text[cut - back :]:
        step = ngram(torch.tensor([[3], [token], [token]]), state=state)
    if text[cut - back :]:
        torch.testing.assert_close(step[1, 0], whole[0, -1])
        torch.testing.assert_close(step[2, 0], whole[0, -1])


def test_beam_search_sampling_and_drafts_run_on_it():
    ngram, small = model(4), model(2)
    (found,) = search(ngram, [[BEGIN]], [10], Beam(beams=50, length_penalty=0.0), signs=SIGNS)
    best = found.hypotheses[0]
    wanted, _ = ngram.table.logprobs(np.array([BEGIN, *best.ids, END]))
    assert best.logprob == pytest.approx(wanted[1:].sum(), abs=1e-4)
    greedy = [Sampling(limit=8, temperature=0.0)]
    prompts = [[BEGIN, 4]]
    plain = DecodeBatch.begin(ngram, prompts, greedy, context=99, signs=SIGNS)
    draft = Speculation.begin(ngram, small, prompts, greedy, context=99, signs=SIGNS)
    texts = []
    for writing in (plain, draft):
        ids = []
        while writing.open:
            ids += [token.id for token in writing.step()]
        texts.append(ids)
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: m.encode(torch.zeros(1, 2)), "reads no source"),
        (lambda m: m.start(0, 5), "room for one token"),
        (lambda m: m.start(1, 5, return_attention=True), "no attention to return"),
        (lambda m: m(torch.tensor([[99]])), "from 0 to 8"),
        (lambda m: m(torch.tensor([[3]]), state=m.start(2, 5)), "the state has 2 rows"),
        (lambda m: m(torch.tensor([[3]]), state=model(5).start(1, 5)), "another model's"),
        (lambda m: m.start(2, 5).rollback([1, 0]), "cannot forget"),
        (lambda m: m.start(2, 5).reorder([2]), "rows 0 to 1"),
    ],
)
def test_bad_input_is_one_sentence(call, words):
    with pytest.raises(RegardError, match=words):
        call(model(3))

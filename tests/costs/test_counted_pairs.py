"""Pairs that a mask lets meet: counted without its table, and as the table has them."""

from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st
from small_models import small

from regard.costs import jobs
from regard.costs.jobs import Shape
from regard.costs.trace.allowed_pairs import allowed_pairs
from regard.models.masks import (
    Causal,
    Combined,
    Dense,
    Documents,
    Padding,
    QueryKeyRange,
    Window,
    fitting,
)


@st.composite
def spans(draw):
    rows, queries, first = draw(st.integers(1, 3)), draw(st.integers(1, 7)), draw(st.integers(0, 4))
    if draw(st.booleans()):
        keys = first + queries + draw(st.integers(0, 2))
        return QueryKeyRange.of(rows, queries, keys, torch.device("cpu"), first)
    starts = torch.tensor([draw(st.integers(0, 4)) for _ in range(rows)])  # ragged
    positions = starts[:, None] + torch.arange(queries)
    return QueryKeyRange(positions, rows, int(positions.max()) + 1, None)


@st.composite
def masks(draw, span):
    lengths = [draw(st.integers(0, span.keys)) for _ in range(span.rows)]
    steps = [[draw(st.integers(0, 1)) for _ in range(span.keys)] for _ in range(span.rows)]
    mixed = [[draw(st.integers(0, 2)) for _ in range(span.keys)] for _ in range(span.rows)]
    table = torch.tensor(draw(st.lists(st.booleans(), min_size=span.keys, max_size=span.keys)))
    known = [
        Causal(),
        Window(draw(st.integers(1, 5))),
        Padding(torch.tensor(lengths)),
        Documents(torch.tensor(steps).cumsum(1)),
        Documents(torch.tensor(mixed)),  # they come back after one another
        Dense(table[None, None]),
    ]
    return Combined(tuple(draw(st.lists(st.sampled_from(known), min_size=1, max_size=4))))


@given(st.data())
def test_pairs_are_those_of_the_table(data):
    span = data.draw(spans())
    mask = data.draw(masks(span))
    table = fitting(mask, span).expand(span.rows, span.queries, span.keys)
    assert allowed_pairs(mask, span) == int(table.sum())


def test_without_a_mask_all_meet():
    assert allowed_pairs(None, QueryKeyRange.of(3, 4, 5, torch.device("cpu"))) == 60


def test_a_long_causal_text_needs_no_table():
    long = 1 << 20
    span = QueryKeyRange.of(2, long, long, torch.device("cpu"))
    assert allowed_pairs(Causal() & Window(7), span) == 2 * (long * 7 - 21)


def attention(counted, place=""):
    """Products of attention itself in a forward pass."""
    return sum(r.products for r in counted.of("forward") if r.place.endswith(f"{place}.attend"))


EACH = 2 * 2 * 32  # scores and mixture, multiplication and addition, of all heads of a pair


def test_a_decoder_counts_the_triangle():
    counted = jobs.train_step(small("gpt2"), Shape(3, 6))
    assert attention(counted) == 2 * 3 * (6 * 7 // 2) * EACH  # layers, rows, pairs


def test_an_encoder_counts_no_padding():
    counted = jobs.train_step(small("bert-base"), Shape(3, 6, lengths=(6, 4, 1)))
    assert attention(counted) == 2 * 6 * (6 + 4 + 1) * EACH  # every query, real keys


def test_documents_of_a_row_are_apart():
    ids = ((0, 0, 0, 1, 1, 2), (0, 1, 1, 1, 1, 1))
    counted = jobs.train_step(small("gpt2"), Shape(2, 6, documents=ids))
    assert attention(counted) == 2 * ((6 + 3 + 1) + (1 + 15)) * EACH


def test_cross_attention_counts_the_real_source():
    for name in ("marian", "conv-pairs"):
        counted = jobs.train_step(small(name), Shape(2, 4, 6, lengths=(6, 3)))
        assert attention(counted, "cross") == 2 * 4 * (6 + 3) * EACH


def test_additive_attention_counts_the_real_source_too():
    padded, full = (
        jobs.train_step(small("bahdanau"), Shape(2, 4, 6, lengths=lengths))
        for lengths in ((6, 3), (6, 6))
    )
    mixing = [attention(c) + attention(c, "similarity.score") for c in (padded, full)]
    assert mixing[0] * 12 == mixing[1] * 9


def test_rows_of_different_lengths_are_counted_as_they_stand():
    counted = jobs.write(small("gpt2"), Shape(3, 6, lengths=(6, 4, 1)), 1)
    assert attention(counted) == 2 * (7 + 5 + 2) * EACH


def test_backward_needs_twice_as_much_and_the_kernel_makes_scores_again():
    counted = jobs.train_step(replace(small("gpt2"), attention_dropout=0.0), Shape(2, 8))
    there = [r for r in counted.of("forward") if r.place.endswith(".attend")]
    back = [r for r in counted.of("backward") if r.place.endswith(".attend")]
    assert sum(r.products for r in back) == 2 * sum(r.products for r in there)
    assert sum(r.executed for r in back) == 5 * sum(r.executed for r in there) // 2

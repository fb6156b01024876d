"""Products of steps of any shape, against steps of that shape."""

from dataclasses import replace

import pytest
import torch
from small_models import small

from regard.costs import jobs
from regard.costs.jobs import Shape
from regard.costs.step_products import of_any_length, products
from regard.costs.step_traces import StepTraces
from regard.families.settings import Settings
from regard.models.registry import named
from regard.models.transformer.config import TransformerConfig


def counted(config, rows, tokens, source=0):
    step = jobs.train_step(config, Shape(rows, tokens, source))
    return sum(r.products for r in step.records if r.phase != "optimizer")


@pytest.mark.parametrize("training", [{}, {"recompute": True}, {"r_drop": 5.0}])
@pytest.mark.parametrize("traced", [(), (4, 7)])
@pytest.mark.parametrize("name", ["gpt2", "llama-3-8b", "bert-base", "lstm", "conv"])
def test_rows_of_one_length_cost_as_much_in_every_trace(name, traced, training):
    config, settings = small(name), Settings().changed({"training": training}, "test")
    traces = StepTraces(config, settings, torch.device("cpu"), "float32")
    for rows in traced:
        traces.of(Shape(rows, 9))
    assert 5 * traces.products_of_a_row(9) == counted(config, 5, 9)


@pytest.mark.parametrize("name", ["t5-small", "marian", "bahdanau", "luong", "rnn", "conv-pairs"])
def test_rows_and_sources_of_any_length(name):
    config = small(name)
    found = of_any_length(config, sources=True)
    for rows, tokens, source in ((1, 1, 1), (3, 2, 9), (2, 7, 4)):
        assert found(rows, tokens, source) == counted(config, rows, tokens, source)


@pytest.mark.parametrize("name", ["captioner", "captioner-vit-lstm"])
def test_rows_of_any_length_about_pictures(name):
    config = replace(named(name), vocabulary=30, picture=32, width=16, heads=2)
    found = of_any_length(config, sources=False)
    for rows, tokens in ((1, 1), (4, 7)):
        assert found(rows, tokens, 0) == counted(config, rows, tokens)


def test_a_small_decoder_is_what_a_hand_counts():
    config = TransformerConfig(vocabulary=100, layers=3, width=16, heads=2, hidden=40, context=64)
    # A layer: queries, keys, values 16×48, output 16×16, feed-forward 16×40 and 40×16.
    weights = 3 * (16 * 48 + 16 * 16 + 2 * 16 * 40) + 100 * 16  # and the output matrix
    pairs = 10 * 11 // 2  # each token sees itself and those before it
    attention = 3 * 16 * 2 * 2 * pairs  # layers × width × (scores and mixing) × (multiply and add)
    assert products(config, 10) == 3 * (10 * 2 * weights + attention)

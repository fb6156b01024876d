"""Models that look up more than they multiply."""

import math

import numpy as np
import pytest

from regard.costs.device.ceilings import device_named
from regard.costs.jobs import Shape
from regard.costs.report import Asked, of_counted
from regard.families.counting import price as lookups
from regard.families.word_vectors import price as word_price
from regard.models.counting.estimate import estimate
from regard.models.counting.model import NGram
from regard.models.word_vectors.model import Word2VecConfig


@pytest.fixture(scope="module")
def trigram():
    ids = np.random.default_rng(0).integers(5, 50, 5000)
    ids[::20] = 1
    return NGram.of(estimate(ids, 3, 50, 1))


def test_watched_tables_answer_as_plain_ones_do(trigram):
    plain = trigram.table.following([1, 7, 9])
    watched = lookups.watched(trigram.table, lookups.Tally()).following([1, 7, 9])
    assert np.array_equal(plain, np.asarray(watched))


def test_a_step_of_an_ngram_searches_each_level(trigram):
    tally = lookups.Tally()
    table = lookups.watched(trigram.table, tally)
    table.following(lookups.ngram_text(trigram, 3))
    # Of a context of one: its followers, two ends. Of two: its place, then its followers.
    assert tally.calls["search"] == 3
    second, third = (math.ceil(math.log2(len(level.keys) + 1)) for level in table.levels[1:])
    compared = 2 * second + second + 2 * third
    assert compared <= tally.operations <= compared + 5 * 50  # and sums over the vocabulary


def test_an_ngram_has_the_bytes_of_its_table_and_no_products(trigram):
    counted = lookups.ngram(trigram, Shape(2, 6), 1)
    size = sum(lv.logprobs.nbytes + lv.backoffs.nbytes for lv in trigram.table.levels)
    size += sum(level.keys.nbytes for level in trigram.table.levels[1:])
    assert counted.weights == size
    assert counted.total.products == 0
    assert counted.total.read > 2 * 50 * 4  # the vocabulary's, for each of two rows
    assert not isinstance(trigram.table.levels[0].logprobs, lookups.Watched)  # left as it was


def test_writing_with_an_ngram_reads_the_prompt_and_one_step_less_than_it_writes(trigram):
    text = lookups.ngram_text(trigram, 8)
    tally = lookups.Tally()
    table = lookups.watched(trigram.table, tally)
    for end in (6, 7, 8):  # the first token comes with the prompt
        table.following(text[:end])
    assert lookups.ngram(trigram, Shape(1, 6), 3).total.others == tally.operations


def test_a_table_is_searched_by_the_host_of_a_gpu(trigram):
    counted = lookups.ngram(trigram, Shape(2, 6), 2)
    on_gpu, on_host = (
        of_counted(counted, Asked("generate", Shape(2, 6), device_named(name), new=2))
        for name in ("h200", "cpu")
    )
    assert on_gpu.asked.device == on_host.asked.device
    assert on_gpu.seconds == on_host.seconds


def test_rows_of_an_ngram_cost_alike(trigram):
    one, three = (lookups.ngram(trigram, Shape(rows, 6), 2).total for rows in (1, 3))
    assert three.read == 3 * one.read
    assert three.others == 3 * one.others


def test_skip_gram_multiplies_what_its_blocks_hold():
    config = Word2VecConfig(vocabulary=500, width=16, subsample=0.0)
    counted = word_price.vectors(config, 1024)
    # Two turns: places (16 a block) with what is around (16 + 5) and drawn (32), three products
    # of width 16 each.
    pairs = 2 * 1024 * (16 + 5 + 32)
    assert counted.total.products == 2 * 3 * pairs * 16
    assert counted.parameters == 2 * 500 * 16

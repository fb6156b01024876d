"""The shuffled order: a permutation, and as random as one."""

from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from regard.data.feeds.order import generator, shuffled, turned_seed
from regard.errors import RegardError


def whole(count: int, seed: int = 0, epoch: int = 0) -> np.ndarray:
    return shuffled(np.arange(count), count, seed, epoch)


@pytest.mark.parametrize("seed", [0, 2**64 - 1])
def test_it_is_one_to_one_for_every_small_count(seed):
    for count in range(1, 201):
        assert np.array_equal(np.sort(whole(count, seed, epoch=count % 3)), np.arange(count))


@pytest.mark.parametrize("count", [2**16 - 1, 2**16, 2**16 + 1, 300_007])
def test_it_is_one_to_one_for_large_counts(count):
    assert np.array_equal(np.sort(whole(count)), np.arange(count))


@given(st.integers(1, 2**62), st.integers(0, 2**64 - 1), st.integers(0, 10**6), st.data())
def test_one_index_goes_where_it_goes_among_others(count, seed, epoch, data):
    index = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=20, unique=True))
    together = shuffled(np.array(index), count, seed, epoch)
    assert together.dtype == np.int64
    assert len(set(together.tolist())) == len(index)
    assert 0 <= together.min() <= together.max() < count
    assert shuffled(index[0], count, seed, epoch) == together[0]


def test_the_order_of_a_seed_never_changes():
    # Golden: runs that are resumed with a later version must see the same data.
    assert whole(10, seed=1, epoch=2).tolist() == [8, 5, 2, 7, 3, 4, 6, 1, 0, 9]
    assert shuffled(10**11, 10**12, 1, 2) == 934798993992


def test_shapes_are_kept():
    index = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    assert np.array_equal(shuffled(index, 30, 5, 6).ravel(), shuffled(index.ravel(), 30, 5, 6))
    assert shuffled(index, 30, 5, 6).shape == (2, 3, 4)
    assert shuffled(7, 30, 5, 6).shape == ()
    assert shuffled(np.zeros(0, int), 30, 5, 6).shape == (0,)


def test_seeds_and_epochs_give_unrelated_orders():
    count = 20_000
    orders = [whole(count, seed, epoch) for seed in (0, 1, 2**63) for epoch in (0, 1, 2)]
    for i, one in enumerate(orders):
        for other in orders[:i]:
            # Two random permutations agree in one place on average (Poisson), and correlate by
            # 1 / √count = 0.7 %.
            assert (one == other).sum() < 10
            assert abs(np.corrcoef(one, other)[0, 1]) < 0.035
    # Nor do they differ by a constant alone.
    assert len(np.unique(orders[0] - orders[1])) > count / 2


@pytest.mark.parametrize("count", [3, 4, 5])
def test_every_order_of_a_few_things_is_as_likely(count):
    trials = 3000
    codes = [tuple(whole(count, seed).tolist()) for seed in range(trials)]
    found = [codes.count(order) for order in permutations(range(count))]
    assert stats.chisquare(found).pvalue > 1e-4


@pytest.mark.parametrize("count", [1000, 1024, 1025, 100_000])
def test_it_looks_like_a_random_permutation(count):
    order = whole(count, seed=3)
    index = np.arange(count)
    # Where the first, second, ... tenth of the examples go: all tenths alike.
    table = np.histogram2d(index, order, bins=10)[0]
    assert stats.chi2_contingency(table).pvalue > 1e-4
    # Serial correlation, and correlation with the place of origin: spread 1 / √count.
    assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 5 / np.sqrt(count)
    assert abs(np.corrcoef(order, index)[0, 1]) < 5 / np.sqrt(count)
    # A random permutation moves by a third of its length on average, spread count √(2/45 / count).
    moved = np.abs(order - index).mean()
    assert abs(moved - (count**2 - 1) / (3 * count)) < 5 * np.sqrt(2 / 45 * count)
    # About two neighbours stay neighbours, and one thing stays in place; both are Poisson.
    assert sum(abs(a - b) == 1 for a, b in pairwise(order.tolist())) < 14
    assert (order == index).sum() < 10


@pytest.mark.parametrize("count", [7, 100, 999])
def test_one_thing_goes_everywhere_over_the_epochs(count):
    places = [int(shuffled(count // 2, count, 4, epoch)) for epoch in range(5000)]
    found = np.bincount(places, minlength=count)
    assert stats.chisquare(found).pvalue > 1e-4


def test_a_million_million_examples_need_no_table():
    count = 10**12
    index = np.arange(0, count, 10**8)
    places = shuffled(index, count, 0, 0)
    assert len(np.unique(places)) == len(index) == 10_000
    assert stats.kstest(places / count, "uniform").pvalue > 1e-4
    near = shuffled(np.arange(10_000), count, 0, 0)  # neighbours spread as widely
    assert stats.kstest(near / count, "uniform").pvalue > 1e-4


@pytest.mark.parametrize(
    ("index", "count", "seed", "epoch", "told"),
    [
        (0, 0, 0, 0, "between 1 and"),
        (0, 2**62 + 1, 0, 0, "between 1 and"),
        (5, 5, 0, 0, "5 examples"),
        (np.array([1, -1]), 5, 0, 0, "indices -1 to 1"),
        (0, 5, -1, 0, "not -1"),
        (0, 5, 0, 2**64, "not 18446744073709551616"),
    ],
)
def test_what_cannot_be_shuffled_is_told_in_one_sentence(index, count, seed, epoch, told):
    with pytest.raises(RegardError, match=told):
        shuffled(index, count, seed, epoch)


# --- streams ---------------------------------------------------------------------------------


def test_a_place_has_one_stream():
    assert np.array_equal(generator(7, 1, 2).random(9), generator(7, 1, 2).random(9))


def test_streams_of_different_places_differ():
    # Among them those that a plain SeedSequence of the list confuses: [7] and [7, 0], or numbers
    # of more than 32 bits and two small ones.
    places = [(7,), (7, 0), (7, 0, 0), (0, 7), (7, 1), (1, 7), (7, 2**32), (7, 0, 1), (7, 2**32, 0)]
    places += [(2**32,), (0,), (0, 1), (1,), (2**63,), (0, 0, 0, 0, 1), (0, 0, 0, 0, 0, 1)]
    firsts = {generator(*place).integers(2**63).item() for place in places}
    assert len(firsts) == len(places)


def test_streams_of_neighbouring_places_are_uncorrelated():
    draws = np.array(
        [generator(0, epoch, step).random() for epoch in range(40) for step in range(50)]
    )
    assert stats.kstest(draws, "uniform").pvalue > 1e-4
    assert abs(np.corrcoef(draws[1:], draws[:-1])[0, 1]) < 5 / np.sqrt(len(draws))


def test_a_negative_seed_is_told_in_one_sentence():
    with pytest.raises(RegardError, match="from 0 to"):
        generator(-3, 1)


def test_each_turn_has_a_seed_of_its_own_and_no_turn_is_the_seed_itself():
    seeds = [turned_seed(seed, turn) for seed in (0, 1, 2**63 - 1) for turn in range(50)]
    assert len(set(seeds)) == len(seeds)
    assert [turned_seed(seed, 0) for seed in (0, 1, 2**63 - 1)] == [0, 1, 2**63 - 1]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert turned_seed(3, 2) == turned_seed(3, 2)


def test_the_seed_of_a_turn_never_changes():
    # Golden: a run that stepped back goes on with a later version on the same way.
    assert [turned_seed(1, turn) for turn in (1, 2)] == [
        4236113407748501342,
        4407479239401022869,
    ]

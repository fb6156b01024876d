"""Corruption for encoders, held against its definition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from regard.data.feeds.masking import IGNORE, corrupt
from regard.errors import RegardError

VOCABULARY, SPECIALS, MASK = 1000, 5, 4


def some(rows: int, positions: int, low: int = 0) -> np.ndarray:
    return np.random.default_rng(1).integers(low, VOCABULARY, (rows, positions))


def within(successes: int, trials: int, probability: float) -> bool:
    """Five standard deviations: chance alone fails once in two million."""
    spread = np.sqrt(trials * probability * (1 - probability))
    return abs(successes - trials * probability) < 5 * spread


@pytest.mark.parametrize("share", [0.15, 0.4])
def test_a_share_is_chosen_and_falls_to_80_10_10(share):
    tokens = some(1000, 400, low=SPECIALS)  # so long that no row stays without a choice
    inputs, targets = corrupt(tokens, np.random.default_rng(2), VOCABULARY, share=share)
    chosen = targets != IGNORE
    count = int(chosen.sum())
    assert within(count, tokens.size, share)
    assert within(int((inputs[chosen] == MASK).sum()), count, 0.8)
    # A random token is the original one time in 995.
    same = 0.1 / (VOCABULARY - SPECIALS)
    assert within(int((inputs == tokens)[chosen].sum()), count, 0.1 + same)
    swapped = inputs[chosen & (inputs != MASK) & (inputs != tokens)]
    assert within(len(swapped), count, 0.1 - same)
    # All ordinary tokens are drawn alike: their mean is that of a uniform distribution.
    width = VOCABULARY - SPECIALS
    assert abs(swapped.mean() - (SPECIALS + VOCABULARY - 1) / 2) < 5 * width / np.sqrt(
        12 * len(swapped)
    )
    assert swapped.min() >= SPECIALS
    assert swapped.max() < VOCABULARY


def test_choices_are_independent_of_position_and_neighbours():
    tokens = some(4000, 50, low=SPECIALS)
    chosen = corrupt(tokens, np.random.default_rng(3), VOCABULARY)[1] != IGNORE
    for position in range(50):
        assert within(int(chosen[:, position].sum()), 4000, 0.15)
    both = int((chosen[:, 1:] & chosen[:, :-1]).sum())
    assert abs(both / (4000 * 49) - 0.15**2) < 0.003


@given(
    arrays(np.int32, st.tuples(st.integers(0, 6), st.integers(0, 9)), elements=st.integers(0, 19)),
    st.integers(0, 1000),
    st.floats(0.01, 1),
)
def test_targets_name_what_was_hidden_and_all_else_stays(tokens, seed, share):
    before = tokens.copy()
    inputs, targets = corrupt(tokens, np.random.default_rng(seed), 20, share=share)
    chosen = targets != IGNORE
    assert np.array_equal(tokens, before)
    assert inputs.dtype == targets.dtype == np.int64
    assert np.array_equal(targets[chosen], tokens[chosen])
    assert np.array_equal(inputs[~chosen], tokens[~chosen])
    assert not chosen[tokens < SPECIALS].any()
    assert np.array_equal(chosen.any(1), (tokens >= SPECIALS).any(1))  # no row without a target
    hidden = inputs[chosen]
    assert ((hidden == MASK) | ((hidden >= SPECIALS) & (hidden < 20))).all()
    again = corrupt(tokens, np.random.default_rng(seed), 20, share=share)
    assert np.array_equal(again[0], inputs)
    assert np.array_equal(again[1], targets)


def test_a_row_that_would_have_no_target_gets_exactly_one_anywhere():
    tokens = np.tile([0, 7, 8, 1, 9], (30_000, 1))
    _, targets = corrupt(tokens, np.random.default_rng(4), VOCABULARY, share=1e-9)
    chosen = targets != IGNORE
    assert (chosen.sum(1) == 1).all()
    for position in (1, 2, 4):
        assert within(int(chosen[:, position].sum()), 30_000, 1 / 3)


def test_a_share_of_one_chooses_every_ordinary_token():
    tokens = some(20, 30)
    _, targets = corrupt(tokens, np.random.default_rng(5), VOCABULARY, share=1)
    assert np.array_equal(targets != IGNORE, tokens >= SPECIALS)


def test_narrow_ids_do_not_wrap():
    tokens = np.full((50, 50), 200, np.uint8)
    inputs, targets = corrupt(
        tokens, np.random.default_rng(6), 60_000, share=1, mask_id=300, specials=6
    )
    assert (targets == 200).all()
    assert (inputs == 300).any()
    assert inputs.max() > 50_000


def test_another_state_of_the_generator_chooses_others():
    tokens, rng = some(20, 30), np.random.default_rng(7)
    first, second = corrupt(tokens, rng, VOCABULARY), corrupt(tokens, rng, VOCABULARY)
    assert not np.array_equal(first[1], second[1])


def test_all_wrong_arguments_are_reported_at_once():
    with pytest.raises(RegardError) as told:
        corrupt(np.zeros(3, int), np.random.default_rng(0), 5, share=0)
    for problem in ("(rows, positions)", "share must be", "vocabulary of 5"):
        assert problem in str(told.value)

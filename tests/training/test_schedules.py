"""The learning rate over a run: golden shapes, no jumps, never above the peak."""

import math
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from regard.training.optimization.schedules import factor, warmup
from regard.training.settings import ScheduleSettings

KINDS = ("constant", "cosine", "inverse-sqrt", "plateau")
kinds = st.sampled_from(KINDS)
shares = st.floats(0, 1)


def shape(steps: int, **settings: object) -> list[float]:
    return [factor(ScheduleSettings(**settings), step, steps) for step in range(steps)]


def test_constant_rises_stays_and_falls_to_its_floor():
    found = shape(10, kind="constant", warmup=2, decay_fraction=0.4, min_lr_ratio=0.2)
    assert found == pytest.approx([0.5, 1, 1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2])


def test_cosine_is_half_a_wave_down_to_its_floor():
    found = shape(7, kind="cosine", warmup=2, min_lr_ratio=0.1)
    waves = [0.1 + 0.9 * (1 + math.cos(math.pi * i / 4)) / 2 for i in range(5)]
    assert found == pytest.approx([0.5, 1.0, *waves])
    assert waves[2] == pytest.approx(0.55)


def test_inverse_sqrt_is_that_of_2017():
    d, rise = 512, 4  # the paper's formula, over its highest value
    paper = [d**-0.5 * min(n**-0.5, n * rise**-1.5) for n in range(1, 31)]
    found = shape(30, kind="inverse-sqrt", warmup=rise)
    assert found == pytest.approx([value / max(paper) for value in paper])


def test_a_plateau_is_left_by_a_cut_of_the_rate():
    settings = ScheduleSettings(kind="plateau", warmup=2, cut=0.25)
    found = [factor(settings, step, 100, cuts) for step, cuts in ((0, 0), (1, 0), (50, 0), (50, 2))]
    assert found == [0.5, 1.0, 1.0, 0.0625]


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_warmup_a_run_starts_at_the_peak(kind):
    assert shape(20, kind=kind, warmup=0)[0] == 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_of_one_step_takes_it(kind):
    assert shape(1, kind=kind) == [1.0]


def test_the_warmup_left_open_is_a_twentieth_and_at_most_500():
    open_ended = ScheduleSettings()
    assert [warmup(open_ended, n) for n in (1, 19, 20, 1000, 10**6)] == [0, 0, 1, 50, 500]
    assert warmup(ScheduleSettings(warmup=7), 3) == 7


@given(kinds, st.integers(1, 300), st.integers(-1, 400), shares, shares)
def test_it_is_never_above_the_peak_nor_below_nothing(kind, steps, rise, decay, floor):
    found = shape(steps, kind=kind, warmup=rise, decay_fraction=decay, min_lr_ratio=floor)
    assert all(0 <= value <= 1 for value in found)


@given(st.sampled_from(["constant", "cosine"]), st.integers(3, 300), st.integers(0, 300), shares)
def test_the_last_step_is_at_the_floor(kind, steps, rise, floor):
    assume(rise <= steps - 2)  # there is a step to fall over
    assert shape(steps, kind=kind, warmup=rise, min_lr_ratio=floor)[-1] == pytest.approx(
        floor, abs=1e-12
    )


@given(kinds, st.integers(20, 300), st.integers(0, 300), st.floats(0.1, 1), shares)
def test_it_never_jumps(kind, steps, rise, decay, floor):
    found = shape(steps, kind=kind, warmup=rise, decay_fraction=decay, min_lr_ratio=floor)
    ways = [1 / max(rise, 1), 1 / round(decay * steps)]  # up, down in a line
    if kind == "cosine":
        ways.append(math.pi / 2 / max(steps - 1 - rise, 1))  # a wave's steepest
    if kind == "inverse-sqrt":
        ways.append(1 - math.sqrt(max(rise, 1) / (max(rise, 1) + 1)))
    assume(kind != "cosine" or rise <= steps - 2)
    for one, following in pairwise(found):
        assert abs(one - following) <= max(ways) + 1e-9


def test_a_warmup_into_the_decay_turns_where_the_two_lines_meet():
    found = shape(100, kind="constant", warmup=80, decay_fraction=0.5, min_lr_ratio=0.0)
    rising, falling = [(s + 1) / 80 for s in range(100)], [(99 - s) / 50 for s in range(100)]
    assert found == pytest.approx([min(*both, 1) for both in zip(rising, falling, strict=True)])

"""Pairwise covering leaves no pair of values out, and most combinations."""

from itertools import combinations, product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pairwise import pairwise

OPTIONS = st.lists(st.integers(1, 5), min_size=2, max_size=6).map(
    lambda sizes: {f"option {number}": list(range(size)) for number, size in enumerate(sizes)}
)


@given(OPTIONS)
def test_any_two_values_meet_and_no_more_rows_are_made_than_all(options):
    rows = pairwise(options)
    assert all(row.keys() == options.keys() for row in rows)
    for one, other in combinations(options, 2):
        wanted = {*product(options[one], options[other])}
        assert {(row[one], row[other]) for row in rows} == wanted
    sizes = sorted(map(len, options.values()))
    assert sizes[-1] * sizes[-2] <= len(rows) <= prod(sizes)
    assert pairwise(options) == rows


@pytest.mark.parametrize(
    ("sizes", "most"), [([2] * 10, 12), ([3] * 4, 12), ([7, 2, 2, 2, 2, 2, 2], 16), ([8, 3], 24)]
)
def test_they_are_few(sizes, most):
    rows = pairwise({f"{number}": range(size) for number, size in enumerate(sizes)})
    assert len(rows) <= most


def test_the_first_values_come_first():
    assert pairwise({"a": "xy", "b": [0, 1], "c": [True, False]})[0] == {
        "a": "x",
        "b": 0,
        "c": True,
    }

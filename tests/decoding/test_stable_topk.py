"""The best of many are those of a stable sort, of any width and beside any neighbours."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.decoding.stable_topk import BLOCK, first_of_equals, stable_topk

numbers = st.one_of(st.sampled_from([-math.inf, -2.0, 0.5]), st.floats(-9, 9, width=32))


def assert_sorted(values: torch.Tensor, count: int) -> None:
    """As a stable sort has it; which of what is impossible comes last is nobody's business."""
    found, places = stable_topk(values, count)
    wanted = values.sort(dim=-1, descending=True, stable=True)
    real = wanted.values[:, :count] > -torch.inf
    assert torch.equal(found, wanted.values[:, :count])
    assert torch.equal(places[real], wanted.indices[:, :count][real])
    assert torch.equal(found, values.gather(1, places))
    assert all(len({*row}) == count for row in places.tolist())


@given(count=st.integers(1, 3), more=st.integers(0, 3 * BLOCK), data=st.data())
def test_the_largest_of_many_are_the_largest(count, more, data):
    size = 4 * (count + 1) * BLOCK + more
    filling = data.draw(st.sampled_from([-math.inf, -3.0, 0.0]))
    values = torch.full((3, size), filling)
    for row in values:
        for place in data.draw(st.lists(st.integers(0, size - 1), max_size=9)):
            row[place] = data.draw(numbers)
    assert_sorted(values, count)


@given(st.lists(st.lists(numbers, min_size=7, max_size=7), min_size=1, max_size=4), st.data())
def test_so_are_those_of_few_up_to_all(rows, data):
    assert_sorted(torch.tensor(rows), data.draw(st.integers(1, 7)))


@pytest.mark.parametrize("size", [9, 5000])
def test_what_is_no_number_is_above_all_and_stays_one(size):
    values = torch.zeros(2, size)
    values[1, 4] = math.nan
    found, _ = stable_topk(values, 3)
    assert bool(found[1].isnan().any())
    assert not bool(found[0].isnan().any())


def test_of_equals_as_many_as_there_is_room_for():
    scores = torch.tensor([[1.0, 3.0, 1.0, 1.0], [1.0, 1.0, 1.0, 2.0]])
    kept = first_of_equals(scores, torch.tensor([[2], [3]]), torch.tensor([[1.0], [1.0]]))
    assert kept.tolist() == [[True, True, False, False], [True, True, False, True]]

"""How far back something was touched, against a brute-force twin and by hand."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from small_models import small

from regard.costs import jobs
from regard.costs.jobs import Shape
from regard.costs.trace.memory import Place
from regard.costs.trace.reuse import touched
from regard.costs.trace.tracer import Record


def record(reads, writes):
    """An operation on storages of given bytes: {storage: bytes}."""
    places = [
        tuple(Place(storage, (0, (size,), (1,)), size) for storage, size in part.items())
        for part in (reads, writes)
    ]
    return Record("aten::add", "", "forward", 0, 0, 1, *places, (), torch.float32)


def test_weights_that_are_read_once_a_step_lie_a_whole_step_back():
    records = [record({1: 100}, {10: 8}), record({2: 50}, {11: 8}), record({3: 7}, {12: 8})]
    moved = 100 + 50 + 7 + 3 * 8
    for places in touched(records):
        assert places[0][1] == moved


def test_what_was_just_made_is_near_and_what_is_made_anew_lies_where_something_has_gone():
    records = [record({1: 1000}, {10: 8}), record({10: 8}, {11: 8}), record({11: 8}, {12: 8})]
    first, second, third = touched(records)
    assert second[0] == (8, 16)  # made by the operation before
    assert third[1] == (8, 16)  # where storage 10 was, which went after the second
    assert first[1][1] < 1000 + 3 * 16  # nothing is ever new in a job that is done again


@given(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=3), min_size=1, max_size=12))
def test_distances_of_what_lives_on_are_those_of_a_list_of_all_that_was_moved(operations):
    size = {storage: 10 * 3**storage for storage in range(5)}
    records = [record({s: size[s] for s in set(reads)}, {}) for reads in operations]
    order = [list(r.reads) for r in records] * 2
    last = {}
    twin = []
    now = 0
    for reads in order:
        now += sum(p.bytes for p in reads)
        twin.append([(p.bytes, now - last.get(p.storage, -math.inf)) for p in reads])
        last |= {p.storage: now for p in reads}
    assert touched(records) == twin[len(records) :]


def test_in_a_real_step_nothing_is_farther_than_a_step():
    counted = jobs.train_step(small("gpt2"), Shape(2, 8))
    moved = sum(r.read + r.written for r in counted.records)
    found = [distance for places in touched(counted.records) for _, distance in places]
    assert all(0 <= distance <= 2 * moved for distance in found)

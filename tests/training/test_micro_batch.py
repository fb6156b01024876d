"""How many rows are computed at once."""

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data.batch import Batch
from regard.training.memory import micro_batch
from regard.training.memory.micro_batch import MOST_CPU, counted_rows, even, free_memory


@dataclass(frozen=True)
class Rows:
    """A feed of steps of so many rows."""

    rows: int
    telling = 1

    def step(self, step: int) -> Batch:
        tokens = torch.zeros(self.rows, 3, dtype=torch.long)
        return Batch(tokens, tokens, tokens.numel(), tokens.numel())


@given(st.integers(1, 200), st.integers(0, 10**6), st.integers(1, 10**4))
def test_on_a_cpu_it_is_at_least_one_row_and_what_memory_allows(most, free, each):
    there = 1000

    def held(rows, tokens, source):
        assert (tokens, source) == (3, 0)
        return there, rows * each

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(micro_batch, "free_memory", lambda: free)
        found = counted_rows(Rows(most), held)
    assert 1 <= found <= min(most, MOST_CPU)
    room = 0.85 * free - there
    assert found == 1 or 2 * each * found <= room
    if room >= 2 * each * most and most <= MOST_CPU:
        assert found == most


@given(st.integers(1, 500), st.integers(1, 500))
def test_even_parts_are_as_few_as_before_and_differ_by_less_than_a_part_each(rows, most):
    rows = min(rows, most)
    found = even(rows, most)
    parts = math.ceil(most / rows)
    assert 1 <= found <= rows
    assert math.ceil(most / found) == parts
    assert found - (most - (parts - 1) * found) < parts  # the last is short by less than that


def test_free_memory_is_between_a_megabyte_and_a_million_gigabytes():
    assert 1 << 20 < free_memory() < 1 << 50


def test_memory_nobody_tells_of_is_taken_to_be_little(monkeypatch):
    def refuse(path, *given, **more):
        raise FileNotFoundError(path)

    monkeypatch.setattr(micro_batch.Path, "read_text", refuse)
    assert free_memory() == 2 << 30

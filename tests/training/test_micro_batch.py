"""How many rows are computed at once."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.training.memory import micro_batch
from regard.training.memory.micro_batch import MOST_CPU, even, free_memory, rows_that_fit

CPU = torch.device("cpu")
WIDTH = 1000


def attempt(rows: int) -> None:
    x = torch.ones(rows, WIDTH, requires_grad=True)
    x.sin().sum().backward()  # keeps x: 4,000 bytes a row


@given(st.integers(1, 200), st.integers(0, 10**6))
def test_on_a_cpu_it_is_at_least_one_row_and_what_memory_allows(most, free):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(micro_batch, "free_memory", lambda: free)
        found = rows_that_fit(attempt, most, CPU)
    assert 1 <= found <= min(most, MOST_CPU)
    room = max(1, int(0.85 * free / (2 * 4 * WIDTH)))
    assert found <= max(room, 1)
    if room >= most <= MOST_CPU:
        assert found == most


def test_a_pass_that_keeps_nothing_may_have_all_rows():
    assert rows_that_fit(lambda rows: None, 5, CPU) == 5


def test_what_is_kept_is_counted_once_however_often_it_is_used():
    shared = torch.ones(100, requires_grad=True)
    kept = micro_batch._kept_bytes(lambda: (shared.sin() + shared.cos() + shared * shared).sum())
    assert kept == 400


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

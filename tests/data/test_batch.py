"""A batch in parts is the batch."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data.batch import Batch, padded
from regard.data.feeds.masking import IGNORE
from regard.text.specials import PAD


def some(lengths: list[int], sources: list[int] | None, documents: bool, padding: bool) -> Batch:
    """Rows of these lengths; every real token is another number."""
    numbers = iter(range(10, 100_000))
    rows = [np.array([next(numbers) for _ in range(n)]) for n in lengths]
    asked = [np.array([next(numbers) if i % 3 else IGNORE for i in range(n)]) for n in lengths]
    tokens, sizes = padded(rows)
    targets, _ = padded(asked, IGNORE)
    made = Batch(
        tokens,
        targets,
        sum(int((one != IGNORE).sum()) for one in asked),
        sum(lengths),
        sizes if padding else None,
        torch.arange(tokens.numel()).view_as(tokens) if documents else None,
    )
    if sources is None:
        return made
    source, read = padded([np.array([next(numbers) for _ in range(n)]) for n in sources])
    real = made.real_tokens + sum(sources)
    return replace(made, source=source, source_lengths=read, real_tokens=real)


sizes = st.lists(st.integers(1, 9), min_size=1, max_size=12)


@given(st.data(), sizes, st.booleans(), st.booleans(), st.integers(1, 14))
def test_parts_put_together_are_the_batch_and_their_counts_add_up(
    data, lengths, pairs, documents, rows
):
    same = st.lists(st.integers(1, 9), min_size=len(lengths), max_size=len(lengths))
    whole = some(lengths, data.draw(same) if pairs else None, documents, True)
    parts = whole.parts(rows)
    assert [part.rows for part in parts[:-1]] == [rows] * (len(parts) - 1)
    assert 1 <= parts[-1].rows <= rows
    assert sum(part.rows for part in parts) == whole.rows
    assert sum(part.valid for part in parts) == whole.valid
    assert sum(part.real_tokens for part in parts) == whole.real_tokens
    for name, fill in (("tokens", PAD), ("targets", IGNORE), ("source", PAD)):
        if getattr(whole, name) is not None:
            assert torch.equal(together(parts, name, fill), getattr(whole, name))
    for name in ("lengths", "source_lengths"):
        if getattr(whole, name) is not None:
            cut = torch.cat([getattr(part, name) for part in parts])
            assert torch.equal(cut, getattr(whole, name))
    first = 0
    for part in parts:
        assert part.targets.shape == part.tokens.shape
        if len(parts) > 1:  # no padding that nobody needs
            assert part.tokens.shape[1] == int(part.lengths.max())
            assert part.source is None or part.source.shape[1] == int(part.source_lengths.max())
        if documents:
            expected = whole.documents[first : first + part.rows, : part.tokens.shape[1]]
            assert torch.equal(part.documents, expected)
        first += part.rows


def together(parts: list[Batch], name: str, fill: int) -> torch.Tensor:
    """The rows of all parts, padded again."""
    rows = [row.numpy() for part in parts for row in getattr(part, name)]
    return padded(rows, fill)[0]


def test_rows_without_padding_stay_as_wide_as_they_are():
    whole = some([6, 6, 6, 6, 6], None, True, False)
    parts = whole.parts(2)
    assert [part.tokens.shape for part in parts] == [(2, 6), (2, 6), (1, 6)]
    assert [part.real_tokens for part in parts] == [12, 12, 6]
    assert torch.equal(torch.cat([part.documents for part in parts]), whole.documents)


def test_positions_count_padding_and_sources():
    batch = some([2, 5], [3, 1], False, True)
    assert batch.positions == 2 * 5 + 2 * 3
    assert batch.real_tokens == 7 + 4


def test_every_tensor_and_nothing_else_is_changed_alike():
    batch = some([2, 3], [4, 1], True, True)
    changed = batch.each(lambda tensor: tensor + 1)
    names = ("tokens", "targets", "lengths", "documents", "source", "source_lengths")
    for name in names:
        assert torch.equal(getattr(changed, name), getattr(batch, name) + 1)
    assert (changed.valid, changed.real_tokens) == (batch.valid, batch.real_tokens)
    assert batch.to(torch.device("meta")).source.device.type == "meta"
    assert some([2], None, False, False).each(lambda tensor: tensor + 1).source is None


@given(st.lists(st.lists(st.integers(1, 99), max_size=6), min_size=1, max_size=6))
def test_padding_fills_rows_up_on_the_right(rows):
    table, lengths = padded([np.array(row, np.uint16) for row in rows], 7)
    width = max(map(len, rows))
    assert table.tolist() == [row + [7] * (width - len(row)) for row in rows]
    assert lengths.tolist() == list(map(len, rows))
    assert table.dtype == lengths.dtype == torch.int64


@pytest.mark.parametrize("rows", [3, 4, 100])
def test_a_batch_that_fits_is_one_part(rows):
    batch = some([2, 3, 1], None, False, True)
    assert batch.parts(rows) == [batch]

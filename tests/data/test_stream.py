"""Rows of a stream: each read once an epoch, in a moving frame, as a function of the step alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.batch import Batch
from regard.data.feeds.masking import IGNORE
from regard.data.feeds.stream import MaskedTextFeed, TextFeed
from regard.data.readers.texts import gather
from regard.data.token_files import prepare
from regard.text.learning import learn
from regard.text.specials import BOS, EOS, MASK, PAD


class Ids:
    """Tokens in memory: documents of so many ordinary ids, all ids different in the stream."""

    def __init__(self, *sizes: int) -> None:
        self.ids: list[int] = []
        self.numbers: list[int] = []
        for number, size in enumerate(sizes):
            first = 5 + len(self.ids)
            self.ids += [BOS, *range(first, first + size), EOS]
            self.numbers += [number] * (size + 2)

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, starts: np.ndarray, width: int, fill: int, ring: bool = False) -> np.ndarray:
        found = np.full((len(starts), width), fill, np.int64)
        for row, start in zip(found, starts.tolist(), strict=True):
            ids = [*self.read(start, len(self)), *(self.read(0, len(self)) if ring else [])][:width]
            row[: len(ids)] = ids
        return found

    def read(self, start: int, stop: int) -> np.ndarray:
        assert start >= 0
        return np.array(self.ids[start:stop], np.int64)

    def documents(self, start: int, stop: int) -> np.ndarray:
        found = self.numbers[start:stop]
        return np.array(found + self.numbers[-1:] * (stop - start - len(found)), np.int64)


def stream(train: Ids, valid: Ids | None = None, **how) -> TextFeed:
    return TextFeed(train, valid or Ids(), **{"context": 8, "rows": 4, **how})


def starts(batch: Batch, tokens: Ids) -> list[int]:
    """Where each row begins, told by its first ordinary id, which occurs once."""
    found = []
    for row in batch.tokens.tolist():
        place = next(i for i, token in enumerate(row) if token >= 5)
        found.append(tokens.ids.index(row[place]) - place)
    return found


def equal(one: Batch, other: Batch) -> bool:
    names = ("tokens", "targets", "lengths", "documents")
    pairs = [(getattr(one, name), getattr(other, name)) for name in names]
    alike = all(torch.equal(a, b) if a is not None else b is None for a, b in pairs)
    return alike and (one.valid, one.real_tokens) == (other.valid, other.real_tokens)


streams = st.builds(
    lambda sizes, context, rows, seed: stream(Ids(*sizes), context=context, rows=rows, seed=seed),
    st.lists(st.integers(1, 40), min_size=1, max_size=8),
    st.integers(3, 12),
    st.integers(1, 5),
    st.integers(0, 3),
)


@given(streams, st.integers(0, 3))
@settings(max_examples=60)
def test_an_epoch_reads_every_row_once_and_rows_do_not_overlap(feed, epoch):
    one = replace(feed, rows=1)
    count = feed.rows_per_epoch
    found = sorted(
        starts(one.step(step), feed.train)[0] for step in range(epoch * count, (epoch + 1) * count)
    )
    assert np.diff(found).tolist() == [feed.context] * (count - 1)
    assert found[0] >= 0
    # All but less than two rows of the stream is read.
    assert len(feed.train) - count * feed.context < 2 * feed.context
    assert found[-1] + feed.context <= max(len(feed.train), feed.context)


@given(streams, st.integers(0, 30))
@settings(max_examples=60)
def test_targets_are_the_next_tokens_where_something_is_asked(feed, step):
    batch = feed.step(step)
    ids = [*feed.train.ids, *[PAD] * (feed.context + 1)]
    asked = 0
    for row, start in enumerate(starts(batch, feed.train)):
        stretch = ids[start : start + feed.context + 1]
        assert batch.tokens[row].tolist() == stretch[:-1]
        expected = [IGNORE if token in (PAD, BOS) else token for token in stretch[1:]]
        assert batch.targets[row].tolist() == expected
        asked += len(expected) - expected.count(IGNORE)
    assert batch.valid == asked > 0
    assert batch.real_tokens == int((batch.tokens != PAD).sum())
    assert batch.tokens.dtype == batch.targets.dtype == torch.int64


@given(streams, st.permutations(range(12)))
def test_a_step_is_the_same_whenever_it_is_asked_for(feed, order):
    first = {step: feed.step(step) for step in order}
    again = replace(feed)
    assert all(equal(again.step(step), first[step]) for step in range(12))


@given(streams)
def test_rows_come_in_the_same_order_whatever_the_size_of_a_step(feed):
    """Steps that reach over an epoch's end take their rows from both."""
    one = replace(feed, rows=1)
    rows = [one.step(number) for number in range(6 * feed.rows)]
    for step in range(6):
        batch = feed.step(step)
        here = rows[step * feed.rows : (step + 1) * feed.rows]
        assert torch.equal(batch.tokens, torch.cat([row.tokens for row in here]))
        assert torch.equal(batch.targets, torch.cat([row.targets for row in here]))
        assert batch.valid == sum(row.valid for row in here)


def test_epochs_have_other_orders_and_other_cuts_and_so_have_seeds():
    tokens = Ids(1000)

    def seen(seed: int, epoch: int) -> list[int]:
        feed = stream(tokens, context=16, rows=1, seed=seed)
        count = feed.rows_per_epoch
        return [starts(feed.step(epoch * count + i), tokens)[0] for i in range(count)]

    epochs = [seen(0, epoch) for epoch in range(20)]
    assert len({min(found) for found in epochs}) > 8  # cuts
    ranks = {tuple(np.argsort(found)) for found in epochs}
    assert len(ranks) == 20
    assert seen(0, 0) != seen(1, 0)
    assert seen(0, 0) == epochs[0]


@given(streams, st.integers(0, 30), st.integers(1, 3))
def test_the_examples_of_a_step_are_where_its_rows_begin_and_parts_keep_theirs(feed, step, rows):
    hidden = MaskedTextFeed(
        feed.train, feed.valid, feed.context, feed.rows, feed.seed, vocabulary=len(feed.train) + 5
    )
    batch = feed.step(step)
    assert batch.examples.tolist() == starts(batch, feed.train)
    assert hidden.step(step).examples.tolist() == batch.examples.tolist()
    parts = batch.parts(rows)
    assert [e for part in parts for e in part.examples.tolist()] == batch.examples.tolist()
    assert all(len(part.examples) == part.rows <= rows for part in parts)


def test_turned_it_has_the_same_rows_in_another_order_each_time():
    feed = stream(Ids(1000), context=16, rows=2)
    count = feed.rows_per_epoch // 2

    def seen(turn: int) -> list[int]:
        return [e for step in range(count) for e in feed.turned(turn).step(step).examples.tolist()]

    assert equal(feed.turned(0).step(3), feed.step(3))
    orders = [seen(turn) for turn in range(6)]
    assert len({tuple(np.argsort(found)) for found in orders}) == 6
    assert seen(4) == orders[4]
    for found in orders:  # each row once, as ever
        assert (np.diff(sorted(found)) >= feed.context).all()
    turned = feed.turned(2)
    assert (turned.train, turned.context, turned.rows) == (feed.train, feed.context, feed.rows)
    assert [e for b in turned.held_out(3) for e in b.examples] == [
        e for b in feed.held_out(3) for e in b.examples
    ]


def test_every_place_is_a_first_place_in_some_epoch():
    tokens = Ids(200)
    feed = stream(tokens, context=4, rows=1)
    found = {starts(feed.step(s), tokens)[0] % 4 for s in range(40 * feed.rows_per_epoch)}
    assert found == {0, 1, 2, 3}


@pytest.mark.parametrize("size", [3, 9, 14, 20, 37, 77])
def test_every_token_is_asked_for_in_some_epoch(size):
    feed = stream(Ids(size), context=8, rows=1)
    steps = range(100 * feed.rows_per_epoch)
    asked = {token for step in steps for token in feed.step(step).targets[0].tolist()}
    assert asked - {IGNORE} == {*feed.train.ids} - {BOS}


@pytest.mark.parametrize("size", [1, 2, 5, 6, 7, 13])
def test_a_text_of_about_a_row_or_less_is_one_row(size):
    feed = stream(Ids(size), context=8, rows=3)  # size + 2 tokens
    assert feed.rows_per_epoch == 1
    for step in range(4):
        batch = feed.step(step)
        assert batch.tokens.shape == (3, 8)
        read = min(size + 2, 8)
        assert batch.real_tokens == 3 * read
        assert (batch.lengths is not None) == (size + 2 < 8)
        if batch.lengths is not None:
            assert batch.lengths.tolist() == [read] * 3
            assert (batch.tokens[:, read:] == PAD).all()
        assert batch.valid > 0


def test_epochs_are_counted_by_rows():
    feed = stream(Ids(98), context=8, rows=4)  # 100 tokens: 11 rows, and room to move
    assert feed.rows_per_epoch == 11
    assert [feed.epoch(step) for step in (0, 1, 11)] == [0, 4 / 11, 4]


# --- held out --------------------------------------------------------------------------------


@given(
    st.lists(st.integers(1, 20), max_size=6), st.integers(1, 12), st.integers(1, 7), st.booleans()
)
@settings(max_examples=60)
def test_every_held_out_target_but_document_starts_is_asked_once(sizes, context, rows, isolate):
    valid = Ids(*sizes)
    feed = stream(Ids(5), valid, context=context, document_mask=isolate)
    batches = list(feed.held_out(rows))
    asked = [t for batch in batches for t in batch.targets.flatten().tolist() if t != IGNORE]
    assert asked == [token for token in valid.ids if token != BOS]  # in order, too
    assert sum(batch.valid for batch in batches) == len(asked)
    for batch in batches[:-1]:
        assert batch.rows == rows
        assert batch.lengths is None
    for batch in batches[-1:]:
        real = (batch.tokens != PAD).sum(1)
        assert batch.real_tokens == int(real.sum())
        padded = bool((real < context).any())
        assert (batch.lengths is not None) == padded
        assert not padded or torch.equal(batch.lengths, real)
    read = [t for batch in batches for t in batch.tokens.flatten().tolist() if t != PAD]
    assert read == valid.ids[: len(read)]
    assert len(valid) - len(read) <= 1  # the last token is only a target where a row ends with it


def test_nothing_held_out_gives_no_batches():
    assert list(stream(Ids(5)).held_out(4)) == []


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 5))
def test_documents_are_numbered_where_they_are_to_be_told_apart(sizes, step):
    tokens = Ids(*sizes)
    feed = stream(tokens, tokens, context=5, document_mask=True)
    assert replace(feed, document_mask=False).step(step).documents is None
    for batch in (feed.step(step), *feed.held_out(3)):
        assert batch.documents.shape == batch.tokens.shape
        for row in range(batch.rows):
            for place in range(5):
                token = int(batch.tokens[row, place])
                if token >= 5:
                    number = tokens.numbers[tokens.ids.index(token)]
                    assert int(batch.documents[row, place]) == number
    assert all(part.documents.shape == part.tokens.shape for part in batch.parts(1))


# --- masked ----------------------------------------------------------------------------------


def masked(train: Ids, valid: Ids | None = None, **how) -> MaskedTextFeed:
    shape = {"context": 8, "rows": 4, "vocabulary": 500, **how}
    return MaskedTextFeed(train, valid or Ids(), **shape)


def test_hidden_tokens_are_asked_for_and_the_rest_is_the_plain_row():
    tokens = Ids(60, 30, 40)
    plain, hidden = stream(tokens, rows=40), masked(tokens, rows=40)
    for step in range(3):
        whole, batch = plain.step(step), hidden.step(step)
        asked = batch.targets != IGNORE
        assert batch.valid == int(asked.sum()) > 0
        assert torch.equal(batch.targets[asked], whole.tokens[asked])  # not the next: the same
        assert torch.equal(batch.tokens[~asked], whole.tokens[~asked])
        assert not asked[whole.tokens < 5].any()
        assert (batch.tokens[asked] == MASK).any()


def test_what_is_hidden_follows_from_the_row_not_from_the_batch_or_the_order():
    tokens = Ids(60, 30, 40)
    one, four = masked(tokens, rows=1), masked(tokens, rows=4)
    rows = [one.step(number) for number in reversed(range(40))][::-1]
    for step in range(10):
        batch = four.step(step)
        assert torch.equal(batch.tokens, torch.cat([r.tokens for r in rows[4 * step :][:4]]))
        assert torch.equal(batch.targets, torch.cat([r.targets for r in rows[4 * step :][:4]]))
    assert equal(four.step(7), masked(tokens, rows=4).step(7))
    assert not equal(four.step(0), masked(tokens, rows=4, seed=1).step(0))


def test_a_row_is_hidden_otherwise_when_it_comes_again():
    feed = masked(Ids(5), context=8, rows=1)  # always the same row
    assert len({tuple(feed.step(step).targets[0].tolist()) for step in range(30)}) > 3


@pytest.mark.parametrize("size", [1, 5, 6, 30, 78])
def test_held_out_tokens_are_hidden_alike_in_every_run_and_batch(size):
    valid = Ids(size, 3)
    asked = []
    for seed, rows in ((0, 1), (1, 3), (2, 100)):
        batches = list(masked(Ids(9), valid, seed=seed).held_out(rows))
        asked.append(
            [
                torch.cat([getattr(batch, name) for batch in batches]).tolist()
                for name in ("tokens", "targets")
            ]
        )
        last = batches[-1]
        real = [int((row != PAD).sum()) for row in last.tokens]
        assert real == (last.lengths.tolist() if last.lengths is not None else [8] * last.rows)
    assert asked[0] == asked[1] == asked[2]


# --- from text to rows -----------------------------------------------------------------------


def test_a_text_comes_through_whole(tmp_path):
    text = "".join(f"{number} " for number in range(400))
    (tmp_path / "a.txt").write_text(text)
    how = learn("char", [text])
    parts = prepare(gather([tmp_path / "a.txt"]), how, cache=tmp_path / "cache", shard=100)
    feed = TextFeed(parts["train"], parts["valid"], context=32, rows=4)
    held = [t for batch in feed.held_out(3) for t in batch.targets.flatten().tolist()]
    assert how.decode([token for token in held if token != IGNORE]) == text[int(len(text) * 0.9) :]
    for step in range(20):
        for row in feed.step(step).tokens:
            assert how.decode(row.tolist()) in text[: int(len(text) * 0.9)]

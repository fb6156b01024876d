"""Rows that go on where they ended in the step before, for models that remember."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_stream import Ids, equal

from regard.data.batch import Batch
from regard.data.feeds.masking import IGNORE
from regard.data.feeds.stream import ANEW, TRACK, TRACKS, ContinuedTextFeed
from regard.data.readers.texts import gather
from regard.data.token_files import prepare
from regard.text.learning import learn
from regard.text.specials import BOS, PAD


def continued(train: Ids, valid: Ids | None = None, **how) -> ContinuedTextFeed:
    return ContinuedTextFeed(train, valid or Ids(), **{"context": 8, "rows": 4, **how})


streams = st.builds(
    lambda sizes, context, rows, seed: continued(
        Ids(*sizes), context=context, rows=rows, seed=seed
    ),
    st.lists(st.integers(0, 40), min_size=1, max_size=8),
    st.integers(1, 12),
    st.integers(1, 7),
    st.integers(0, 3),
)


def read(batch: Batch, row: int, ids: list[int]) -> list[int]:
    """What a row reads of some ids that stand in the text: where it begins anew, <s> first."""
    return [BOS, *ids[1:]] if batch.fresh[row] else ids


def epoch_of(feed: ContinuedTextFeed, epoch: int) -> range:
    count = feed.steps_per_epoch
    return range(epoch * count, (epoch + 1) * count)


# --- training --------------------------------------------------------------------------------


@given(streams, st.integers(0, 3))
@settings(max_examples=100)
def test_rows_continue_those_of_the_step_before_until_the_epoch_ends(feed, epoch):
    first, *others = [feed.step(step) for step in epoch_of(feed, epoch)]
    assert first.fresh.all()
    for before, batch in pairwise([first, *others]):
        assert (batch.examples == (before.examples + feed.context) % len(feed.train)).all()
        # The token that a row was asked for last is the first that it reads now.
        asked = before.targets[:, -1]
        same = asked == batch.tokens[:, 0]
        assert bool((same | (batch.tokens[:, 0] == BOS)).all())
        assert bool((batch.tokens[batch.fresh, 0] == BOS).all())


def test_each_row_begins_anew_once_in_so_many_steps_and_they_take_turns():
    for rows in (1, 5, 40):
        feed = continued(Ids(rows * 3 * ANEW), context=1, rows=rows)
        fresh = torch.stack([feed.step(step).fresh for step in range(1, 2 * ANEW + 1)])
        assert fresh.sum(0).tolist() == [2] * rows
        assert fresh.sum(1).max() <= -(-rows // ANEW)


@given(streams, st.integers(0, 30))
@settings(max_examples=100)
def test_rows_are_read_and_asked_as_they_stand_in_the_text(feed, step):
    batch = feed.step(step)
    text = feed.train.ids
    ids = [*text, *(text if len(text) > feed.context else [PAD] * (feed.context + 1))]
    for row, start in enumerate(batch.examples.tolist()):
        stretch = ids[start : start + feed.context + 1]
        assert batch.tokens[row].tolist() == read(batch, row, stretch[:-1])
        expected = [IGNORE if token in (PAD, BOS) else token for token in stretch[1:]]
        assert batch.targets[row].tolist() == expected
    assert batch.valid == int((batch.targets != IGNORE).sum())
    assert batch.real_tokens == int((batch.tokens != PAD).sum())


@given(streams, st.integers(0, 3))
@settings(max_examples=100)
def test_an_epoch_reads_each_token_at_most_once_and_all_but_a_step_or_less(feed, epoch):
    """A step is `tracks` rows of `context` tokens, and the very last token is only asked for."""
    places = [
        place
        for step in epoch_of(feed, epoch)
        for start in feed.step(step).examples.tolist()
        for place in range(start, start + feed.context)
    ]
    if len(feed.train) > feed.context:  # a ring
        places = [place % len(feed.train) for place in places]
    places = [place for place in places if place < len(feed.train)]
    assert len(places) == len(set(places))
    assert min(places) >= 0
    left_out = len(feed.train) - len(places)
    assert 0 <= left_out <= feed.tracks * feed.context
    if len(feed.train) > feed.context:
        # One less is asked for than is there, and whole steps of it.
        assert left_out == 1 + (len(feed.train) - 1) % (feed.tracks * feed.context)


@given(streams)
def test_rows_are_full_if_the_text_has_one_row_and_a_target(feed):
    if len(feed.train) <= feed.context:
        assert (feed.tracks, feed.steps_per_epoch) == (1, 1)
        return
    assert feed.tracks == min(feed.rows, (len(feed.train) - 1) // feed.context)
    for step in range(2 * feed.steps_per_epoch):
        batch = feed.step(step)
        assert batch.rows == feed.tracks
        assert batch.lengths is None
        assert 0 <= batch.examples.min() <= batch.examples.max() < len(feed.train)


@pytest.mark.parametrize(("tokens", "left_out"), [(97, 1), (98, 2), (96, 24)])
def test_both_ends_of_what_an_epoch_leaves_out_are_reached(tokens, left_out):
    feed = continued(Ids(tokens - 2), rows=3)  # steps of 24
    read = sum(feed.step(step).real_tokens for step in epoch_of(feed, 0))
    assert tokens - read == left_out


@given(streams, st.permutations(range(12)))
def test_a_step_is_the_same_whenever_it_is_asked_for(feed, order):
    first = {step: feed.step(step) for step in order}
    again = replace(feed)
    for step in range(12):
        assert equal(again.step(step), first[step])
        assert torch.equal(again.step(step).fresh, first[step].fresh)


def test_epochs_begin_at_different_places_and_so_do_seeds_and_turns():
    feed = continued(Ids(1000), context=16, rows=3)

    def begun(found: ContinuedTextFeed) -> list[int]:
        return [int(found.step(epoch_of(found, e)[0]).examples[0]) for e in range(40)]

    places = begun(feed)
    assert len(set(places)) > 30
    assert 0 <= min(places) < 100
    assert 900 < max(places) < 1002
    assert begun(replace(feed, seed=1)) != places
    assert begun(feed.turned(0)) == places
    turned = [tuple(begun(feed.turned(turn))) for turn in range(4)]
    assert len(set(turned)) == 4
    for turn in range(4):  # what rows remember from step to step has room for the same rows
        assert feed.turned(turn).tracks == feed.tracks


@pytest.mark.parametrize("size", [11, 20, 37, 78])
def test_every_token_is_asked_for_in_some_epoch(size):
    feed = continued(Ids(size), rows=2)
    steps = range(100 * feed.steps_per_epoch)
    asked = {token for step in steps for token in feed.step(step).targets.flatten().tolist()}
    assert asked - {IGNORE} == {*feed.train.ids} - {BOS}


@pytest.mark.parametrize("size", [0, 1, 2, 5, 6])
def test_a_text_of_a_row_or_less_is_one_row_that_begins_anew_each_step(size):
    feed = continued(Ids(size), rows=3)  # size + 2 tokens in rows of 8
    for step in range(4):
        batch = feed.step(step)
        assert batch.fresh.all()
        assert batch.tokens.shape == (1, 8)
        assert batch.real_tokens == size + 2
        assert batch.valid == size + 1  # each ordinary token and </s>
        assert (batch.lengths is None) == (size + 2 == 8)
        if batch.lengths is not None:
            assert batch.lengths.tolist() == [size + 2]
    assert feed.epoch(3) == 3


def test_a_text_of_less_than_a_step_has_as_many_rows_as_fit():
    feed = continued(Ids(22), rows=5)  # 24 tokens: two rows of 8 and a part of one
    assert (feed.tracks, feed.steps_per_epoch) == (2, 1)
    assert len({tuple(feed.step(step).examples.tolist()) for step in range(50)}) > 5


def test_epochs_are_counted_by_steps():
    feed = continued(Ids(98), rows=3)  # 100 tokens: 4 steps of 24, and 3 to move by
    assert feed.steps_per_epoch == 4
    assert [feed.epoch(step) for step in (0, 1, 4, 6)] == [0, 0.25, 1, 1.5]


# --- held out --------------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 60), max_size=9), st.integers(1, 12), st.integers(1, 40), st.booleans()
)
@settings(max_examples=200)
def test_every_held_out_target_is_asked_once_and_rows_continue(sizes, context, rows, again):
    valid = Ids(*sizes)
    feed = continued(Ids(5), valid, context=context)
    batches = list(feed.held_out(rows))
    asked = [t for batch in batches for t in batch.targets.flatten().tolist() if t != IGNORE]
    assert sorted(asked) == sorted(token for token in valid.ids[1:] if token != BOS)
    assert sum(batch.valid for batch in batches) == len(asked)
    assert sum(batch.real_tokens for batch in batches) == max(len(valid) - 1, 0)
    for number, batch in enumerate(batches):
        assert batch.fresh.tolist() == [number == 0] * batch.rows
    for batch in batches:
        lengths = [context] * batch.rows if batch.lengths is None else batch.lengths.tolist()
        assert sum(lengths) == batch.real_tokens
        assert min(lengths) >= 0
    for before, batch in pairwise(batches):
        assert (batch.examples == before.examples + context).all()
    for batch in batches:  # each target stands behind the token that it is asked from
        for row, start in enumerate(batch.examples.tolist()):
            there = read(batch, row, valid.ids[start : start + context])
            for place in range(context):
                if batch.targets[row, place] != IGNORE:
                    assert batch.tokens[row, place] == there[place]
                    assert batch.targets[row, place] == valid.ids[start + place + 1]
    others = list(feed.held_out(1 if again else 100))
    assert all(equal(one, other) for one, other in zip(batches, others, strict=True))


@given(st.integers(1, 2000), st.integers(1, 12))
def test_what_is_held_out_lies_side_by_side_in_tracks_that_are_read_from_their_start(size, context):
    valid = Ids(size)
    batches = list(continued(Ids(5), valid, context=context).held_out(4))
    tracks = batches[0].rows
    assert tracks == max(1, min(TRACKS, (size + 1) // (TRACK * context)))
    length = -(-(size + 1) // tracks)
    assert batches[0].examples.tolist() == [length * track for track in range(tracks)]
    assert len(batches) == -(-length // context)
    read = torch.cat([batch.tokens for batch in batches], dim=1)
    for track, row in enumerate(read[:, :length].tolist()):
        there = valid.ids[track * length : (track + 1) * length]
        assert row[: len(there)] == [BOS, *there[1:]][: len(there)]
        assert set(row[len(there) :]) <= ({PAD} if there else {BOS, PAD})


def test_nothing_held_out_gives_no_batches():
    assert list(continued(Ids(5)).held_out(4)) == []


# --- from text to rows -----------------------------------------------------------------------


@pytest.mark.parametrize("shard", [7, 100, 1 << 20])
def test_a_text_comes_through_whole(tmp_path, shard):
    text = "".join(f"{number} " for number in range(400))
    (tmp_path / "a.txt").write_text(text)
    how = learn("char", [text])
    parts = prepare(gather([tmp_path / "a.txt"]), how, cache=tmp_path / "cache", shard=shard)
    feed = ContinuedTextFeed(parts["train"], parts["valid"], context=10, rows=4)
    held = [batch.targets for batch in feed.held_out(3)]
    rows = torch.cat(held, dim=1).tolist()
    found = [token for row in rows for token in row if token != IGNORE]
    assert how.decode(found) == text[int(len(text) * 0.9) :]
    steps = [feed.step(step).targets for step in range(feed.steps_per_epoch)]
    ring = 2 * text[: int(len(text) * 0.9)]
    for row in torch.cat(steps, dim=1).tolist():
        assert how.decode([token for token in row if token != IGNORE]) in ring

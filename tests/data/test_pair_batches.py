"""Batches of pairs: every pair once an epoch, within the budget, with little padding."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.batch import Batch
from regard.data.feeds import pair_batches as module
from regard.data.feeds.masking import IGNORE
from regard.data.feeds.pair_batches import PairBatches, plan
from regard.data.readers.pairs import EncodedPairs, Pair, encode_pairs
from regard.errors import RegardError
from regard.text.dropout import BPEDropout
from regard.text.learning import learn
from regard.text.specials import BOS, EOS, PAD


def lengths_like_sentences(pairs: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Source and target lengths (pairs,), spread like those of short captions."""
    rng = np.random.default_rng(seed)
    target = np.clip(rng.lognormal(np.log(14) - 0.08, 0.4, pairs).round(), 2, 90)
    source = np.maximum(2, (target * rng.uniform(0.7, 1.4, pairs)).round())
    return source.astype(np.int64), target.astype(np.int64)


def with_lengths(source: np.ndarray, target: np.ndarray) -> EncodedPairs:
    """Pairs of these lengths; the first token of both sides is the pair's number."""
    numbers = range(5, 5 + len(source))
    return EncodedPairs(
        [np.array([n, *[7] * (s - 2), EOS]) for n, s in zip(numbers, source, strict=True)],
        [np.array([BOS, n, *[8] * (t - 2), EOS]) for n, t in zip(numbers, target, strict=True)],
        [Pair(str(n), str(n)) for n in numbers],
    )


def feed(pairs: int = 300, tokens: int = 200, seed: int = 0) -> PairBatches:
    made = with_lengths(*lengths_like_sentences(pairs))
    return PairBatches(made, with_lengths(np.array([3, 9, 2]), np.array([4, 2, 6])), tokens, seed)


def equal(one: Batch, other: Batch) -> bool:
    names = ("tokens", "targets", "lengths", "source", "source_lengths")
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in names) and (
        (one.valid, one.real_tokens) == (other.valid, other.real_tokens)
    )


# --- plans -----------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=120),
    st.integers(30, 300),
    st.integers(0, 5),
)
@settings(max_examples=100)
def test_every_pair_is_in_one_batch_and_none_exceeds_the_budget(sizes, tokens, epoch):
    source, target = np.array(sizes).T
    batches = plan(source, target, tokens, 0, epoch)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(sizes)))
    for batch in batches:
        assert len(batch)
        assert len(batch) * max(source[batch].max(), target[batch].max()) <= tokens


def greedy(longer: list[int], tokens: int) -> list[int]:
    """Sizes of batches, pair by pair: one is closed when the next pair does not fit."""
    found, rows, width = [], 0, 0
    for length in longer:
        if rows and (rows + 1) * max(width, length) > tokens:
            found.append(rows)
            rows = width = 0
        rows, width = rows + 1, max(width, length)
    return [*found, rows]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=200), st.integers(30, 200))
def test_batches_are_cut_as_pair_by_pair(longer, tokens):
    order = np.arange(len(longer))
    batches = list(module._cut(order, np.array(longer), tokens))
    assert [len(batch) for batch in batches] == greedy(longer, tokens)
    assert np.concatenate(batches).tolist() == order.tolist()


def share_of_padding(batches, source: np.ndarray, target: np.ndarray) -> float:
    computed = sum(len(b) * int(source[b].max() + target[b].max()) for b in batches)
    return 1 - int(source.sum() + target.sum()) / computed


def test_sentences_are_padded_by_less_than_a_tenth():
    source, target = lengths_like_sentences(29_000)
    for epoch in range(5):
        batches = plan(source, target, 8192, 0, epoch)
        assert share_of_padding(batches, source, target) < 0.1
        used = [len(b) * max(source[b].max(), target[b].max()) for b in batches]
        assert np.median(used) > 0.95 * 8192  # full batches, not small ones


def companions(batches) -> np.ndarray:
    """(pairs,) the number of each pair's batch."""
    found = np.empty(sum(map(len, batches)), np.int64)
    for number, batch in enumerate(batches):
        found[batch] = number
    return found


def test_most_of_a_pairs_companions_are_others_in_the_next_epoch():
    source, target = lengths_like_sentences(29_000)
    kept = []
    for one, other in pairwise(plan(source, target, 8192, 0, epoch) for epoch in range(6)):
        both = companions(one) * len(other) + companions(other)
        again = sum(int(n) * (int(n) - 1) for n in np.bincount(both))
        kept.append(again / sum(len(batch) * (len(batch) - 1) for batch in one))
    assert np.mean(kept) < 0.45
    # Even the longest sentences, of which there are few, do not always meet.
    longest = np.argsort(-np.maximum(source, target))[:150]
    groups = {
        tuple(sorted({int(n) for n in companions(plan(source, target, 8192, 0, epoch))[longest]}))
        for epoch in range(6)
    }
    assert len(groups) == 6


def test_long_and_short_batches_come_in_no_order():
    source, target = lengths_like_sentences(29_000)
    widths = [target[batch].max() for batch in plan(source, target, 2048, 0, 0)]
    assert abs(np.corrcoef(widths, np.arange(len(widths)))[0, 1]) < 0.25


def test_a_plan_follows_from_seed_and_epoch():
    sizes = lengths_like_sentences(500)

    def flat(seed: int, epoch: int) -> list[list[int]]:
        return [batch.tolist() for batch in plan(*sizes, 300, seed, epoch)]

    assert flat(0, 0) == flat(0, 0)
    assert flat(0, 0) != flat(0, 1)
    assert flat(0, 0) != flat(1, 0)


def test_what_cannot_be_planned_is_told():
    with pytest.raises(RegardError, match="a pair of 12 tokens does not fit 11 tokens a step"):
        plan(np.array([3, 12]), np.array([2, 2]), 11, 0, 0)
    assert len(plan(np.array([3, 12]), np.array([2, 2]), 12, 0, 0)) == 2
    with pytest.raises(RegardError, match="no pairs to train on"):
        PairBatches(with_lengths(*np.empty((2, 0), int)), EncodedPairs([], [], []), 100).step(0)


# --- steps -----------------------------------------------------------------------------------


def numbers(batch: Batch) -> list[int]:
    return (batch.source[:, 0] - 5).tolist()


def test_every_pair_is_read_once_an_epoch():
    made = feed()
    step = 0
    for epoch in range(4):
        seen: list[int] = []
        while made.epoch(step) < epoch + 1:
            seen += numbers(made.step(step))
            step += 1
        assert made.epoch(step) == epoch + 1
        assert sorted(seen) == list(range(300))


def test_a_batch_holds_the_pairs_and_asks_for_the_next_token():
    made = feed()
    for step in range(10):
        batch = made.step(step)
        for row, number in enumerate(numbers(batch)):
            source, target = made.train.sources[number], made.train.targets[number]
            read, asked = int(batch.source_lengths[row]), int(batch.lengths[row])
            assert batch.source[row, :read].tolist() == source.tolist()
            assert batch.tokens[row, :asked].tolist() == target[:-1].tolist()
            assert batch.targets[row, :asked].tolist() == target[1:].tolist()
            assert (batch.source[row, read:] == PAD).all()
            assert (batch.tokens[row, asked:] == PAD).all()
            assert (batch.targets[row, asked:] == IGNORE).all()
        assert batch.valid == int((batch.targets != IGNORE).sum())
        assert batch.real_tokens == int(batch.lengths.sum() + batch.source_lengths.sum())
        assert batch.rows * max(batch.tokens.shape[1], batch.source.shape[1]) <= 200


def test_a_step_is_the_same_in_any_order_and_by_any_feed():
    made = feed()
    last = 5 * len(plan(*made.train.lengths, 200, 0, 0))
    steps = np.random.default_rng(0).permutation(last).tolist()
    found = {step: made.step(step) for step in steps}
    again = feed()
    assert all(equal(again.step(step), found[step]) for step in range(last))
    assert equal(feed().step(last - 1), found[last - 1])
    assert not equal(feed(seed=1).step(0), found[0])


def test_the_examples_of_a_step_are_its_pairs_and_parts_keep_theirs():
    made = feed()
    for step in range(2 * len(made._plan(0))):
        batch = made.step(step)
        assert batch.examples.tolist() == numbers(batch)
        assert [n for part in batch.parts(3) for n in part.examples.tolist()] == numbers(batch)
    broken_up = dropping()
    batch = broken_up.step(3)
    texts = [broken_up.train.texts[number].source for number in batch.examples]
    how = broken_up.dropout[0].tokenizer
    assert [how.decode(row.tolist()) for row in batch.source] == texts


def test_turned_it_has_the_same_pairs_in_another_order_each_time():
    made = feed()

    def seen(turn: int) -> list[int]:
        turned = made.turned(turn)
        return [n for step in range(len(turned._plan(0))) for n in numbers(turned.step(step))]

    made.step(5)  # its plans are no longer those of a turned one
    assert equal(made.turned(0).step(3), made.step(3))
    orders = [seen(turn) for turn in range(5)]
    assert len({tuple(found) for found in orders}) == 5
    assert all(sorted(found) == list(range(300)) for found in orders)
    assert seen(3) == orders[3]


def test_two_threads_see_what_one_sees():
    """Training prepares steps in a thread while another asks for the epoch."""
    pairs = with_lengths(*lengths_like_sentences(20))
    calm = PairBatches(pairs, pairs, 120)
    expected = [(numbers(calm.step(step)), calm.epoch(step)) for step in range(150)]
    for _ in range(3):
        made = PairBatches(pairs, pairs, 120)
        with ThreadPoolExecutor(4) as pool:
            steps = list(pool.map(made.step, range(150)))
            epochs = list(pool.map(made.epoch, reversed(range(150))))[::-1]
        assert [(numbers(b), e) for b, e in zip(steps, epochs, strict=True)] == expected


def test_epochs_only_grow():
    made = feed()
    epochs = [made.epoch(step) for step in range(300)]
    assert epochs[0] == 0
    assert all(0 < b - a <= 0.1 for a, b in pairwise(epochs))


def test_few_plans_are_kept_and_another_budget_has_its_own():
    made = feed()
    made.epoch(500)
    assert len(made._plans) <= module.KEPT
    made.step(0)
    larger = replace(made, tokens=400)
    assert larger.step(0).rows * larger.step(0).tokens.shape[1] > 200


@pytest.mark.parametrize("rows", [1, 2, 3, 50])
def test_the_held_out_part_comes_once_in_order(rows):
    batches = list(feed().held_out(rows))
    assert [number for batch in batches for number in numbers(batch)] == [0, 1, 2]
    assert sum(batch.valid for batch in batches) == 4 + 2 + 6
    assert all(batch.rows <= rows for batch in batches)


def test_batches_count_what_is_computed_and_what_of_it_is_real():
    made = feed()
    (batch,) = made.held_out(3)
    assert (batch.positions, batch.real_tokens) == (3 * 9 + 3 * 6, 14 + 12)
    epoch = [made.step(step) for step in range(len(made._plan(0)))]
    computed = sum(batch.positions for batch in epoch)
    share = 1 - sum(batch.real_tokens for batch in epoch) / computed
    assert share == pytest.approx(share_of_padding(made._plan(0), *made.train.lengths))


# --- BPE-dropout -----------------------------------------------------------------------------

TEXTS = [
    Pair(f"the {noun}s were seen by {n} {noun}s", f"{n} {noun}s saw the other {noun}s")
    for n in range(40)
    for noun in ("number", "sentence", "house")
]


LONG = "the numbers of houses" + " seen" * 20, "the other" + " sentences" * 20


def dropping(rate: float = 0.3, seed: int = 0) -> PairBatches:
    how = learn("bpe", [text for pair in TEXTS for text in pair], 330)
    pairs = encode_pairs([*TEXTS, Pair(*LONG)], how, how)
    return PairBatches(pairs, pairs, 400, seed, (BPEDropout(how, rate), BPEDropout(how, rate)))


def first_epoch(feed: PairBatches) -> list[Batch]:
    return [feed.step(step) for step in range(200) if feed.epoch(step) < 1]


def test_words_are_broken_up_but_the_texts_of_an_epoch_stay():
    made = dropping()
    how, plain = made.dropout[0].tokenizer, replace(made, dropout=None)
    met = []
    for batch in first_epoch(made):
        for row in range(batch.rows):
            sides = (batch.source[row], batch.tokens[row])
            met.append(Pair(*(how.decode(side.tolist()) for side in sides)))
            ended = batch.targets[row][batch.targets[row] != IGNORE]
            assert ended[-1] == EOS
            assert batch.tokens[row, 0] == BOS
            assert batch.tokens[row, 1 : len(ended)].tolist() == ended[:-1].tolist()
        assert batch.valid == int((batch.targets != IGNORE).sum())
    assert sorted(met) == sorted(made.train.texts)
    before, after = (sum(b.real_tokens for b in first_epoch(feed)) for feed in (plain, made))
    assert after > 1.2 * before


@pytest.mark.parametrize("rate", [0.1, 0.5, 1.0])
def test_broken_up_pairs_stay_within_the_tokens_of_a_step(rate):
    made = dropping(rate)
    sizes = [max(b.source.numel(), b.tokens.numel()) for b in first_epoch(made)]
    assert max(sizes) <= made.tokens


def test_dropout_is_a_function_of_seed_epoch_and_pair():
    made, again = dropping(), dropping()
    found = {step: made.step(step) for step in (7, 0, 12, 3, 30)}
    assert all(equal(again.step(step), batch) for step, batch in sorted(found.items()))
    assert not equal(dropping(seed=1).step(0), found[0])
    # The same pair is cut otherwise in another epoch.
    steps = [step for step in range(60) if made.epoch(step) < 4]
    how, cuts = made.dropout[0].tokenizer, set()
    for step in steps:
        for row in made.step(step).source.tolist():
            if how.decode(row) == TEXTS[5].source:
                cuts.add(tuple(token for token in row if token != PAD))
    assert len(cuts) >= 3


def test_no_row_grows_beyond_the_longest_pair():
    made = dropping(rate=1.0)
    source, target = made.train.lengths
    how, kept = made.dropout[0].tokenizer, 0
    for batch in first_epoch(made):
        widest = max(batch.source.shape[1], batch.tokens.shape[1])
        assert widest <= max(int(source.max()), int(target.max()))
        for row in range(batch.rows):
            if how.decode(batch.source[row].tolist()) == LONG[0]:
                kept += 1
                assert batch.source_lengths[row] == source[-1]
                assert batch.lengths[row] == target[-1]
    assert kept == 1

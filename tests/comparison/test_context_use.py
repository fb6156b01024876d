"""The loss as a function of what is given, against brute force and against what must hold."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from regard.comparison import context_use
from regard.comparison.by_position import buckets, by_position
from regard.comparison.context_use import by_context, by_source, long_sources, places, powers, used
from regard.data.readers.pairs import EncodedPairs, Pair
from regard.models.construction import build
from regard.models.counting.estimate import estimate
from regard.models.counting.grams import Row
from regard.models.counting.model import NGram
from regard.models.registry import named
from regard.text.specials import BOS, EOS, MASK, PAD

VOCABULARY = 20


class Ids:
    """Token ids in memory, as `Tokens` has them."""

    def __init__(self, ids):
        self.ids = np.asarray(ids, np.int64)

    def __len__(self):
        return len(self.ids)

    def rows(self, starts, width, fill):
        table = starts[:, None] + np.arange(width)
        inside = table < len(self.ids)
        return np.where(inside, self.ids[np.where(inside, table, 0)], fill)


@pytest.fixture
def tokens():
    rng = np.random.default_rng(0)
    ids = rng.integers(5, VOCABULARY, 400)
    ids[0] = BOS
    return Ids(ids)


def small(name, **changes):
    return build(replace(named(name), vocabulary=VOCABULARY, **changes)).eval()


def test_powers_go_up_to_the_longest():
    assert powers(1) == [1]
    assert powers(9) == [1, 2, 4, 8]
    assert powers(16) == [1, 2, 4, 8, 16]


def test_a_bigram_makes_nothing_of_what_is_before_the_last_token(tokens):
    table = estimate(
        Row(tokens.ids), 2, VOCABULARY, BOS, replace(named("bigram")).rule, never=(PAD, MASK)
    )
    losses = by_context(NGram.of(table), tokens, places(tokens, 16, 40), [1, 2, 4, 16])
    assert max(losses) - min(losses) < 1e-9
    assert used([1, 2, 4, 16], losses) == 1


def test_a_convolution_makes_nothing_of_what_lies_beyond_its_reach(tokens):
    module = small("conv", layers=2, width=16, kernel=3, dilation_growth=2, dilation_cycle=0)
    reach = module.config.reach
    assert reach == 7
    lengths = [reach - 1, reach, reach + 1, 2 * reach, 32]
    short, *rest = by_context(module, tokens, places(tokens, 32, 40), lengths)
    assert max(rest) - min(rest) < 1e-6
    assert abs(short - rest[0]) > 1e-6


@pytest.mark.parametrize("name", ["regard-1", "elman", "conv"])
def test_each_loss_is_that_of_the_target_given_so_many_tokens_and_no_others(
    tokens, name, monkeypatch
):
    monkeypatch.setattr(context_use, "TOGETHER", 16)  # several batches
    module = small(name, width=16, **({"heads": 2, "hidden": 32} if name == "regard-1" else {}))
    targets = places(tokens, 8, 5)
    found = by_context(module, tokens, targets, [1, 4, 8])
    for length, loss in zip([1, 4, 8], found, strict=True):
        losses = []
        for place in targets.tolist():
            given = tokens.ids[place - length : place].tolist()
            begun = [BOS, *given] if name == "elman" else given
            with torch.no_grad():
                logits = module(torch.tensor([begun]))[0, -1]
            losses.append(float(F.cross_entropy(logits, torch.tensor(tokens.ids[place]))))
        assert loss == pytest.approx(np.mean(losses), abs=1e-5)


def test_targets_are_the_same_for_all_and_none_begins_a_text(tokens):
    tokens.ids[100] = BOS
    found = places(tokens, 16, 1000)
    assert found.min() >= 16
    assert 100 not in found
    assert len(np.unique(found)) == len(found) == 400 - 16 - 1


def pairs_of(count):
    rng = np.random.default_rng(1)
    sizes = rng.integers(2, 12, count)
    sources = [np.append(rng.integers(5, VOCABULARY, n), EOS) for n in sizes]
    targets = [np.concatenate(([BOS], rng.integers(5, VOCABULARY, n), [EOS])) for n in sizes]
    return EncodedPairs(sources, targets, [Pair("", "")] * count)


@pytest.mark.parametrize("name", ["rnn+attention", "conv-pairs", "transformer-tiny"])
def test_a_source_that_is_shown_whole_gives_the_loss_of_the_pair(name):
    shape = {"transformer-tiny": {"heads": 2, "hidden": 32}, "rnn+attention": {"hidden": 32}}
    module = small(name, width=16, layers=1, **shape.get(name, {}))
    pairs = pairs_of(24)
    chosen = long_sources(pairs)
    assert len(chosen) == 6
    assert pairs.lengths[0][chosen].min() >= np.median(pairs.lengths[0])
    cut, whole = by_source(module, pairs, chosen, [1, 50])
    total = asked = 0
    for i in chosen.tolist():
        target = torch.from_numpy(pairs.targets[i])[None]
        with torch.no_grad():
            memory = module.encode(torch.from_numpy(pairs.sources[i])[None])
            logits = module(target[:, :-1], memory)
        total += float(F.cross_entropy(logits[0], target[0, 1:], reduction="sum"))
        asked += target.shape[1] - 1
    assert whole == pytest.approx(total / asked, abs=1e-5)
    assert cut != pytest.approx(whole, abs=1e-6)


def test_most_of_a_gain_is_used_with_the_fewest_tokens_that_give_it():
    assert used([1, 2, 4, 8], [3.0, 2.0, 1.1, 1.0]) == pytest.approx(4)  # 95 % of the gain
    assert used([1, 2, 4, 8], [3.0, 2.0, 1.2, 1.0]) == pytest.approx(4 * 2**0.5)  # 90 %, then all
    assert 1.9 < used([1, 2, 4, 8], [3.0, 1.0, 1.5, 2.0]) < 2  # more than enough is no gain
    assert used([1, 2, 4], [1.0, 1.0, 1.0]) == 1
    assert used([1, 2, 4], [1.0, 1.5, 2.0]) == 1


def test_a_gain_that_is_rounding_is_no_use_of_context():
    assert used([1, 2, 4], [3.0, 3.0 - 1e-9, 3.0 - 2e-7]) == 1
    assert used([1, 2, 4], [3.0, 2.99, 2.98]) > 2


def test_buckets_of_positions_have_no_gap_and_double():
    assert buckets(8) == [(1, 8)]
    assert buckets(100) == [(1, 16), (17, 32), (33, 64), (65, 100)]


def test_the_losses_by_position_have_the_loss_of_all_as_their_mean(tokens):
    module = small("conv", layers=2, width=16)
    longest = 64
    losses = by_position(module, tokens, longest)
    starts = np.unique(np.arange(64) * (len(tokens) - longest - 1) // 64)
    rows = torch.from_numpy(tokens.rows(starts, longest + 1, PAD))
    with torch.no_grad():
        logits = module(rows[:, :-1])
    every = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), reduction="none")
    sizes = [high - low + 1 for low, high in buckets(longest)]
    real = (rows[:, 1:] != BOS).flatten()
    mean = np.average(losses, weights=sizes)
    assert mean == pytest.approx(float(every[real].mean()), abs=1e-3)


def test_positions_that_a_model_has_no_room_for_are_left_out(tokens):
    module = small("gpt2-tiny", context=32)
    assert len(by_position(module, tokens, 128)) == 2  # up to 16, up to 32

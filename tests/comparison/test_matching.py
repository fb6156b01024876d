"""Widths that come nearest to a budget of parameters."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.comparison.contestants import chosen
from regard.comparison.matching import can_be_matched, count, matched, resized
from regard.errors import RegardError
from regard.models.construction import build
from regard.models.registry import named

SMALL = {"elman": 2, "lstm": 1, "conv": 2, "regard-2": 2, "rnn+attention": 1, "conv-pairs": 1}


@pytest.mark.parametrize("name", SMALL)
@settings(max_examples=6)
@given(budget=st.integers(20_000, 400_000))
def test_no_other_width_comes_nearer(name, budget):
    config = replace(named(name), vocabulary=90, layers=SMALL[name])
    found = matched(config, budget)
    assert found.changes["width"] % 8 == 0
    assert count(replace(config, **found.changes)) == found.parameters
    widths = {found.changes["width"] + gap for gap in (-8, 8)}  # more is farther: it grows
    for width in widths:
        if width > 0:
            other = count(replace(config, **resized(config, width)))
            assert abs(found.parameters - budget) <= abs(other - budget)


def test_the_parameters_are_those_of_the_module():
    config = replace(named("transformer-tiny"), vocabulary=200)
    found = matched(config, 100_000)
    module = build(replace(config, **found.changes))
    assert sum(weight.numel() for weight in module.parameters()) == found.parameters


def test_what_lies_between_grows_with_the_width():
    config = named("transformer-tiny")  # 128 wide, 256 between
    assert resized(config, 64) == {"width": 64, "hidden": 128}
    assert resized(named("conv"), 64) == {"width": 64}


def test_counts_have_no_width():
    assert not can_be_matched(named("ngram"))


def test_a_budget_that_the_vocabulary_alone_exceeds_is_refused():
    with pytest.raises(RegardError, match="raise --parameters"):
        matched(replace(named("lstm"), vocabulary=50_000), 100_000)


def test_short_names_stand_for_what_fits_the_data():
    assert chosen("conv,transformer", pairs=False) == {"conv": "conv", "transformer": "regard-4"}
    pairs = chosen("conv,transformer", pairs=True)
    assert pairs == {"conv": "conv-pairs", "transformer": "transformer-tiny"}


@pytest.mark.parametrize(
    ("given", "pairs", "said"),
    [
        ("tranformer", False, "did you mean 'transformer'"),
        ("lstm,lstm", False, "lstm is named twice"),
        ("rnn", False, "rnn cannot be compared on text"),
        ("lstm", True, "lstm cannot be compared on pairs"),
        ("bert-tiny", False, "bert-tiny cannot be compared on text"),
        ("bag-linear", True, "bag-linear cannot be compared on pairs"),
    ],
)
def test_what_cannot_be_compared_is_told(given, pairs, said):
    with pytest.raises(RegardError, match=said):
        chosen(given, pairs)

"""What convolutional models are set or given wrongly: one sentence names each mistake."""

import math
from dataclasses import fields
from functools import partial

import pytest
import torch
from test_convolution import tiny
from test_recurrent_mistakes import refusal
from tiny_models import assert_same, ids
from tiny_models import tiny as transformer
from tiny_recurrent import memory_of
from tiny_recurrent import tiny as recurrent

from regard.errors import RegardError
from regard.models.construction import build
from regard.models.convolution.config import ConvolutionConfig
from regard.models.masks import Causal
from regard.models.registry import named

LM, PAIR = "text cycle", "pairs grown"

# --- settings --------------------------------------------------------------------------------

WRONG = {
    "kind": ("pairs", "kind cannot be 'pairs'; known: decoder, encoder-decoder"),
    "vocabulary": (0, "vocabulary must be a whole number from 1 to 67,108,864, not 0"),
    "source_vocabulary": (-1, "source_vocabulary must be a whole number from 0 to 67,108,864"),
    "layers": (True, "layers must be a whole number from 1 to 128, not True"),
    "encoder_layers": (129, "encoder_layers must be a whole number from 0 to 128, not 129"),
    "width": (6.0, "width must be a whole number from 1 to 65,536, not 6.0"),
    "kernel": (0, "kernel must be a whole number from 1 to 1,024, not 0"),
    "dilation_growth": ("2", "dilation_growth must be a whole number from 1 to 8, not '2'"),
    "dilation_cycle": (None, "dilation_cycle must be a whole number from 0 to 128, not None"),
    "heads": (2000, "heads must be a whole number from 1 to 1,024, not 2000"),
    "tied": ("yes", "tied must be true or false"),
    "dropout": (1.0, "dropout must be in [0, 1), not 1.0"),
}


def test_every_setting_is_checked():
    assert {*WRONG} == {field.name for field in fields(ConvolutionConfig)}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_setting_is_named_with_what_it_may_be(name: str):
    value, sentence = WRONG[name]
    message = refusal(lambda: ConvolutionConfig(**{name: value}))
    assert message.startswith(f"model settings: {sentence}")


@pytest.mark.parametrize("share", [-0.1, math.nan, True, "0.1", None])
def test_a_share_that_is_none_is_refused(share: object):
    said = refusal(lambda: ConvolutionConfig(dropout=share))
    assert said == f"model settings: dropout must be in [0, 1), not {share!r}"


def test_a_kind_is_looked_for_among_those_that_are():
    said = refusal(lambda: ConvolutionConfig(kind="decodr"))
    assert said == "model settings: kind cannot be 'decodr'; did you mean 'decoder'?"


def test_all_wrong_settings_are_told_at_once():
    with pytest.raises(RegardError) as caught:
        ConvolutionConfig(**{name: value for name, (value, _) in WRONG.items()})
    first, *lines = str(caught.value).split("\n")
    assert first == f"model settings: {len(WRONG)} problems"
    assert len(lines) == len(WRONG)
    for _, sentence in WRONG.values():
        assert sum(line.startswith(f"  - {sentence}") for line in lines) == 1


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"source_vocabulary": 9}, "source_vocabulary is for encoder–decoders; leave it out"),
        ({"encoder_layers": 2}, "encoder_layers is for encoder–decoders; leave it out"),
        ({"heads": 4}, "heads is for encoder–decoders; leave it out"),
        (
            {"kind": "encoder-decoder", "kernel": 4},
            "an encoder looks as far ahead as back; choose an odd kernel, not 4",
        ),
        ({"kind": "encoder-decoder", "heads": 3}, "3 heads must divide width 256"),
        (
            {"kind": "encoder-decoder", "width": 7},
            "positions of a source come in pairs, so width must be even, not 7",
        ),
        (
            {"layers": 128, "dilation_growth": 8},
            "128 layers would look more than 65,536 tokens away; lower layers or dilation_growth",
        ),
        (
            {"kind": "encoder-decoder", "layers": 2, "encoder_layers": 16, "dilation_growth": 2},
            "16 layers would look more than 65,536 tokens away; lower layers or dilation_growth",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: dict, sentence: str):
    assert refusal(lambda: ConvolutionConfig(**settings)) == f"model settings: {sentence}"


def test_all_that_does_not_go_together_is_told_at_once():
    odd = {"kind": "encoder-decoder", "width": 9, "heads": 2, "kernel": 2, "dilation_growth": 8}
    with pytest.raises(RegardError, match="4 problems") as caught:
        ConvolutionConfig(layers=9, **odd)
    assert str(caught.value).count("\n  - ") == 4
    with pytest.raises(RegardError, match="3 problems"):
        ConvolutionConfig(source_vocabulary=9, encoder_layers=2, heads=2)


def test_the_farthest_reach_is_allowed_and_one_layer_more_is_not():
    assert ConvolutionConfig(kernel=2, dilation_growth=2, layers=16).reach == 1 << 16
    assert "16 layers" in refusal(lambda: ConvolutionConfig(kernel=3, dilation_growth=2, layers=16))
    assert (
        ConvolutionConfig(dilation_growth=8, dilation_cycle=2, layers=128).reach == 1 + 2 * 64 * 9
    )


def test_a_decoder_may_be_odd_and_its_kernel_even():
    model = build(ConvolutionConfig(vocabulary=9, width=7, kernel=4, layers=2))
    assert model(ids(2, 3) % 9).shape == (2, 3, 9)


def test_what_is_left_open_follows_the_kind():
    pairs = ConvolutionConfig(kind="encoder-decoder", layers=5)
    assert pairs.resolved().encoder_layers == 5
    assert ConvolutionConfig(layers=5).resolved().encoder_layers == 0
    assert named("conv").reach == 61  # as `regard models` tells
    assert named("conv-pairs").kind == "encoder-decoder"


# --- what is given ---------------------------------------------------------------------------


def test_a_mask_is_refused():
    sentence = "a convolution sees what is near, not what a mask says; leave it out"
    assert refusal(lambda: tiny(LM)(ids(2, 3), mask=Causal())) == sentence
    assert refusal(lambda: tiny(PAIR).encode(ids(2, 3), mask=Causal())) == sentence


@pytest.mark.parametrize("case", [LM, PAIR])
@torch.no_grad()
def test_no_tokens_are_no_logits_as_in_a_transformer(case: str):
    """A state stays as it was, but for what it could forget."""
    model = tiny(case)
    other = transformer("gpt2-tiny" if case == LM else "marian-tiny")
    memory = memory_of(model, 2)
    theirs = None if case == LM else other.encode(ids(2, 5))
    for last in (True, False):
        found = model(ids(2, 0), memory, last=last)
        assert found.shape == other(ids(2, 0), theirs, last=last).shape == (2, 0, 256)
    state = model.start(2, 9)
    model(ids(2, 5), memory, state)
    assert model(ids(2, 0), None, state).shape == (2, 0, 256)
    assert "cannot forget [1, 0]" in refusal(lambda: state.rollback([1, 0]))
    whole = model(torch.cat((ids(2, 5), ids(2, 2, seed=3)), dim=1), memory)
    assert_same(model(ids(2, 2, seed=3), None, state), whole[:, 5:])


@pytest.mark.parametrize("begun", [True, False])
@torch.no_grad()
def test_a_source_of_nothing_is_looked_at_as_zeros(begun: bool):
    """As in a Transformer, a row without a source gets what attention's bias alone says."""
    model, tokens = tiny(PAIR), ids(2, 3)
    state = model.start(2, 3, return_attention=True) if begun else None
    found = model(tokens, model.encode(ids(2, 5), [0, 2]), state)
    if state is not None:
        assert state.attention[0].abs().sum() == 0
    empty = model.encode(ids(2, 0))
    assert empty.values.shape == (2, 0, 6)
    assert_same(found[0], model(tokens, empty)[0])
    assert_same(found[1], model(tokens[1:], model.encode(ids(2, 5)[1:, :2]))[0])
    other = transformer("marian-tiny")
    theirs = other(tokens, other.encode(ids(2, 5), [0, 2]))
    assert_same(theirs[0], other(tokens, other.encode(ids(2, 0)))[0])


@torch.no_grad()
def test_lengths_of_a_source_have_two_names():
    model = tiny(PAIR)
    one, other = model.encode(ids(2, 3), [3, 1]), model.encode(ids(2, 3), source_lengths=[3, 1])
    assert torch.equal(one.values, other.values)
    assert not torch.equal(one.values, model.encode(ids(2, 3)).values)


def test_a_source_that_does_not_fit_is_refused():
    model, tokens = tiny(PAIR), ids(2, 3)
    assert "give `memory=model.encode(source)`" in refusal(lambda: model(tokens))
    assert "not a Tensor" in refusal(lambda: model(tokens, ids(2, 3)))
    said = refusal(lambda: model(tokens, memory_of(model, 3)))
    assert said == "the source has 3 rows, the target 2"
    other = "the source was read by another model; read it with this one"
    smaller = memory_of(tiny(PAIR, width=4), 2)
    assert refusal(lambda: model(tokens, smaller)) == other
    theirs = transformer("marian-tiny").encode(tokens)
    assert refusal(lambda: model(tokens, theirs)) == other
    state = model.start(2, 6)
    with torch.no_grad():
        model(tokens, memory_of(model, 2), state)
    said = refusal(lambda: model(tokens, memory_of(model, 2), state))
    assert said == "the state was begun with another source; start a new one"
    assert state.lengths == [3, 3]


@pytest.mark.parametrize("case", [LM, PAIR])
@torch.no_grad()
def test_a_state_that_does_not_fit_is_refused(case: str):
    model, tokens = tiny(case), ids(2, 3)
    memory = memory_of(model, 2)
    freed = model.start(2, 3)
    model(tokens, memory, freed)
    freed.free()
    sentence = "the state was freed or is another model's; start one with this model"
    assert refusal(lambda: model(tokens, memory, freed)) == sentence
    refusal(lambda: freed.reorder([0]))
    refusal(lambda: freed.rollback([1]))
    for other in (tiny(case, layers=4), tiny(case, kernel=5), tiny(case, dilation_growth=1)):
        begun = other.start(2, 3)
        assert refusal(partial(model, tokens, memory, begun)) == sentence
    three = model.start(3, 3)
    said = refusal(lambda: model(tokens, memory, three))
    assert said == "the state has 3 rows, the tokens have 2"
    theirs = transformer("gpt2-tiny").start(2, 3)
    said = refusal(lambda: model(tokens, memory, theirs))
    assert said == "a convolutional model continues LastInputs, not a KeyValueState"
    said = refusal(lambda: transformer("gpt2-tiny")(tokens, None, three))
    assert said == "a Transformer continues a KeyValueState, not a LastInputs"
    said = refusal(lambda: recurrent("lstm")(tokens, None, three))
    assert said == "a recurrent model continues a HiddenState, not a LastInputs"

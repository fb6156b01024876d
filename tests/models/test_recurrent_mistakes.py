"""What recurrent models are set or given wrongly: each mistake is one sentence that names it."""

import math
from collections.abc import Callable
from dataclasses import fields

import pytest
import torch
from tiny_models import ids
from tiny_models import tiny as transformer
from tiny_recurrent import memory_of, tiny

from regard.errors import RegardError
from regard.models.construction import build
from regard.models.masks import Causal
from regard.models.recurrent.config import RecurrentConfig
from regard.models.registry import named

LM, PLAIN, LUONG = "lstm", "gru none both 1", "lstm general fed both 2"


def refusal(call: Callable[[], object]) -> str:
    """The message of the one error, which is one line."""
    with pytest.raises(RegardError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- settings --------------------------------------------------------------------------------

WRONG = {
    "kind": ("pairs", "kind cannot be 'pairs'; known: decoder, encoder-decoder"),
    "cell": ("lstn", "cell cannot be 'lstn'; did you mean 'lstm'?"),
    "attention": ("addative", "attention cannot be 'addative'; did you mean 'additive'?"),
    "vocabulary": (0, "vocabulary must be a whole number from 1 to 67,108,864, not 0"),
    "source_vocabulary": (-1, "source_vocabulary must be a whole number from 0 to 67,108,864"),
    "layers": (True, "layers must be a whole number from 1 to 64, not True"),
    "encoder_layers": (65, "encoder_layers must be a whole number from 0 to 64, not 65"),
    "width": (6.0, "width must be a whole number from 1 to 65,536, not 6.0"),
    "hidden": ("8", "hidden must be a whole number from 0 to 65,536, not '8'"),
    "bidirectional": (1, "bidirectional must be true or false"),
    "input_feeding": (None, "input_feeding must be true or false"),
    "tied": ("yes", "tied must be true or false"),
    "variational": (0, "variational must be true or false"),
    "dropout": (1.0, "dropout must be in [0, 1), not 1.0"),
    "weight_dropout": (-0.1, "weight_dropout must be in [0, 1), not -0.1"),
    "embedding_dropout": (math.nan, "embedding_dropout must be in [0, 1), not nan"),
    "input_dropout": (True, "input_dropout must be in [0, 1) or -1, not True"),
    "output_dropout": (-0.5, "output_dropout must be in [0, 1) or -1, not -0.5"),
}


def test_every_setting_is_checked():
    assert {*WRONG} == {field.name for field in fields(RecurrentConfig)}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_setting_is_named_with_what_it_may_be(name: str):
    value, sentence = WRONG[name]
    message = refusal(lambda: RecurrentConfig(**{name: value}))
    assert message.startswith(f"model settings: {sentence}")


def test_all_wrong_settings_are_told_at_once():
    with pytest.raises(RegardError) as caught:
        RecurrentConfig(**{name: value for name, (value, _) in WRONG.items()})
    first, *lines = str(caught.value).split("\n")
    assert first == f"model settings: {len(WRONG)} problems"
    assert len(lines) == len(WRONG)
    for _, sentence in WRONG.values():
        assert sum(line.startswith(f"  - {sentence}") for line in lines) == 1


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"attention": "dot"}, "attention is for encoder–decoders; leave it out"),
        ({"bidirectional": False}, "bidirectional is for encoder–decoders; leave it out"),
        ({"input_feeding": True}, "input_feeding is for encoder–decoders; leave it out"),
        ({"source_vocabulary": 9}, "source_vocabulary is for encoder–decoders; leave it out"),
        ({"encoder_layers": 2}, "encoder_layers is for encoder–decoders; leave it out"),
        (
            {"kind": "encoder-decoder", "hidden": 7},
            "two directions share 7 places in halves; choose an even number",
        ),
        (
            {"kind": "encoder-decoder", "width": 9},
            "two directions share 9 places in halves; choose an even number",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: dict, sentence: str):
    assert refusal(lambda: RecurrentConfig(**settings)) == f"model settings: {sentence}"


def test_all_that_does_not_go_together_is_told_at_once():
    with pytest.raises(RegardError, match="3 problems") as caught:
        RecurrentConfig(attention="dot", input_feeding=True, encoder_layers=2)
    assert str(caught.value).count("\n  - ") == 3


def test_an_odd_size_is_fine_where_nothing_is_halved():
    one = RecurrentConfig(kind="encoder-decoder", vocabulary=9, width=7, bidirectional=False)
    model = build(one)
    assert model.encode(ids(2, 3) % 9).whole.shape == (2, 7)
    assert build(RecurrentConfig(vocabulary=9, width=7))(ids(2, 3) % 9).shape == (2, 3, 9)


def test_the_names_mean_the_papers_models():
    awd, bahdanau, luong = named("awd-lstm"), named("bahdanau"), named("luong")
    assert isinstance(awd, RecurrentConfig)
    assert (awd.cell, awd.layers, awd.hidden, awd.weight_dropout) == ("lstm", 3, 1150, 0.5)
    assert bahdanau == named("rnn+attention")
    assert (bahdanau.cell, bahdanau.attention) == ("gru", "additive")
    assert (luong.cell, luong.attention, luong.input_feeding) == ("lstm", "general", True)
    assert [named(name).cell for name in ("elman", "gru", "lstm")] == ["elman", "gru", "lstm"]


# --- what is given ---------------------------------------------------------------------------


def test_a_mask_is_refused():
    sentence = "a recurrent model reads all that stands before; leave out `mask`"
    assert refusal(lambda: tiny(LM)(ids(2, 3), mask=Causal())) == sentence
    assert refusal(lambda: tiny(LUONG).encode(ids(2, 3), mask=Causal())) == sentence


@pytest.mark.parametrize("case", [PLAIN, LUONG])
def test_a_source_that_does_not_fit_is_refused(case: str):
    model, tokens = tiny(case), ids(2, 3)
    assert "give `memory=model.encode(source)`" in refusal(lambda: model(tokens))
    assert "not a Tensor" in refusal(lambda: model(tokens, ids(2, 3)))
    said = refusal(lambda: model(tokens, memory_of(model, 3)))
    assert said == "the source has 3 rows, the target 2"
    other = "the source was read by another model; read it with this one"
    smaller = memory_of(tiny(case, hidden=6), 2)
    assert refusal(lambda: model(tokens, smaller)) == other
    theirs = transformer("marian-tiny").encode(tokens)
    assert refusal(lambda: model(tokens, theirs)) == other
    state = model.start(2, 6)
    with torch.no_grad():
        model(tokens, memory_of(model, 2), state)
    said = refusal(lambda: model(tokens, memory_of(model, 2), state))
    assert said == "the state was begun with another source; start a new one"


@pytest.mark.parametrize("case", [LM, LUONG])
@torch.no_grad()
def test_a_state_that_does_not_fit_is_refused(case: str):
    model, tokens = tiny(case), ids(2, 3)
    memory = memory_of(model, 2)
    freed = model.start(2, 3)
    model(tokens, memory, freed)
    freed.free()
    sentence = "the state was freed or is another model's; start one with this model"
    assert refusal(lambda: model(tokens, memory, freed)) == sentence
    other = tiny(case, layers=4).start(2, 3)
    assert refusal(lambda: model(tokens, memory, other)) == sentence
    three = model.start(3, 3)
    said = refusal(lambda: model(tokens, memory, three))
    assert said == "the state has 3 rows, the tokens have 2"
    theirs = transformer("gpt2-tiny").start(2, 3)
    said = refusal(lambda: model(tokens, memory, theirs))
    assert said == "a recurrent model continues a HiddenState, not a KeyValueState"
    said = refusal(lambda: transformer("gpt2-tiny")(tokens, None, three))
    assert said == "a Transformer continues a KeyValueState, not a HiddenState"

"""Settings are refused when made, all mistakes at once; good ones are frozen and complete."""

import dataclasses
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import RegardError
from regard.fields import rules
from regard.models.construction import build
from regard.models.transformer.config import RotaryScaling, TransformerConfig
from regard.models.transformer.positions import SCHEMES
from regard.models.transformer.presets import SIZES, preset

LARGEST = {
    name: rule.range.most
    for name, rule in rules(TransformerConfig).items()
    if rule.kind is int and rule.range
}
# One wrong setting (with what it needs around it), and what the message must say about it.
WRONG: dict[str, tuple[dict, str]] = {
    "kind": ({"kind": "decodr"}, "kind cannot be 'decodr'; did you mean 'decoder'?"),
    "activation": ({"activation": "rellu"}, "activation cannot be 'rellu'; did you mean 'relu'?"),
    "norm": ({"norm": "layr"}, "norm cannot be 'layr'; did you mean 'layer'?"),
    "norm_place": ({"norm_place": "mid"}, "norm_place cannot be 'mid'; known: post, pre"),
    "positions": ({"positions": "rotery"}, "positions cannot be 'rotery'; did you mean 'rotary'?"),
    "head": ({"head": "linea"}, "head cannot be 'linea'; did you mean 'linear'?"),
    "initialisation": ({"initialisation": "fanin"}, "did you mean 'fan-in'?"),
    "vocabulary": (
        {"vocabulary": 0},
        "vocabulary must be a whole number from 1 to 67,108,864, not 0",
    ),
    "context": ({"context": -5}, "context must be a whole number from 1 to 67,108,864, not -5"),
    "layers": ({"layers": 0}, "layers must be a whole number from 1 to 1,024, not 0"),
    "width": ({"width": -12}, "width must be a whole number from 1 to 1,048,576, not -12"),
    "heads": ({"heads": 0}, "heads must be a whole number from 1 to 16,384, not 0"),
    "hidden": ({"hidden": 0}, "hidden must be a whole number from 1 to 4,194,304, not 0"),
    "source_vocabulary": (
        {"source_vocabulary": -1},
        "source_vocabulary must be a whole number from 0 to",
    ),
    "encoder_layers": ({"encoder_layers": -1}, "encoder_layers must be a whole number from 0 to"),
    "kv_heads": ({"kv_heads": -1}, "kv_heads must be a whole number from 0 to"),
    "head_width": ({"head_width": -1}, "head_width must be a whole number from 0 to"),
    "segments": ({"segments": -1}, "segments must be a whole number from 0 to"),
    "dropout": ({"dropout": 1.0}, "dropout must be in [0, 1), not 1.0"),
    "attention_dropout": ({"attention_dropout": -0.1}, "attention_dropout must be in [0, 1)"),
    "activation_dropout": ({"activation_dropout": 1.5}, "activation_dropout must be in [0, 1)"),
    "no number": ({"dropout": float("nan")}, "dropout must be in [0, 1), not nan"),
    "norm_epsilon": ({"norm_epsilon": 0.0}, "norm_epsilon must be a number above 0, not 0.0"),
    "rotary_base": ({"rotary_base": -1.0}, "rotary_base must be a number above 0, not -1.0"),
    "relative_buckets": ({"relative_buckets": 2}, "relative_buckets (2) must be at least 4"),
    "relative_distance": ({"relative_distance": 32}, "below relative_distance (32)"),
    "heads and width": ({"heads": 7}, "7 heads do not divide width 768"),
    "key heads": ({"kv_heads": 5}, "5 key/value heads do not divide 12 heads"),
    "more key heads": ({"kv_heads": 24}, "24 key/value heads do not divide 12 heads"),
    "rotary": ({"positions": "rotary", "head_width": 5}, "head_width must be even, not 5"),
    "rotary width": (
        {"positions": "rotary", "width": 36, "heads": 12},
        "head_width must be even, not 3",
    ),
    "sinusoidal": ({"positions": "sinusoidal", "width": 9, "heads": 3}, "even, not 9"),
    "halves": ({"positions": "sinusoidal-halves", "width": 9, "heads": 3}, "even, not 9"),
    "pooler": ({"pooler": True}, "a pooler belongs to an encoder only"),
    "decoder segments": ({"segments": 2}, "segments belong to an encoder only"),
    "decoder head": ({"head": "masked"}, "head 'masked' belongs to an encoder"),
    "decoder source": ({"source_vocabulary": 9}, "source_vocabulary needs kind 'encoder-decoder'"),
    "decoder encoder": ({"encoder_layers": 9}, "encoder_layers needs kind 'encoder-decoder'"),
}


@pytest.mark.parametrize(("changes", "said"), WRONG.values(), ids=WRONG)
def test_a_wrong_setting_is_named_in_one_line(changes: dict, said: str):
    with pytest.raises(RegardError) as caught:
        TransformerConfig(**changes)
    assert str(caught.value).startswith("model settings: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def refused(**changes: object) -> list[str]:
    """The problems that one error reports."""
    with pytest.raises(RegardError) as caught:
        TransformerConfig(**changes)
    first, *rest = str(caught.value).split("\n  - ")
    if rest:
        assert first == f"model settings: {len(rest)} problems"
    return rest or [first.removeprefix("model settings: ")]


@given(
    st.sets(
        st.sampled_from(
            ["kind", "activation", "norm", "layers", "hidden", "dropout", "rotary_base"]
        )
    ).filter(bool)
)
def test_all_wrong_settings_are_reported_at_once(names: set[str]):
    problems = refused(**{k: v for name in names for k, v in WRONG[name][0].items()})
    assert len(problems) == len(names)
    for name in names:
        assert any(WRONG[name][1] in problem for problem in problems)


def test_all_disagreements_are_reported_at_once():
    problems = refused(heads=7, kv_heads=3, pooler=True, segments=1, encoder_layers=1)
    assert len(problems) == 5


def test_disagreements_are_reported_together_with_wrong_settings():
    problems = refused(heads=7, dropout=1.0, activation="rellu", pooler=True)
    assert len(problems) == 4


def test_rotary_scaling_reports_all_that_is_wrong_at_once():
    with pytest.raises(RegardError) as caught:
        RotaryScaling("llama4", factor=0.5, low=4, high=4, original_context=0)
    message = str(caught.value)
    assert message.startswith("rotary scaling: 4 problems")
    for said in (
        "did you mean 'llama3'?",
        "not 0.5",
        "low 4 must be below high 4",
        "original_context must be",
    ):
        assert said in message


@pytest.mark.parametrize(
    "changes",
    [
        {"width": "768"},
        {"width": 768.0},
        {"layers": None},
        {"dropout": "0.1"},
        {"gated": "no"},
        {"rotary_scaling": "llama3", "positions": "rotary"},
    ],
    ids=str,
)
def test_a_setting_of_a_wrong_type_is_named(changes: dict):
    name = next(iter(changes))
    assert name in refused(**changes)[0]


@pytest.mark.parametrize("name", sorted(LARGEST))
def test_an_absurdly_large_setting_is_named(name: str):
    most = LARGEST[name]
    problems = refused(kind="encoder-decoder", **{name: most + 1})
    assert any(f"{name} must be a whole number from" in p and f"to {most:,}" in p for p in problems)
    assert any("a number of thousands of digits" in p for p in refused(**{name: 10**5000}))


@pytest.mark.parametrize("name", ["norm_epsilon", "rotary_base"])
def test_an_infinite_setting_is_named(name: str):
    assert name in refused(**{name: float("inf")})[0]


def test_linear_scalings_of_one_factor_are_equal():
    # Its other settings mean nothing, so that they must not tell two models apart.
    assert RotaryScaling("linear", 4.0, low=2.0, original_context=99) == RotaryScaling(
        "linear", 4.0
    )
    assert RotaryScaling("llama3", 4.0, low=2.0) != RotaryScaling("llama3", 4.0)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_inert_settings_do_not_change_a_model_and_others_do(scheme: str):
    config = replace(preset("gpt2-tiny"), positions=scheme)
    changes = {
        "rotary_base": 50.0,
        "rotary_scaling": RotaryScaling("linear", 2.0),
        "relative_buckets": 8,
        "relative_distance": 33,
    }
    tokens = torch.arange(60)[None]

    def logits(config: TransformerConfig) -> torch.Tensor:
        torch.manual_seed(0)
        return build(config).eval()(tokens)

    for name, value in changes.items():
        same = torch.equal(logits(config), logits(replace(config, **{name: value})))
        assert same == (name in config.inert())


def test_an_unknown_setting_cannot_be_given():
    with pytest.raises(TypeError, match="widht"):
        TransformerConfig(widht=3)


def test_settings_are_frozen():
    config = TransformerConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.width = 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        RotaryScaling().factor = 3.0
    assert len({config, TransformerConfig(), replace(config, layers=1)}) == 2  # equal and hashable


@pytest.mark.parametrize("name", [*SIZES, "regard-2", "regard-3-encoder-decoder"])
def test_resolving_writes_out_the_usual_and_nothing_else(name: str):
    config = preset(name)
    resolved = config.resolved()
    assert resolved.resolved() == resolved
    assert resolved.kv_heads in range(1, config.heads + 1)
    assert resolved.head_width == (config.head_width or config.width // config.heads)
    assert resolved.encoder_layers == (config.layers if config.kind == "encoder-decoder" else 0)
    for field in dataclasses.fields(config):
        before, after = getattr(config, field.name), getattr(resolved, field.name)
        assert before == after or (
            before == 0 and field.name in ("kv_heads", "head_width", "encoder_layers")
        )


def test_what_was_chosen_is_not_resolved_away():
    config = TransformerConfig(
        kind="encoder-decoder", heads=12, kv_heads=4, head_width=10, layers=3, encoder_layers=5
    )
    assert config.resolved() == config

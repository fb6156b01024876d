"""Fresh weights have the deviations of the table in `initialisation.py`, each by one rule."""

import math
import re
from dataclasses import replace

import pytest
import torch
from tiny_models import NAMES, settings_of
from torch import Tensor

from regard.models.construction import build
from regard.models.transformer.config import TransformerConfig
from regard.models.transformer.model import Transformer
from regard.models.transformer.presets import preset

# Which parameters play which role, told from their names alone.
ROLES = {
    "embedding": r"(source_)?embed\.(tokens|segments)\.weight",
    "positions": r"(encoder|decoder)\.positions\.table\.weight",
    "residual": r".*\.(attention|cross)\.output\.weight|.*\.feedforward\.contract\.weight",
    "weight": r".*\.(query_key_value|query|key_value|expand)\.weight"
    r"|head\.(project|transform)\.weight|pooler\.weight",
    "norm": r".*norm\.weight",
    "bias": r".*bias",
}

SMALL = TransformerConfig(
    vocabulary=400, context=96, layers=3, width=64, heads=8, hidden=160, query_key_norm=True
)
ENCODER = replace(SMALL, kind="encoder", segments=40, head="masked", head_bias=True, pooler=True)
BOTH = replace(SMALL, kind="encoder-decoder", source_vocabulary=300)
RELATIVE = replace(BOTH, positions="relative", relative_buckets=100, head_width=12)
MODELS = {
    "decoder": SMALL,
    "untied": replace(SMALL, tied=False, gated=True, kv_heads=2),
    "encoder": ENCODER,
    "both": BOTH,
    "relative": RELATIVE,
}


def role_of(name: str) -> str:
    (role,) = [role for role, pattern in ROLES.items() if re.fullmatch(pattern, name)]
    return role


def deviation(scheme: str, role: str, weight: Tensor, config: TransformerConfig) -> float:
    """The table of `initialisation.py`, written anew."""
    fan_out, fan_in = weight.shape
    narrow = config.width**-0.5
    return {
        "normal": {
            "embedding": 0.02,
            "positions": 0.02,
            "weight": 0.02,
            "residual": 0.02 / math.sqrt(2 * config.layers),
        },
        "xavier": {
            "embedding": narrow,
            "positions": narrow,
            "weight": math.sqrt(2 / (fan_in + fan_out)),
            "residual": math.sqrt(2 / (fan_in + fan_out)),
        },
        "fan-in": {
            "embedding": 1.0,
            "positions": narrow,
            "weight": fan_in**-0.5,
            "residual": fan_in**-0.5,
        },
    }[scheme][role]


def assert_spread(weight: Tensor, wanted: float, name: str) -> None:
    """A deviation of n numbers is known to 1/√(2n) of itself; five of these are allowed."""
    count = weight.numel()
    assert weight.std().item() == pytest.approx(wanted, rel=5 / math.sqrt(2 * count)), name
    assert abs(weight.mean().item()) < 5 * wanted / math.sqrt(count), name


def fresh(config: TransformerConfig, seed: int = 0) -> Transformer:
    torch.manual_seed(seed)
    return build(config)


@pytest.mark.parametrize("scheme", ["normal", "xavier", "fan-in"])
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_every_parameter_starts_as_the_table_says(name: str, scheme: str):
    config = replace(MODELS[name], initialisation=scheme)
    for parameter, weight in fresh(config).named_parameters():
        role = role_of(parameter)
        if role == "bias":
            assert not weight.any(), parameter
        elif role == "norm":
            assert weight.eq(1).all(), parameter
        else:
            assert_spread(weight, deviation(scheme, role, weight, config), parameter)


@pytest.mark.parametrize("name", [*NAMES, "gpt2", "bert-base", "t5-1.1-small", "marian"])
def test_every_parameter_has_exactly_one_role(name: str):
    config = settings_of(name) if name in NAMES else preset(name)
    names = [parameter for parameter, _ in build(config, "meta").named_parameters()]
    assert {role_of(parameter) for parameter in names} >= {"embedding", "residual", "weight"}


@torch.no_grad()
def test_xavier_weights_are_uniform():
    model = fresh(replace(SMALL, initialisation="xavier"))
    weight = model.decoder.blocks[0].feedforward.expand.weight  # (160, 64)
    bound = math.sqrt(6 / (64 + 160))
    # Of 10,240 uniform numbers the largest comes within 1 % of the bound, and none beyond it.
    assert 0.99 * bound < weight.abs().max() <= bound


@torch.no_grad()
def test_unscaled_scores_start_with_smaller_queries():
    config = replace(RELATIVE, initialisation="fan-in", scale_scores=False, kv_heads=4)
    model = fresh(config)
    usual, smaller = 64**-0.5, (64 * 12) ** -0.5
    for stack in (model.encoder, model.decoder):
        for block in stack.blocks:
            queries, others = block.attention.query_key_value.weight.split([96, 96])
            assert_spread(queries, smaller, "queries")
            assert_spread(others, usual, "keys and values")
            if stack is model.decoder:
                assert_spread(block.cross.query.weight, smaller, "cross queries")
                assert_spread(block.cross.key_value.weight, usual, "cross keys and values")


@pytest.mark.parametrize("scheme", ["normal", "xavier"])
@torch.no_grad()
def test_other_schemes_do_not_shrink_queries(scheme: str):
    config = replace(SMALL, initialisation=scheme, scale_scores=False)
    weight = fresh(config).decoder.blocks[0].attention.query_key_value.weight  # (192, 64)
    queries, others = weight.split([64, 128])
    assert queries.std().item() == pytest.approx(others.std().item(), rel=0.1)


@torch.no_grad()
def test_unscaled_scores_of_t5_start_with_about_unit_variance():
    # What the smaller queries are for: q·k of unit-variance inputs has variance 1 without a scale.
    config = replace(RELATIVE, initialisation="fan-in", scale_scores=False)
    attention = fresh(config).decoder.blocks[0].attention
    x = torch.randn(400, 64)
    q, k, _ = attention.query_key_value(x).split([96, 96, 96], dim=-1)
    scores = q.unflatten(-1, (8, 12)).transpose(0, 1) @ k.unflatten(-1, (8, 12)).permute(1, 2, 0)
    assert scores.var().item() == pytest.approx(1, rel=0.2)


def test_a_seed_decides_every_weight():
    once, again, other = (fresh(SMALL, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(once[name], again[name]) for name in once)
    assert not torch.equal(once["embed.tokens.weight"], other["embed.tokens.weight"])


@pytest.mark.parametrize("name", ["gpt2-tiny", "llama-tiny", "t5-tiny", "marian-tiny", "regard-2"])
@torch.no_grad()
def test_a_fresh_model_hardly_prefers_any_token(name: str):
    config = settings_of(name)
    model = fresh(config).eval()
    tokens = torch.randint(256, (4, 16))
    memory = model.encode(tokens) if config.kind == "encoder-decoder" else None
    logits = model(tokens, memory)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.roll(-1, 1).flatten())
    # Logits of variance s² cost about s²/2 nats more than a uniform guess.
    assert loss.item() == pytest.approx(math.log(256), abs=1.0)

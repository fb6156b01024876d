"""Named models have the sizes that were published, or that transformers' own modules have."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForPreTraining, MarianConfig, MarianMTModel

from regard.errors import RegardError
from regard.models.construction import build
from regard.models.transformer.config import TransformerConfig
from regard.models.transformer.model import DecoderOnly, EncoderDecoder, EncoderOnly
from regard.models.transformer.presets import PRESETS, preset

PUBLISHED = {
    "gpt2": 124439808,
    "gpt2-medium": 354823168,
    "gpt2-large": 774030080,
    "gpt2-xl": 1557611200,
    "llama-2-7b": 6738415616,
    "llama-3-8b": 8030261248,
    "llama-3.2-1b": 1235814400,
    "t5-small": 60506624,
    "t5-base": 222903552,
    "t5-1.1-small": 76961152,
}


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def size(config: TransformerConfig) -> int:
    return count(build(config, "meta"))


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items(), ids=PUBLISHED)
def test_a_named_model_has_the_published_number_of_parameters(name: str, parameters: int):
    assert size(preset(name)) == parameters


LARGE = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}


@pytest.mark.parametrize(("name", "changes"), [("bert-base", {}), ("bert-large", LARGE)])
def test_bert_has_the_parameters_of_transformers(name: str, changes: dict):
    with torch.device("meta"):
        theirs = BertForPreTraining(BertConfig(**changes))
    assert size(preset(name)) == count(theirs) - count(theirs.cls.seq_relationship)


def test_marian_has_the_parameters_of_transformers():
    config = MarianConfig(
        d_model=512,
        encoder_layers=6,
        decoder_layers=6,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        encoder_ffn_dim=2048,
        decoder_ffn_dim=2048,
    )
    with torch.device("meta"):
        theirs = MarianMTModel(config)
    halves = (theirs.model.encoder, theirs.model.decoder)
    tables = sum(count(half.embed_positions) for half in halves)
    # The output's bias is a buffer there and a parameter here.
    assert size(preset("marian")) == count(theirs) - tables + theirs.final_logits_bias.numel()


@pytest.mark.parametrize("name", ["transformer-base", "transformer-big"])
def test_the_transformers_of_2017_have_the_parameters_of_their_formula(name: str):
    width, hidden = (512, 2048) if name.endswith("base") else (1024, 4096)
    feedforward = 2 * width * hidden + width + hidden
    encoder = 4 * width**2 + feedforward + 2 * 2 * width
    decoder = 8 * width**2 + feedforward + 3 * 2 * width
    assert size(preset(name)) == 37000 * width + 6 * (encoder + decoder)


def test_a_model_on_meta_takes_no_memory():
    model = build(preset("llama-3-8b"), "meta")
    tensors = [*model.parameters(), *model.buffers()]
    assert tensors
    assert all(tensor.is_meta for tensor in tensors)
    assert all(tensor.is_meta for layer in model.start(1, 8192).layers for tensor in layer)
    logits = model(torch.zeros(1, 4, dtype=torch.long, device="meta"))
    assert logits.shape == (1, 4, 128256)


@pytest.mark.parametrize("name", PRESETS.named)
def test_every_name_builds_the_assembly_of_its_kind(name: str):
    model = build(preset(name), "meta")
    kinds = {"decoder": DecoderOnly, "encoder": EncoderOnly, "encoder-decoder": EncoderDecoder}
    assert type(model) is kinds[preset(name).kind]
    assert model.config == preset(name).resolved()


FAMILIES = {
    "gpt2-tiny": "gpt2",
    "bert-tiny": "bert-base",
    "llama-tiny": "llama-2-7b",
    "t5-tiny": "t5-small",
    "marian-tiny": "marian",
}
MEASURES = ["vocabulary", "context", "layers", "width", "heads", "kv_heads", "head_width", "hidden"]


@pytest.mark.parametrize(("name", "family"), FAMILIES.items(), ids=FAMILIES)
def test_a_tiny_model_differs_from_its_family_in_size_alone(name: str, family: str):
    grown = {field: getattr(preset(family), field) for field in MEASURES}
    assert replace(preset(name), **grown) == preset(family)
    assert size(preset(name)) < 100_000


# --- regard-N --------------------------------------------------------------------------------

DEPTHS = [1, 2, 3, 4, 7, 8, 9, 12, 13, 20, 32, 128]


@pytest.mark.parametrize("depth", DEPTHS)
def test_the_dial_sets_every_width(depth: int):
    config = preset(f"regard-{depth}")
    assert (config.layers, config.width) == (depth, 64 * depth)
    assert config.width % config.heads == 0
    head_width = config.resolved().head_width
    assert head_width == (128 if depth > 8 and depth % 2 == 0 else 64)
    # 8/3 of the width, rounded up to a multiple of 64.
    assert config.hidden % 64 == 0
    assert 0 <= config.hidden - 8 * config.width / 3 < 64


def test_a_deeper_dial_has_more_parameters():
    for kind in ("", "-encoder", "-encoder-decoder"):
        sizes = [size(preset(f"regard-{depth}{kind}")) for depth in DEPTHS[:-1]]
        assert sizes == sorted(set(sizes))


def test_the_dial_turns_all_three_kinds():
    kinds = {"": "decoder", "-encoder": "encoder", "-encoder-decoder": "encoder-decoder"}
    for suffix, kind in kinds.items():
        assert preset(f"regard-4{suffix}") == replace(preset("regard-4"), kind=kind)
    assert all(name.startswith("regard-") and preset(name) for name in PRESETS.listed)


# --- names that are not there ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "close"),
    [
        ("gtp2", "gpt2"),
        ("llama3-8b", "llama-3-8b"),
        ("bert_base", "bert-base"),
        ("regard12", "regard-12"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(wrong: str, close: str):
    with pytest.raises(RegardError) as caught:
        preset(wrong)
    assert str(caught.value) == f"no model is called {wrong!r}; did you mean {close!r}?"


def test_a_name_like_no_other_is_answered_with_all():
    with pytest.raises(RegardError) as caught:
        preset("zzz")
    assert all(name in str(caught.value) for name in PRESETS.names)


@pytest.mark.parametrize("name", ["regard-0", "regard-129", "regard-1000"])
def test_a_depth_out_of_range_is_answered_with_the_range(name: str):
    with pytest.raises(RegardError, match="128"):
        preset(name)


@pytest.mark.parametrize("name", ["regard-", "regard-4-decoder", "regard--1", "regard-4.5"])
def test_half_a_dial_is_no_model(name: str):
    with pytest.raises(RegardError, match="no model is called"):
        preset(name)

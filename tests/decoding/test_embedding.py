"""Texts as vectors: `transformers`' hidden states as the reference; padding never counts."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

from dataclasses import replace

import pytest
import torch
import transformers as hf

import regard
from regard import RegardError
from regard.decoding.embedding import POOLS, embedded
from regard.decoding.settings import TARGET, TEXT, SpecialTokens
from regard.decoding.text_model import TextModel
from regard.models.construction import build
from regard.models.transformer.presets import preset
from regard.text.learning import learn

hf.logging.set_verbosity_error()
hf.logging.disable_progress_bar()

SIGNS = SpecialTokens(begin=2, ends=(1,), never=(0, 2))
TEXTS = ["the cat sat", "a", "", "the dog sat on the mat", "sat the"]
IDS = [[7, 8, 9], [10], [], [11, 12, 13, 14, 15, 16, 17], [18, 19]]
BERT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 24}


@torch.no_grad()
def wide(model):
    torch.manual_seed(1)
    for name, tensor in model.named_parameters():
        norm = tensor.dim() == 1 and name.endswith("weight")
        if tensor.requires_grad:  # which sinusoids do not
            tensor.normal_(1.0 if norm else 0.0, 0.25)
    return model.eval()


def bert():
    config = hf.BertConfig(vocab_size=61, max_position_embeddings=24, intermediate_size=64, **BERT)
    model = wide(hf.BertForMaskedLM(config))
    return model, model.bert, lambda ids: [2, *ids, 1]


def gpt2():
    model = wide(hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=61, **GPT2)))
    return model, model.transformer, lambda ids: [2, *ids]


def t5():
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    model = wide(hf.T5ForConditionalGeneration(hf.T5Config(vocab_size=61, **sizes)))
    return model, model.encoder, lambda ids: [*ids, 1]


@pytest.mark.parametrize("make", [bert, gpt2, t5])
@torch.no_grad()
def test_vectors_are_the_pooled_hidden_states_of_transformers(make, tmp_path):
    model, reader, signed = make()
    model.save_pretrained(tmp_path)
    speaker = TextModel(regard.load(tmp_path).module, SIGNS)
    hidden = [reader(torch.tensor([signed(ids)])).last_hidden_state[0] for ids in IDS]
    assert torch.stack([states.std(0).mean() for states in hidden if len(states) > 1]).min() > 0.05
    expected = {
        "mean": torch.stack([states.mean(0) for states in hidden]),
        "first": torch.stack([states[0] for states in hidden]),
        "last": torch.stack([states[-1] for states in hidden]),
    }
    given = [signed(ids) for ids in IDS]  # a model without a tokenizer takes them as they are
    for pool in POOLS:
        found = embedded(speaker, given, pool=pool, rows=3)
        torch.testing.assert_close(found, expected[pool], atol=3e-5, rtol=0)


def small(name, dtype=torch.float64) -> TextModel:
    tokenizer = learn("char", TEXTS)
    module = build(replace(preset(name), vocabulary=len(tokenizer)))
    signs = TARGET if module.config.kind == "encoder-decoder" else TEXT
    return TextModel(wide(module).to(dtype), signs, tokenizer, tokenizer)


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("name", ["bert-tiny", "llama-tiny", "marian-tiny"])
def test_a_text_has_the_same_vector_alone_and_among_others(name, pool):
    speaker = small(name)
    alone = torch.cat([embedded(speaker, [text], pool=pool) for text in TEXTS])
    for rows in (2, 50):
        found = embedded(speaker, TEXTS, pool=pool, rows=rows)
        torch.testing.assert_close(found, alone, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", ["bert-tiny", "gpt2-tiny", "t5-tiny"])
def test_ids_are_embedded_as_their_text_and_the_answer_is_plain_numbers(name):
    speaker = small(name)
    found = embedded(speaker, TEXTS)
    assert (found.dtype, found.shape) == (torch.float32, (len(TEXTS), 32))
    assert not found.is_inference()
    given = [speaker.tokenizer.encode(text).tolist() for text in TEXTS]
    assert torch.equal(embedded(speaker, given), found)
    assert embedded(speaker, []).shape == (0, 32)
    half = small(name, torch.bfloat16)
    assert embedded(half, TEXTS).dtype == torch.float32
    torch.testing.assert_close(embedded(half, TEXTS), found, atol=0.3, rtol=0)


def test_an_encoder_decoder_reads_with_the_tokenizer_of_its_sources():
    module = wide(build(replace(preset("marian-tiny"), vocabulary=40, source_vocabulary=90)))
    letters, words = learn("char", TEXTS), learn("word", TEXTS)
    speaker = TextModel(module, TARGET, words, letters)
    given = [letters.encode(text).tolist() for text in TEXTS]
    assert torch.equal(embedded(speaker, TEXTS), embedded(speaker, given))
    assert not torch.equal(
        embedded(speaker, TEXTS), embedded(replace(speaker, source_tokenizer=words), TEXTS)
    )


def test_an_encoder_looks_both_ways_and_a_decoder_back():
    for name, looks_ahead in (("bert-tiny", True), ("t5-tiny", True), ("gpt2-tiny", False)):
        one, other = embedded(small(name), ["the cat", "the can"], pool="first")
        assert bool((one - other).abs().max() > 1e-3) == looks_ahead


def refusal(*arguments, **options) -> str:
    with pytest.raises(RegardError) as caught:
        embedded(*arguments, **options)
    return str(caught.value)


def test_what_cannot_be_embedded_is_one_sentence():
    speaker = small("bert-tiny")
    assert "did you mean 'mean'?" in refusal(speaker, ["a"], pool="meen")
    assert "not one text" in refusal(speaker, "a")
    assert "at least one row" in refusal(speaker, ["a"], rows=0)
    assert "text 2: token id 999 does not exist" in refusal(speaker, ["a", [999]])
    assert embedded(speaker, ["a" * 62]).shape == (1, 32)
    told = refusal(speaker, ["a", "a" * 63, "a", "a" * 100])
    assert "text 2 has 65 tokens; this model reads at most 64" in told
    assert "text 4 has 102 tokens" in told
    speaker.module.embed.tokens.weight.data[:, 0] = torch.nan
    assert "NaN" in refusal(speaker, ["a"])


def test_blanks_around_a_source_count_for_vectors_as_for_translations():
    speaker = small("marian-tiny")
    with_blanks, without = embedded(speaker, ["  the cat \n", "the cat"])
    assert torch.equal(with_blanks, without)
    assert speaker.source("  the cat \n") == speaker.source("the cat")

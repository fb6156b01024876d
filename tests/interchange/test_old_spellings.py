"""Folders of former years load as today's do."""

from dataclasses import replace

import pytest
import torch
import transformers as hf
from tiny_folders import assert_agrees, assert_loads_as, change_config, change_tensors, refused

import regard
from regard import build, preset


def test_gpt2_without_prefix_and_with_its_causal_masks_loads(folder):
    path = folder("gpt2")
    expected = regard.load(path).module

    def old(tensors):
        bare = {name.removeprefix("transformer."): t for name, t in tensors.items()}
        masks = {f"h.{i}.attn.bias": torch.ones(1, 1, 64, 64).tril() for i in range(2)}
        floors = {f"h.{i}.attn.masked_bias": torch.tensor(-1e4) for i in range(2)}
        return bare | masks | floors

    change_tensors(path, old)
    assert_loads_as(path, expected)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
def test_gpt2_with_causal_masks_that_are_not_floating_point_loads(folder, dtype):
    """Older transformers stored them so; they hold nothing and must not stop anyone."""
    path = folder("gpt2")
    expected = regard.load(path).module
    masks = {f"transformer.h.{i}.attn.bias": torch.ones(1, 1, 64, 64).to(dtype) for i in range(2)}
    change_tensors(path, lambda tensors: tensors | masks)
    assert_loads_as(path, expected)


def test_bert_with_position_ids_loads(folder):
    """A buffer of whole numbers that older transformers stored; it holds nothing."""
    path = folder("bert")
    expected = regard.load(path).module
    ids = {"bert.embeddings.position_ids": torch.arange(64)[None]}
    change_tensors(path, lambda tensors: tensors | ids)
    assert_loads_as(path, expected)


def test_bert_with_gamma_and_beta_and_a_next_sentence_head_loads(folder):
    path = folder("bert")
    expected = regard.load(path).module

    def old(tensors):
        spell = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        for new, name in spell.items():
            tensors = {key.replace(new, name): t for key, t in tensors.items()}
        assert any(name.endswith("gamma") for name in tensors)
        extra = {
            "cls.seq_relationship.weight": torch.ones(2, 32),
            "cls.seq_relationship.bias": torch.ones(2),
            "cls.predictions.decoder.weight": tensors["bert.embeddings.word_embeddings.weight"],
            "cls.predictions.decoder.bias": tensors["cls.predictions.bias"],
        }
        return tensors | extra

    change_tensors(path, old)
    assert_loads_as(path, expected)


def test_bare_bert_without_prefix_loads_without_a_head(folder):
    path = folder("bert")
    expected = regard.load(path).module.state_dict()

    def bare(tensors):
        body = {name: t for name, t in tensors.items() if name.startswith("bert.")}
        return {name.removeprefix("bert."): t for name, t in body.items()}

    change_tensors(path, bare)
    module = regard.load(path).module
    assert module.config.head == "none"
    assert module.config.pooler
    assert module.state_dict().keys() == {n for n in expected if not n.startswith("head.")}
    assert all(torch.equal(t, expected[name]) for name, t in module.state_dict().items())


def test_bert_with_an_untied_head_and_one_bias_loads(folder):
    """transformers 4 stored the bias of the output once, under the name of the tied one."""
    path = folder("bert")
    own = torch.randn(256, 32)
    change_tensors(path, lambda tensors: tensors | {"cls.predictions.decoder.weight": own})
    change_config(path, tie_word_embeddings=False)
    module = regard.load(path).module
    assert not module.config.tied
    assert torch.equal(module.head.project.weight, own)


def test_t5_11_as_transformers_4_wrote_it_has_its_own_unscaled_head(folder):
    path = folder("t5")
    own = torch.randn(256, 32)
    change_tensors(path, lambda tensors: tensors | {"lm_head.weight": own})
    change_config(path, remove=("scale_decoder_outputs",), tie_word_embeddings=False)
    module = regard.load(path).module
    assert torch.equal(module.head.project.weight, own)
    assert not module.config.scale_head


@pytest.mark.parametrize("key", ["type", "rope_type"])
@pytest.mark.parametrize(
    "scaling",
    [
        {"factor": 2.0},
        {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    ],
    ids=["linear", "llama3"],
)
def test_rope_in_the_old_spelling_is_read_as_transformers_reads_it(folder, key, scaling):
    path = folder("llama")
    kind = "linear" if len(scaling) == 1 else "llama3"
    change_config(
        path,
        remove=("rope_parameters",),
        rope_theta=300.0,
        rope_scaling={key: kind} | scaling,
    )
    config = regard.load(path).config
    assert (config.rotary_base, config.rotary_scaling.kind) == (300.0, kind)
    assert_agrees(path, hf.LlamaForCausalLM)


def test_llama3_rope_without_an_original_context_means_what_transformers_means(folder):
    path = folder("llama")
    rope = {"rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0}
    rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    change_config(path, remove=("rope_theta", "rope_scaling"), rope_parameters=rope)
    assert_agrees(path, hf.LlamaForCausalLM)


def test_llama_of_2023_with_inverse_frequencies_and_few_settings_loads(folder):
    path = folder("llama")
    expected = regard.load(path).module
    names = [f"model.layers.{i}.self_attn.rotary_emb.inv_freq" for i in range(2)]
    change_tensors(path, lambda tensors: tensors | {name: torch.ones(4) for name in names})
    later = ("rope_parameters", "rope_theta", "rope_scaling", "attention_bias", "mlp_bias")
    change_config(path, remove=(*later, "head_dim", "tie_word_embeddings"))
    assert_loads_as(path, expected)


@pytest.mark.parametrize(
    ("family", "head", "embedding"),
    [
        ("gpt2", "lm_head.weight", "transformer.wte.weight"),
        ("t5", "lm_head.weight", "shared.weight"),
        ("marian", "lm_head.weight", "model.shared.weight"),
    ],
)
def test_a_redundant_output_matrix_in_a_tied_file_is_not_kept_twice(
    folder, family, head, embedding
):
    path = folder(family)
    expected = regard.load(path).module
    change_tensors(path, lambda tensors: tensors | {head: tensors[embedding]})
    assert_loads_as(path, expected)
    assert expected.config.tied


def test_a_redundant_output_matrix_in_a_tied_llama_is_not_kept_twice(tmp_path):
    regard.save(build(replace(preset("llama-tiny"), tied=True)), tmp_path)
    expected = regard.load(tmp_path).module
    twice = "lm_head.weight", "model.embed_tokens.weight"
    change_tensors(tmp_path, lambda tensors: tensors | {twice[0]: tensors[twice[1]]})
    assert_loads_as(tmp_path, expected)
    assert expected.config.tied


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
@pytest.mark.parametrize(("family", "prefix"), [("t5", ""), ("marian", "model.")])
def test_embeddings_that_should_be_shared_but_differ_are_refused(folder, family, prefix, stack):
    """Else a model would silently compute something other than what its file says."""
    path = folder(family)
    name = f"{prefix}{stack}.embed_tokens.weight"
    change_tensors(path, lambda tensors: tensors | {name: torch.randn(256, 32)})
    assert name in refused(path)

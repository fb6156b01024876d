"""`transformers` as the reference: tiny random models of each family, saved and loaded by us.

Every weight is drawn wide. With the usual initialisation attention is nearly uniform and the
logits nearly constant, and a mistake in either would drown.
"""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import transformers as hf
from tiny_folders import tiny
from torch import Tensor, nn

import regard
from regard.interchange.huggingface import FAMILIES, FolderFamily

hf.logging.set_verbosity_error()
hf.logging.disable_progress_bar()


def gpt2(**changes: object) -> nn.Module:
    sizes = {"vocab_size": 61, "n_positions": 96, "n_embd": 32, "n_layer": 2, "n_head": 4}
    tokens = {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0}
    return hf.GPT2LMHeadModel(hf.GPT2Config(**(sizes | tokens | changes)))


def bert(kind: type[nn.Module], *arguments: object, **changes: object) -> nn.Module:
    sizes = {
        "vocab_size": 61,
        "max_position_embeddings": 48,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
    }
    return kind(hf.BertConfig(**(sizes | {"pad_token_id": 0} | changes)), *arguments)


def llama(**changes: object) -> nn.Module:
    sizes = {
        "vocab_size": 61,
        "max_position_embeddings": 96,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 48,
    }
    tokens = {"bos_token_id": 2, "eos_token_id": [1, 2]}
    return hf.LlamaForCausalLM(hf.LlamaConfig(**(sizes | tokens | changes)))


def t5(own_head: bool = False, **changes: object) -> nn.Module:
    sizes = {
        "vocab_size": 61,
        "d_model": 32,
        "d_kv": 12,
        "d_ff": 48,
        "num_layers": 2,
        "num_decoder_layers": 3,
        "num_heads": 4,
        "relative_attention_num_buckets": 8,  # few and near, so that 33 positions use them all
        "relative_attention_max_distance": 20,
    }
    tokens = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 2}
    model = hf.T5ForConditionalGeneration(hf.T5Config(**(sizes | tokens | changes)))
    if own_head:  # which today's transformers makes only by reading such a file
        model.lm_head.weight = nn.Parameter(torch.empty(61, 32))
    return model


def marian(**changes: object) -> nn.Module:
    sizes = {
        "vocab_size": 61,
        "max_position_embeddings": 96,
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64,
        "activation_function": "swish",
        "scale_embedding": True,
    }
    tokens = {"pad_token_id": 1, "eos_token_id": 0, "decoder_start_token_id": 1}
    model = hf.MarianMTModel(hf.MarianConfig(**(sizes | tokens | changes)))
    if model.config.share_encoder_decoder_embeddings:  # even where the output is untied
        for stack in (model.model.encoder, model.model.decoder):
            stack.embed_tokens.weight = model.model.shared.weight
    return model


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 100.0,  # of the 4 waves one is then kept, one blended, two slowed
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 48,
}

CASES: dict[str, Callable[[], nn.Module]] = {
    "gpt2": gpt2,
    "gpt2 relu, hidden 40": lambda: gpt2(activation_function="relu", n_inner=40),
    "gpt2 gelu, untied": lambda: gpt2(activation_function="gelu", tie_word_embeddings=False),
    "gpt2 unscaled": lambda: gpt2(scale_attn_weights=False),
    "bert pretraining": lambda: bert(hf.BertForPreTraining),
    "bert masked, 3 segments": lambda: bert(hf.BertForMaskedLM, type_vocab_size=3),
    "bert masked, untied": lambda: bert(hf.BertForMaskedLM, tie_word_embeddings=False),
    "bert bare": lambda: bert(hf.BertModel, hidden_act="relu"),
    "bert without pooler": lambda: bert(hf.BertModel, False),
    "llama": llama,
    "llama one kv head, tied": lambda: llama(num_key_value_heads=1, tie_word_embeddings=True),
    "llama wide heads, ungrouped": lambda: llama(head_dim=14, num_key_value_heads=4),
    "llama biases": lambda: llama(attention_bias=True, mlp_bias=True, rms_norm_eps=1e-3),
    "llama base": lambda: llama(rope_parameters={"rope_type": "default", "rope_theta": 500.0}),
    "llama llama3": lambda: llama(rope_parameters=dict(LLAMA3)),
    "llama linear": lambda: llama(
        rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0}
    ),
    "t5 1.0": t5,
    "t5 1.1 tied": lambda: t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "t5 1.1 own head": lambda: t5(
        True, feed_forward_proj="gated-gelu", tie_word_embeddings=False, num_decoder_layers=1
    ),
    "t5 gated silu": lambda: t5(feed_forward_proj="gated-silu", layer_norm_epsilon=1e-3),
    "marian": marian,
    "marian two vocabularies": lambda: marian(
        share_encoder_decoder_embeddings=False, decoder_vocab_size=53, decoder_layers=1
    ),
    "marian untied, deep encoder": lambda: marian(tie_word_embeddings=False, encoder_layers=3),
    "marian unscaled relu": lambda: marian(scale_embedding=False, activation_function="relu"),
}


@torch.no_grad()
def draw(model: nn.Module) -> nn.Module:
    """Fill every weight anew: norm scales around 1, all else around 0."""
    torch.manual_seed(1)
    # T5 does not scale its scores: drawn as wide as the others, it comes to 1.6e-5 of the 2e-5
    # allowed, too near for another machine's rounding.
    spread = 0.15 if model.config.model_type == "t5" else 0.2
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        scale = tensor.dim() == 1 and name.endswith(".weight")  # only norms have such
        if tensor.requires_grad or name == "final_logits_bias":
            tensor.normal_(1.0 if scale else 0.0, spread)
    return model.eval()


@dataclass(frozen=True)
class Pair:
    """The same model twice."""

    theirs: nn.Module
    ours: regard.Model
    family: FolderFamily

    @property
    def kind(self) -> str:
        return self.ours.config.kind

    def their_tensors(self) -> dict[str, Tensor]:
        """Parameters and buffers of theirs by the names our rules know them by."""
        both = (self.theirs.named_parameters, self.theirs.named_buffers)
        found = {name: t for each in both for name, t in each(remove_duplicate=False)}
        return {new: found[old] for new, old in self.family.canonical(list(found)).items()}


@pytest.fixture(scope="session", params=list(CASES))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Each case: a random model of theirs, and the folder it wrote as we load it."""
    return make_pair(request.param, tmp_path_factory.mktemp("theirs"))


@pytest.fixture
def pair_of(tmp_path: Path) -> Callable[[str], Pair]:
    """One case by name."""
    return lambda case: make_pair(case, tmp_path / "theirs")


def make_pair(case: str, folder: Path) -> Pair:
    theirs = draw(CASES[case]())
    theirs.save_pretrained(folder)
    return Pair(theirs, regard.load(folder), FAMILIES[case.split()[0]])


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[str], Path]:
    """A family's tiny model, written to disk."""

    def write(family: str) -> Path:
        path = tmp_path / family
        regard.save(tiny(family), path)
        return path

    return write

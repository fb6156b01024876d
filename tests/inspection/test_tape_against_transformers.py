"""What the tape says attention did is what `transformers` says."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"


import pytest
import torch
import transformers as hf
from recorded_texts import Text, recorded
from torch import Tensor, nn

import regard


def gpt2() -> nn.Module:
    return hf.GPT2LMHeadModel(
        hf.GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=4)
    )


def bert() -> nn.Module:
    config = hf.BertConfig(
        vocab_size=64,
        max_position_embeddings=32,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
    )
    return hf.BertForMaskedLM(config)


def llama() -> nn.Module:
    config = hf.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
    )
    return hf.LlamaForCausalLM(config)


def t5() -> nn.Module:
    config = hf.T5Config(
        vocab_size=64,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=1,
        num_decoder_layers=2,
        num_heads=4,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=12,
    )
    return hf.T5ForConditionalGeneration(config)


def marian() -> nn.Module:
    config = hf.MarianConfig(
        vocab_size=64,
        d_model=32,
        encoder_layers=2,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        pad_token_id=1,
        decoder_start_token_id=1,
    )
    return hf.MarianMTModel(config)


def their_attentions(theirs: nn.Module, text: Text) -> dict[str, Tensor]:
    """What `transformers` says each layer's heads looked at, by the names of our places."""
    inputs = {"input_ids": text.tokens, "attention_mask": text.real.long()}
    if theirs.config.is_encoder_decoder:
        inputs = {f"decoder_{key}": value for key, value in inputs.items()}
        inputs |= {"input_ids": text.source, "attention_mask": text.source_real.long()}
    with torch.no_grad():
        said = theirs(**inputs, output_attentions=True)
    kind = "encoder" if theirs.config.model_type == "bert" else "decoder"
    places = {
        "attentions": (kind, "attention"),
        "encoder_attentions": ("encoder", "attention"),
        "decoder_attentions": ("decoder", "attention"),
        "cross_attentions": ("decoder", "cross"),
    }
    return {
        f"{stack}.blocks.{i}.{part}": layer
        for key, (stack, part) in places.items()
        for i, layer in enumerate(said.get(key) or ())
    }


@pytest.mark.parametrize("make", [gpt2, bert, llama, t5, marian])
def test_probabilities_are_those_of_transformers_in_every_layer_and_head(make, text, tmp_path):
    theirs = make()
    torch.manual_seed(1)
    for name, parameter in theirs.named_parameters():
        if "embed_positions" not in name:  # Marian's sines are no weights
            nn.init.normal_(parameter, float(parameter.dim() == 1), 0.2)
    theirs.eval().save_pretrained(tmp_path)
    theirs.set_attn_implementation("eager")
    tape = recorded(regard.load(tmp_path).module, text)
    expected = their_attentions(theirs, text)
    if not expected and make is t5 and hf.__version__.startswith("5.17."):
        pytest.skip("transformers 5.17 gives no attention weights of T5")
    assert expected.keys() == set(tape.names)
    for name, theirs_say in expected.items():
        real = text.source_real if name.startswith("encoder") and make is not bert else text.real
        ours, theirs_say = (t.transpose(1, 2)[real] for t in (tape[name].probabilities, theirs_say))
        assert ours.shape == theirs_say.shape  # (real queries, heads, keys)
        torch.testing.assert_close(ours, theirs_say, atol=2e-6, rtol=2e-5)
        assert (ours.max(-1).values - ours.mean(-1)).mean() > 0.1  # they do prefer some keys

"""GPT-2: decoder-only, learned positions, pre-norm; weights kept as (inputs, outputs)."""

from collections.abc import Collection, Iterator
from typing import Any

from regard.interchange.huggingface.family import (
    ConfigReader,
    FolderFamily,
    TensorRule,
    activation_name,
    plain,
)
from regard.models.transformer.config import TransformerConfig


class GPT2(FolderFamily):
    name = "gpt2"
    prefix = "transformer."
    outside = ("lm_head.",)
    head, embedding = "lm_head.weight", ("transformer.wte.weight",)
    unneeded = r"transformer\.h\.\d+\.attn\.(masked_)?bias|lm_head\.weight"

    def read(
        self, settings: ConfigReader, names: Collection[str], own_head: bool
    ) -> dict[str, Any]:
        settings.must_be("scale_attn_by_inverse_layer_idx", False)
        settings.must_be("add_cross_attention", False)
        width = settings.size("n_embd")
        return {
            "kind": "decoder",
            "vocabulary": settings.size("vocab_size"),
            "context": settings.size("n_positions"),
            "layers": settings.size("n_layer"),
            "width": width,
            "heads": settings.size("n_head"),
            "hidden": settings.size("n_inner", 4 * width),
            "activation": settings.activation("activation_function"),
            "norm_epsilon": settings.number("layer_norm_epsilon", 1e-5),
            "scale_scores": settings.flag("scale_attn_weights", True),
            "tied": settings.flag("tie_word_embeddings", True) and not own_head,
            "dropout": settings.number("resid_pdrop", 0.1),
            "attention_dropout": settings.number("attn_pdrop", 0.1),
        }

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        return {
            "architectures": ["GPT2LMHeadModel"],
            "vocab_size": config.vocabulary,
            "n_positions": config.context,
            "n_layer": config.layers,
            "n_embd": config.width,
            "n_head": config.heads,
            "n_inner": config.hidden,
            "activation_function": activation_name(config.activation),
            "layer_norm_epsilon": config.norm_epsilon,
            "scale_attn_weights": config.scale_scores,
            "tie_word_embeddings": config.tied,
            "resid_pdrop": config.dropout,
            "embd_pdrop": config.dropout,
            "attn_pdrop": config.attention_dropout,
        }

    def rules(self, config: TransformerConfig) -> Iterator[TensorRule]:
        yield TensorRule("embed.tokens.weight", ("transformer.wte.weight",))
        yield TensorRule("decoder.positions.table.weight", ("transformer.wpe.weight",))
        for i in range(config.layers):
            ours, theirs = f"decoder.blocks.{i}", f"transformer.h.{i}"
            yield from plain(f"{ours}.attention_norm", f"{theirs}.ln_1")
            yield from plain(f"{ours}.feedforward_norm", f"{theirs}.ln_2")
            for mine, yours in (
                ("attention.query_key_value", "attn.c_attn"),
                ("attention.output", "attn.c_proj"),
                ("feedforward.expand", "mlp.c_fc"),
                ("feedforward.contract", "mlp.c_proj"),
            ):
                names = (f"{theirs}.{yours}.weight",)
                yield TensorRule(f"{ours}.{mine}.weight", names, transposed=True)
                yield TensorRule(f"{ours}.{mine}.bias", (f"{theirs}.{yours}.bias",))
        yield from plain("decoder.norm", "transformer.ln_f")
        if not config.tied:
            yield TensorRule("head.project.weight", ("lm_head.weight",))

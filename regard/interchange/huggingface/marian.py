"""Marian: the 2017 encoder–decoder as trained for translation; sines before cosines."""

from collections.abc import Collection, Iterator
from typing import Any

from regard.interchange.huggingface.family import (
    ConfigReader,
    FolderFamily,
    TensorRule,
    activation_name,
    head_rows,
    joined,
    plain,
)
from regard.models.transformer.config import TransformerConfig


class Marian(FolderFamily):
    name = "marian"
    prefix = "model."
    outside = ("lm_head.", "final_logits_bias")
    head = "lm_head.weight"
    embedding = ("model.shared.weight", "model.decoder.embed_tokens.weight")
    unneeded = r"model\.(encoder|decoder)\.embed_positions\.weight|lm_head\.weight"

    def read(
        self, settings: ConfigReader, names: Collection[str], own_head: bool
    ) -> dict[str, Any]:
        for key in ("normalize_before", "normalize_embedding", "add_final_layer_norm"):
            settings.must_be(key, False)
        settings.must_be("static_position_embeddings", True)
        sizes = {}
        for key in ("attention_heads", "ffn_dim"):
            sizes[key] = settings.size(f"decoder_{key}")
            settings.must_be(f"encoder_{key}", sizes[key])
        shared = settings.flag("share_encoder_decoder_embeddings", True)
        source = settings.size("vocab_size")
        return {
            "kind": "encoder-decoder",
            "vocabulary": source if shared else settings.size("decoder_vocab_size", source),
            "source_vocabulary": 0 if shared else source,
            "context": settings.size("max_position_embeddings"),
            "layers": settings.size("decoder_layers"),
            "encoder_layers": settings.size("encoder_layers"),
            "width": settings.size("d_model"),
            "heads": sizes["attention_heads"],
            "hidden": sizes["ffn_dim"],
            "activation": settings.activation("activation_function"),
            "norm_place": "post",
            "positions": "sinusoidal-halves",
            "scale_embeddings": settings.flag("scale_embedding", False),
            "head_bias": True,
            "tied": settings.flag("tie_word_embeddings", True) and not own_head,
            "dropout": settings.number("dropout", 0.1),
            "attention_dropout": settings.number("attention_dropout", 0.0),
            "activation_dropout": settings.number("activation_dropout", 0.0),
            "initialisation": "xavier",
        }

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        separate = bool(config.source_vocabulary)
        return {
            "architectures": ["MarianMTModel"],
            "is_encoder_decoder": True,
            "vocab_size": config.source_vocabulary if separate else config.vocabulary,
            "decoder_vocab_size": config.vocabulary,
            "share_encoder_decoder_embeddings": not separate,
            "max_position_embeddings": config.context,
            "decoder_layers": config.layers,
            "encoder_layers": config.encoder_layers,
            "d_model": config.width,
            "decoder_attention_heads": config.heads,
            "encoder_attention_heads": config.heads,
            "decoder_ffn_dim": config.hidden,
            "encoder_ffn_dim": config.hidden,
            "activation_function": activation_name(config.activation),
            "scale_embedding": config.scale_embeddings,
            "static_position_embeddings": True,
            "tie_word_embeddings": config.tied,
            "dropout": config.dropout,
            "attention_dropout": config.attention_dropout,
            "activation_dropout": config.activation_dropout,
        }

    def rules(self, config: TransformerConfig) -> Iterator[TensorRule]:
        if config.source_vocabulary:
            yield TensorRule("source_embed.tokens.weight", ("model.encoder.embed_tokens.weight",))
            yield TensorRule("embed.tokens.weight", ("model.decoder.embed_tokens.weight",))
        else:
            copies = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
            # transformers unties all three when it is told to untie the head.
            yield TensorRule(
                "embed.tokens.weight",
                ("model.shared.weight",),
                copies=copies,
                write_copies=not config.tied,
            )
        yield TensorRule("head.bias", ("final_logits_bias",), row=True)
        if not config.tied:
            yield TensorRule("head.project.weight", ("lm_head.weight",))
        for stack, layers in (("encoder", config.encoder_layers), ("decoder", config.layers)):
            for i in range(layers):
                ours, theirs = f"{stack}.blocks.{i}", f"model.{stack}.layers.{i}"
                parts = [f"{theirs}.self_attn.{part}_proj" for part in "qkv"]
                yield from joined(
                    f"{ours}.attention.query_key_value", parts, head_rows(config), bias=True
                )
                yield from plain(f"{ours}.attention.output", f"{theirs}.self_attn.out_proj")
                yield from plain(f"{ours}.attention_norm", f"{theirs}.self_attn_layer_norm")
                if stack == "decoder":
                    other = f"{theirs}.encoder_attn"
                    both = [f"{other}.k_proj", f"{other}.v_proj"]
                    yield from plain(f"{ours}.cross.query", f"{other}.q_proj")
                    yield from joined(f"{ours}.cross.key_value", both, head_rows(config)[1:], True)
                    yield from plain(f"{ours}.cross.output", f"{other}.out_proj")
                    yield from plain(f"{ours}.cross_norm", f"{other}_layer_norm")
                yield from plain(f"{ours}.feedforward.expand", f"{theirs}.fc1")
                yield from plain(f"{ours}.feedforward.contract", f"{theirs}.fc2")
                yield from plain(f"{ours}.feedforward_norm", f"{theirs}.final_layer_norm")

"""BERT: encoder-only, learned positions and segments, post-norm, a masked-token head."""

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


class Bert(FolderFamily):
    name = "bert"
    prefix = "bert."
    outside = ("cls.",)
    head = "cls.predictions.decoder.weight"
    embedding = ("bert.embeddings.word_embeddings.weight",)
    unneeded = (
        r"bert\.embeddings\.position_ids|cls\.predictions\.decoder\.weight"
        r"|cls\.seq_relationship\..*"
    )

    def read(
        self, settings: ConfigReader, names: Collection[str], own_head: bool
    ) -> dict[str, Any]:
        settings.must_be("is_decoder", False)
        settings.must_be("add_cross_attention", False)
        settings.must_be("position_embedding_type", "absolute", None)
        masked = any(name.startswith("cls.predictions.transform.") for name in names)
        return {
            "kind": "encoder",
            "vocabulary": settings.size("vocab_size"),
            "context": settings.size("max_position_embeddings"),
            "layers": settings.size("num_hidden_layers"),
            "width": settings.size("hidden_size"),
            "heads": settings.size("num_attention_heads"),
            "hidden": settings.size("intermediate_size"),
            "activation": settings.activation("hidden_act"),
            "norm_place": "post",
            "norm_epsilon": settings.number("layer_norm_eps", 1e-12),
            "embedding_norm": True,
            "segments": max(1, settings.size("type_vocab_size", 2)),
            "head": "masked" if masked else "none",
            "head_bias": masked,
            "tied": not masked or (settings.flag("tie_word_embeddings", True) and not own_head),
            "pooler": any(name.endswith("pooler.dense.weight") for name in names),
            "dropout": settings.number("hidden_dropout_prob", 0.1),
            "attention_dropout": settings.number("attention_probs_dropout_prob", 0.1),
        }

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        masked = "BertForPreTraining" if config.pooler else "BertForMaskedLM"
        return {
            "architectures": [masked if config.head == "masked" else "BertModel"],
            "vocab_size": config.vocabulary,
            "max_position_embeddings": config.context,
            "num_hidden_layers": config.layers,
            "hidden_size": config.width,
            "num_attention_heads": config.heads,
            "intermediate_size": config.hidden,
            "hidden_act": activation_name(config.activation),
            "layer_norm_eps": config.norm_epsilon,
            "type_vocab_size": config.segments,
            "tie_word_embeddings": config.tied,
            "hidden_dropout_prob": config.dropout,
            "attention_probs_dropout_prob": config.attention_dropout,
        }

    def canonical(self, names: list[str]) -> dict[str, str]:
        """As for all, and the output bias, which has two names, under the one that decides."""
        result = super().canonical(names)
        bias, decides = "cls.predictions.bias", "cls.predictions.decoder.bias"
        if bias in result:
            result[decides] = result.get(decides, result[bias])
            del result[bias]
        return result

    def rules(self, config: TransformerConfig) -> Iterator[TensorRule]:
        table = "bert.embeddings"
        yield TensorRule("embed.tokens.weight", (f"{table}.word_embeddings.weight",))
        yield TensorRule("embed.segments.weight", (f"{table}.token_type_embeddings.weight",))
        yield TensorRule("encoder.positions.table.weight", (f"{table}.position_embeddings.weight",))
        yield from plain("encoder.embedding_norm", f"{table}.LayerNorm")
        for i in range(config.layers):
            ours, theirs = f"encoder.blocks.{i}", f"bert.encoder.layer.{i}"
            parts = [f"{theirs}.attention.self.{part}" for part in ("query", "key", "value")]
            yield from joined(
                f"{ours}.attention.query_key_value", parts, head_rows(config), bias=True
            )
            yield from plain(f"{ours}.attention.output", f"{theirs}.attention.output.dense")
            yield from plain(f"{ours}.attention_norm", f"{theirs}.attention.output.LayerNorm")
            yield from plain(f"{ours}.feedforward.expand", f"{theirs}.intermediate.dense")
            yield from plain(f"{ours}.feedforward.contract", f"{theirs}.output.dense")
            yield from plain(f"{ours}.feedforward_norm", f"{theirs}.output.LayerNorm")
        if config.pooler:
            yield from plain("pooler", "bert.pooler.dense")
        if config.head == "masked":
            yield from plain("head.transform", "cls.predictions.transform.dense")
            yield from plain("head.norm", "cls.predictions.transform.LayerNorm")
            bias, copies = ("cls.predictions.decoder.bias",), ("cls.predictions.bias",)
            yield TensorRule("head.bias", bias, copies=copies, write_copies=True)
            if not config.tied:
                yield TensorRule("head.project.weight", ("cls.predictions.decoder.weight",))

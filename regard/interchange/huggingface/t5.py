"""T5: encoder–decoder, relative bias shared by all layers, unscaled scores; v1.0 and v1.1."""

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


class T5(FolderFamily):
    name = "t5"
    head, embedding = "lm_head.weight", ("shared.weight",)
    unneeded = (
        r"lm_head\.weight"
        r"|decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"
    )

    def read(
        self, settings: ConfigReader, names: Collection[str], own_head: bool
    ) -> dict[str, Any]:
        settings.must_be("is_encoder_decoder", True)
        layers = settings.size("num_layers")
        words = str(settings.found.get("feed_forward_proj", "relu")).split("-")
        # T5's "gated-gelu" has always meant the tanh form.
        activation = "gelu_new" if words == ["gated", "gelu"] else words[-1]
        said = settings.found.get("tie_word_embeddings") is not False
        return {
            "kind": "encoder-decoder",
            "vocabulary": settings.size("vocab_size"),
            "context": settings.size("n_positions", 512),
            "layers": settings.size("num_decoder_layers", layers),
            "encoder_layers": layers,
            "width": settings.size("d_model"),
            "heads": settings.size("num_heads"),
            "head_width": settings.size("d_kv"),
            "hidden": settings.size("d_ff"),
            "activation": ConfigReader(
                {"feed_forward_proj": activation}, settings.problems
            ).activation("feed_forward_proj"),
            "gated": words[0] == "gated",
            "norm": "rms",
            "norm_epsilon": settings.number("layer_norm_epsilon", 1e-6),
            "positions": "relative",
            "relative_buckets": settings.size("relative_attention_num_buckets", 32),
            "relative_distance": settings.size("relative_attention_max_distance", 128),
            "attention_bias": False,
            "feedforward_bias": False,
            "scale_scores": False,
            # v1.0 ties and scales, v1.1 does neither; newer configs say the scale apart.
            "scale_head": settings.flag("scale_decoder_outputs", said),
            "tied": said and not own_head,
            "dropout": settings.number("dropout_rate", 0.1),
            "attention_dropout": settings.number("dropout_rate", 0.1),
            "activation_dropout": settings.number("dropout_rate", 0.1),
            "initialisation": "fan-in",
        }

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        activation = activation_name(config.activation)
        if config.gated:
            activation = "gated-" + ("gelu" if config.activation == "gelu-tanh" else activation)
        return {
            "architectures": ["T5ForConditionalGeneration"],
            "is_encoder_decoder": True,
            "vocab_size": config.vocabulary,
            "n_positions": config.context,
            "num_decoder_layers": config.layers,
            "num_layers": config.encoder_layers,
            "d_model": config.width,
            "num_heads": config.heads,
            "d_kv": config.head_width,
            "d_ff": config.hidden,
            "feed_forward_proj": activation,
            "layer_norm_epsilon": config.norm_epsilon,
            "relative_attention_num_buckets": config.relative_buckets,
            "relative_attention_max_distance": config.relative_distance,
            "scale_decoder_outputs": config.scale_head,
            "tie_word_embeddings": config.tied,
            "dropout_rate": config.dropout,
            "decoder_start_token_id": 0,
        }

    def rules(self, config: TransformerConfig) -> Iterator[TensorRule]:
        copies = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
        yield TensorRule("embed.tokens.weight", ("shared.weight",), copies=copies)
        for stack, layers in (("encoder", config.encoder_layers), ("decoder", config.layers)):
            table = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
            yield TensorRule(f"{stack}.positions.table.weight", (table,))
            for i in range(layers):
                ours, theirs = f"{stack}.blocks.{i}", f"{stack}.block.{i}.layer"
                yield from self._block(config, ours, theirs, cross=stack == "decoder")
            yield from plain(f"{stack}.norm", f"{stack}.final_layer_norm", False)
        if not config.tied:
            yield TensorRule("head.project.weight", ("lm_head.weight",))

    def _block(
        self, config: TransformerConfig, ours: str, theirs: str, cross: bool
    ) -> Iterator[TensorRule]:
        mine = f"{theirs}.0.SelfAttention"
        parts = [f"{mine}.{part}" for part in "qkv"]
        yield from joined(f"{ours}.attention.query_key_value", parts, head_rows(config), False)
        yield from plain(f"{ours}.attention.output", f"{mine}.o", False)
        yield from plain(f"{ours}.attention_norm", f"{theirs}.0.layer_norm", False)
        if cross:
            other = f"{theirs}.1.EncDecAttention"
            yield from plain(f"{ours}.cross.query", f"{other}.q", False)
            both = [f"{other}.k", f"{other}.v"]
            yield from joined(f"{ours}.cross.key_value", both, head_rows(config)[1:], False)
            yield from plain(f"{ours}.cross.output", f"{other}.o", False)
            yield from plain(f"{ours}.cross_norm", f"{theirs}.1.layer_norm", False)
        last = f"{theirs}.{2 if cross else 1}"
        dense = f"{last}.DenseReluDense"
        if config.gated:
            gates = [f"{dense}.wi_0", f"{dense}.wi_1"]
            yield from joined(f"{ours}.feedforward.expand", gates, [config.hidden] * 2, False)
        else:
            yield from plain(f"{ours}.feedforward.expand", f"{dense}.wi", False)
        yield from plain(f"{ours}.feedforward.contract", f"{dense}.wo", False)
        yield from plain(f"{ours}.feedforward_norm", f"{last}.layer_norm", False)

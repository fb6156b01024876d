"""Llama: decoder-only, rotary positions, RMSNorm, gated feed-forward, grouped heads."""

from collections.abc import Collection, Iterator
from typing import Any

from regard.errors import RegardError, nearest
from regard.interchange.huggingface.family import (
    ConfigReader,
    FolderFamily,
    TensorRule,
    activation_name,
    head_rows,
    joined,
    plain,
)
from regard.models.transformer.config import RotaryScaling, TransformerConfig


class Llama(FolderFamily):
    name = "llama"
    prefix = "model."
    outside = ("lm_head.",)
    head, embedding = "lm_head.weight", ("model.embed_tokens.weight",)
    unneeded = r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq|lm_head\.weight"

    def read(
        self, settings: ConfigReader, names: Collection[str], own_head: bool
    ) -> dict[str, Any]:
        heads, width = settings.size("num_attention_heads"), settings.size("hidden_size")
        base, scaling = _rope(settings)
        return {
            "kind": "decoder",
            "vocabulary": settings.size("vocab_size"),
            "context": settings.size("max_position_embeddings", 2048),
            "layers": settings.size("num_hidden_layers"),
            "width": width,
            "heads": heads,
            "kv_heads": settings.size("num_key_value_heads", heads),
            "head_width": settings.size("head_dim", max(1, width // max(1, heads))),
            "hidden": settings.size("intermediate_size"),
            "activation": settings.activation("hidden_act"),
            "gated": True,
            "norm": "rms",
            "norm_epsilon": settings.number("rms_norm_eps", 1e-6),
            "positions": "rotary",
            "rotary_base": base,
            "rotary_scaling": scaling,
            "attention_bias": settings.flag("attention_bias", False),
            "feedforward_bias": settings.flag("mlp_bias", False),
            "tied": settings.flag("tie_word_embeddings", False) and not own_head,
            "attention_dropout": settings.number("attention_dropout", 0.0),
        }

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        rope: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rotary_base}
        if scaling := config.rotary_scaling:
            rope |= {"rope_type": scaling.kind, "factor": scaling.factor}
            if scaling.kind == "llama3":
                rope |= {
                    "low_freq_factor": scaling.low,
                    "high_freq_factor": scaling.high,
                    "original_max_position_embeddings": scaling.original_context,
                }
        return {
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": config.vocabulary,
            "max_position_embeddings": config.context,
            "num_hidden_layers": config.layers,
            "hidden_size": config.width,
            "num_attention_heads": config.heads,
            "num_key_value_heads": config.kv_heads,
            "head_dim": config.head_width,
            "intermediate_size": config.hidden,
            "hidden_act": activation_name(config.activation),
            "rms_norm_eps": config.norm_epsilon,
            "rope_parameters": rope,
            # The older spelling of the same, for readers that know only that.
            "rope_theta": config.rotary_base,
            "rope_scaling": rope if config.rotary_scaling else None,
            "attention_bias": config.attention_bias,
            "mlp_bias": config.feedforward_bias,
            "tie_word_embeddings": config.tied,
            "attention_dropout": config.attention_dropout,
        }

    def rules(self, config: TransformerConfig) -> Iterator[TensorRule]:
        yield TensorRule("embed.tokens.weight", ("model.embed_tokens.weight",))
        for i in range(config.layers):
            ours, theirs = f"decoder.blocks.{i}", f"model.layers.{i}"
            attention, bias = f"{theirs}.self_attn", config.feedforward_bias
            parts = [f"{attention}.{part}_proj" for part in "qkv"]
            yield from joined(
                f"{ours}.attention.query_key_value", parts, head_rows(config), config.attention_bias
            )
            yield from plain(
                f"{ours}.attention.output", f"{attention}.o_proj", config.attention_bias
            )
            gates = [f"{theirs}.mlp.gate_proj", f"{theirs}.mlp.up_proj"]
            yield from joined(f"{ours}.feedforward.expand", gates, [config.hidden] * 2, bias)
            yield from plain(f"{ours}.feedforward.contract", f"{theirs}.mlp.down_proj", bias)
            yield from plain(f"{ours}.attention_norm", f"{theirs}.input_layernorm", False)
            yield from plain(
                f"{ours}.feedforward_norm", f"{theirs}.post_attention_layernorm", False
            )
        yield from plain("decoder.norm", "model.norm", False)
        if not config.tied:
            yield TensorRule("head.project.weight", ("lm_head.weight",))


def _rope(settings: ConfigReader) -> tuple[float, RotaryScaling | None]:
    """Base and scaling of rotary positions, in the spelling of before or after 2025."""
    older = settings.found.get("rope_scaling") or {}
    newer = settings.found.get("rope_parameters") or {}
    if not isinstance(older, dict) or not isinstance(newer, dict):
        settings.problems.add("rope_parameters and rope_scaling must be objects")
        return 10000.0, None
    rope = {"rope_theta": settings.found.get("rope_theta", 10000.0)} | older | newer
    inner = ConfigReader(rope, settings.problems)
    base = inner.number("rope_theta", 10000.0)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return base, None
    known = ["default", "linear", "llama3"]
    if kind not in known:
        hint = nearest(str(kind), known)
        settings.problems.add(f"rope type {kind!r} is not supported; {hint}")
        return base, None
    settings.problems.require("factor" in rope, f"rope type {kind!r} needs a factor")
    original = inner.size(
        "original_max_position_embeddings", settings.size("max_position_embeddings", 2048)
    )
    try:
        return base, RotaryScaling(
            kind,
            inner.number("factor", 1.0),
            inner.number("low_freq_factor", 1.0),
            inner.number("high_freq_factor", 4.0),
            original,
        )
    except RegardError as error:
        settings.problems.add(str(error))
        return base, None

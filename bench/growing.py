"""A small trained translator at the shape of transformer-base, without changing what it computes.

Every feature of the small model stands in the large one several times.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.models.transformer.config import TransformerConfig
from regard.models.transformer.model import Transformer
from regard.models.transformer.positions import sinusoid

WIDTH, HEADS, HIDDEN = 512, 8, 2048  # transformer-base


@dataclass(frozen=True)
class Growth:
    """Which feature of the small model each feature of the large one repeats."""

    width: Tensor  # (WIDTH,)
    hidden: Tensor  # (HIDDEN,)
    heads: Tensor  # (WIDTH,), of all heads' features side by side
    query_scale: float  # so that q·k / √d stays

    @classmethod
    def of(cls, small: TransformerConfig) -> "Growth":
        per_head, room = small.width // small.heads, WIDTH // HEADS
        whole = WIDTH % small.width == HIDDEN % small.hidden == HEADS % small.heads == 0
        if not whole or room % per_head:
            raise RegardError(
                f"width {small.width}, {small.heads} heads and hidden {small.hidden} do not divide "
                f"those of the base shape ({WIDTH}, {HEADS}, {HIDDEN})"
            )
        head = torch.arange(small.heads).repeat_interleave(HEADS // small.heads)  # (HEADS,)
        feature = torch.arange(per_head).repeat(room // per_head)  # (room,)
        return cls(
            torch.arange(small.width).repeat(WIDTH // small.width),
            torch.arange(small.hidden).repeat(HIDDEN // small.hidden),
            (head[:, None] * per_head + feature).flatten(),
            (per_head / room) ** 0.5,  # room / per_head times the sum, over a root that grew too
        )


def grow(small: Transformer) -> tuple[TransformerConfig, dict[str, Tensor]]:
    """The same function at the base shape: its settings and weights.

    Repeating features keeps the mean and variance that a LayerNorm sees; a product over them is
    divided by the copies. The waves of the small width are no waves of the large one, so they
    become a learned table. The tied embedding is made smaller for the scale at the entrance, and
    the last norm for what it does at the exit.
    """
    was = small.config
    wanted = {"kind": "encoder-decoder", "norm": "layer", "norm_place": "post", "gated": False}
    wanted |= {"positions": "sinusoidal", "attention_bias": False, "feedforward_bias": True}
    wanted |= {"tied": True, "head_bias": False, "scale_embeddings": True, "activation": "relu"}
    wanted |= {"source_vocabulary": 0, "kv_heads": was.heads}
    for name, value in wanted.items():
        if getattr(was, name) != value:
            raise RegardError(f"only a model with {name} {value!r} can be grown here")
    growth, weights = Growth.of(was), small.state_dict()
    copies = WIDTH // was.width
    embedding = weights.pop("embed.tokens.weight")
    grown = {name: _grown(name, weight, growth) for name, weight in weights.items()}
    grown["embed.tokens.weight"] = embedding[:, growth.width] / copies**0.5
    last = f"decoder.blocks.{was.layers - 1}.feedforward_norm"
    for part in ("weight", "bias"):
        grown[f"{last}.{part}"] = grown[f"{last}.{part}"] / copies**0.5
    waves = sinusoid(torch.arange(was.context), was.width)[:, growth.width]  # (context, WIDTH)
    for stack in ("encoder", "decoder"):
        grown[f"{stack}.positions.table.weight"] = waves.clone()
    sizes = {"width": WIDTH, "heads": HEADS, "kv_heads": 0, "head_width": 0, "hidden": HIDDEN}
    config = replace(was, **sizes, positions="learned", dropout=0.0)
    return config, {name: weight.contiguous() for name, weight in grown.items()}


def _grown(name: str, weight: Tensor, growth: Growth) -> Tensor:
    """One weight of a block, grown by what its name says it reads and writes."""
    part = name.split(".", 3)[-1]
    if weight.dim() == 1:
        return weight[growth.hidden if part == "feedforward.expand.bias" else growth.width]
    inside, outside = growth.width, growth.width
    if part.endswith("output.weight"):
        inside = growth.heads
    elif part == "feedforward.contract.weight":
        inside = growth.hidden
    elif part == "feedforward.expand.weight":
        outside = growth.hidden
    else:  # queries, keys and values, or some of them in one matrix
        starts = range(0, len(weight), weight.shape[1])
        outside = torch.cat([growth.heads + start for start in starts])
    bigger = weight[outside][:, inside] * (weight.shape[1] / len(inside))
    if "query" in part:
        bigger[:WIDTH] *= growth.query_scale
    return bigger

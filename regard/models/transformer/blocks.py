"""The Transformer block (M17) and a stack of them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from torch import Tensor, nn
from torch.nn import functional as F

from regard.models.kernels.dropout import Dropout
from regard.models.kernels.linear import Linear
from regard.models.masks import AttentionMask, Mask, QueryKeyRange, resolve_mask
from regard.models.protocol import Memory
from regard.models.transformer.attention import Attention, Dot, KeysValues, ScaledDot, Slot
from regard.models.transformer.config import TransformerConfig
from regard.models.transformer.positions import SCHEMES, RotaryTables
from regard.models.transformer.sources import CrossAttentionCache


def _relu_squared(x: Tensor) -> Tensor:
    return F.relu(x).square()


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "relu-squared": _relu_squared,
}


def norm(config: TransformerConfig) -> nn.Module:
    """A fresh normalisation layer of the configured kind over the model's width."""
    kind = nn.LayerNorm if config.norm == "layer" else nn.RMSNorm
    return kind(config.width, eps=config.norm_epsilon)


class FeedForward(nn.Module):
    """f(xW₁ + b₁)W₂ + b₂; gated: (f(xW₁) * xV)W₂ with W₁ and V in one product."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        inner = config.hidden * (2 if config.gated else 1)
        self.expand = Linear(config.width, inner, config.feedforward_bias)
        self.contract = Linear(config.hidden, config.width, config.feedforward_bias)
        self.activation, self.gated = ACTIVATIONS[config.activation], config.gated
        self.dropout = Dropout(config.activation_dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.expand(x)  # (rows, new, hidden), or twice as wide
        if self.gated:
            gate, x = x.chunk(2, dim=-1)
            x = self.activation(gate) * x  # (rows, new, hidden)
        else:
            x = self.activation(x)
        return self.contract(self.dropout(x))  # (rows, new, width)


class Block(nn.Module):
    """Self-attention, in a decoder with a source cross-attention, and a feed-forward layer.

    Each is a residual step: pre-norm x + f(norm(x)), post-norm norm(x + f(x)).
    """

    cross: Attention

    def __init__(self, config: TransformerConfig, cross: bool) -> None:
        super().__init__()
        self.pre = config.norm_place == "pre"
        self.attention_norm, self.attention = norm(config), _attention(config)
        if cross:
            self.cross_norm, self.cross = norm(config), _attention(config, config.width)
        self.feedforward_norm, self.feedforward = norm(config), FeedForward(config)
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        x: Tensor,
        over: AttentionMask,
        turn: RotaryTables | None = None,
        slot: Slot | None = None,
        source: KeysValues | Tensor | None = None,
        source_over: AttentionMask | None = None,
        seen: list[Tensor] | None = None,
    ) -> Tensor:
        """x (rows, new, width) -> (rows, new, width); the arguments are those of `Attention`.

        A source is given as its vectors (rows, positions, width), or as what `cross.read` made
        of them before.
        """
        x = self._step(x, self.attention_norm, lambda y: self.attention(y, over, turn, slot))
        if source is not None:
            read = self.cross.read(source) if isinstance(source, Tensor) else source
            x = self._step(
                x, self.cross_norm, lambda y: self.cross(y, source_over, source=read, seen=seen)
            )
        return self._step(x, self.feedforward_norm, self.feedforward)

    def _step(self, x: Tensor, norm: nn.Module, f: Callable[[Tensor], Tensor]) -> Tensor:
        if self.pre:
            return x + self.dropout(f(norm(x)))
        return norm(x + self.dropout(f(x)))


def _attention(config: TransformerConfig, source_width: int = 0) -> Attention:
    return Attention(
        config.width,
        config.heads,
        kv_heads=config.kv_heads,
        head_width=config.head_width,
        source_width=source_width,
        bias=config.attention_bias,
        similarity=ScaledDot() if config.scale_scores else Dot(),
        dropout=config.attention_dropout,
        normalise=config.norm_epsilon if config.query_key_norm else 0.0,
    )


class Stack(nn.Module):
    """Embeddings in, hidden vectors out: positions, blocks, and with pre-norm a last norm."""

    def __init__(
        self, config: TransformerConfig, layers: int, *, causal: bool, cross: bool = False
    ) -> None:
        super().__init__()
        self.positions = SCHEMES[config.positions](config, not causal)
        self.embedding_norm = norm(config) if config.embedding_norm else nn.Identity()
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config, cross) for _ in range(layers))
        self.norm = norm(config) if config.norm_place == "pre" else nn.Identity()

    def look(self, memory: Memory) -> CrossAttentionCache:
        """A source (rows, positions, width) as each block's keys and values."""
        layers = tuple(cast(Block, block).cross.read(memory.values) for block in self.blocks)
        return CrossAttentionCache(memory, memory.mask, layers)

    def forward(
        self,
        x: Tensor,
        span: QueryKeyRange,
        mask: Mask | None,
        slots: Sequence[Slot] | None = None,
        reading: CrossAttentionCache | None = None,
        seen: list[Tensor] | None = None,
    ) -> Tensor:
        """x (rows, new, width), standing where `span` says -> (rows, new, width).

        `slots` hold each block's keys and values of the prefix, `reading` those of a source, of
        which each block's weights are added to `attention`.
        """
        x = self.dropout(self.embedding_norm(self.positions.add(x, span.positions)))
        turn = self.positions.turn(span.positions)
        over = resolve_mask(mask, span, self.positions.bias(span))
        nothing = [None] * len(self.blocks)
        sources: Sequence[KeysValues | Tensor | None] = nothing
        source_over = None
        if reading is not None:
            sources = reading.layers or [reading.memory.values] * len(self.blocks)
            source_over = reading.overlay(span.queries)
        for block, slot, source in zip(self.blocks, slots or nothing, sources, strict=True):
            x = block(x, over, turn, slot, source, source_over, seen)
        return self.norm(x)

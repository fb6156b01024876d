"""An LSTM that writes about a picture (M8), and looks at it behind each of its layers.

A layer remembers what was said so far, looks at the grid, and thinks about both; each is a residual
step, as in a Transformer, whose self-attention the LSTM stands in for. So the second layer knows
where the first has looked, as it must to tell how one thing stands to another.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from regard.errors import RegardError
from regard.models.kernels.dropout import Dropout
from regard.models.kernels.linear import Linear
from regard.models.masks import AttentionMask
from regard.models.protocol import Memory
from regard.models.recurrent.cells import LSTM, Held
from regard.models.recurrent.config import RecurrentConfig
from regard.models.recurrent.layers import Head, initialise, unmixed
from regard.models.recurrent.model import Recurrent
from regard.models.recurrent.state import HiddenState, RecurrentState
from regard.models.transformer.attention import Attention, KeysValues
from regard.models.transformer.blocks import FeedForward, norm
from regard.models.transformer.config import TransformerConfig
from regard.models.transformer.sources import CrossAttentionCache, Source
from regard.models.validation import check_same, checked_memory


class Looking(nn.Module):
    """A layer: an LSTM, attention to the picture, and a feed-forward layer."""

    def __init__(self, parts: TransformerConfig) -> None:
        super().__init__()
        width = parts.width
        self.cell_norm, self.cell = norm(parts), LSTM(width, width)
        self.cross_norm = norm(parts)
        self.cross = Attention(width, parts.heads, source_width=width)
        self.feedforward_norm, self.feedforward = norm(parts), FeedForward(parts)
        self.dropout = Dropout(parts.dropout)

    def forward(
        self,
        x: Tensor,
        held: Held,
        counts: Sequence[int] | None,
        source: KeysValues,
        over: AttentionMask,
        seen: list[Tensor] | None,
    ) -> tuple[Tensor, Held]:
        """x (rows, new, width) -> the same shape, and what the LSTM remembers."""
        y, held = self.cell(self.cell_norm(x), held, counts)
        x = x + self.dropout(y)
        x = x + self.dropout(self.cross(self.cross_norm(x), over, source=source, seen=seen))
        return x + self.dropout(self.feedforward(self.feedforward_norm(x))), held


class LSTMDecoder(Recurrent):
    """A recurrent decoder alone; `parts` says what stands between its LSTMs."""

    def __init__(self, config: RecurrentConfig, parts: TransformerConfig) -> None:
        super().__init__(config)
        layers, width = self.config.layers, self.config.width
        self.start_with = Linear(width, layers * LSTM.parts * width)
        self.decoder = nn.ModuleList(Looking(parts) for _ in range(layers))
        self.norm = norm(parts)
        self.head = Head(self.config, width)
        initialise(self)
        # Such that tokens, once scaled, count as much as what is added to them.
        nn.init.normal_(self.embed.tokens.weight, 0.0, width**-0.5)

    def _source(self, held: HiddenState | None, memory: Memory | None, rows: int) -> Source:
        there = held.source if held is not None else None
        if there is not None:
            check_same(there.memory, memory)
            return there
        memory = checked_memory(memory, rows)
        if memory.whole is None or memory.values.shape[-1] != self.config.width:
            raise RegardError("the source was read by another model; read it with this one")
        values = memory.values.to(self.start_with.weight.dtype)
        with unmixed(values):
            layers = tuple(cast(Looking, layer).cross.read(values) for layer in self.decoder)
        return CrossAttentionCache(memory, memory.mask, layers)

    def _first(self, rows: int, source: Source | None) -> RecurrentState:
        assert source is not None
        assert source.memory.whole is not None
        whole = source.memory.whole.to(self.start_with.weight.dtype)  # (rows, width)
        with unmixed(whole):
            begun = torch.tanh(self.start_with(whole)).chunk(len(self.decoder), dim=-1)
        return RecurrentState(tuple(layer.chunk(LSTM.parts, dim=-1) for layer in begun))

    def _pass(
        self,
        x: Tensor,
        before: RecurrentState,
        source: Source | None,
        counts: Sequence[int] | None,
        seen: list[Tensor] | None,
    ) -> tuple[Tensor, RecurrentState]:
        assert isinstance(source, CrossAttentionCache)
        assert source.layers is not None
        over = source.overlay(x.shape[1])
        x, found = x.to(self.start_with.weight.dtype) * self.config.width**0.5, []
        layers = zip(self.decoder, before.held, source.layers, strict=True)
        for layer, held, read in layers:
            x, after = layer(x, held, counts, read, over, seen)
            found.append(after)
        return self.norm(x), RecurrentState(tuple(found))

    def _seen(self, seen: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(seen), dim=1)  # each (rows, heads, new, places), one a layer

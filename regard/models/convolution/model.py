"""Convolutional models (M9): each layer mixes a few neighbouring positions, all of them at once.

A language model looks back only, and sees as far as its layers together reach. An encoder–decoder
reads a source with layers that look both ways, and writes with layers that look back, each of them
followed by attention to the source (Gehring 2017).
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.errors import RegardError
from regard.models.convolution.config import ConvolutionConfig, gaps
from regard.models.convolution.state import LastInputs
from regard.models.kernels.dropout import Dropout
from regard.models.kernels.linear import Linear, product
from regard.models.masks import AttentionMask, Mask, Padding
from regard.models.network import Network
from regard.models.protocol import Memory, State
from regard.models.transformer.attention import Attention
from regard.models.transformer.positions import sinusoid
from regard.models.transformer.sources import CrossAttentionCache
from regard.models.validation import (
    Lengths,
    check_ids,
    check_room,
    check_same,
    checked_lengths,
    checked_memory,
    either,
)


class Gated(nn.Module):
    """x + (a · σ(b)), where a and b are products with `kernel` inputs, `gap` apart from each other.

    The inputs of all positions are laid side by side, so that a convolution is one matrix product.
    """

    def __init__(self, config: ConvolutionConfig, gap: int, *, causal: bool) -> None:
        super().__init__()
        width = config.width
        self.kernel, self.gap, self.causal = config.kernel, gap, causal
        self.norm = nn.LayerNorm(width)
        self.mix = Linear(config.kernel * width, 2 * width)
        self.dropout = Dropout(config.dropout)

    @property
    def reach(self) -> int:
        """How many inputs around its own a position looks at."""
        return (self.kernel - 1) * self.gap

    def forward(
        self, x: Tensor, held: Tensor | None = None, real: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """x (rows, new, width) -> the same shape, and all inputs, (rows, reach + new, width).

        `held` (rows, reach, width) are the inputs before these; if not given, they are zeros, and
        no more of them come back than a text of this length can see. Of a source, `real`
        (rows, new, 1) is 0 at padding, which is as if nothing stood there.
        """
        y = self.norm(x)
        y = y if real is None else y * real
        new = x.shape[1]
        starts = list(range(0, self.kernel * self.gap, self.gap))
        if held is None:
            back = self.reach if self.causal else self.reach // 2
            # Farther than the text is long all is zeros, and some layers reach much farther.
            before, behind = min(back, new), min(self.reach - back, new)
            joined = F.pad(y, (0, 0, before, behind))
            starts = [before + min(max(start - back, -new), new) for start in starts]
        else:
            joined = torch.cat([held.to(y.dtype), y], dim=1)
        windows = torch.cat([joined[:, start : start + new] for start in starts], dim=-1)
        return x + self.dropout(F.glu(self.mix(windows), dim=-1)), joined


class Looking(nn.Module):
    """A layer of the decoder: a convolution, then attention to the source."""

    def __init__(self, config: ConvolutionConfig, gap: int) -> None:
        super().__init__()
        self.convolution = Gated(config, gap, causal=True)
        self.cross_norm = nn.LayerNorm(config.width)
        self.cross = Attention(config.width, config.heads, source_width=config.width)
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        x: Tensor,
        held: Tensor | None,
        reading: CrossAttentionCache,
        layer: int,
        over: AttentionMask,
        seen: list[Tensor] | None,
    ) -> tuple[Tensor, Tensor]:
        """x (rows, new, width) -> the same shape, and all inputs of the convolution."""
        x, joined = self.convolution(x, held)
        layers = reading.layers
        source = self.cross.read(reading.memory.values) if layers is None else layers[layer]
        looked = self.cross(self.cross_norm(x), over, source=source, seen=seen)
        return x + self.dropout(looked), joined


class Embedding(nn.Module):
    """Token ids to vectors."""

    def __init__(self, config: ConvolutionConfig, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, config.width)
        self.dropout = Dropout(config.dropout)
        self.scale = config.width**0.5

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """tokens (rows, new), at `positions` (rows or 1, new) if they matter -> (…, width)."""
        x = self.tokens(tokens) * self.scale
        if positions is not None:
            x = x + sinusoid(positions, x.shape[-1]).to(x.dtype)
        return self.dropout(x)


class Head(nn.Module):
    """Hidden vectors to logits."""

    def __init__(self, config: ConvolutionConfig) -> None:
        super().__init__()
        self.width = config.width
        self.norm = nn.LayerNorm(config.width)
        tied = config.tied
        self.project = None if tied else Linear(config.width, config.vocabulary, bias=False)
        self.bias = nn.Parameter(torch.zeros(config.vocabulary))

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """x (..., width) and the embedding to be tied to, (vocabulary, width) -> logits."""
        return product(x, embedding if self.project is None else self.project.weight, self.bias)


class Convolution(Network):
    """What both assemblies share."""

    def __init__(self, config: ConvolutionConfig) -> None:
        super().__init__()
        self.config = config.resolved()
        self.embed = Embedding(self.config, self.config.vocabulary)
        self.head = Head(self.config)

    def hidden(
        self,
        tokens: Tensor,
        memory: Memory | None = None,
        state: State | None = None,
        *,
        lengths: Lengths = None,
        mask: Mask | None = None,
    ) -> Tensor:
        """The same up to the last hidden vectors (rows, new, width)."""
        if mask is not None:
            raise RegardError("a convolution sees what is near, not what a mask says; leave it out")
        check_ids("token", tokens, self.embed.tokens)
        rows, new = tokens.shape
        counts = None if lengths is None else checked_lengths(lengths, rows, new)
        held = self._mine(state, rows)
        x, joined = self._pass(tokens, memory, held)
        if held is not None:
            held.take(joined, [new] * rows if counts is None else counts.tolist())
        return self.head.norm(x) if isinstance(self.head, Head) else x

    def start(
        self, batch_size: int, capacity: int, *, return_attention: bool = False
    ) -> LastInputs:
        """An empty state; it takes as much memory for any capacity."""
        if return_attention and self.config.kind == "decoder":
            raise RegardError("this model reads no source, so there is no attention to return")
        check_room(batch_size, capacity)
        weight, width = self.embed.tokens.weight, self.config.width
        blank = [weight.new_zeros(batch_size, part.reach, width) for part in self._convolutions()]
        return LastInputs(self.config, blank, return_attention=return_attention)

    def _convolutions(self) -> list[Gated]:
        """Those of the decoder."""
        raise NotImplementedError

    def _pass(
        self, tokens: Tensor, memory: Memory | None, state: LastInputs | None
    ) -> tuple[Tensor, list[Tensor]]:
        """tokens (rows, new) -> (rows, new, width), and all inputs of each convolution."""
        raise NotImplementedError

    def _mine(self, state: State | None, rows: int) -> LastInputs | None:
        """The state, if this model began it."""
        if state is None:
            return None
        if not isinstance(state, LastInputs):
            kind = type(state).__name__
            raise RegardError(f"a convolutional model continues LastInputs, not a {kind}")
        state.check(self.config, rows, self.embed.tokens.weight)
        return state


class ConvolutionDecoder(Convolution):
    """A language model."""

    def __init__(self, config: ConvolutionConfig) -> None:
        super().__init__(config)
        self.decoder = nn.ModuleList(Gated(config, gap, causal=True) for gap in config.gaps)
        initialise(self)

    def _convolutions(self) -> list[Gated]:
        return [cast(Gated, layer) for layer in self.decoder]

    def _pass(
        self, tokens: Tensor, memory: Memory | None, state: LastInputs | None
    ) -> tuple[Tensor, list[Tensor]]:
        if memory is not None:
            raise RegardError("a language model reads no source; leave out `memory`")
        x, joined = self.embed(tokens), []
        held = [None] * len(self.decoder) if state is None else state.held
        for layer, before in zip(self._convolutions(), held, strict=True):
            x, inputs = layer(x, before)
            joined.append(inputs)
        return x, joined


class ConvolutionEncoderDecoder(Convolution):
    """Translates."""

    def __init__(self, config: ConvolutionConfig) -> None:
        super().__init__(config)
        config = self.config
        separate = config.source_vocabulary
        self.source_embed = Embedding(config, separate) if separate else None
        ahead = gaps(config.encoder_layers, config.dilation_growth, config.dilation_cycle)
        self.encoder = nn.ModuleList(Gated(config, gap, causal=False) for gap in ahead)
        self.encoder_norm = nn.LayerNorm(config.width)
        self.decoder = nn.ModuleList(Looking(config, gap) for gap in config.gaps)
        initialise(self)

    def encode(
        self,
        source: Tensor,
        lengths: Lengths = None,
        mask: Mask | None = None,
        *,
        source_lengths: Lengths = None,
    ) -> Memory:
        """Read a source (rows, positions); `source_lengths` is another name of `lengths`."""
        lengths = either(lengths, source_lengths)
        if mask is not None:
            raise RegardError("a convolution sees what is near, not what a mask says; leave it out")
        embed = self.source_embed or self.embed
        check_ids("token", source, embed.tokens)
        places = torch.arange(source.shape[1], device=source.device)[None]  # (1, positions)
        x = embed(source, places)
        counts = real = None
        if lengths is not None:
            counts = checked_lengths(lengths, *source.shape)
            real = (places < counts.to(source.device)[:, None])[..., None].to(x.dtype)
        for layer in self.encoder:
            x, _ = layer(x, None, real)
        return Memory(self.encoder_norm(x), None if counts is None else Padding(counts))

    def _convolutions(self) -> list[Gated]:
        return [cast(Looking, layer).convolution for layer in self.decoder]

    def _pass(
        self, tokens: Tensor, memory: Memory | None, state: LastInputs | None
    ) -> tuple[Tensor, list[Tensor]]:
        reading = self._reading(state, memory, len(tokens))
        over = reading.overlay(tokens.shape[1])
        seen: list[Tensor] | None = [] if state is not None and state.return_attention else None
        x, joined = self.embed(tokens, self._places(tokens, state)), []
        held: Sequence[Tensor | None] = [None] * len(self.decoder)
        if state is not None:
            held = state.held
        for number, (layer, before) in enumerate(zip(self.decoder, held, strict=True)):
            x, inputs = layer(x, before, reading, number, over, seen)
            joined.append(inputs)
        if state is not None:
            state.reading = reading
            state.attention = torch.stack(seen, dim=1) if seen else None
        return x, joined

    def _places(self, tokens: Tensor, state: LastInputs | None) -> Tensor:
        """Where each token stands, (rows or 1, new)."""
        new = torch.arange(tokens.shape[1], device=tokens.device)
        if state is None:
            return new[None]
        return torch.tensor(state.lengths, device=tokens.device)[:, None] + new

    def _reading(
        self, state: LastInputs | None, memory: Memory | None, rows: int
    ) -> CrossAttentionCache:
        """The source as the decoder sees it: what the state holds, or from the memory."""
        held = state.reading if state is not None else None
        if held is not None:
            check_same(held.memory, memory)
            return held
        memory = checked_memory(memory, rows)
        if memory.values.shape[-1] != self.config.width:
            raise RegardError("the source was read by another model; read it with this one")
        if state is None:
            return CrossAttentionCache(memory, memory.mask)
        layers = tuple(cast(Looking, one).cross.read(memory.values) for one in self.decoder)
        return CrossAttentionCache(memory, memory.mask, layers)


@torch.no_grad()
def initialise(module: nn.Module) -> None:
    """Embeddings as 1 / √width, matrices by Xavier, biases 0."""
    for part in module.modules():
        if isinstance(part, nn.Embedding):
            nn.init.normal_(part.weight, 0.0, part.embedding_dim**-0.5)
        elif isinstance(part, nn.Linear):
            nn.init.xavier_uniform_(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)

"""The three assemblies (M19): decoder-only, encoder-only, encoder–decoder.

All are made of the same `Stack`, answer the same protocol, and differ in what they read and what
a position may see. `build` chooses by the config's kind.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.errors import RegardError
from regard.models.initialisation import initialise
from regard.models.kernels.linear import Linear, product
from regard.models.masks import Causal, Mask, Padding, QueryKeyRange
from regard.models.network import Network
from regard.models.protocol import Memory, State
from regard.models.transformer.blocks import ACTIVATIONS, Stack, norm
from regard.models.transformer.cache import KeyValueState
from regard.models.transformer.config import TransformerConfig
from regard.models.transformer.sources import CrossAttentionCache
from regard.models.validation import (
    Lengths,
    check_ids,
    check_same,
    checked_lengths,
    checked_memory,
    either,
)


class Embedding(nn.Module):
    """Token ids to vectors (M2's matrix E); ids and devices are checked here."""

    def __init__(self, config: TransformerConfig, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, config.width)
        self.segments = nn.Embedding(config.segments, config.width) if config.segments else None
        self.scale = config.width**0.5 if config.scale_embeddings else 1.0

    def forward(self, tokens: Tensor, segments: Tensor | None = None) -> Tensor:
        """tokens (rows, new) -> (rows, new, width)."""
        check_ids("token", tokens, self.tokens)
        x = self.tokens(tokens)
        if self.scale != 1.0:
            x = x * self.scale
        if self.segments is not None:
            segments = torch.zeros_like(tokens) if segments is None else segments
            check_ids("segment", segments, self.segments)
            if segments.shape != tokens.shape:
                raise RegardError(
                    f"segment ids of shape {tuple(segments.shape)} do not fit tokens of shape "
                    f"{tuple(tokens.shape)}"
                )
            x = x + self.segments(segments)
        elif segments is not None:
            raise RegardError("this model knows no segments; leave them out")
        return x


class Head(nn.Module):
    """Hidden vectors to logits; a masked-token head (BERT) transforms them first."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.kind = config.head
        self.scale = config.width**-0.5 if config.scale_head else 1.0
        if config.head == "masked":
            self.transform = Linear(config.width, config.width)
            self.activation, self.norm = ACTIVATIONS[config.activation], norm(config)
        tied = config.tied or config.head == "none"
        self.project: nn.Module | None = None
        if not tied:
            self.project = Linear(config.width, config.vocabulary, bias=False)
        biased = config.head_bias and config.head != "none"
        self.bias = nn.Parameter(torch.zeros(config.vocabulary)) if biased else None

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """x (..., width) and the embedding to be tied to, (vocabulary, width) -> logits."""
        if self.kind == "none":
            raise RegardError("this model has no output head; ask it for `hidden` vectors")
        if self.kind == "masked":
            x = self.norm(self.activation(self.transform(x)))
        if self.scale != 1.0:
            x = x * self.scale
        if self.project is None:
            return product(x, embedding, self.bias)  # (..., vocabulary)
        logits = self.project(x)
        return logits if self.bias is None else logits + self.bias


class Given(NamedTuple):
    """What came with the tokens of one call."""

    memory: Memory | None
    state: State | None
    lengths: Lengths
    mask: Mask | None


class Transformer(Network):
    """What the assemblies share."""

    def __init__(self, config: TransformerConfig) -> None:
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
        segments: Tensor | None = None,
    ) -> Tensor:
        """The same up to the last hidden vectors (rows, new, width)."""
        x = self.embed(tokens, segments)
        return self._pass(x, Given(memory, state, lengths, mask))

    def _pass(self, x: Tensor, given: Given) -> Tensor:
        """Embeddings (rows, new, width) through the assembly's blocks; the same shape."""
        raise NotImplementedError

    def start(
        self,
        batch_size: int,
        capacity: int,
        *,
        return_attention: bool = False,
        fixed: bool = False,
    ) -> State:
        """An empty key/value cache for `batch_size` sequences of up to `capacity` tokens each.

        With `fixed` its tensors keep their shapes and places from step to step.
        """
        weight = self.embed.tokens.weight
        if return_attention and self.config.kind != "encoder-decoder":
            raise RegardError("this model reads no source, so there is no attention to return")
        return KeyValueState(
            self.config,
            batch_size,
            capacity,
            dtype=weight.dtype,
            device=weight.device,
            return_attention=return_attention,
            fixed=fixed,
        )

    def _write(
        self, stack: Stack, x: Tensor, given: Given, reading: CrossAttentionCache | None = None
    ) -> Tensor:
        """One causal pass over x (rows, new, width), continuing what the state holds, if any.

        Padding stands on the right, where causality hides it from every real token: no mask.
        """
        rows, new = x.shape[:2]
        counts = None if given.lengths is None else checked_lengths(given.lengths, rows, new)
        mask = Causal() & given.mask
        if given.state is None:
            _check_reach(stack, new, counts)
            return stack(x, QueryKeyRange.of(rows, new, new, x.device), mask, None, reading)
        state = self._mine(given.state)
        seen: list[Tensor] | None = [] if state.return_attention else None
        real = [new] * rows if counts is None else counts.tolist()
        span = state.span(rows, new, real)
        _check_reach(stack, max(h + more for h, more in zip(state.lengths, real, strict=True)))
        y = stack(x, span, mask, state.slots(span, real), reading, seen)
        state.advance(real)
        state.attention = torch.stack(seen, dim=1) if seen else None
        return y

    def _mine(self, state: State) -> KeyValueState:
        """The state, if this model began it."""
        if not isinstance(state, KeyValueState):
            kind = type(state).__name__
            raise RegardError(f"a Transformer continues a KeyValueState, not a {kind}")
        if not state.layers or state.config != self.config:
            raise RegardError(
                "the state was freed or is another model's; start one with this model"
            )
        held, mine = state.layers[0].keys, self.embed.tokens.weight
        if (held.dtype, held.device) != (mine.dtype, mine.device):
            raise RegardError(
                f"the state holds {held.dtype} on {held.device}, but the model is now {mine.dtype} "
                f"on {mine.device}; start a new one"
            )
        return state


class DecoderOnly(Transformer):
    """Every token sees itself and those before it; continues a text (GPT-2, Llama)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.decoder = Stack(self.config, self.config.layers, causal=True)
        initialise(self, self.config)

    def _pass(self, x: Tensor, given: Given) -> Tensor:
        if given.memory is not None:
            raise RegardError("a decoder-only model reads no source; leave out `memory`")
        return self._write(self.decoder, x, given)


class EncoderOnly(Transformer):
    """Every token sees every other; fills in masked tokens (BERT)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.encoder = Stack(self.config, self.config.layers, causal=False)
        self.pooler = Linear(config.width, config.width) if config.pooler else None
        initialise(self, self.config)

    def _pass(self, x: Tensor, given: Given) -> Tensor:
        if given.memory is not None or given.state is not None:
            raise RegardError("an encoder reads all its tokens at once: no memory, no state")
        return _read(self.encoder, x, given.lengths, given.mask).values

    def pooled(self, hidden: Tensor) -> Tensor:
        """The text (rows, positions, width) as one vector, from its first; (rows, width)."""
        if self.pooler is None:
            raise RegardError("this model has no pooler; average its hidden vectors instead")
        return torch.tanh(self.pooler(hidden[:, 0]))

    def start(
        self,
        batch_size: int,
        capacity: int,
        *,
        return_attention: bool = False,
        fixed: bool = False,
    ) -> State:
        raise RegardError("an encoder cannot continue a text; use a decoder")


class SourceDecoder(Transformer):
    """Writes looking at a source, which somebody else has read."""

    decoder: Stack

    def _pass(self, x: Tensor, given: Given) -> Tensor:
        # With a state, the memory's keys and values are computed at the first call and kept;
        # later calls may leave the memory out.
        state = given.state
        held = state.reading if isinstance(state, KeyValueState) else None
        reading = self._reading(held, given.memory, len(x), keep=state is not None)
        y = self._write(self.decoder, x, given, reading)
        if isinstance(state, KeyValueState):
            state.reading = reading
        return y

    def _reading(
        self, held: CrossAttentionCache | None, memory: Memory | None, rows: int, keep: bool
    ) -> CrossAttentionCache:
        """The source as the decoder sees it: what the state holds, or from the memory."""
        if held is not None:
            check_same(held.memory, memory)
            return held
        memory = checked_memory(memory, rows)
        if memory.values.shape[-1] != self.config.width:
            width = memory.values.shape[-1]
            raise RegardError(
                f"the source was read by another model (width {width}, not {self.config.width})"
            )
        return self.decoder.look(memory) if keep else CrossAttentionCache(memory, memory.mask)


class EncoderDecoder(SourceDecoder):
    """An encoder reads the source, a decoder writes the target looking at it (T5, Marian, 2017)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        config = self.config
        separate = config.source_vocabulary
        self.source_embed = Embedding(config, separate) if separate else None
        self.encoder = Stack(config, config.encoder_layers, causal=False)
        self.decoder = Stack(config, config.layers, causal=True, cross=True)
        initialise(self, config)

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
        embed = self.embed if self.source_embed is None else self.source_embed
        return _read(self.encoder, embed(source), lengths, mask)


def _read(stack: Stack, x: Tensor, lengths: Lengths, mask: Mask | None) -> Memory:
    """One bidirectional pass over x (rows, positions, width)."""
    rows, count = x.shape[:2]
    real = None if lengths is None else checked_lengths(lengths, rows, count)
    _check_reach(stack, count, real)
    if real is not None:
        mask = Padding(real) & mask
    values = stack(x, QueryKeyRange.of(rows, count, count, x.device), mask)
    return Memory(values, mask.of_keys() if mask is not None else None)


def _check_reach(stack: Stack, last: int, real: Tensor | None = None) -> None:
    """Refuse positions behind the last that exists; padding may stand there, where it is known."""
    limit = stack.positions.limit
    known = real is not None and real.device.type == "cpu" and not torch.compiler.is_compiling()
    if known and real is not None and len(real):
        last = int(real.max())
    if limit is not None and last > limit:
        raise RegardError(
            f"{last} positions are needed but the learned position table has {limit}; "
            "shorten the input or choose another position scheme"
        )


ASSEMBLIES: dict[str, type[Transformer]] = {
    "decoder": DecoderOnly,
    "encoder": EncoderOnly,
    "encoder-decoder": EncoderDecoder,
}

"""Recurrent encoder–decoders (M6, M7).

The encoder reads a source into its hidden vectors, and the decoder begins its target with what the
last step left: one vector for all of it. With attention each step of the decoder looks at every
step of the encoder again.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from regard.errors import RegardError
from regard.models.kernels.dropout import dropout
from regard.models.kernels.linear import Linear
from regard.models.masks import AttentionMask, Mask, Padding
from regard.models.protocol import Memory
from regard.models.recurrent.cells import CELLS, Cell
from regard.models.recurrent.config import RecurrentConfig
from regard.models.recurrent.layers import Embedding, Head, Layers, dropped, initialise, unmixed
from regard.models.recurrent.model import Recurrent
from regard.models.recurrent.state import (
    EncodedSource,
    HiddenState,
    RecurrentState,
    encoded_source,
)
from regard.models.transformer.attention import Additive, Attend, Dot
from regard.models.transformer.sources import Source
from regard.models.validation import (
    Lengths,
    check_same,
    checked_lengths,
    checked_memory,
    either,
    last_real,
)


class Encoder(nn.Module):
    """Reads a source from left to right and, in half of its places, from right to left."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        kind, both = CELLS[config.cell], config.bidirectional
        size = config.hidden // 2 if both else config.hidden
        inputs = [config.width, *[config.hidden] * (config.encoder_layers - 1)]
        self.ahead = nn.ModuleList(kind(width, size) for width in inputs)
        self.back = nn.ModuleList(kind(width, size) for width in inputs) if both else None
        self.share, self.alike = config.dropout, config.variational
        self.weight_share = config.weight_dropout

    def forward(self, x: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
        """x (rows, positions, width), of which `real` (rows,) count -> a vector for each position,
        (rows, positions, hidden), and one for the whole, (rows, hidden).

        Padding stands on the right in both directions, where nothing that counts comes after it.
        """
        ends: list[Tensor] = []
        for i, cell in enumerate(self.ahead):
            x = dropped(x, self.share if self.training else 0.0, self.alike) if i else x
            passes = [self._read(cell, x)]
            ends = [last_real(passes[0], real)[:, 0]]
            if self.back is not None:
                found = self._read(self.back[i], reversed_rows(x, real))
                ends.append(last_real(found, real)[:, 0])
                passes.append(reversed_rows(found, real))
            x = torch.cat(passes, dim=-1)
        whole = torch.cat(ends, dim=-1)
        if real is not None:  # of a row without tokens, nothing is remembered
            whole = whole.masked_fill((real == 0)[:, None], 0.0)
        return x, whole

    def _read(self, cell: nn.Module, x: Tensor) -> Tensor:
        assert isinstance(cell, Cell)
        share = self.weight_share if self.training else 0.0
        matrix = dropout(cell.recurrent, share) if share else cell.recurrent
        found: Tensor = cell(x, cell.blank(len(x)), recurrent=matrix)[0]
        return found


def reversed_rows(x: Tensor, real: Tensor | None) -> Tensor:
    """Each row's first `real` positions from behind, the rest where it was; x's shape."""
    if real is None:
        return x.flip(1)
    places = torch.arange(x.shape[1], device=x.device)  # (positions,)
    ends = real.to(x.device)[:, None]
    index = torch.where(places < ends, ends - 1 - places, places)  # (rows, positions)
    return x.gather(1, index[..., None].expand_as(x))


class Decoder(nn.Module):
    """Writes a target from what the encoder left.

    none      one vector starts it, and with `feeding` stands beside every token (Cho 2014)
    additive  before each step the last h looks at the source; the step reads what it saw, and the
              output is made of h, that and the token (Bahdanau 2014)
    dot, general  behind each step h looks at the source, h̃ = tanh(C[h; seen]) is the output, and
              with `feeding` the next step reads it too (Luong 2015); so does additive attention
              with `feeding`, whose output is made of the token too
    """

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.attention, self.feeding = config.attention, config.input_feeding
        width, hidden = config.width, config.hidden
        additive, looks = config.attention == "additive", config.attention != "none"
        self.before = additive and not config.input_feeding
        fed = (
            hidden
            if self.before or (config.input_feeding and not looks)
            else width * config.input_feeding
        )
        self.fed = width if config.input_feeding and looks else 0
        self.layers = Layers(config, width + fed, [hidden] * config.layers)
        self.parts = CELLS[config.cell].parts
        self.start = Linear(hidden, config.layers * self.parts * hidden)
        plain = config.attention in ("none", "dot")
        self.key = None if plain else Linear(hidden, hidden, bias=additive)
        if looks:
            self.attend = Attend(Additive(hidden, 0, hidden) if additive else Dot())
        read = hidden * (1 + (looks or config.input_feeding)) + width * additive
        self.combine = Linear(read, width)

    def first(self, whole: Tensor) -> RecurrentState:
        """What the one vector of a source (rows, hidden) starts with."""
        with unmixed(whole):
            begun = torch.tanh(self.start(whole)).chunk(len(self.layers.cells), dim=-1)
        held = tuple(layer.chunk(self.parts, dim=-1) for layer in begun)
        fed = whole.new_zeros(len(whole), self.fed) if self.fed else None
        return RecurrentState(held, fed)

    def forward(
        self,
        x: Tensor,
        before: RecurrentState,
        source: EncodedSource,
        counts: Sequence[int] | None,
        seen: list[Tensor] | None,
    ) -> tuple[Tensor, RecurrentState]:
        """x (rows, new, width) -> outputs (rows, new, width), and what is remembered.

        The source's weights (rows, new, positions) are added to `attention`.
        """
        if self.before or self.fed:
            return self._stepwise(x, before, source, counts, seen)
        whole = source.whole[:, None].expand(-1, x.shape[1], -1)
        beside = [whole] if self.feeding else []
        h, held = self.layers(torch.cat([x, *beside], dim=-1), before.held, counts)
        if self.attention != "none":
            beside = [self._look(h, source, source.overlay(h.shape[1]), seen)]
        return torch.tanh(self.combine(torch.cat([h, *beside], dim=-1))), RecurrentState(held)

    def _stepwise(
        self,
        x: Tensor,
        before: RecurrentState,
        source: EncodedSource,
        counts: Sequence[int] | None,
        seen: list[Tensor] | None,
    ) -> tuple[Tensor, RecurrentState]:
        step, outputs, now = self.layers.steps(len(x)), [], before
        over = source.overlay(1)
        for place, token in enumerate(x.unbind(1)):
            if self.before:
                looked = self._look(now.held[-1][0][:, None], source, over, seen)[:, 0]
                held = step(torch.cat([token, looked], dim=-1), now.held)
                outputs.append(torch.cat([held[-1][0], looked, token], dim=-1))
                after = RecurrentState(held)
            else:
                assert now.fed is not None
                held = step(torch.cat([token, now.fed], dim=-1), now.held)
                looked = self._look(held[-1][0][:, None], source, over, seen)[:, 0]
                beside = [token] if self.attention == "additive" else []
                fed = torch.tanh(self.combine(torch.cat([held[-1][0], looked, *beside], dim=-1)))
                outputs.append(fed)
                after = RecurrentState(held, fed)
            now = after if counts is None else _where(place, counts, after, now)
        y = torch.stack(outputs, dim=1)
        return (y if self.fed else torch.tanh(self.combine(y))), now

    def _look(
        self, queries: Tensor, source: EncodedSource, over: AttentionMask, seen: list[Tensor] | None
    ) -> Tensor:
        """queries (rows, new, hidden) -> what they see of the source, the same shape."""
        assert source.keys is not None
        assert source.values is not None
        if seen is not None:
            seen.append(self.attend.weigh(queries, source.keys, over).probabilities)
        return self.attend(queries, source.keys, source.values, over)


def _where(
    place: int, counts: Sequence[int], after: RecurrentState, before: RecurrentState
) -> RecurrentState:
    """Rows that have a token at this place go on; the others stay."""
    real = torch.tensor([place < count for count in counts], device=after.held[0][0].device)

    def chosen(new: Tensor, old: Tensor) -> Tensor:
        return torch.where(real[:, None], new, old)

    held = tuple(
        tuple(chosen(new, old) for new, old in zip(*layers, strict=True))
        for layers in zip(after.held, before.held, strict=True)
    )
    if after.fed is None or before.fed is None:
        return RecurrentState(held)
    return RecurrentState(held, chosen(after.fed, before.fed))


class RecurrentWriter(Recurrent):
    """Writes from a source, which somebody else has read."""

    decoder: Decoder

    def _source(self, held: HiddenState | None, memory: Memory | None, rows: int) -> EncodedSource:
        there = held.source if held is not None else None
        if there is not None:
            assert isinstance(there, EncodedSource)
            check_same(there.memory, memory)
            return there
        memory = checked_memory(memory, rows)
        if memory.whole is None or memory.whole.shape[-1] != self.config.hidden:
            raise RegardError("the source was read by another model; read it with this one")
        keys = None
        if self.config.attention != "none":
            with unmixed(memory.values):
                key = self.decoder.key
                keys = memory.values if key is None else key(memory.values)
        return encoded_source(memory, memory.whole, keys)

    def _first(self, rows: int, source: Source | None) -> RecurrentState:
        assert isinstance(source, EncodedSource)
        return self.decoder.first(source.whole)

    def _pass(
        self,
        x: Tensor,
        before: RecurrentState,
        source: Source | None,
        counts: Sequence[int] | None,
        seen: list[Tensor] | None,
    ) -> tuple[Tensor, RecurrentState]:
        assert isinstance(source, EncodedSource)
        y, after = self.decoder(x.to(source.whole.dtype), before, source, counts, seen)
        return y, after


class RecurrentEncoderDecoder(RecurrentWriter):
    """Translates: one vector between reading and writing (M6), or attention as well (M7)."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__(config)
        config = self.config
        separate = config.source_vocabulary
        self.source_embed = Embedding(config, separate) if separate else None
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.head = Head(config, config.width)
        initialise(self)

    def encode(
        self,
        source: Tensor,
        lengths: Lengths = None,
        mask: Mask | None = None,
        *,
        source_lengths: Lengths = None,
    ) -> Memory:
        """Read a source (rows, positions); `source_lengths` is another name of `lengths`.

        Without attention one position is left of it: the vector that the decoder starts with.
        """
        lengths = either(lengths, source_lengths)
        if mask is not None:
            raise RegardError("a recurrent model reads all that stands before; leave out `mask`")
        x = (self.source_embed or self.embed)(source)
        real = None
        if lengths is not None:
            real = checked_lengths(lengths, *source.shape).to(source.device)
        with unmixed(x):
            values, whole = self.encoder(x, real)
        if self.config.attention == "none":
            return Memory(whole[:, None], None, whole)
        return Memory(values, None if real is None else Padding(real), whole)

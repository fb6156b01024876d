"""Recurrent models: what all of them share, and the language model (M5).

It reads one token at a time into its hidden vectors, and each of them tells the next token.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.models.masks import Mask
from regard.models.network import Network
from regard.models.protocol import Memory, State
from regard.models.recurrent.config import RecurrentConfig
from regard.models.recurrent.layers import Embedding, Head, Layers, dropped, initialise, unmixed
from regard.models.recurrent.state import HiddenState, RecurrentState
from regard.models.transformer.sources import Source
from regard.models.validation import Lengths, check_room, checked_lengths


class Recurrent(Network):
    """What both assemblies share."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config = config.resolved()
        self.embed = Embedding(self.config, self.config.vocabulary)

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
            raise RegardError("a recurrent model reads all that stands before; leave out `mask`")
        x = self.embed(tokens)
        rows, new = tokens.shape
        held = self._mine(state, rows)
        source = self._source(held, memory, rows)
        before = held.remembered if held is not None else RecurrentState()
        if not before.held:
            before = self._first(rows, source)
        counts = None
        if lengths is not None:
            real = checked_lengths(lengths, rows, new)
            counts = None if held is None else real.tolist()
        seen: list[Tensor] | None = [] if held is not None and held.return_attention else None
        with unmixed(x):
            y, after = self._pass(x, before, source, counts, seen)
        if held is not None:
            given, start = x.detach(), before.detached()

            def again(left: list[int]) -> RecurrentState:
                with torch.no_grad(), unmixed(given):
                    return self._pass(given, start, source, left, None)[1]

            held.take(after.detached(), counts or [new] * rows, again)
            held.source = source
            held.attention = self._seen(seen) if seen else None
        return dropped(y, self.config.output_dropout * self.training, self.config.variational)

    def start(
        self, batch_size: int, capacity: int, *, return_attention: bool = False
    ) -> HiddenState:
        """An empty state; it takes as much memory for any capacity."""
        if return_attention and self.config.attention == "none":
            raise RegardError("this model has no attention, so there is no attention to return")
        check_room(batch_size, capacity)
        begun = self._first(batch_size, None) if self.config.kind == "decoder" else RecurrentState()
        return HiddenState(self.config, batch_size, begun, return_attention)

    def resume(self, tensors: Sequence[Tensor]) -> HiddenState:
        """A state that remembers what another one's `tensors` did; of a language model."""
        parts = len(tensors) // self.config.layers
        held = [tuple(tensors[first : first + parts]) for first in range(0, len(tensors), parts)]
        return HiddenState(self.config, len(tensors[0]), RecurrentState(tuple(held)))

    def _mine(self, state: State | None, rows: int) -> HiddenState | None:
        """The state, if this model began it."""
        if state is None:
            return None
        if not isinstance(state, HiddenState):
            kind = type(state).__name__
            raise RegardError(f"a recurrent model continues a HiddenState, not a {kind}")
        state.check(self.config, rows, self.embed.tokens.weight)
        return state

    def _source(self, held: HiddenState | None, memory: Memory | None, rows: int) -> Source | None:
        """The source as the decoder sees it, where there is one."""
        raise NotImplementedError

    def _first(self, rows: int, source: Source | None) -> RecurrentState:
        """What is remembered before the first token."""
        raise NotImplementedError

    def _pass(
        self,
        x: Tensor,
        before: RecurrentState,
        source: Source | None,
        counts: Sequence[int] | None,
        seen: list[Tensor] | None,
    ) -> tuple[Tensor, RecurrentState]:
        """Embeddings (rows, new, width) -> what the output matrix reads, and what is remembered."""
        raise NotImplementedError

    def _seen(self, seen: Sequence[Tensor]) -> Tensor:
        """What `_pass` noted as (rows, layers, heads, new, positions): one look of one head."""
        return torch.cat(list(seen), dim=1)[:, None, None]


class RecurrentDecoder(Recurrent):
    """A language model (M5)."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__(config)
        config = self.config
        last = config.width if config.tied else config.hidden
        sizes = [*[config.hidden] * (config.layers - 1), last]
        self.decoder = Layers(config, config.width, sizes)
        self.head = Head(config, last)
        initialise(self)

    def _source(self, held: HiddenState | None, memory: Memory | None, rows: int) -> None:
        if memory is not None:
            raise RegardError("a language model reads no source; leave out `memory`")

    def _first(self, rows: int, source: Source | None) -> RecurrentState:
        return RecurrentState(self.decoder.blank(rows))

    def _pass(
        self,
        x: Tensor,
        before: RecurrentState,
        source: Source | None,
        counts: Sequence[int] | None,
        seen: list[Tensor] | None,
    ) -> tuple[Tensor, RecurrentState]:
        y, held = self.decoder(x, before.held, counts)
        return y, RecurrentState(held)

"""A gated linear recurrence, in the manner of minGRU (Feng 2024) and Mamba (Gu 2023).

Its gates depend on the tokens alone and not on the hidden vector before, so that training computes
all positions of a row at once (`scan.py`), where an LSTM takes one after another. It writes as a
recurrent model does: with one hidden vector for each layer, however long the text.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.errors import RegardError
from regard.models.convolution.state import LastInputs
from regard.models.kernels.dropout import Dropout
from regard.models.kernels.linear import Linear, product
from regard.models.linear_recurrence.config import LinearRecurrenceConfig
from regard.models.linear_recurrence.scan import scan
from regard.models.masks import Mask
from regard.models.network import Network
from regard.models.protocol import Memory, State
from regard.models.validation import Lengths, check_ids, check_room, checked_lengths

SPANS = 1.5, 64.0  # tokens over which hidden numbers average before training, from first to last


class GatedRecurrence(nn.Module):
    """h_t = (1 − z_t) ⊙ h_{t−1} + z_t ⊙ c_t; what comes out is W(h_t ⊙ SiLU(g_t)).

    z, c and g are products with the inputs, of which a short convolution mixes the last few.
    """

    def __init__(self, config: LinearRecurrenceConfig) -> None:
        super().__init__()
        width, hidden, kernel = config.width, config.hidden, config.kernel
        self.norm = nn.LayerNorm(width)
        # The last is of the token itself. Of three sizes, so that optimizers see no matrix in it.
        self.taps = nn.Parameter(torch.empty(kernel, 1, width))
        self.expand = Linear(width, 3 * hidden)
        self.contract = Linear(hidden, width)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, inputs: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x (rows, new, width) -> the same shape; inputs and hidden vectors, those before included.

        These are (rows, kernel − 1 + new, width) and (rows, 1 + new, hidden).
        """
        new = x.shape[1]
        inputs = torch.cat([inputs, self.norm(x).to(inputs.dtype)], dim=1)
        mixed = inputs[:, :new] * self.taps[0]
        for place in range(1, len(self.taps)):
            mixed = torch.addcmul(mixed, inputs[:, place : place + new], self.taps[place])
        z, c, g = self.expand(mixed).chunk(3, dim=-1)  # each (rows, new, hidden)
        # bfloat16 has no number between 0.996 and 1, so no memory of more than some 250 tokens.
        z, c = torch.sigmoid(z.to(h.dtype)), c.to(h.dtype)
        h = scan(1 - z, z * c, h[:, 0])
        return x + self.dropout(self.contract(h[:, 1:].to(g.dtype) * F.silu(g))), inputs, h


class GatedFeedForward(nn.Module):
    """x + W(SiLU(a) ⊙ b), where a and b are products with x."""

    def __init__(self, config: LinearRecurrenceConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.width)
        self.expand = Linear(config.width, 2 * config.feedforward)
        self.contract = Linear(config.feedforward, config.width)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.expand(self.norm(x)).chunk(2, dim=-1)  # each (rows, new, feedforward)
        return x + self.dropout(self.contract(F.silu(a) * b))


class Block(nn.Module):
    """A recurrence, then a feed-forward layer."""

    def __init__(self, config: LinearRecurrenceConfig) -> None:
        super().__init__()
        self.recurrence, self.feedforward = GatedRecurrence(config), GatedFeedForward(config)

    def forward(self, x: Tensor, inputs: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, inputs, h = self.recurrence(x, inputs, h)
        return self.feedforward(x), inputs, h


class Embedding(nn.Module):
    """Token ids to vectors."""

    def __init__(self, config: LinearRecurrenceConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.dropout = Dropout(config.dropout)
        self.scale = config.width**0.5

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens (rows, new) -> (rows, new, width)."""
        check_ids("token", tokens, self.tokens)
        return self.dropout(self.tokens(tokens) * self.scale)


class Head(nn.Module):
    """Hidden vectors to logits, by the embedding."""

    def __init__(self, config: LinearRecurrenceConfig) -> None:
        super().__init__()
        self.width = config.width
        self.norm = nn.LayerNorm(config.width)
        self.bias = nn.Parameter(torch.zeros(config.vocabulary))

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """x (..., width), embedding (vocabulary, width) -> logits."""
        return product(x, embedding, self.bias)


class LinearRecurrence(Network):
    """A language model."""

    def __init__(self, config: LinearRecurrenceConfig) -> None:
        super().__init__()
        self.config = config.resolved()
        self.embed = Embedding(self.config)
        self.blocks = nn.ModuleList(Block(self.config) for _ in range(config.layers))
        self.head = Head(self.config)
        initialise(self)

    def hidden(
        self,
        tokens: Tensor,
        memory: Memory | None = None,
        state: State | None = None,
        *,
        lengths: Lengths = None,
        mask: Mask | None = None,
    ) -> Tensor:
        """The last vectors (rows, new, width), of which the head makes logits."""
        if memory is not None:
            raise RegardError("a language model reads no source; leave out `memory`")
        if mask is not None:
            raise RegardError("a recurrence reads all that stands before; leave out `mask`")
        x = self.embed(tokens)
        rows, new = tokens.shape
        counts = None if lengths is None else checked_lengths(lengths, rows, new)
        mine = self._mine(state, rows)
        held = self._blank(rows) if mine is None else mine.held
        passed: list[Tensor] = []  # what is held, and the same after each token
        for block, inputs, h in zip(self.blocks, held[::2], held[1::2], strict=True):
            x, *more = block(x, inputs, h)
            passed += more
        if mine is not None:
            mine.take(passed, [new] * rows if counts is None else counts.tolist())
        return self.head.norm(x)

    def start(
        self, batch_size: int, capacity: int, *, return_attention: bool = False
    ) -> LastInputs:
        """An empty state; it takes as much memory for any capacity."""
        if return_attention:
            raise RegardError("this model has no attention, so there is no attention to return")
        check_room(batch_size, capacity)
        return LastInputs(self.config, self._blank(batch_size))

    def _blank(self, rows: int) -> list[Tensor]:
        """Of each layer its convolution's inputs before the first token, and its hidden vector.

        These are (rows, kernel − 1, width) and (rows, 1, hidden), which is float32 at least:
        rounding at each step would add up.
        """
        weight, config = self.embed.tokens.weight, self.config
        exact = torch.float32 if weight.element_size() < 4 else weight.dtype
        held: list[Tensor] = []
        for _ in self.blocks:
            shape = rows, config.kernel - 1, config.width
            held.append(torch.zeros(shape, dtype=weight.dtype, device=weight.device))
            held.append(torch.zeros(rows, 1, config.hidden, dtype=exact, device=weight.device))
        return held

    def _mine(self, state: State | None, rows: int) -> LastInputs | None:
        """The state, if this model began it."""
        if state is None:
            return None
        if not isinstance(state, LastInputs):
            kind = type(state).__name__
            raise RegardError(f"a gated linear recurrence continues LastInputs, not a {kind}")
        state.check(self.config, rows, self.embed.tokens.weight)
        return state


@torch.no_grad()
def initialise(module: nn.Module) -> None:
    """Embeddings as 1 / √width, matrices by Xavier, biases 0; gates by the spans of `SPANS`."""
    for part in module.modules():
        if isinstance(part, nn.Embedding):
            nn.init.normal_(part.weight, 0.0, part.embedding_dim**-0.5)
        elif isinstance(part, nn.Linear):
            nn.init.xavier_uniform_(part.weight)
            nn.init.zeros_(part.bias)
        elif isinstance(part, GatedRecurrence):
            nn.init.normal_(part.taps, 0.0, 0.1)
            part.taps[-1] += 1.0
    for part in module.modules():
        if isinstance(part, GatedRecurrence):
            bias = part.expand.bias[: len(part.expand.bias) // 3]
            low, high = map(math.log, SPANS)
            # On the CPU: of a range on `meta` torch makes its compiler's numbers, for 1.3 s.
            spans = torch.linspace(low, high, len(bias), device="cpu").exp()
            bias.copy_(-torch.log(spans - 1))  # then z = 1 / span

"""Where a token stands (M16). Each scheme uses one of three hooks and leaves the others alone:

add   to the embeddings      sinusoidal, learned
turn  queries and keys       rotary
bias  the scores             ALiBi, relative (T5)

Positions are given, never assumed to start at 0, so every scheme works in the middle of a
sequence. Fixed tables are computed from their formula when needed: nothing to store, no limit on
length, the same on the meta device.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.models.masks import QueryKeyRange
from regard.models.transformer.config import RotaryScaling, TransformerConfig


class RotaryTables(NamedTuple):
    """Rotates pairs of features by their position's angle; worked out once, used by every layer."""

    cos: Tensor  # (rows or 1, 1, new, head_width / 2)
    sin: Tensor

    def __call__(self, heads: Tensor) -> Tensor:
        """Turn queries or keys (rows, heads, new, head_width), pairing feature i with i + half."""
        cos, sin = self.cos.to(heads.dtype), self.sin.to(heads.dtype)
        left, right = heads.chunk(2, dim=-1)
        return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


class Positions(nn.Module):
    """No positions at all, and the interface of every scheme."""

    limit: int | None = None  # positions from here on do not exist

    def add(self, embeddings: Tensor, positions: Tensor) -> Tensor:
        """Embeddings (rows, new, width) at `positions` (rows or 1, new), with the place added."""
        return embeddings

    def turn(self, positions: Tensor) -> RotaryTables | None:
        """How to turn queries and keys at `positions` (rows or 1, new), if at all."""
        return None

    def bias(self, span: QueryKeyRange) -> Tensor | None:
        """What to add to the scores, (rows or 1, heads, queries, keys), if anything."""
        return None


def sinusoid(positions: Tensor, width: int, halves: bool = False) -> Tensor:
    """sin(n / 10000^(i/D)) at even i and cos(n / 10000^((i-1)/D)) at odd i; (..., width).

    `halves` puts all sines before all cosines, as Marian does.
    """
    even = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32)
    angles = positions[..., None] / 10000 ** (even / width)  # (..., width / 2)
    if halves:
        return torch.cat((angles.sin(), angles.cos()), dim=-1)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


class Sinusoidal(Positions):
    """The fixed waves of 2017: bounded, unique, and a shift is a rotation."""

    def __init__(self, width: int, halves: bool = False) -> None:
        super().__init__()
        self.width, self.halves = width, halves

    def add(self, embeddings: Tensor, positions: Tensor) -> Tensor:
        return embeddings + sinusoid(positions, self.width, self.halves).to(embeddings.dtype)


class Learned(Positions):
    """A trained vector for each position up to a limit (GPT-2, BERT)."""

    def __init__(self, context: int, width: int) -> None:
        super().__init__()
        self.limit = context
        self.table = nn.Embedding(context, width)

    def add(self, embeddings: Tensor, positions: Tensor) -> Tensor:
        # Real positions are checked by the assembly; padding behind them may stick out.
        return embeddings + self.table(positions.clamp(max=self.table.num_embeddings - 1))


class Rotary(Positions):
    """Queries and keys are turned by their position, so q·k depends on the distance alone."""

    def __init__(self, head_width: int, base: float, scaling: RotaryScaling | None = None) -> None:
        super().__init__()
        self.head_width, self.base, self.scaling = head_width, base, scaling

    def frequencies(self, device: torch.device) -> Tensor:
        """Radians per position for each pair of features; (head_width / 2,)."""
        even = torch.arange(0, self.head_width, 2, device=device, dtype=torch.float32)
        frequencies = 1.0 / self.base ** (even / self.head_width)
        if self.scaling is None:
            return frequencies
        slowed = frequencies / self.scaling.factor
        if self.scaling.kind == "linear":
            return slowed
        # llama3: a wave that fits `high` times into the original context keeps its frequency,
        # one that fits less than `low` times is slowed down, between them it is blended.
        low, high = self.scaling.low, self.scaling.high
        turns = self.scaling.original_context * frequencies / (2 * math.pi)
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        return kept * frequencies + (1 - kept) * slowed

    def turn(self, positions: Tensor) -> RotaryTables:
        angles = positions[..., None] * self.frequencies(positions.device)  # (rows or 1, new, half)
        angles = angles[:, None]  # (rows or 1, 1, new, half)
        return RotaryTables(angles.cos(), angles.sin())


class Alibi(Positions):
    """Each head subtracts its own slope times the distance."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def slopes(self) -> list[float]:
        """2^(-8/h), 2^(-16/h), ...; for other counts, every second slope of twice the power."""
        power = 2 ** math.floor(math.log2(self.heads))
        slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
        finer = [2 ** (-8 * (i + 1) / (2 * power)) for i in range(0, 2 * power, 2)]
        return slopes + finer[: self.heads - power]

    def bias(self, span: QueryKeyRange) -> Tensor:
        distance = (span.positions[..., None] - span.key_positions()).abs()  # (rows|1, q, keys)
        slopes = torch.tensor(self.slopes(), device=span.device, dtype=torch.float32)  # (heads,)
        return -slopes[:, None, None] * distance[:, None]  # (rows or 1, heads, queries, keys)


class Relative(Positions):
    """A learned bias for each head and bucket of distances (T5); far distances share a bucket."""

    def __init__(self, heads: int, buckets: int, distance: int, bidirectional: bool) -> None:
        super().__init__()
        self.buckets, self.distance, self.bidirectional = buckets, distance, bidirectional
        self.table = nn.Embedding(buckets, heads)

    def bucket(self, offset: Tensor) -> Tensor:
        """The bucket of `offset` = key position - query position."""
        buckets, behind = self.buckets, -offset
        side: Tensor | int = 0
        if self.bidirectional:  # half of the buckets for keys ahead
            buckets //= 2
            side, behind = (offset > 0) * buckets, offset.abs()
        behind = behind.clamp(min=0)
        exact = buckets // 2  # the near half: one bucket per distance; the far half: logarithmic
        growth = torch.log(behind.clamp(min=1).float() / exact) / math.log(self.distance / exact)
        far = exact + (growth * (buckets - exact)).long()
        return side + torch.where(behind < exact, behind, far.clamp(max=buckets - 1))

    def bias(self, span: QueryKeyRange) -> Tensor:
        offset = span.key_positions() - span.positions[..., None]  # (rows or 1, queries, keys)
        return self.table(self.bucket(offset)).permute(0, 3, 1, 2)  # (rows|1, heads, queries, keys)


SCHEMES: dict[str, Callable[[TransformerConfig, bool], Positions]] = {
    "none": lambda config, bidirectional: Positions(),
    "sinusoidal": lambda config, bidirectional: Sinusoidal(config.width),
    "sinusoidal-halves": lambda config, bidirectional: Sinusoidal(config.width, halves=True),
    "learned": lambda config, bidirectional: Learned(config.context, config.width),
    "rotary": lambda config, bidirectional: Rotary(
        config.head_width, config.rotary_base, config.rotary_scaling
    ),
    "alibi": lambda config, bidirectional: Alibi(config.heads),
    "relative": lambda config, bidirectional: Relative(
        config.heads, config.relative_buckets, config.relative_distance, bidirectional
    ),
}

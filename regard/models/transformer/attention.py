"""Attention (M11–M15): similarity, softmax, weighted sum; then the same over heads.

`Attend` is the one place where attention weights exist. It takes queries, keys and values from
anywhere: `Attend(Dot())(x, x, x)` is the parameter-free softmax(XXᵀ)X, `Attend(Additive(...))` is
Bahdanau's, and `Attention` wraps it in projections to heads. It runs the fastest kernel that is
right and never builds the weights; a recording tape asks `weigh` for them.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.errors import RegardError
from regard.models.kernels.dropout import dropout
from regard.models.kernels.hooks import Part
from regard.models.kernels.linear import Linear
from regard.models.masks import AttentionMask, Mask, QueryKeyRange, resolve_mask
from regard.models.transformer.positions import RotaryTables


class Similarity(nn.Module):
    """How well a query matches a key."""

    listeners = 0  # see `Part`

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """(..., queries, query_width), (..., keys, key_width) -> scores (..., queries, keys)."""
        raise NotImplementedError


class Dot(Similarity):
    """q·k: no parameters, one matrix product."""

    def scale(self, width: int) -> float:
        return 1.0

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        return queries @ keys.mT * self.scale(queries.shape[-1])


class ScaledDot(Dot):
    """q·k / √d: entries of unit variance give var(q·k) = d, which would saturate the softmax."""

    def scale(self, width: int) -> float:
        return width**-0.5


class Additive(Similarity):
    """v·tanh(Wq + Uk), a small network (Bahdanau 2014); query and key widths may differ.

    With a `key_width` of 0 keys come as Uk: who asks many times multiplies them once.
    """

    def __init__(self, query_width: int, key_width: int, hidden: int) -> None:
        super().__init__()
        self.query = Linear(query_width, hidden, bias=False)
        self.key = Linear(key_width, hidden) if key_width else nn.Identity()
        self.score = Linear(hidden, 1, bias=False)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        # (..., queries, 1, hidden) + (..., 1, keys, hidden)
        mixed = self.query(queries)[..., :, None, :] + self.key(keys)[..., None, :, :]
        return self.score(torch.tanh(mixed)).squeeze(-1)  # (..., queries, keys)


class Weights(NamedTuple):
    """What attention does not keep: each (rows, heads, queries, keys)."""

    scores: Tensor  # the similarity, before bias and mask
    allowed: Tensor  # True where the query may see the key
    probabilities: Tensor  # each row sums to 1, or is 0 where nothing is allowed


@dataclass(frozen=True, eq=False)
class Look:
    """One call of one attention; heads come second where there are any."""

    queries: Tensor  # (rows, heads, queries, width)
    keys: Tensor  # (rows, kv_heads, keys, width)
    values: Tensor  # (rows, kv_heads, keys, width)
    scores: Tensor  # (rows, heads, queries, keys): similarity, before bias and mask
    bias: Tensor | None  # (rows or 1, heads, queries, keys): what positions added
    allowed: Tensor  # (rows, heads, queries, keys): the mask, True where the query may see
    probabilities: Tensor  # (rows, heads, queries, keys)


def _as_they_are(probabilities: Tensor) -> Tensor:
    return probabilities


class Attend(nn.Module):
    """Y = softmax(similarity(Q, K) + bias, over what the mask allows) V."""

    def __init__(self, similarity: Similarity | None = None, dropout: float = 0.0) -> None:
        super().__init__()
        self.similarity = similarity or ScaledDot()
        self.dropout = dropout
        self.probabilities = Part(_as_they_are)

    def forward(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        over: AttentionMask | Mask | None = None,
    ) -> Tensor:
        """Attend with any number of leading dimensions; with heads, keys may have fewer of them.

        queries (..., queries, width), keys (..., keys, width), values (..., keys, value_width)
        -> (..., queries, value_width). A query that may see nothing gets zeros.
        """
        overlay = self.overlay(queries, keys, over)
        share = self.dropout if self.training else 0.0
        if not isinstance(self.similarity, Dot) or self._written_out:
            found = self.probabilities(self.weigh(queries, keys, overlay).probabilities)
            return dropout(found, share).to(values.dtype) @ _repeated(values, queries)
        mixed = F.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=_shaped(overlay.table, queries),
            dropout_p=share,
            is_causal=overlay.triangle,
            scale=self.similarity.scale(queries.shape[-1]),
            enable_gqa=_grouped(queries, keys),
        )
        blind = _shaped(overlay.blind, queries)
        return mixed if blind is None else mixed.masked_fill(blind, 0.0)

    @property
    def _written_out(self) -> bool:
        """Whether somebody reads or changes what the kernel does not show."""
        return bool(self.similarity.listeners or self.probabilities.listeners)

    def weigh(
        self, queries: Tensor, keys: Tensor, over: AttentionMask | Mask | None = None
    ) -> Weights:
        """The scores, mask and probabilities that `forward` implies, written out."""
        overlay = self.overlay(queries, keys, over)
        scores = self.similarity(queries, _repeated(keys, queries))  # (..., queries, keys)
        if scores.dtype in (torch.float16, torch.bfloat16):  # so that rows do sum to 1
            scores = scores.float()
        allowed = _shaped(overlay.allowed(), queries)
        assert allowed is not None
        bias = _shaped(overlay.bias, queries)
        biased = scores if bias is None else scores + bias
        # The lowest finite number, then zero: a row with nothing allowed must not become NaN.
        floor = torch.finfo(scores.dtype).min
        probabilities = biased.masked_fill(~allowed, floor).softmax(-1).masked_fill(~allowed, 0.0)
        return Weights(scores, allowed.expand_as(scores), probabilities)

    @torch.no_grad()
    def explain(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        over: AttentionMask | Mask | None = None,
    ) -> Look:
        """What a recording keeps of a call, worked out again from what the kernel was given."""
        overlay = self.overlay(queries, keys, over)
        weights = self.weigh(queries, keys, overlay)
        bias = None if overlay.bias is None else overlay.bias.detach()
        # Copies, since a cache goes on changing the keys and values it lends.
        q, k, v = (t.detach().clone() for t in (queries, keys, values))
        return Look(q, k, v, weights.scores, bias, weights.allowed, weights.probabilities)

    def overlay(
        self, queries: Tensor, keys: Tensor, over: AttentionMask | Mask | None
    ) -> AttentionMask:
        """A bare mask laid over these queries and keys, the first query standing at 0."""
        if isinstance(over, AttentionMask):
            return over
        rows = queries.shape[0] if queries.dim() > 2 else 1
        return resolve_mask(
            over, QueryKeyRange.of(rows, queries.shape[-2], keys.shape[-2], queries.device)
        )


def _grouped(queries: Tensor, keys: Tensor) -> bool:
    return queries.dim() > 3 and queries.shape[-3] != keys.shape[-3]


def _repeated(heads: Tensor, queries: Tensor) -> Tensor:
    """Grouped keys or values with each head repeated for the query heads that share it."""
    if not _grouped(queries, heads):
        return heads
    return heads.repeat_interleave(queries.shape[-3] // heads.shape[-3], dim=-3)


def _shaped(table: Tensor | None, queries: Tensor) -> Tensor | None:
    """A table (rows, heads, queries, keys) with as many dimensions as `queries` has."""
    if table is None:
        return None
    if queries.dim() < 4:
        table = table[:, 0] if queries.dim() == 3 else table[0, 0]
    else:
        table = table[(slice(None),) + (None,) * (queries.dim() - 4)]
    return table if table.dtype == torch.bool else table.to(queries.dtype)


def _folded(queries: Tensor, sources: int) -> Tensor:
    """The queries of rows that look at the same source, side by side, as those of one row.

    So beams share the keys and values of their source. (rows, heads, new, width) ->
    (sources, heads, rows / sources · new, width).
    """
    if len(queries) == sources:
        return queries
    return queries.unflatten(0, (sources, -1)).transpose(1, 2).flatten(2, 3)


def _unfolded(folded: Tensor, rows: int) -> Tensor:
    """What `_folded` put together, apart again: (rows, heads, new, any)."""
    if len(folded) == rows:
        return folded
    return folded.unflatten(2, (rows // len(folded), -1)).transpose(1, 2).flatten(0, 1)


class KeysValues(NamedTuple):
    """What attention looks at; each (rows, kv_heads, keys, head_width)."""

    keys: Tensor
    values: Tensor


class Slot(Protocol):
    """One layer's place in a State."""

    def extend(self, new: KeysValues) -> KeysValues:
        """Keep the new keys and values; give back those of the whole prefix and the new."""
        ...


class Attention(nn.Module):
    """Multi-head attention: each head attends in its own projection, then all are mixed.

    With `source_width` it is cross-attention: `read` turns a source into keys and values once,
    and `forward` is given them. Without, queries, keys and values come from x in one product.
    Fewer `kv_heads` than `heads` share each key and value head among several query heads.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kv_heads: int = 0,
        head_width: int = 0,
        source_width: int = 0,
        bias: bool = True,
        similarity: Dot | None = None,
        dropout: float = 0.0,
        normalise: float = 0.0,
    ) -> None:
        """`normalise`: the epsilon of an RMSNorm over each query and key head; 0 for none."""
        super().__init__()
        if heads % (kv_heads or heads) or (not head_width and width % heads):
            raise RegardError(
                f"{heads} heads must divide width {width}, and {kv_heads or heads} key/value heads "
                "must divide them"
            )
        self.heads, self.kv_heads = heads, kv_heads or heads
        self.head_width = head_width or width // heads
        mine, theirs = self.heads * self.head_width, self.kv_heads * self.head_width
        if source_width:
            self.query = Linear(width, mine, bias)
            self.key_value = Linear(source_width, 2 * theirs, bias)
        else:
            self.query_key_value = Linear(width, mine + 2 * theirs, bias)
        if normalise:
            self.query_norm = nn.RMSNorm(self.head_width, eps=normalise)
            self.key_norm = nn.RMSNorm(self.head_width, eps=normalise)
        self.normalise = bool(normalise)
        self.attend = Attend(similarity, dropout)
        self.output = Linear(mine, width, bias)

    def forward(
        self,
        x: Tensor,
        over: AttentionMask | Mask | None = None,
        turn: RotaryTables | None = None,
        slot: Slot | None = None,
        source: KeysValues | None = None,
        seen: list[Tensor] | None = None,
    ) -> Tensor:
        """x (rows, new, width) -> (rows, new, width).

        `turn` rotates queries and keys, `slot` holds the prefix's keys and values, `source` (for
        cross-attention) is what `read` gave; it may have fewer rows, each for as many rows of x
        as stand side by side. Its weights (rows, heads, new, keys) are added to `attention`.
        """
        if source is not None:
            queries = self._split(self.query(x), self.heads)
            queries = self.query_norm(queries) if self.normalise else queries
            return self._looked(queries, source, over, seen)
        sizes = [h * self.head_width for h in (self.heads, self.kv_heads, self.kv_heads)]
        q, k, v = self.query_key_value(x).split(sizes, dim=-1)
        queries = self._split(q, self.heads)  # (rows, heads, new, head_width)
        keys, values = self._split(k, self.kv_heads), self._split(v, self.kv_heads)
        if self.normalise:
            queries, keys = self.query_norm(queries), self.key_norm(keys)
        if turn is not None:
            queries, keys = turn(queries), turn(keys)
        held = KeysValues(keys, values)
        if slot is not None:
            held = slot.extend(held)  # (rows, kv_heads, prefix + new, head_width)
        mixed = self.attend(queries, *held, over)  # (rows, heads, new, head_width)
        return self.output(mixed.transpose(1, 2).flatten(2))  # (rows, new, width)

    def _looked(
        self,
        queries: Tensor,
        source: KeysValues,
        over: AttentionMask | Mask | None,
        seen: list[Tensor] | None,
    ) -> Tensor:
        """Cross-attention: queries (rows, heads, new, head_width) -> (rows, new, width)."""
        rows, sources = len(queries), len(source.keys)
        folded = _folded(queries, sources)  # (sources, heads, rows of each · new, head_width)
        if seen is not None:
            weights = self.attend.weigh(folded, source.keys, over).probabilities
            seen.append(_unfolded(weights, rows))  # (rows, heads, new, keys)
        mixed = _unfolded(self.attend(folded, *source, over), rows)
        return self.output(mixed.transpose(1, 2).flatten(2))

    def read(self, source: Tensor) -> KeysValues:
        """The keys and values of a source (rows, keys, source_width), for cross-attention."""
        keys, values = self.key_value(source).chunk(2, dim=-1)
        keys, values = self._split(keys, self.kv_heads), self._split(values, self.kv_heads)
        return KeysValues(self.key_norm(keys) if self.normalise else keys, values)

    def query_rows(self) -> Tensor:
        """The rows of the projection that make the queries; (heads * head_width, width)."""
        if hasattr(self, "query"):
            return self.query.weight
        return self.query_key_value.weight[: self.heads * self.head_width]

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return x.unflatten(-1, (heads, self.head_width)).transpose(1, 2)

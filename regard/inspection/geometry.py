"""LayerNorm's geometry in attention (M18): which keys can a query select?

LayerNorm without its affine part puts every key on one sphere: orthogonal to the all-ones vector,
with norm √d. There each distinct key wins with itself as the query, since k·k = d > k·k' by
Cauchy–Schwarz. Without it a key inside the convex hull of the others never has the largest q·k.
A gain without zeros, a bias or an invertible projection leaves every key selectable; a projection
to a narrower head need not.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from regard.errors import RegardError

# A key that could win only by a smaller angle (in radians) counts as one that cannot: the nearest
# point of a hull is known to about 1e-16, so below 1e-8 its direction would be rounding.
NARROWEST = 1e-7


class Geometry(NamedTuple):
    """Where keys lie, each (keys,) in float64; LayerNorm with epsilon 0 gives 0 and 1."""

    along_ones: Tensor  # k·1 / √d, the signed length along the all-ones direction
    relative_norm: Tensor  # |k| / √d


def normalised(keys: Tensor, epsilon: float = 0.0) -> Tensor:
    """LayerNorm without its affine part: (keys, width) -> (keys, width)."""
    _check(keys)
    flat = (keys == keys[:, :1]).all(-1).nonzero().flatten()  # those with no variance
    if epsilon < 0:
        raise RegardError(f"epsilon {epsilon} is negative: give 0 or a small positive number.")
    if epsilon == 0 and len(flat):
        raise RegardError(f"key {int(flat[0])} has no variance: give a positive epsilon.")
    centred = keys - keys.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + epsilon).sqrt()


def deviation(keys: Tensor) -> Geometry:
    """How far any keys (keys, width) are from where LayerNorm would put them."""
    keys = _check(keys)
    root = keys.shape[1] ** 0.5
    return Geometry(keys.sum(-1) / root, torch.linalg.vector_norm(keys, dim=-1) / root)


def selecting_query(keys: Tensor, index: int) -> Tensor | None:
    """The query whose dot product with key `index` is strictly the largest, or None.

    keys (keys, width) -> (width,), of norm 1, in float64 on the CPU: a narrow win would not
    survive rounding. Of all such queries it wins most clearly: the least q·(k - k') / |k - k'|
    over the other keys k' is as large as it can be, the distance from 0 to the hull of _rivals.
    """
    keys = _check(keys)
    if not 0 <= index < len(keys):
        raise RegardError(f"key {index} does not exist: there are {len(keys)} keys, from 0.")
    rivals = _rivals(keys, index)
    query = -_nearest(rivals) if len(rivals) else torch.ones(keys.shape[1], dtype=torch.float64)
    return query / torch.linalg.vector_norm(query) if _wins(query, rivals) else None


def selectable(keys: Tensor) -> Tensor:
    """Which keys (keys, width) some query selects: (keys,) of bool."""
    keys = _check(keys)
    centre = keys.mean(0)
    verdicts = []
    for index, key in enumerate(keys):
        rivals = _rivals(keys, index)
        # The key as its own query settles most, with LayerNorm all, for one product each.
        easy = _wins(key, rivals) or _wins(key - centre, rivals)
        verdicts.append(easy or _wins(-_nearest(rivals), rivals))
    return torch.tensor(verdicts, dtype=torch.bool)


def _check(keys: Tensor) -> Tensor:
    """The keys in float64 on the CPU, if they are a table of finite numbers."""
    if keys.dim() != 2 or not keys.shape[1]:
        raise RegardError(f"keys of shape {tuple(keys.shape)}: give them as (keys, width).")
    if not keys.isfinite().all():
        raise RegardError("keys hold a value that is not finite: leave out what NaN or inf made.")
    return keys.detach().cpu().double()


def _rivals(keys: Tensor, index: int) -> Tensor:
    """The directions from one key to the others: (keys - 1, width), of norm 1, or 0 if equal.

    Only directions decide who wins, so lengths go: then no tolerance depends on a scale.
    """
    away = torch.cat([keys[:index], keys[index + 1 :]]) / 2 - keys[index] / 2  # / 2: no overflow
    largest = away.abs().amax(-1, keepdim=True)
    away = away / torch.where(largest > 0, largest, 1.0)  # no underflow in the squares
    return torch.nn.functional.normalize(away, dim=-1)


def _wins(query: Tensor, rivals: Tensor) -> bool:
    """Whether the query leads away from every rival."""
    return bool((rivals @ query < -NARROWEST * torch.linalg.vector_norm(query)).all())


def _nearest(points: Tensor) -> Tensor:
    """The point nearest to 0 in the convex hull of points (points, width): Wolfe 1976.

    The corral is a set of points whose affine hull has its nearest point inside their convex hull.
    Each turn adds the point furthest down and drops those that then get a weight below 0; the
    norm falls each turn, so no corral comes twice and the search ends.
    """
    corral, weights = torch.tensor([0]), torch.ones(1, dtype=torch.float64)
    nearest = points[0]
    while (norm := nearest @ nearest) > NARROWEST**2:
        lengths = points @ nearest
        newest = lengths.argmin()
        if lengths[newest] >= (1 - 1e-10) * norm or newest in corral:
            break
        corral = torch.cat([corral, newest[None]])
        weights = torch.cat([weights, weights.new_zeros(1)])
        while (aim := _affine(points[corral])).min() < 0:
            # Go from the weights towards the aim until the first of them is 0, and drop that one.
            steps = torch.where(aim < 0, weights / (weights - aim), torch.inf)
            first = steps.argmin()
            weights = (weights + steps[first] * (aim - weights)).clamp(min=0)
            kept = torch.arange(len(corral)) != first
            corral, weights = corral[kept], weights[kept]
        weights = aim
        candidate = weights @ points[corral]
        if candidate @ candidate >= norm:
            break
        nearest = candidate
    return nearest


def _affine(points: Tensor) -> Tensor:
    """The weights, of sum 1, of the point nearest to 0 in the affine hull of points."""
    first, others = points[0], points[1:]
    rest = torch.linalg.lstsq((others - first).T, -first[:, None]).solution[:, 0]
    return torch.cat([1 - rest.sum(0, keepdim=True), rest])

"""How quality changes along a text: the loss by position in rows that are longer than trained on.

Every row begins anew, so position n has n − 1 tokens before it; buckets double in size.
"""

from itertools import pairwise

import numpy as np
import torch
from torch.nn import functional as F

from regard.data.token_files import Tokens
from regard.errors import RegardError
from regard.models.config import Ability
from regard.models.network import SequenceModule
from regard.text.specials import BOS, PAD
from regard.training.validation import at_rest

ROWS = 64
TOGETHER = 1 << 13  # tokens computed at once, with the logits of all of them
FIRST = 16  # positions of the first bucket


def buckets(longest: int) -> list[tuple[int, int]]:
    """(1, 16), (17, 32), (33, 64), … positions from and to, up to `longest`."""
    ends = [0, min(FIRST, longest)]
    while ends[-1] < longest:
        ends.append(min(2 * ends[-1], longest))
    return [(low + 1, high) for low, high in pairwise(ends)]


def by_position(module: SequenceModule, tokens: Tokens, longest: int) -> list[float]:
    """The mean loss in nats of each of the buckets; fewer where the model has no room for all."""
    starts = np.unique(np.arange(ROWS) * max(len(tokens) - longest - 1, 0) // ROWS)
    ids = torch.from_numpy(tokens.rows(starts, longest + 1, PAD))
    sums, asked = np.zeros(longest), np.zeros(longest)
    with at_rest(module):
        for some in ids.split(max(1, TOGETHER // longest)):
            given, wanted = some[:, :-1].clone(), some[:, 1:]
            if Ability.CARRY in module.config.abilities:
                given[:, 0] = BOS  # as where it was trained to begin anew
            found = _losses(module, given, wanted)
            real = ((wanted != PAD) & (wanted != BOS)).numpy()
            sums += np.where(real, found, 0.0).sum(0)
            asked += real.sum(0)
    spans = [(slice(low - 1, high)) for low, high in buckets(longest)]
    means = [float(sums[span].sum() / max(asked[span].sum(), 1)) for span in spans]
    return means[: len(_finite(means))]


def _losses(module: SequenceModule, given: torch.Tensor, wanted: torch.Tensor) -> np.ndarray:
    """The loss at each position, (rows, positions); NaN from where a model has no more room."""
    positions = given.shape[1]
    while True:
        try:
            logits = module(given[:, :positions].to(module.device)).float()
            break
        except RegardError:  # a learned table of positions has an end
            positions //= 2
            if not positions:
                raise
    losses = F.cross_entropy(
        logits.flatten(0, 1), wanted[:, :positions].to(module.device).flatten(), reduction="none"
    )
    found = np.full(given.shape, np.nan)
    found[:, :positions] = losses.view(-1, positions).cpu().numpy()
    return found


def _finite(values: list[float]) -> list[float]:
    """Those before the first that is none."""
    end = next((i for i, value in enumerate(values) if np.isnan(value)), len(values))
    return values[:end]

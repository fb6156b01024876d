"""How far back a model really uses context: the loss of the same tokens, given fewer and more.

Of a text, each of some target tokens is predicted from the last 1, 2, 4, … tokens before it and
from nothing else. The targets are the same for every length and every model, so two losses differ
by nothing but what was read. Of pairs, each target is predicted from its own beginning and from the
first 1, 2, 4, … tokens of the source: how much of a source a model makes use of.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data.batch import padded
from regard.data.readers.pairs import EncodedPairs
from regard.data.token_files import Tokens
from regard.models.config import Ability
from regard.models.kernels.attention import any_shape
from regard.models.network import SequenceModule
from regard.text.specials import BOS, EOS, PAD
from regard.training.validation import at_rest

TARGETS = 512  # tokens of a text
PAIRS = 256
TOGETHER = 1 << 14  # tokens computed at once
MOST = 0.95  # of all that context gives
NOTHING = 1e-3  # nats: a smaller gain is rounding (a bigram's was 1e-7), not use


def powers(most: int) -> list[int]:
    """1, 2, 4, … up to `most`."""
    return [1 << i for i in range(most.bit_length())] if most > 0 else []


def places(tokens: Tokens, longest: int, wanted: int = TARGETS) -> np.ndarray:
    """Where the targets stand (targets,): evenly spread, each with `longest` tokens before it."""
    room = len(tokens) - longest
    spread = longest + np.unique(np.arange(wanted) * max(room, 0) // wanted)
    ids = tokens.rows(spread, 1, PAD)[:, 0]
    return spread[(ids != BOS) & (ids != PAD)]  # that a text begins is no news


def by_context(
    module: SequenceModule, tokens: Tokens, targets: np.ndarray, lengths: Sequence[int]
) -> list[float]:
    """The mean loss of the targets, in nats, given so many tokens before each."""
    found = []
    with at_rest(module), any_shape():
        for length in lengths:
            rows = torch.from_numpy(tokens.rows(targets - length, length + 1, PAD))
            total = 0.0
            for some in rows.split(max(1, TOGETHER // length)):  # (rows, length + 1)
                total += _last_loss(module, some[:, :-1], some[:, -1])
            found.append(total / len(targets))
    return found


def _last_loss(module: SequenceModule, given: Tensor, wanted: Tensor) -> float:
    """The summed loss of what follows each row: given (rows, length), wanted (rows,)."""
    if Ability.CARRY in module.config.abilities:  # it begins with <s>, wherever a text is cut
        given = F.pad(given, (1, 0), value=BOS)
    logits = module(given.to(module.device), last=True)[:, 0].float()  # (rows, vocabulary)
    return float(F.cross_entropy(logits, wanted.to(module.device), reduction="sum"))


def long_sources(pairs: EncodedPairs, wanted: int = PAIRS) -> np.ndarray:
    """The pairs with the longest sources (chosen,), at most a quarter of all."""
    order = np.argsort(-pairs.lengths[0], kind="stable")
    return order[: max(1, min(wanted, len(pairs) // 4))]


def by_source(
    module: SequenceModule, pairs: EncodedPairs, chosen: np.ndarray, lengths: Sequence[int]
) -> list[float]:
    """The mean loss of all tokens of the chosen targets, given the first tokens of each source."""
    found = []
    targets = sorted(chosen.tolist(), key=lambda i: -len(pairs.targets[i]))
    with at_rest(module), any_shape():
        for length in lengths:
            total, asked = 0.0, 0
            for first in range(0, len(targets), 64):
                some = targets[first : first + 64]
                cut = [np.append(pairs.sources[i][:-1][:length], EOS) for i in some]
                total += _target_loss(module, cut, [pairs.targets[i] for i in some])
                asked += sum(len(pairs.targets[i]) - 1 for i in some)
            found.append(total / asked)
    return found


def _target_loss(
    module: SequenceModule, sources: list[np.ndarray], targets: list[np.ndarray]
) -> float:
    """The summed loss of targets (with <s> and </s>), given sources."""
    read, lengths = padded(sources)
    written, _ = padded(targets)
    memory = module.encode(read.to(module.device), lengths)
    logits = module(written[:, :-1].to(module.device), memory).float()
    wanted = written[:, 1:].to(module.device)
    return float(
        F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=PAD, reduction="sum")
    )


def used(lengths: Sequence[float], losses: Sequence[float], share: float = MOST) -> float:
    """How many tokens give this share of all that the best length gives over the first.

    Between two lengths that were measured it is read off a straight line, over their logarithms.
    """
    if losses[0] - min(losses) < NOTHING:
        return lengths[0]
    wanted = losses[0] - share * (losses[0] - min(losses))
    i = next(i for i, loss in enumerate(losses) if loss <= wanted)
    if not i:
        return lengths[0]
    part = (losses[i - 1] - wanted) / (losses[i - 1] - losses[i])
    return float(lengths[i - 1] * (lengths[i] / lengths[i - 1]) ** part)

"""How far back a loss is felt (M5): gradients of a recurrent language model through time.

They are products of as many matrices as there are steps between: they vanish or explode, unless
gates keep them near 1. What is measured changes nothing of the model, and draws nothing at random.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data.feeds.stream import TextFeed
from regard.data.token_files import Tokens
from regard.models.recurrent.model import RecurrentDecoder
from regard.text.specials import BOS

Record = Callable[[], dict[str, Any]]
ROWS = 8
LONGEST = 128  # steps that are gone back


def recorder(module: RecurrentDecoder, feed: TextFeed) -> Record:
    """A function that measures gradients through time for the log, on a few rows of the held-out
    text, or of the training text if nothing is held out."""
    known = feed.valid if len(feed.valid) else feed.train
    steps = min(feed.context, LONGEST, len(known) - 1)
    tokens = torch.from_numpy(_rows(known, steps))

    def record() -> dict[str, Any]:
        norms = gradient_norms(module, tokens.to(module.device), steps)
        # JSON has no infinity; where the gradient is no number, the log says null.
        return {"norms": [float(f"{n:.4g}") if np.isfinite(n) else None for n in norms]}

    return record


def _rows(known: Tokens, steps: int) -> np.ndarray:
    """Rows evenly spread over a text: `steps` tokens, the one to be told behind them, and as many
    before them to remember, where there are."""
    size = min(2 * steps, len(known) - 1) + 1
    rows = []
    # The first <s> may be the only one, which training never showed: it would be remembered wrong.
    first = min(1, len(known) - size)
    for start in np.linspace(first, len(known) - size, ROWS).astype(np.int64).tolist():
        row = known.read(start, start + size)
        if row[-1] == BOS and start:  # that a document begins is no news
            row = known.read(start - 1, start - 1 + size)
        rows.append(row.astype(np.int64))
    return np.stack(rows)


def gradient_norms(module: RecurrentDecoder, tokens: Tensor, steps: int) -> list[float]:
    """tokens (rows, new) -> for k = 0 … steps − 1 the norm of the gradient of the last token's loss
    with respect to all that the model remembered k tokens before the one that tells it.

    That is h of every layer, of an LSTM also c, taken as one vector. Over rows it is the root of
    the mean square, as independent rows add up in a step: one that explodes is enough for the
    whole, and the curve vanishes only where all of them do.
    """
    # A copy, in float32: the module keeps its gradients, modes and hooks.
    still = deepcopy(module).float().eval().requires_grad_(False)
    step, held = still.decoder.steps(len(tokens)), still.decoder.blank(len(tokens))
    parts: list[Tensor] = []  # of all states gone back to, the first state's first
    with torch.enable_grad():
        for place, x in enumerate(still.embed(tokens[:, :-1]).unbind(1)):  # each (rows, width)
            held = step(x, held)
            if place < tokens.shape[1] - 1 - steps:
                continue
            # Copies: what a layer above reads in the same step is not what is remembered.
            held = tuple(tuple(part.clone().requires_grad_() for part in layer) for layer in held)
            parts += [part for layer in held for part in layer]
        logits = still.logits(held[-1][0])  # (rows, vocabulary)
        loss = F.cross_entropy(logits, tokens[:, -1], reduction="sum")
    gradients = torch.autograd.grad(loss, parts, materialize_grads=True)
    # In float64: squares of what has vanished are below what float32 can hold.
    squares = torch.stack([one.double().square().sum() for one in gradients])
    states = squares.view(steps, -1).sum(1)  # (steps,)
    return (states / len(tokens)).sqrt().flip(0).tolist()

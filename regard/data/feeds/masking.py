"""Masked tokens (BERT; Devlin 2018): hide some, and ask an encoder for what was there."""

import numpy as np
from numpy.typing import NDArray

from regard.errors import Problems

IGNORE = -100  # a target that no loss counts; torch's cross_entropy skips it by default
MASKED, SWAPPED = 0.8, 0.1  # of the chosen tokens; the others stay as they are


def corrupt(
    tokens: NDArray[np.integer],
    rng: np.random.Generator,
    vocabulary: int,
    *,
    share: float = 0.15,
    specials: int = 5,
    mask_id: int = 4,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Inputs with some tokens hidden, and targets that say what they were.

    tokens, inputs and targets are (rows, positions). Of the ordinary tokens (ids from `specials`
    on), each is chosen with probability `share`. Of those, 80 % become `mask_id`, 10 % any ordinary
    token, and 10 % stay, so that the model cannot trust what it sees. Targets are the original ids
    where chosen, else `IGNORE`. A row with ordinary tokens of which none was chosen gets one, so
    that it is not computed for nothing; short rows are therefore hidden a little more.
    """
    problems = Problems("masking tokens")
    problems.require(tokens.ndim == 2, f"tokens must be (rows, positions), not {tokens.shape}")
    problems.require(0 < share <= 1, f"share must be above 0 and at most 1, not {share}")
    problems.require(
        vocabulary > specials,
        f"a vocabulary of {vocabulary} has no tokens besides its {specials} special ones",
    )
    problems.report()

    ordinary = tokens >= specials
    draws = np.where(ordinary, rng.random(tokens.shape), 2.0)  # a special token never wins
    chosen = draws < share
    bare = np.flatnonzero(ordinary.any(1) & ~chosen.any(1))
    if bare.size:
        chosen[bare, draws[bare].argmin(1)] = True  # the lowest draw was nearest to being chosen

    originals = tokens[chosen].astype(np.int64)  # (chosen,)
    fates = rng.random(originals.shape)
    others = rng.integers(specials, vocabulary, originals.shape)
    inputs = tokens.astype(np.int64)
    inputs[chosen] = np.select(
        [fates < MASKED, fates < MASKED + SWAPPED], [mask_id, others], originals
    )
    targets = np.full(tokens.shape, IGNORE, np.int64)
    targets[chosen] = originals
    return inputs, targets

"""Where a model looked while it wrote, as one weight for each token and source position."""

from torch import Tensor


def attended(seen: Tensor) -> Tensor:
    """(rows, layers, heads, new, positions), as a state gives it -> (rows, new, positions).

    The mean of all heads of the upper half of the layers, which agrees best with what a lexicon of
    Multi30k says, or nearly so (docs/measurements.md): the lower layers look elsewhere.
    """
    return seen[:, seen.shape[1] // 2 :].mean((1, 2))

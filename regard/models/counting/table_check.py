"""Checks that stored arrays can be a table of n-grams: a checksum does not tell who wrote them."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

SLACK = 1e-4  # what rounding may put on top of a probability of 1, as a logarithm
MOST = 230.0  # of a back-off: 10 ** 99, as far above 1 as ARPA's -99 is below


class TableCheck:
    """Refuses arrays that are shown piece by piece, with a ValueError that says what is wrong.

    `sizes` are the n-grams of each length. What is looked up in a good table stays inside of it,
    and has a log-probability that is a number.
    """

    def __init__(self, sizes: Sequence[int], vocabulary: int) -> None:
        self.limits = [size * vocabulary for size in (0, 1, *sizes)]  # of keys, by their length
        self.last: dict[str, int] = {}  # key of each array

    def __call__(self, name: str, numbers: Tensor) -> None:
        """Look at the next numbers (any,) of an array, called as a run's weights are."""
        length, _, what = name.partition(".")
        # By numpy: torch would share so little out among threads, which took ten times as long.
        array = numbers.numpy()
        if what == "keys":
            self._keys(name, array, self.limits[int(length)])
        elif not array.max() <= (SLACK if what == "logprobs" else MOST):  # nor is NaN
            raise ValueError(f"tensor {name} has NaN, or a number that is too large")

    def _keys(self, name: str, keys: np.ndarray, limit: int) -> None:
        first, last = int(keys[0]), int(keys[-1])
        if first <= self.last.get(name, -1) or not (keys[1:] > keys[:-1]).all():
            raise ValueError(f"tensor {name} is not in order")
        if last >= limit:
            raise ValueError(f"tensor {name} has n-grams of contexts or tokens that there are not")
        self.last[name] = last

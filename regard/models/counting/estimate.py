"""Counting (M3, M4): what followed the last few tokens, how often, smoothed for what never did.

`grams.py` counts, `smoothing.py` makes probabilities of counts, `table.py` looks them up. An order
of 1 is the bag of words: p(x₁…x_N) = Π p(x_n).
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from regard.errors import RegardError
from regard.models.counting.config import KNESER_NEY, Smoothing, smoothing, thresholds
from regard.models.counting.grams import Counter, Row, Source
from regard.models.counting.scratch import Room
from regard.models.counting.smoothing import FALLBACK, Estimator
from regard.models.counting.table import Level, Table

__all__ = ["FALLBACK", "Level", "Smoothing", "Table", "estimate", "smoothing"]

# Tokens in memory at a time, which take about 200 bytes each. A corpus with no more is counted in
# memory; of a longer one, sorted runs and in the end the table itself lie in mapped files.
CHUNK = 1 << 23


def estimate(
    source: Source | np.ndarray,
    order: int,
    vocabulary: int,
    begin: int,
    kind: Smoothing = KNESER_NEY,
    *,
    prune: Sequence[int] = (),
    never: Sequence[int] = (),
    folder: Path | None = None,
    chunk: int = CHUNK,
) -> Table:
    """Count token ids, in which `begin` stands before each sequence, and smooth.

    `prune` has for each length what count is too small to be kept, 0 for single tokens; its last
    value holds for all longer ones. The ids in `never` are not predicted, and must not be there.
    What does not fit into memory lies in nameless files of `folder`, else of the system's folder
    for such, and so does the table's content then: they go when nothing uses it any more.
    """
    source = Row(np.asarray(source)) if isinstance(source, np.ndarray) else source
    if order < 1:
        raise RegardError(f"an n-gram has at least one token, not {order}; raise order")
    if not len(source):
        raise RegardError("there is nothing to count: the text is empty")
    if max(len(source), vocabulary) * vocabulary > np.iinfo(np.int64).max:
        raise RegardError(
            f"{len(source):,} tokens of {vocabulary:,} kinds are too many for one table"
        )
    never = sorted({begin, *never})
    if not 0 <= never[0] <= never[-1] < vocabulary:
        raise RegardError(f"begin and never must be from 0 to {vocabulary - 1}, not {never}")
    least = thresholds(prune, order, kind)
    large = len(source) > chunk
    room = Room((folder or Path(tempfile.gettempdir())) if large else None)
    counter = Counter(source, vocabulary, begin, room, chunk)
    tokens, places = counter.tokens()
    for token in never:
        if token != begin and tokens[token]:
            raise RegardError(
                f"token {token} is never to be predicted, but stands in the text "
                f"{tokens[token]:,} times; take it out of one of them"
            )
    estimator = Estimator(kind, vocabulary, begin, never, least, room, chunk)
    return estimator.table(tokens, counter.levels(order, places))

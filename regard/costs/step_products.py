"""The products of training steps of rows of any length, for the share of a peak that a run reaches.

Traces of the shortest rows give the polynomial in their lengths, exactly.
"""

from regard.costs import jobs
from regard.costs.jobs import Model, Shape
from regard.training.throughput import Products


def products(model: Model, tokens: int, source: int = 0) -> int:
    """Operations of the products of one row, forward and backward; hidden pairs not counted.

    What an optimizer multiplies (Muon does) is not the model's, and what is computed again for the
    way back is not counted twice.
    """
    counted = jobs.train_step(model, Shape(1, tokens, source))
    return sum(r.products for r in counted.records if r.phase in ("forward", "backward"))


def of_any_length(model: Model, sources: bool) -> Products:
    """Those of rows of any length, from `sources` of any length or from what has one size.

    A row's products are of degree 2 in both lengths together: no more than pairs are counted. So
    Newton's differences at the shortest lengths there are tell all of it.
    """

    def at(tokens: int, source: int) -> int:
        return products(model, tokens, source if sources else 0)

    first, second, third = (at(tokens, 1) for tokens in (1, 2, 3))
    by_token, by_pair = second - first, third - 2 * second + first
    by_place = by_places = by_both = 0
    if sources:
        longer, longest, both = at(1, 2), at(1, 3), at(2, 2)
        by_place, by_places = longer - first, longest - 2 * longer + first
        by_both = both - second - longer + first

    def of(rows: int, width: int, source: int) -> float:
        i, j = width - 1, source - 1
        each = first + by_token * i + by_pair * i * (i - 1) / 2
        return rows * (each + by_place * j + by_places * j * (j - 1) / 2 + by_both * i * j)

    return of

"""What runs and measurements tell together."""

from regard.comparison.results import _lengths, buckets_of


def test_buckets_of_targets_too_short_for_bleu_are_left_out_of_lines_and_labels():
    buckets = [
        {"first": 1, "last": 2, "pairs": 5, "bleu": None, "exact": 0.5},
        {"first": 3, "last": 7, "pairs": 5, "bleu": 30.0, "exact": 0.1},
        {"first": 8, "last": 9, "pairs": 5, "bleu": 10.0, "exact": 0.1},
    ]
    quality = {"by_length": buckets}
    assert buckets_of(quality, {}) == ((3, 7), (8, 9))
    line = _lengths([quality, quality], [{}, {}])
    assert (line.x, line.y) == ((0, 1), (30.0, 10.0))
    short = {"by_length": buckets[:1]}
    assert buckets_of(short, {}) == ()
    assert _lengths([short], [{}]) is None

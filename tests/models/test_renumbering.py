"""A table in another vocabulary says the same of the same words."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.models.counting.estimate import estimate, smoothing

KINDS = ("kneser-ney", "add-k", "stupid-backoff", "maximum-likelihood")


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 5), min_size=3, max_size=60),
    st.integers(1, 4),
    st.permutations(range(9)),
    st.sampled_from(KINDS),
)
def test_it_says_the_same_of_the_same_words(ids, order, places, name):
    text = np.array([0, *ids])
    table = estimate(text, order, 6, 0, smoothing(name))
    new = np.array(places[:6])
    other = table.renumbered(new, 9)
    assert other.begin == new[0]
    for mine, theirs in zip(table.logprobs(text), other.logprobs(new[text]), strict=True):
        assert np.array_equal(mine, theirs)
    context = ids[-order + 1 :] if order > 1 else []
    assert np.array_equal(table.following(context), other.following(new[context])[new])
    strange = sorted(set(range(9)) - set(new.tolist()))
    assert np.isneginf(other.following(new[context])[strange]).all()

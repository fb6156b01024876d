"""Neighbours and analogies of words are what the angles between their vectors say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import RegardError
from regard.inspection.word_table import WordTable, unit

LETTERS = [*"abcdefghijkl", "A", "B", "L", "m"]
COUNTRIES = ["france", "italy", "japan", "paris", "rome", "tokyo", "apple", "pear"]


def letters() -> WordTable:
    return WordTable(LETTERS, np.random.default_rng(5).normal(size=(len(LETTERS), 4)))


def countries() -> WordTable:
    """Each capital is its country and one direction more; fruits are elsewhere."""
    rng = np.random.default_rng(0)
    lands, capital = rng.normal(size=(3, 8)), np.eye(8)[0] * 3
    return WordTable(COUNTRIES, np.concatenate([lands, lands + capital, rng.normal(size=(2, 8))]))


def test_figures_are_those_of_gensim():
    """`most_similar` and `similarity` of gensim 4.4.0 on the same vectors."""
    found = letters().nearest("a", 4)
    assert [one.word for one in found] == ["e", "j", "h", "i"]
    wanted = [0.6799219250679016, 0.6373353004455566, 0.5083825588226318, 0.27954259514808655]
    assert [one.similarity for one in found] == pytest.approx(wanted, abs=1e-6)
    found = letters().analogy("a", "b", "c", 4)
    assert [one.word for one in found] == ["m", "d", "g", "k"]
    wanted = [0.8086333870887756, 0.5014393329620361, 0.4968642294406891, 0.44186997413635254]
    assert [one.similarity for one in found] == pytest.approx(wanted, abs=1e-6)
    assert letters().similarity("a", "b") == pytest.approx(-0.5159166, abs=1e-6)


def test_paris_is_to_france_as_rome_is_to_italy():
    assert countries().analogy("paris", "france", "rome")[0].word == "italy"
    assert countries().analogy("france", "paris", "japan", 1)[0].word == "tokyo"


@given(st.sampled_from(LETTERS), st.integers(1, 20), st.floats(1e-30, 1e30))
def test_neighbours_are_sorted_by_the_cosine_whatever_the_lengths(word, count, scale):
    table = letters()
    stretched = WordTable(LETTERS, table.vectors * np.float32(scale))
    found = stretched.nearest(word, count)
    assert len(found) == min(count, len(LETTERS) - 1)
    assert word not in [one.word for one in found]
    x = table.vectors.astype(np.float64)
    cosines = x @ x[LETTERS.index(word)] / np.linalg.norm(x, axis=1)
    cosines /= np.linalg.norm(x[LETTERS.index(word)])
    order = sorted((-cosines[i], i) for i in range(len(LETTERS)) if LETTERS[i] != word)
    assert [one.word for one in found] == [LETTERS[i] for _, i in order][:count]
    assert [-one.similarity for one in found] == pytest.approx(
        [c for c, _ in order][:count], abs=1e-6
    )


def test_a_vector_may_be_given_and_words_left_out():
    table = letters()
    first, second = table.nearest(table.vector("c") * 5, 2)
    assert first.word == "c"
    assert first.similarity == pytest.approx(1.0)
    assert table.nearest(table.vector("c"), 1, without=["c"])[0].word == second.word
    assert len(table.nearest("a", 99, without=LETTERS[1:])) == 0


def test_similarity_is_a_cosine():
    table = WordTable(["x", "y", "-x", "zero"], [[1, 0], [0, 2], [-3, 0], [0, 0]])
    assert table.similarity("x", "x") == 1.0
    assert table.similarity("x", "y") == 0.0
    assert table.similarity("x", "-x") == -1.0
    assert table.similarity("x", "zero") == 0.0
    assert table.nearest("zero", 1)[0].similarity == 0.0


def test_lengths_are_one_even_at_the_ends_of_the_range():
    extreme = np.array([[3e38, -3e38], [1e-44, 0.0], [0.0, 0.0]], np.float32)
    found = unit(extreme)
    assert found.dtype == np.float32
    assert np.linalg.norm(found, axis=1) == pytest.approx([1.0, 1.0, 0.0])


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("pariss", "'pariss' is not among the 8 words; did you mean 'paris'?"),
        ("Rome", "'Rome' is not among the 8 words; did you mean 'rome'?"),
        ("qqqqqq", "'qqqqqq' is not among the 8 words"),
    ],
)
def test_an_unknown_word_is_told_with_the_nearest_spelling(word, said):
    for call in (
        lambda: countries().nearest(word),
        lambda: countries().similarity("rome", word),
        lambda: countries().analogy(word, "rome", "italy"),
    ):
        with pytest.raises(RegardError) as caught:
            call()
        assert str(caught.value) == said


def test_a_cased_vocabulary_is_searched_whatever_the_case():
    with pytest.raises(RegardError, match="did you mean 'Paris'"):
        WordTable(["Paris", "in"], np.eye(2)).vector("paris")
    with pytest.raises(RegardError, match="did you mean 'USA'"):
        WordTable(["us", "USA"], np.eye(2)).vector("usa")


@pytest.mark.parametrize(
    ("words", "vectors", "said"),
    [
        (["a", "a"], np.ones((2, 2)), "the word 'a' has two vectors"),
        (["a", "b"], np.ones((3, 2)), "2 words need as many vectors"),
        (["a", "b"], np.ones(2), "2 words need as many vectors"),
        ([], np.ones((0, 2)), "0 words need as many vectors"),
        (["a", "b"], [[1, 2], [3, np.nan]], "the vector of 'b' has a number that is not finite"),
    ],
)
def test_what_is_no_table_is_refused(words, vectors, said):
    with pytest.raises(RegardError, match=said):
        WordTable(words, vectors)


def test_senseless_questions_are_refused():
    with pytest.raises(RegardError, match="at least one word"):
        letters().nearest("a", 0)
    with pytest.raises(RegardError, match="a vector of 4 finite numbers"):
        letters().nearest([1.0, 2.0])
    with pytest.raises(RegardError, match="a vector of 4 finite numbers"):
        letters().nearest([1.0, 2.0, np.inf, 0.0])

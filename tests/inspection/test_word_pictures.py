"""The picture of words is their principal components, and labels keep out of one another's way."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import RegardError
from regard.inspection.word_pictures import _candidates, _overlap, _placed, plot, principal
from regard.inspection.word_table import WordTable

WORDS = ["france", "italy", "japan", "paris", "rome", "tokyo", "$a_b$", "猫"]


@pytest.fixture
def table() -> WordTable:
    return WordTable(WORDS, np.random.default_rng(0).normal(size=(len(WORDS), 12)))


@given(st.integers(3, 9), st.integers(2, 9), st.integers(0, 99))
def test_the_plane_is_that_of_the_two_largest_variances(words, width, seed):
    vectors = np.random.default_rng(seed).normal(size=(words, width))
    plane = principal(vectors)
    values, axes = np.linalg.eigh(np.cov(vectors.T, bias=True))  # rising
    wanted = (vectors - vectors.mean(0)) @ axes[:, :-3:-1]
    assert np.abs(plane.points) == pytest.approx(np.abs(wanted), abs=1e-6)
    assert plane.shares == pytest.approx(values[:-3:-1] / values.sum(), abs=1e-9)
    farthest = plane.points[np.abs(plane.points).argmax(0), [0, 1]]
    assert (farthest >= 0).all()


@given(st.integers(0, 99))
def test_signs_do_not_depend_on_the_words_order_and_arrows_go_right_and_up(seed):
    rng = np.random.default_rng(seed)
    vectors, order = rng.normal(size=(6, 4)), rng.permutation(6)
    plain = principal(vectors).points
    assert principal(vectors[order]).points == pytest.approx(plain[order], abs=1e-6)
    arrows = [(0, 3), (1, 4), (2, 5)]
    points = principal(vectors, arrows).points
    assert (sum(points[end] - points[start] for start, end in arrows) >= 0).all()
    assert np.abs(points) == pytest.approx(np.abs(plain), abs=1e-6)


def test_two_words_and_equal_words_have_a_plane_too():
    two = principal(np.array([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]))
    assert two.shares == pytest.approx([1.0, 0.0], abs=1e-12)
    assert np.isfinite(principal(np.ones((3, 5))).points).all()
    assert principal(np.array([[1.0], [2.0]])).points.shape == (2, 2)


def test_labels_do_not_overlap_where_there_is_room():
    dots = np.array([[100.0, 100.0], [103.0, 101.0], [101.0, 104.0], [99.0, 99.0], [104.0, 97.0]])
    sizes = np.full((5, 2), [40.0, 10.0])
    boxes = _candidates(dots, sizes, 1.4)
    placed = _placed(boxes, dots, np.array([0.0, 0.0, 200.0, 200.0]))
    for one in range(5):
        others = np.delete(placed, one, axis=0)
        assert _overlap(placed[one], others).sum() == 0
    corner = _placed(_candidates(dots, sizes, 1.4), dots, np.array([0.0, 0.0, 110.0, 110.0]))
    assert (corner[:, 2] < 115).sum() >= 3  # at the edge they go inwards


@pytest.mark.filterwarnings("ignore:Glyph")  # the font has no 猫
def test_every_word_and_arrow_is_in_the_picture(table, tmp_path):
    pairs = [("france", "paris"), ("italy", "rome")]
    plot(table, WORDS[4:], tmp_path / "deep" / "words.svg", pairs=pairs)
    drawn = (tmp_path / "deep" / "words.svg").read_text(encoding="utf-8")
    for word in [*WORDS[4:], "france", "italy", "paris"]:
        assert f">{word}</text>" in drawn
    assert ">japan</text>" not in drawn
    assert "7 words and 2 pairs" in drawn
    shares = principal(table.units[[4, 5, 6, 7, 0, 3, 1]]).shares
    assert f"first principal component, {100 * shares[0]:.0f} % of the variance" in drawn


def test_a_picture_is_the_same_each_time(table, tmp_path):
    for name in ("one.png", "two.png"):
        plot(table, WORDS[:6], tmp_path / name, pairs=[("france", "paris")])
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()


def test_what_cannot_be_drawn_is_refused(table, tmp_path):
    with pytest.raises(RegardError, match=r"must end in one of \.png"):
        plot(table, WORDS, tmp_path / "words.txt")
    with pytest.raises(RegardError, match="needs 2 to 500 words, not 1"):
        plot(table, ["rome", "rome"], tmp_path / "words.png")
    with pytest.raises(RegardError, match="2 problems") as caught:
        plot(table, ["rome", "pariss"], tmp_path / "words.png", pairs=[("itly", "rome")])
    assert "did you mean 'paris'?" in str(caught.value)
    assert "did you mean 'italy'?" in str(caught.value)
    assert not list(tmp_path.iterdir())

"""Pictures show the matrix they are given."""

import pytest
import torch

from regard.errors import RegardError
from regard.inspection.heatmap import heat_text, heatmap


def test_the_picture_is_dark_where_the_matrix_is_large(tmp_path):
    from matplotlib.image import imread

    heatmap(torch.tensor([[0.0, 1.0], [0.5, 0.0]]), tmp_path / "deep" / "map.png")
    image = torch.as_tensor(imread(tmp_path / "deep" / "map.png"))[..., :3].mean(-1)
    inked = (image < 0.97).nonzero()  # the half-dark and the dark cell, ignoring the colour bar
    assert len(inked)
    height, width = image.shape
    dark = (image < 0.25).nonzero().float()
    cells = dark[dark[:, 1] < 0.7 * width]
    assert cells[:, 0].mean() < height / 2  # the largest entry is in the upper row


def test_text_shades_follow_the_values_and_carry_the_labels():
    text = heat_text(torch.tensor([[1.0, 0.6, 0.3, 0.15, 0.0]]), ["row"], list("abcde")).plain
    header, line = text.splitlines()[:2]
    assert header.split() == list("abcde")
    assert line == "row ██▓▓▒▒░░· "


@pytest.mark.parametrize(
    ("matrix", "rows", "said"),
    [
        (torch.zeros(2, 2, 2), (), "needs a matrix"),
        (torch.zeros(0, 3), (), "needs a matrix"),
        (torch.zeros(2, 3), ("only one",), "needs as many labels"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_one_sentence(tmp_path, matrix, rows, said):
    with pytest.raises(RegardError, match=said):
        heatmap(matrix, tmp_path / "x.png", rows=rows)
    with pytest.raises(RegardError, match=said):
        heat_text(matrix, rows=rows)


def test_an_unknown_picture_format_is_refused_in_one_sentence(tmp_path):
    with pytest.raises(RegardError, match="cannot draw to"):
        heatmap(torch.eye(2), tmp_path / "x.nonsense")


def test_long_names_of_columns_are_written_downwards_and_wide_letters_keep_the_columns():
    text = heat_text(torch.tensor([[1.0, 0.2], [0.6, 0.0]]), ["猫", "a"], ["cat", "猫"], top=2.0)
    assert text.plain.splitlines() == ["   c   ", "   a   ", "   t 猫", "猫 ▓▓░░", " a ▒▒· "]


def test_any_word_can_be_a_label(tmp_path, recwarn):
    words = ["$a_b$", "$", "猫", "हिन्दी", "Donaudampfschiff"] * 8
    heatmap(torch.rand(40, 40), tmp_path / "map.png", rows=words, columns=words)
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    assert not [one for one in recwarn if "Glyph" in str(one.message)]

"""A text cut in pieces has the tokens of the whole."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from learned_tokenizers import ALL, hard_texts, library, tokenizer

from regard.text.cutting import PATIENCE, cut


def parts(text: str, sizes: list[int]) -> list[str]:
    """`text` as a file might be read, in blocks of the given sizes and a rest."""
    ends = np.cumsum([0, *sizes])
    return [text[a:b] for a, b in pairwise(ends)] + [text[ends[-1] :]]


texts = hard_texts | st.text("a \n\r\x1c\x85é'")
sizes = st.lists(st.integers(0, 30), max_size=8)


@given(texts, sizes, st.integers(1, 12))
def test_pieces_make_up_the_text_and_only_the_last_is_marked(text, reads, size):
    found = list(cut(parts(text, reads), size))
    assert "".join(piece.text for piece in found) == text
    assert [piece.last for piece in found] == [False] * (len(found) - 1) + [True] * bool(text)
    assert all(piece.text for piece in found)
    assert all(len(piece.text) <= PATIENCE * size for piece in found[:-1])


@given(texts, sizes, st.integers(1, 12))
def test_how_a_file_is_read_makes_no_difference(text, reads, size):
    assert list(cut(parts(text, reads), size)) == list(cut([text], size))


@given(texts, st.integers(1, 12))
def test_cuts_are_before_whitespace_after_something_else(text, size):
    found = [piece.text for piece in cut([text], size)]
    for one, other in pairwise(found):
        at_place = not one[-1].isspace() and other[0].isspace() and other[0] not in "\x1c\x1d\x1e"
        assert at_place or len(one) >= PATIENCE * size - 1
        assert not (one[-1] == "\r" and other[0] == "\n")


@pytest.mark.parametrize("name", ALL)
@given(text=texts, size=st.integers(1, 30))
def test_tokens_of_the_pieces_are_the_tokens_of_the_text(name, text, size):
    found = [piece.text for piece in cut([text], size)]
    if any(len(piece) >= PATIENCE * size - 1 for piece in found[:-1]):
        return  # cut by force
    ids = [i for piece in found for i in tokenizer(name).encode(piece).tolist()]
    assert ids == tokenizer(name).encode(text).tolist()


@pytest.mark.parametrize("name", ALL)
def test_tokens_of_the_pieces_of_a_long_text_are_the_same(name):
    encoded = [tokenizer(name).encode(piece.text) for piece in cut([library()], 200)]
    assert len(encoded) > 1000
    assert np.array_equal(np.concatenate(encoded), tokenizer(name).encode(library()))


def test_a_text_without_blanks_is_cut_by_force_but_not_inside_a_line_end():
    assert [p.text for p in cut(["abcdefghij"], 1)] == ["abcd", "efgh", "ij"]
    assert [p.text for p in cut(["   \r\n   \r\n "], 1)] == ["   ", "\r\n  ", " \r\n "]

"""Lines encoded together have the ids that each has by itself."""

from itertools import pairwise

import pytest
from hypothesis import given
from learned_tokenizers import ALL, hard_texts, library, tokenizer

from regard.text.learning import learn
from regard.text.specials import UNK
from regard.text.tokenizer import KINDS, Tokenizer


def split(tokens: Tokenizer, text: str) -> list[list[int]]:
    """The ids of each line, as `encode_lines` tells them."""
    ids, ends = tokens.encode_lines(text)
    bounds = [0, *ends.tolist(), len(ids)]
    return [ids[a:b].tolist() for a, b in pairwise(bounds)]


def one_by_one(tokens: Tokenizer, text: str) -> list[list[int]]:
    *lines, rest = text.split("\n")
    lines = [line.removesuffix("\r") for line in lines]
    return [tokens.encode(line).tolist() for line in (*lines, rest)]


@pytest.mark.parametrize("name", ALL)
@given(text=hard_texts)
def test_ids_are_those_of_each_line(name, text):
    assert split(tokenizer(name), text) == one_by_one(tokenizer(name), text)


@pytest.mark.parametrize("name", ALL)
def test_ids_of_many_lines_are_those_of_each(name):
    text = library()[:50_000].replace("\n\n", "\r\n\n")
    assert split(tokenizer(name), text) == one_by_one(tokenizer(name), text)


@pytest.mark.parametrize("tokenised", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_vocabulary_needs_no_newline(kind, tokenised):
    # "x" is unknown to char and word, and must not be taken for the newline that is unknown too.
    size = 300 if kind == "bpe" else 0
    tokens = learn(kind, ["ab a"], size, tokenised=tokenised)
    text = "x a\r\n\nab x\n"
    assert split(tokens, text) == one_by_one(tokens, text)
    assert (UNK in tokens.encode_lines(text).ids) == (kind in ("char", "word"))
    assert len(split(tokens, text)) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_broken_bytes_in_lines_are_as_elsewhere(kind):
    tokens = learn(kind, ["ab\n\ufffd" * 3], 300 if kind == "bpe" else 0)
    text = b"a\xff\nb \xc3\n\xff".decode("utf-8", "surrogateescape")
    assert split(tokens, text) == one_by_one(tokens, text)
    assert split(tokens, b"a\xff\nb \xc3\n\xff") == one_by_one(tokens, text)

"""Many lines to ids at once, each as if it were encoded by itself."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import tokenizers
from numpy.typing import NDArray

from regard.text.encoders import ENCODERS, TextEncoder
from regard.text.reference import Ids
from regard.text.vocabulary import Vocabulary


class Lines(NamedTuple):
    """The ids of a text's lines, one after another; the newlines between them have none."""

    ids: Ids  # (tokens,)
    ends: NDArray[np.int64]  # (newlines,) how many ids stand before each


LineEncoder = Callable[[str], Lines]


def line_encoder(
    vocabulary: Vocabulary, reference: tokenizers.Tokenizer, encoder: TextEncoder
) -> LineEncoder:
    """How the lines of a text are encoded; `encoder` is that of the vocabulary."""
    if vocabulary.kind == "bpe":  # a newline can be in one token with the blanks around it
        return _Apart(encoder)
    if b"\n" in vocabulary.contents():
        return _Together(encoder, vocabulary.contents().index(b"\n"))
    more = replace(vocabulary, tokens=(*vocabulary.tokens, "\n"))
    return _Together(ENCODERS[vocabulary.kind](more, reference), len(vocabulary.tokens))


class _Together:
    """For kinds where a newline is a token and no token depends on what is beyond one."""

    def __init__(self, encoder: TextEncoder, newline: int) -> None:
        self.encoder, self.newline = encoder, newline

    def __call__(self, text: str) -> Lines:
        ids = self.encoder(text.replace("\r\n", "\n"))
        places = np.flatnonzero(ids == self.newline)
        return Lines(np.delete(ids, places), places - np.arange(len(places)))


class _Apart:
    """One by one, for the others."""

    def __init__(self, encoder: TextEncoder) -> None:
        self.encoder = encoder

    def __call__(self, text: str) -> Lines:
        found = [self.encoder(line) for line in text.replace("\r\n", "\n").split("\n")]
        ends = np.cumsum([len(ids) for ids in found])
        return Lines(np.concatenate(found), ends[:-1])

"""What the `tokenizers` library makes of a text: the ids that all our faster ways must give."""

from collections.abc import Callable, Sequence

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import pre_tokenizers

Ids = NDArray[np.uint32]  # (tokens,)


def slowly(reference: tokenizers.Tokenizer, text: str) -> Ids:
    """The ids of a valid text."""
    # A fast batch of one leaves the offsets out, which takes half the time or less.
    return np.array(reference.encode_batch_fast([text])[0].ids, np.uint32)


def whole(split: pre_tokenizers.PreTokenizer) -> Callable[[Sequence[str]], list[bool]]:
    """A function that tells which of some texts a pre-tokenizer keeps whole."""

    def ask(texts: Sequence[str]) -> list[bool]:
        spans = ([span for _, span in split.pre_tokenize_str(text)] for text in texts)
        return [found == [(0, len(text))] for found, text in zip(spans, texts, strict=True)]

    return ask

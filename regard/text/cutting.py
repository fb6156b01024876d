"""Where a text may be cut so that its parts have the tokens of the whole."""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

# Between a character that is no whitespace and one that is. In GPT-2's pattern and in the word
# pattern whitespace stands only at the start of a token or in a token of nothing else, so no token
# crosses such a place; and the one lookahead, \s+(?!\S), looks from whitespace to what follows it,
# which is never on the other side. \x1c–\x1f are whitespace to Python alone: they are taken as
# whitespace before the cut and not as whitespace after it, so that both readings agree.
_PLACE = re.compile(r"\S(?=[^\S\x1c-\x1f])")
PATIENCE = 4  # sizes without such a place, after which the cut is anywhere


class TextPiece(NamedTuple):
    """A part of a document."""

    text: str
    last: bool  # whether the document ends here


def cut(parts: Iterable[str], size: int) -> Iterator[TextPiece]:
    """One document, given in parts of any length, in pieces of about `size` characters.

    Every piece but the last has between `size` and `PATIENCE` * `size` characters.
    """
    held, searched = "", size - 1
    for part in parts:
        held += part
        while (end := _end(held, size, searched)) > 0:
            yield TextPiece(held[:end], False)
            held, searched = held[end:], size - 1
        searched = max(size - 1, len(held) - 1)  # the last character's follower is not known yet
    if held:
        yield TextPiece(held, True)


def _end(held: str, size: int, searched: int) -> int:
    """Where the first piece of `held` ends, or 0 if more must be read to tell."""
    longest = PATIENCE * size
    if place := _PLACE.search(held, searched, longest + 1):
        return place.end()
    if len(held) <= longest:
        return 0
    return longest - 1 if held[longest - 1 : longest + 1] == "\r\n" else longest

"""Whether a text is tokenised already: each sign between blanks, as in "he 's here , she said"."""

import re
from collections.abc import Iterable
from itertools import chain

SAMPLE = 1_000_000  # characters of a text that are looked at
_ENDINGS = r"n't|(?:'|&apos;)(?:s|ll|re|ve|d|m)"
# Standing alone behind a word. Not ; : ! ?, which French sets off with a blank in any text, and
# which are operators in code.
_STANDING = re.compile(rf"\w (?:[,.，。、।،]|{_ENDINGS})(?!\S)")
# Attached to a word. Not the full stop, which stays with Mr. and U.S. in tokenised text too, and
# not the semicolon, which ends Moses' &quot;. Brackets are for code that has blanks around commas.
_ATTACHED = re.compile(rf"\w(?:[,:!?]|{_ENDINGS})(?!\S)|[(\[{{]\w|\w[)\]}}]")
ENOUGH = 30  # signs that stand alone: fewer may be chance
SPARSE = 1000  # characters for each of them: beyond, it is not the way the text is written
CLEAR = 30  # times as many stand alone as are attached; in all corpora at hand none is


def looks_tokenised(sample: str) -> bool:
    """Whether the signs in a sample of text stand between blanks, rather than at the words."""
    sample = sample[:SAMPLE]
    standing = len(_STANDING.findall(sample))
    if standing < ENOUGH or standing * SPARSE < len(sample):
        return False
    return standing > CLEAR * len(_ATTACHED.findall(sample))


def beginning(texts: Iterable[str]) -> tuple[str, Iterable[str]]:
    """A sample of some texts, and all of them again: they may come one by one."""
    left = iter(texts)
    taken: list[str] = []
    size = 0
    while size < SAMPLE and (text := next(left, None)) is not None:
        taken.append(text)
        size += len(text)
    return "\n".join(taken), chain(taken, left)

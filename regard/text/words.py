"""A text's words by Python's own patterns, as `tokenizers` finds them."""

import re
from collections.abc import Sequence

import tokenizers
from tokenizers import pre_tokenizers

from regard.text.alike import Alike
from regard.text.reference import whole

# <unk> | newline | a word, with ' ’ - inside | 's, 'll | a run of signs
PATTERN = r"<unk>|\n|\w+(?:['’-]\w+)*|'\w+|[^\w\s]+"
# Python's \s is also \x1c–\x1f, which are signs to `tokenizers`. Its \w has no marks, and so on:
# `Alike` finds out.
_BLANKS = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_WORDS = re.compile(PATTERN.replace(r"\s", _BLANKS))


class Words:
    """Splits a valid text into words."""

    def __init__(self) -> None:
        self.reference = splitting()
        self.alike = Alike(_whole, whole(self.reference))

    def __call__(self, text: str) -> list[str]:
        if self.alike(text):
            return _WORDS.findall(text)
        first, *others = text.split("\n")  # a newline is a word, so that lines stand alone
        words = self._line(first)
        for line in others:
            words.append("\n")
            words += self._line(line)
        return words

    def _line(self, line: str) -> list[str]:
        if self.alike(line):
            return _WORDS.findall(line)
        return [word for word, _ in self.reference.pre_tokenize_str(line)]


def splitting() -> pre_tokenizers.PreTokenizer:
    """The pattern in the `tokenizers` library: what it matches is kept, all else dropped."""
    return pre_tokenizers.Split(tokenizers.Regex(PATTERN), "removed", invert=True)


def _whole(texts: Sequence[str]) -> list[bool]:
    return [_WORDS.findall(text) == [text] for text in texts]

"""A text's words by Python's own means, as `tokenizers` finds them.

A word is found in one of two ways: by the pattern, in text as people write it; or between blanks,
in text where every sign stands by itself already ("the U.S. , he said , it 's").
"""

import re
from collections.abc import Callable, Sequence

import tokenizers
from tokenizers import pre_tokenizers

from regard.text.reference import whole
from regard.text.regex_agreement import RegexAgreement

# <unk> | newline | a word, with ' ’ - inside | 's, 'll | a run of signs
PATTERN = r"<unk>|\n|\w+(?:['’-]\w+)*|'\w+|[^\w\s]+"
# newline | the < of what would be a special token | a word. <unk> is the unknown word as it stands.
BETWEEN_BLANKS = r"\n|<(?=(?:/?s|pad|mask)>(?![^\s]))|[^\s]+"
# Python's \s is also \x1c–\x1f, which are signs to `tokenizers`. Its \w has no marks, and so on:
# `RegexAgreement` finds out.
_BLANKS = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_WORDS = re.compile(PATTERN.replace(r"\s", _BLANKS))
_BETWEEN_BLANKS = re.compile(BETWEEN_BLANKS.replace(r"\s", _BLANKS))
# What `str.split` does not see as the pattern does; looked for one by one, at 1 GB/s and more.
_UNLIKE_SPLIT = ("\x1c", "\x1d", "\x1e", "\x1f", "<s>", "</s>", "<pad>", "<mask>")

Finder = Callable[[str], list[str]]  # a valid text to its words


class WordSplitter:
    """Splits a valid text into words by the pattern."""

    def __init__(self) -> None:
        self.reference = splitting(tokenised=False)
        self.alike = RegexAgreement(_whole, whole(self.reference))

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


def between_blanks(text: str) -> list[str]:
    """Splits a valid text into what stands between blanks, and newlines."""
    if any(unlike in text for unlike in _UNLIKE_SPLIT):
        return _BETWEEN_BLANKS.findall(text)
    first, *others = text.split("\n")
    words = first.split()
    for line in others:
        words.append("\n")
        words += line.split()
    return words


def finder(tokenised: bool) -> Finder:
    """How words are found in text that is tokenised already, or is not."""
    return between_blanks if tokenised else WordSplitter()


def splitting(tokenised: bool) -> pre_tokenizers.PreTokenizer:
    """The pattern in the `tokenizers` library: what it matches is kept, all else dropped."""
    pattern = tokenizers.Regex(BETWEEN_BLANKS if tokenised else PATTERN)
    return pre_tokenizers.Split(pattern, "removed", invert=True)


def _whole(texts: Sequence[str]) -> list[bool]:
    return [_WORDS.findall(text) == [text] for text in texts]

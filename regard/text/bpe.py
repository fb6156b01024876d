"""Byte-pair encoding by `tiktoken`, with the ids that `tokenizers` gives.

The two differ in what they merge. `tokenizers` has rules: it merges, among the adjacent pairs that
have one, the pair whose rule comes first, leftmost if there are several. `tiktoken` has tokens: it
merges, among the adjacent pairs whose *concatenation* is a token, the one with the smallest id. So
`tiktoken` might merge a pair that has no rule. It never does so if the vocabulary is sound:

  1. every token but the bytes has exactly one rule, and the rules stand in the order of the ids;
  2. every token, encoded alone by the rules, is that one token.

Proof. Run both on one word; suppose their states are equal up to a step where `tiktoken` merges an
adjacent pair (L, R) that is a token T but not the rule of T, or merges in another order. By 1 the
ranks agree wherever both have the pair, and every rule's pair is a token, so only the former can
happen. Look at the stretch of the word that L and R cover. No merge so far crossed its ends or the
border between L and R, so all merges in it were among its own symbols; and the first choice in the
word, when it fell into the stretch, was the first choice in the stretch. So the stretch went
through the very states that T goes through when encoded alone by the rules, and has come to
[L, R]. But by 2, T alone ends as [T], and its last merge is its only rule (L', R'), by 1. A run
has only one state with two symbols: (L, R) = (L', R'), which is the rule of T. ∎ (A word that is a
token as a whole `tiktoken` looks up without merging; by 2 that is the same.)

The same argument shows that training cannot learn two rules for one token, so what `learn` makes
is always sound; a file from elsewhere may not be, and is left to `tokenizers`.
"""

from collections.abc import Sequence

import numpy as np
import tiktoken
import tokenizers

from regard.text.invalid_utf8 import parts
from regard.text.reference import Ids, slowly, whole
from regard.text.regex_agreement import RegexAgreement
from regard.text.specials import SPECIALS
from regard.text.vocabulary import Vocabulary

# Of OpenAI's GPT-2, and what ByteLevel(use_regex=True) splits by.
PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Half the longest run of whitespace given to tiktoken: its engine keeps every step of \s+ to come
# back to, and panics for want of room somewhere between 0.5 and 1 million.
RUN = 10_000


class Bpe:
    """Text to ids by kind bpe; a broken byte is a token of its own."""

    def __init__(self, vocabulary: Vocabulary, reference: tokenizers.Tokenizer) -> None:
        self.reference = reference
        ids = {content: i for i, content in enumerate(vocabulary.contents()) if content}
        self.bytes = np.array([ids[bytes([byte])] for byte in range(256)], np.uint32)
        self.fast = _tiktoken(ids) if sound(vocabulary, reference) else None
        self.alike = RegexAgreement(_whole, whole(reference.pre_tokenizer))

    def __call__(self, text: str) -> Ids:
        found = [
            self._valid(part) if isinstance(part, str) else self.bytes[np.frombuffer(part, "u1")]
            for part in parts(text)
        ]
        return np.concatenate(found) if found else np.empty(0, np.uint32)

    def _valid(self, text: str) -> Ids:
        if self.fast is None or _blank(text) or not self.alike(text):
            return slowly(self.reference, text)
        # Not encode_to_numpy, which looks for specials too: measured 1.3 to 3 times slower.
        return np.array(self.fast.encode_ordinary(text), np.uint32)


def sound(vocabulary: Vocabulary, reference: tokenizers.Tokenizer) -> bool:
    """Whether the two conditions above hold."""
    longer = [token for token in vocabulary.tokens[len(SPECIALS) :] if len(token) > 1]
    if longer != [left + right for left, right in vocabulary.merges]:
        return False
    return all(len(reference.model.tokenize(token)) == 1 for token in longer)


def _tiktoken(ids: dict[bytes, int]) -> tiktoken.Encoding:
    return tiktoken.Encoding("bpe", pat_str=PATTERN, mergeable_ranks=ids, special_tokens={})


def _blank(text: str) -> bool:
    """True if a run of whitespace is 2 * `RUN` long, never if all are shorter than `RUN`."""
    return any(text[i : i + RUN].isspace() for i in range(0, len(text) - RUN + 1, RUN))


def _whole(texts: Sequence[str]) -> list[bool]:
    """Which texts tiktoken's engine takes as one match: those it looks up as one token."""
    ids = {bytes([byte]): byte for byte in range(256)}
    ids |= {text.encode(): 256 + i for i, text in enumerate(texts)}
    encoding = _tiktoken(ids)
    return [len(encoding.encode_ordinary(text)) == 1 for text in texts]

"""BPE-dropout (Provilkov et al., 2020): the same text in other tokens each time.

At each step of merging a word, every possible merge is left out with probability `rate`, and the
best of the rest is done; a word is finished when all that is possible was left out. `tokenizers`
has it, but draws from a generator of its own that cannot be seeded.
"""

import heapq
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from regard.errors import RegardError
from regard.text.bytelevel import spell
from regard.text.invalid_utf8 import parts
from regard.text.reference import Ids
from regard.text.tokenizer import Tokenizer

DRAWN = 4096  # coins drawn at a time: one by one, drawing would take most of the time
REMEMBERED, LONG = 1 << 16, 64  # words that are kept, and bytes of the longest of them
GONE = -1  # where a symbol was, before it was merged into the one on its left

Merge = tuple[int, int, int, int]  # rank, place of the left symbol, left id, right id


class BPEDropout:
    """A tokenizer of kind bpe that leaves merges out at random."""

    def __init__(self, tokenizer: Tokenizer, rate: float) -> None:
        if tokenizer.kind != "bpe":
            raise RegardError(f"BPE-dropout needs a tokenizer of kind bpe, not {tokenizer.kind}")
        if not 0 <= rate <= 1:
            raise RegardError(f"the rate of BPE-dropout must be from 0 to 1, not {rate}")
        self.tokenizer, self.rate = tokenizer, rate
        self.ids = {token: i for i, token in enumerate(tokenizer.vocabulary.tokens)}
        self.rules = {  # (left id, right id) -> rank, merged id
            (self.ids[left], self.ids[right]): (rank, self.ids[left + right])
            for rank, (left, right) in enumerate(tokenizer.vocabulary.merges)
        }
        self.words: dict[str, tuple[list[int], list[Merge]]] = {}

    def encode(self, text: str | bytes, rng: np.random.Generator) -> Ids:
        """Ids (tokens,) that decode to `text`; all that is random comes from `rng`."""
        if self.rate == 0:
            return self.tokenizer.encode(text)
        if isinstance(text, bytes):
            text = text.decode("utf-8", "surrogateescape")
        coins, ids = self._coins(rng), list[int]()
        for part in parts(text):
            if isinstance(part, str):
                for word, _ in self.tokenizer.reference.pre_tokenizer.pre_tokenize_str(part):
                    ids += self._merged(word, coins)
            else:
                ids += [self.ids[character] for character in spell(part)]
        return np.array(ids, np.uint32)

    def _coins(self, rng: np.random.Generator) -> Iterator[bool]:
        """True with probability `rate`, for ever."""
        while True:
            yield from (rng.random(DRAWN) < self.rate).tolist()

    def _start(self, word: str) -> tuple[list[int], list[Merge]]:
        """The bytes of a word and the merges they offer, as a heap."""
        if word in self.words:
            return self.words[word]
        symbols = [self.ids[character] for character in word]
        heap = [
            (self.rules[pair][0], place, *pair)
            for place, pair in enumerate(pairwise(symbols))
            if pair in self.rules
        ]
        heapq.heapify(heap)
        if len(word) <= LONG:
            if len(self.words) >= REMEMBERED:
                self.words.clear()
            self.words[word] = symbols, heap
        return symbols, heap

    def _merged(self, word: str, coins: Iterator[bool]) -> list[int]:
        """The ids of one word.

        Going through the merges from the best, tossing a coin for each until one stays, is the
        same as tossing for all of them first, and a heap gives the best without a search.
        """
        symbols, heap = self._start(word)
        symbols, heap = symbols.copy(), heap.copy()
        before, after = list(range(-1, len(symbols))), list(range(1, len(symbols) + 1))
        symbols.append(GONE)  # after the last
        left_out: list[Merge] = []
        while heap:
            merge = heapq.heappop(heap)
            _, place, left, right = merge
            if symbols[place] != left or symbols[after[place]] != right:
                continue  # one of the two has been merged since
            if next(coins):
                left_out.append(merge)
                continue
            for again in left_out:  # at the next step it may come in
                heapq.heappush(heap, again)
            left_out.clear()
            gone = after[place]
            symbols[place], symbols[gone] = self.rules[left, right][1], GONE
            after[place] = after[gone]
            before[after[gone]] = place
            for start in (before[place], place):
                pair = symbols[start], symbols[after[start]]
                if start >= 0 and pair in self.rules:
                    heapq.heappush(heap, (self.rules[pair][0], start, *pair))
        return [symbol for symbol in symbols if symbol != GONE]

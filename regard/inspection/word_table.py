"""Words as vectors (M2): which are near, and what their differences say.

A direction between two words can stand for what tells them apart, v(Paris) − v(France) ≈
v(Rome) − v(Italy). So "paris is to france as rome is to …" is answered by the words nearest to
v(france) − v(paris) + v(rome), all vectors of length 1 (3CosAdd: Mikolov and others 2013, Levy and
Goldberg 2014), the three asked with left out.
"""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from regard.errors import RegardError

Vectors = NDArray[np.float32]
COMMON = 50_000  # words among which a mistyped one is looked for, which takes half a second


class Neighbour(NamedTuple):
    """A word and the cosine of its angle to what was asked for."""

    word: str
    similarity: float


@dataclass(frozen=True, eq=False)
class WordTable:
    """Words, each once, and a vector for each: M2's matrix E with its labels."""

    words: Sequence[str]  # the most frequent first, where that is known
    vectors: Vectors  # (words, width)

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", tuple(self.words))
        object.__setattr__(self, "vectors", np.asarray(self.vectors, np.float32))
        shape = self.vectors.shape
        if len(shape) != 2 or shape[0] != len(self.words) or not all(shape):
            raise RegardError(
                f"{len(self.words):,} words need as many vectors of one width, not numbers of "
                f"shape {shape}"
            )
        if len(self._places) < len(self.words):
            twice = next(w for i, w in enumerate(self.words) if self._places[w] != i)
            raise RegardError(f"the word {twice!r} has two vectors; give each word once")
        if not np.isfinite(self.vectors).all():
            worst = self.words[int(np.argmin(np.isfinite(self.vectors).all(1)))]
            raise RegardError(f"the vector of {worst!r} has a number that is not finite")

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._places

    @property
    def width(self) -> int:
        return self.vectors.shape[1]

    @cached_property
    def _places(self) -> dict[str, int]:
        return {word: place for place, word in enumerate(self.words)}

    @cached_property
    def units(self) -> Vectors:
        """The vectors at length 1, (words, width); one of zeros stays."""
        return unit(self.vectors)

    def place(self, word: str) -> int:
        """Which word it is, from 0; for an unknown one an error that tells the nearest spelling."""
        if (place := self._places.get(word)) is not None:
            return place
        hint = self._hint(word)
        raise RegardError(
            f"{word!r} is not among the {len(self):,} words{'; ' + hint if hint else ''}"
        )

    def _hint(self, word: str) -> str:
        same = [known for known in self.words if known.lower() == word.lower()]
        common = self.words[:COMMON]
        close = same or difflib.get_close_matches(word.lower(), common, n=1, cutoff=0.7)
        return f"did you mean {close[0]!r}?" if close else ""

    def vector(self, word: str) -> Vectors:
        """A word's vector (width,)."""
        return self.vectors[self.place(word)]

    def nearest(
        self, given: str | ArrayLike, count: int = 10, *, without: Sequence[str] = ()
    ) -> list[Neighbour]:
        """The words whose vectors have the smallest angles to a word's or to a vector (width,).

        A word is not its own neighbour, and neither are those to go `without`.
        """
        if count < 1:
            raise RegardError(f"at least one word must be asked for, not {count}")
        if isinstance(given, str):
            without = (given, *without)
            query = self.units[self.place(given)]
        else:
            query = unit(self._checked(given)[None])[0]
        scores = self.units @ query  # (words,)
        left_out = {self.place(word) for word in without}
        scores[list(left_out)] = -np.inf
        best = np.argsort(-scores, kind="stable")[: min(count, len(self) - len(left_out))]
        return [Neighbour(self.words[i], float(scores[i])) for i in best]

    def analogy(self, a: str, b: str, c: str, count: int = 10) -> list[Neighbour]:
        """What c is to as a is to b: analogy("paris", "france", "rome") begins with italy."""
        x, y, z = (self.units[self.place(word)] for word in (a, b, c))
        return self.nearest(y - x + z, count, without=(a, b, c))

    def similarity(self, a: str, b: str) -> float:
        """The cosine of the angle between two words' vectors."""
        return float(self.similarities([self.place(a)], [self.place(b)])[0])

    def similarities(self, left: Sequence[int], right: Sequence[int]) -> NDArray[np.float64]:
        """The cosines of words by their places, pair by pair: (pairs,)."""
        units = (unit(self.vectors[list(places)].astype(np.float64)) for places in (left, right))
        return np.clip(np.multiply(*units).sum(1), -1.0, 1.0)

    def _checked(self, given: ArrayLike) -> Vectors:
        vector = np.asarray(given, np.float32)
        if vector.shape != (self.width,) or not np.isfinite(vector).all():
            raise RegardError(
                f"give a word, or a vector of {self.width} finite numbers, not one of shape "
                f"{vector.shape}"
            )
        return vector


def unit(vectors: NDArray[Any]) -> NDArray[Any]:
    """Vectors (rows, width) at length 1; one of zeros stays."""
    largest = np.abs(vectors).max(1, keepdims=True)
    scaled = vectors / np.where(largest > 0, largest, 1)  # no square overflows or vanishes
    length = np.sqrt((scaled * scaled).sum(1, keepdims=True))
    return scaled / np.where(length > 0, length, 1)

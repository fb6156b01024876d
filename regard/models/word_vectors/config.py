"""Everything that tells one set of word vectors from another (M2), as a frozen, checked value."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from regard.errors import Problems, nearest
from regard.models.config import ModelConfig

Method = Literal["skip-gram", "cbow"]
Loss = Literal["negative", "hierarchical"]
# Beyond these a number is a mistake.
LARGEST = {"vocabulary": 2**26, "width": 2**16, "window": 1000, "negatives": 1000}


@dataclass(frozen=True)
class Word2VecConfig(ModelConfig):
    """Everything that tells one set of word vectors from another."""

    family: ClassVar[str] = "word_vectors"
    kind: ClassVar[Literal["vectors"]] = "vectors"
    context: ClassVar[int] = 1 << 26

    vocabulary: int = 50257
    width: int = 100
    method: Method = "skip-gram"
    loss: Loss = "negative"
    window: int = 5  # words to each side, at most; each place draws its own from 1 to this
    negatives: int = 5  # drawn words for each right one
    subsample: float = 1e-4  # words with a larger share of the text are thinned; 0: none is
    power: float = 0.75  # drawn words are as frequent as count ** power
    phrases: float = 0.0  # two words that score more are one, as new_york; 100 is usual; 0: none

    def __post_init__(self) -> None:
        problems = Problems("word vectors")
        for name, most in LARGEST.items():
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            good = whole and 1 <= value <= most
            problems.require(good, f"{name} must be a number from 1 to {most}, not {value!r}")
        for name, choices in (("method", get_args(Method)), ("loss", get_args(Loss))):
            value = getattr(self, name)
            hint = nearest(str(value), choices)
            problems.require(value in choices, f"{name} cannot be {value!r}; {hint}")
        for name in ("subsample", "power", "phrases"):
            value = getattr(self, name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            good = number and 0 <= value < math.inf
            problems.require(good, f"{name} must be a number that is not negative, not {value!r}")
        problems.report()

    @property
    def by_steps(self) -> bool:
        return False

    def module(self) -> Any:
        from regard.models.word_vectors.model import WordVectors

        return WordVectors(self)

"""Everything that tells one set of word vectors from another (M2), as a frozen, checked value."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from regard.fields import Range
from regard.models.config import ModelConfig, Vocabulary

Method = Literal["skip-gram", "cbow"]
Loss = Literal["negative", "hierarchical"]
NotNegative = Annotated[float, Range(0)]


@dataclass(frozen=True)
class Word2VecConfig(ModelConfig):
    """Everything that tells one set of word vectors from another."""

    family: ClassVar[str] = "word_vectors"
    kind: ClassVar[Literal["vectors"]] = "vectors"
    context: ClassVar[int] = 1 << 26

    vocabulary: Vocabulary = 50257
    width: Annotated[int, Range(1, 1 << 16)] = 100
    method: Method = "skip-gram"
    loss: Loss = "negative"
    # words to each side, at most; each place draws its own from 1 to this
    window: Annotated[int, Range(1, 1000)] = 5
    negatives: Annotated[int, Range(1, 1000)] = 5  # drawn words for each right one
    subsample: NotNegative = 1e-4  # words with a larger share of the text are thinned; 0: none is
    power: NotNegative = 0.75  # drawn words are as frequent as count ** power
    # two words that score more are one, as new_york; 100 is usual; 0: none
    phrases: NotNegative = 0.0

    @property
    def uncounted(self) -> str:
        return "word vectors are looked up and not run; `regard describe` tells how many there are"

    @property
    def by_steps(self) -> bool:
        return False

    def module(self) -> Any:
        from regard.models.word_vectors.model import WordVectors

        return WordVectors(self)

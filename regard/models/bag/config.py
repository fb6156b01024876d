"""Everything that tells one classifier of bags of words from another (M3, M25)."""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from regard.fields import Range, Share
from regard.models.config import ModelConfig, SourceVocabulary, Task

SPECIALS = 5  # the first ids of every vocabulary: <pad> <s> </s> <unk> <mask>


@dataclass(frozen=True)
class BagConfig(ModelConfig):
    """Everything that tells one bag-of-words classifier from another."""

    family: ClassVar[str] = "bag"
    kind: ClassVar[Literal["encoder-decoder"]] = "encoder-decoder"
    context: ClassVar[int] = 1 << 26  # a text may be as long as one likes

    # labels, and the special tokens before them
    vocabulary: Annotated[int, Range(SPECIALS + 1, 1 << 26)] = 50257
    source_vocabulary: SourceVocabulary = 0  # words; 0: labels and words share one vocabulary
    layers: Annotated[int, Range(0, 1024)] = 0  # hidden ones; 0: a linear classifier
    width: Annotated[int, Range(1, 1 << 20)] = 256  # of each hidden layer
    dropout: Share = 0.0  # of hidden layers

    def disagreements(self, wrong: AbstractSet[str]) -> Iterator[str]:
        if not wrong and self.dropout and self.layers == 0:
            yield f"dropout {self.dropout} needs a hidden layer; raise layers or leave it out"

    @property
    def task(self) -> Task:
        return "labels"

    @property
    def in_words(self) -> str:
        return "labels texts (`classify`)"

    def module(self) -> Any:
        from regard.models.bag.model import Bag

        return Bag(self)

"""Everything that tells one classifier of bags of words from another (M3, M25)."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from regard.errors import Problems
from regard.models.config import ModelConfig, Task

SPECIALS = 5  # the first ids of every vocabulary: <pad> <s> </s> <unk> <mask>
LARGEST = {"vocabulary": 1 << 26, "source_vocabulary": 1 << 26, "layers": 1024, "width": 1 << 20}
LEAST = {"vocabulary": SPECIALS + 1, "source_vocabulary": 0, "layers": 0, "width": 1}


@dataclass(frozen=True)
class BagConfig(ModelConfig):
    """Everything that tells one bag-of-words classifier from another."""

    family: ClassVar[str] = "bag"
    kind: ClassVar[Literal["encoder-decoder"]] = "encoder-decoder"
    context: ClassVar[int] = 1 << 26  # a text may be as long as one likes

    vocabulary: int = 50257  # labels, and the special tokens before them
    source_vocabulary: int = 0  # words; 0: labels and words share one vocabulary
    layers: int = 0  # hidden ones; 0: a linear classifier
    width: int = 256  # of each hidden layer
    dropout: float = 0.0  # of hidden layers

    def __post_init__(self) -> None:
        problems = Problems("model settings")
        for name, most in LARGEST.items():
            value, least = getattr(self, name), LEAST[name]
            fits = isinstance(value, int) and not isinstance(value, bool)
            fits = fits and least <= value <= most
            problems.require(
                fits, f"{name} must be a whole number from {least} to {most:,}, not {value!r}"
            )
        dropout = self.dropout
        fine = isinstance(dropout, int | float) and not isinstance(dropout, bool)
        fine = fine and 0 <= dropout < 1
        problems.require(fine, f"dropout must be in [0, 1), not {dropout!r}")
        if fine and dropout and self.layers == 0:
            problems.add(f"dropout {dropout} needs a hidden layer; raise layers or leave it out")
        problems.report()

    @property
    def task(self) -> Task:
        return "labels"

    @property
    def in_words(self) -> str:
        return "labels texts (`classify`)"

    def module(self) -> Any:
        from regard.models.bag.model import Bag

        return Bag(self)

"""Everything that tells one gated linear recurrence from another, as a frozen, checked value."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from regard.errors import Problems
from regard.models.config import Ability, ModelConfig

LEAST = {"vocabulary": 1, "layers": 1, "width": 1, "hidden": 0, "kernel": 1, "feedforward": 0}
LARGEST = {
    "vocabulary": 1 << 26,
    "layers": 128,
    "width": 1 << 16,
    "hidden": 1 << 16,
    "kernel": 1 << 6,
    "feedforward": 1 << 18,
}


@dataclass(frozen=True)
class LinearRecurrenceConfig(ModelConfig):
    """A language model whose hidden vectors follow from gates that do not depend on them."""

    family: ClassVar[str] = "linear_recurrence"
    kind: ClassVar[Literal["decoder"]] = "decoder"
    context: ClassVar[int] = 1 << 26  # a text may be as long as one likes

    vocabulary: int = 50257
    layers: int = 4
    width: int = 256
    hidden: int = 0  # numbers of a hidden vector; 0: width
    kernel: int = 4  # positions that a layer's convolution looks at; 1: none
    feedforward: int = 0  # inner width of feed-forward layers; 0: 4/3 of the width
    dropout: float = 0.0  # of embeddings and of what layers add

    def __post_init__(self) -> None:
        problems = Problems("model settings")
        for name, most in LARGEST.items():
            value, least = getattr(self, name), LEAST[name]
            fits = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
            problems.require(
                fits, f"{name} must be a whole number from {least} to {most:,}, not {value!r}"
            )
        share = self.dropout
        fine = isinstance(share, int | float) and not isinstance(share, bool) and 0 <= share < 1
        problems.require(fine, f"dropout must be in [0, 1), not {share!r}")
        problems.report()

    @property
    def abilities(self) -> frozenset[Ability]:
        return super().abilities | {Ability.RESIZE}

    @property
    def ties_output(self) -> bool:
        return True

    def module(self) -> Any:
        from regard.models.linear_recurrence.model import LinearRecurrence

        return LinearRecurrence(self)

    def resolved(self) -> "LinearRecurrenceConfig":
        """Nothing left open."""
        return replace(
            self,
            hidden=self.hidden or self.width,
            feedforward=self.feedforward or max(1, round(4 * self.width / 3 / 8)) * 8,
        )

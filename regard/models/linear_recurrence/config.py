"""Everything that tells one gated linear recurrence from another, as a frozen, checked value."""

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from regard.fields import Range, Share
from regard.models.config import Ability, ModelConfig, Vocabulary


@dataclass(frozen=True)
class LinearRecurrenceConfig(ModelConfig):
    """A language model whose hidden vectors follow from gates that do not depend on them."""

    family: ClassVar[str] = "linear_recurrence"
    kind: ClassVar[Literal["decoder"]] = "decoder"
    context: ClassVar[int] = 1 << 26  # a text may be as long as one likes

    vocabulary: Vocabulary = 50257
    layers: Annotated[int, Range(1, 128)] = 4
    width: Annotated[int, Range(1, 1 << 16)] = 256
    # numbers of a hidden vector; 0: width
    hidden: Annotated[int, Range(0, 1 << 16)] = 0
    # positions that a layer's convolution looks at; 1: none
    kernel: Annotated[int, Range(1, 1 << 6)] = 4
    # inner width of feed-forward layers; 0: 4/3 of the width
    feedforward: Annotated[int, Range(0, 1 << 18)] = 0
    dropout: Share = 0.0  # of embeddings and of what layers add

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

"""Everything that tells one n-gram model from another (M4), as a frozen, checked value."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, get_args

from regard.errors import RegardError, nearest
from regard.fields import Range
from regard.models.config import Ability, ModelConfig, Vocabulary

Name = Literal["kneser-ney", "add-k", "stupid-backoff", "maximum-likelihood"]
SMOOTHINGS: tuple[Name, ...] = get_args(Name)
LONGEST = 64  # tokens of an n-gram; beyond some 10 nearly every one was seen once


@dataclass(frozen=True)
class Smoothing:
    """The numbers in the formula that tell one smoothing from another."""

    name: str
    discounted: bool = False  # a and D as Kneser and Ney have them; else plain counts and no D
    added: float = 0.0  # to each count: the k of add-k
    whole: bool = False  # whole contexts decide alone; shorter ones are never asked
    uniform: bool = True  # below single tokens all are equally likely; else impossible
    factor: float = 0.0  # of stupid back-off; 0: what the formula gives away

    @property
    def normalised(self) -> bool:
        """Whether it makes probabilities, which sum to one, rather than scores."""
        return not self.factor

    @property
    def unseen(self) -> float:
        """The back-off, a logarithm, of contexts that were never seen."""
        return math.log(self.factor) if self.factor else 0.0


def smoothing(name: str = "kneser-ney", k: float = 1.0, factor: float = 0.4) -> Smoothing:
    """A smoothing by its name; k is for add-k and the factor for stupid back-off only."""
    if name not in SMOOTHINGS:
        raise RegardError(f"there is no smoothing {name!r}; {nearest(name, SMOOTHINGS)}")
    if not 0 < k < math.inf:
        raise RegardError(f"add-k adds more than nothing to each count, not {k}; raise k")
    if not 0 < factor <= 1:
        raise RegardError(f"the factor of stupid back-off is above 0 and at most 1, not {factor}")
    kinds = (
        Smoothing("kneser-ney", discounted=True),
        Smoothing("add-k", added=k, whole=True),
        Smoothing("stupid-backoff", uniform=False, factor=factor),
        Smoothing("maximum-likelihood", whole=True, uniform=False),
    )
    return kinds[SMOOTHINGS.index(name)]


def thresholds(prune: Sequence[int], order: int, kind: Smoothing) -> list[int]:
    """For each length up to the order, the count up to which n-grams are left out."""
    wrong = (
        len(prune) > order
        or any(isinstance(value, bool) or not isinstance(value, int) for value in prune)
        or list(prune) != sorted(prune)
        or (prune and prune[0] != 0)
    )
    if wrong:
        raise RegardError(
            f"prune {list(prune)} does not fit order {order}: give whole numbers for at most "
            f"{order} lengths, 0 for single tokens, and none smaller than the one before"
        )
    if kind.whole and any(prune):
        raise RegardError(
            f"{kind.name} has no shorter contexts to fall back on, so nothing can be pruned"
        )
    return [*prune, *[prune[-1] if prune else 0] * (order - len(prune))]


KNESER_NEY = smoothing()


@dataclass(frozen=True)
class NGramConfig(ModelConfig):
    """Everything that tells one n-gram model from another."""

    family: ClassVar[str] = "counting"
    kind: ClassVar[Literal["decoder"]] = "decoder"
    context: ClassVar[int] = 1 << 26  # a text may be as long as one likes

    vocabulary: Vocabulary = 50257
    # tokens of the longest n-grams; 1: a bag of words (M3)
    order: Annotated[int, Range(1, LONGEST)] = 5
    smoothing: Name = "kneser-ney"  # how what was never seen gets its share
    k: Annotated[float, Range(0, 10**9, above=True)] = 1.0  # add-k: what is added to each count
    prune: tuple[int, ...] = ()  # n-grams seen no more often are left out: for lengths 1, 2, …

    def __post_init__(self) -> None:
        if isinstance(self.prune, list):
            object.__setattr__(self, "prune", tuple(self.prune))
        super().__post_init__()
        thresholds(self.prune, self.order, self.rule)

    @property
    def rule(self) -> Smoothing:
        """The smoothing itself."""
        return smoothing(self.smoothing, self.k)

    @property
    def abilities(self) -> frozenset[Ability]:
        return super().abilities - {Ability.EMBED}  # it has counts and no vectors

    @property
    def in_words(self) -> str:
        return f"has counts and no vectors, and {super().in_words}"

    @property
    def uncounted(self) -> str:
        return "what an n-gram model costs depends on the text it has counted; give a trained run"

    @property
    def by_steps(self) -> bool:
        return False

    def module(self) -> Any:
        from regard.models.counting.model import NGram

        return NGram(self)

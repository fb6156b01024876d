"""What may be asked of a search, checked where it is made."""

import math
from collections.abc import Callable
from dataclasses import InitVar, dataclass, fields
from typing import Annotated, Any

import numpy as np

from regard.errors import Problems
from regard.fields import Range, Rule, check
from regard.text.specials import BOS, EOS, MASK, PAD, UNK

SEEDS = 1 << 63
WIDEST = 1024  # beams of one search
NotNegative = Annotated[int, Range(0)]
TokenIds = Annotated[tuple[int, ...], Range(0)]


@dataclass(frozen=True)
class SpecialTokens:
    """Which ids of a vocabulary have a meaning for whoever writes."""

    begin: int = BOS  # stands before a text
    ends: tuple[int, ...] = (EOS,)
    never: tuple[int, ...] = (PAD, BOS, MASK)  # a text holds none of these


TARGET = SpecialTokens()
TEXT = SpecialTokens(never=(PAD, BOS, UNK, MASK))  # what was learnt by heart has no unknown words


@dataclass(frozen=True)
class Sampling:
    """How the tokens of one row are drawn.

    In this order: `repetition_penalty` divides the positive logits of tokens that stand in the row
    already and multiplies the others; `banned` tokens are ruled out; `temperature` divides; `top_k`
    leaves so many; `top_p` the fewest, from the most probable on, that together have at least this
    share of what is left; `min_p` those with at least this share of the most probable one.
    """

    limit: NotNegative = 200  # tokens
    temperature: Annotated[float, Range(0)] = 1.0  # 0 takes the most probable token
    top_k: NotNegative = 0  # 0: all
    top_p: Annotated[float, Range(0, 1, above=True)] = 1.0  # a share of 0 would leave nothing
    min_p: Annotated[float, Range(0, 1)] = 0.0
    repetition_penalty: Annotated[float, Range(0.01, 100)] = 1.0
    banned: TokenIds = ()
    seed: Annotated[int, Range(0, SEEDS - 1)] = 0
    # None: no log-probabilities; N: each token's, and those of the N most probable ones
    logprobs: Annotated[int | None, Range(0)] = None
    named: InitVar[Callable[[str], str]] = str  # a setting in messages; a command says its option

    def __post_init__(self, named: Callable[[str], str]) -> None:
        _settle(self)
        problems = Problems("sampling")
        check(self, problems, named)
        problems.report()

    @property
    def plain(self) -> bool:
        """Whether the most probable token of the model itself is taken."""
        return not self.temperature and self.repetition_penalty == 1.0 and not self.banned


@dataclass(frozen=True)
class Beam:
    """How a beam search goes; see `beam.search` for the rules."""

    beams: Annotated[int, Range(1, WIDEST)] = 5
    length_penalty: Annotated[float, Range(-10, 10)] = 1.0  # log-probability / length ** this
    coverage_penalty: Annotated[float, Range(0, 100)] = 0.0
    n_best: Annotated[int, Range(1)] = 1
    banned: TokenIds = ()
    attention: bool = False  # bring each token's weights over the source
    record: bool = False  # bring the tree of all candidates
    named: InitVar[Callable[[str], str]] = str  # a setting in messages; a command says its option

    def __post_init__(self, named: Callable[[str], str]) -> None:
        _settle(self)
        problems = Problems("beam search")
        if not check(self, problems, named) & {"beams", "n_best"}:
            problems.require(
                self.n_best <= self.beams,
                f"{self.n_best} best of {self.beams} beams cannot be had; raise {named('beams')}",
            )
        problems.report()


def _settle(settings: "Sampling | Beam") -> None:
    """NumPy's numbers become Python's, which are checked and used from here on."""
    for one in fields(settings):
        value = getattr(settings, one.name)
        listed = isinstance(value, tuple | list)
        value = tuple(map(_plain, value)) if listed else _plain(value)
        object.__setattr__(settings, one.name, value)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def require_whole(
    problems: Problems, name: str, value: object, low: int, high: float = math.inf
) -> None:
    """Note it as a problem unless the value is a whole number within these limits."""
    rule, number = Rule(int, Range(low, high)), _plain(value)
    if not rule.allows(number):
        problems.add(f"{name} {rule.refusal(number)}")

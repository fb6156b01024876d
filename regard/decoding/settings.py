"""What may be asked of a search, checked where it is made."""

from collections.abc import Callable
from dataclasses import InitVar, dataclass, fields

import numpy as np

from regard.errors import Problems
from regard.text.specials import BOS, EOS, MASK, PAD, UNK

SEEDS = 1 << 63
WIDEST = 1024  # beams of one search
HOTTEST = 1e300  # any finite number does, but NaN and infinity do not


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

    limit: int = 200  # tokens
    temperature: float = 1.0  # 0 takes the most probable token
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    banned: tuple[int, ...] = ()
    seed: int = 0
    logprobs: int | None = None  # None: none; else each token's, and so many of the most probable
    named: InitVar[Callable[[str], str]] = str  # a setting in messages; a command says its option

    def __post_init__(self, named: Callable[[str], str]) -> None:
        _settle(self)
        problems = Problems("sampling")
        require_whole(problems, named("limit"), self.limit, 0)
        require_whole(problems, named("top_k"), self.top_k, 0)
        require_whole(problems, named("seed"), self.seed, 0, SEEDS - 1)
        if self.logprobs is not None:
            require_whole(problems, named("logprobs"), self.logprobs, 0)
        _number(problems, named("temperature"), self.temperature, 0, HOTTEST)
        _number(problems, named("top_p"), self.top_p, 0, 1)
        _number(problems, named("min_p"), self.min_p, 0, 1)
        _number(problems, named("repetition_penalty"), self.repetition_penalty, 0.01, 100)
        nothing = f"{named('top_p')} must be more than 0, or nothing is left"
        problems.require(self.top_p != 0, nothing)
        _check_ids(problems, self.banned)
        problems.report()

    @property
    def plain(self) -> bool:
        """Whether the most probable token of the model itself is taken."""
        return not self.temperature and self.repetition_penalty == 1.0 and not self.banned


@dataclass(frozen=True)
class Beam:
    """How a beam search goes; see `beam.search` for the rules."""

    beams: int = 5
    length_penalty: float = 1.0  # log-probability / length ** this
    coverage_penalty: float = 0.0
    n_best: int = 1
    banned: tuple[int, ...] = ()
    attention: bool = False  # bring each token's weights over the source
    record: bool = False  # bring the tree of all candidates
    named: InitVar[Callable[[str], str]] = str  # a setting in messages; a command says its option

    def __post_init__(self, named: Callable[[str], str]) -> None:
        _settle(self)
        problems = Problems("beam search")
        several = require_whole(problems, named("beams"), self.beams, 1, WIDEST)
        if require_whole(problems, named("n_best"), self.n_best, 1) and several:
            problems.require(
                self.n_best <= self.beams,
                f"{self.n_best} best of {self.beams} beams cannot be had; raise {named('beams')}",
            )
        _number(problems, named("length_penalty"), self.length_penalty, -10, 10)
        _number(problems, named("coverage_penalty"), self.coverage_penalty, 0, 100)
        _check_ids(problems, self.banned)
        problems.report()


def _settle(settings: "Sampling | Beam") -> None:
    """NumPy's numbers become Python's, which are checked and used from here on."""
    for one in fields(settings):
        value = getattr(settings, one.name)
        if isinstance(value, tuple | list):
            value = tuple(item.item() if isinstance(item, np.generic) else item for item in value)
        value = value.item() if isinstance(value, np.generic) else value
        object.__setattr__(settings, one.name, value)


def require_whole(
    problems: Problems, name: str, value: object, low: int, high: int | None = None
) -> bool:
    """Note it as a problem unless the value is a whole number within these limits."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    fits = whole and low <= value and (high is None or value <= high)  # type: ignore[operator]
    limits = f"{low} or more" if high is None else f"{low} to {high}"
    problems.require(fits, f"{name} must be a whole number, {limits}, not {value!r:.40}")
    return fits


def _number(problems: Problems, name: str, value: object, low: float, high: float) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    fits = number and low <= value <= high  # type: ignore[operator]
    limits = f"{low:g} or more, and finite" if high == HOTTEST else f"between {low:g} and {high:g}"
    problems.require(fits, f"{name} must be {limits}, not {value!r:.40}")


def _check_ids(problems: Problems, ids: object) -> None:
    fits = isinstance(ids, tuple) and all(
        isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in ids
    )
    problems.require(fits, f"banned must be a tuple of token ids, not {ids!r:.80}")

"""Models of about the same number of parameters: the width that comes nearest to a budget.

Parameters are those of the module itself, built on the `meta` device: no formula can drift from it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

from regard.errors import RegardError
from regard.inspection.anatomy import parameters
from regard.models.config import Ability, ModelConfig
from regard.models.construction import build

MULTIPLE = 8  # widths are multiples of it, and heads divide them
WIDEST = 1 << 15


class Widened(Protocol):
    """Settings with a width that can be chosen."""

    width: int


@dataclass(frozen=True)
class Match:
    """A width, and what a model of it has."""

    changes: dict[str, int]  # settings of the model, by name
    parameters: int


def count(config: ModelConfig) -> int:
    """The parameters of the module that a config describes."""
    return parameters(build(config, "meta"))


def can_be_matched(config: ModelConfig) -> bool:
    """Whether a model has a width to choose; counts have none."""
    return Ability.RESIZE in config.abilities


def matched(config: ModelConfig, budget: int) -> Match:
    """The width whose module has the number of parameters nearest to the budget.

    Depth and the number of heads stay; what lies between scales with the width.
    """
    step = _step(config)

    def sized(times: int) -> Match:
        changes = resized(config, times * step)
        return Match(changes, count(replace(cast(Any, config), **changes)))

    most = WIDEST // step
    first = _first(lambda times: sized(times).parameters >= budget, most)
    best = min((sized(t) for t in {max(1, first - 1), first}), key=lambda m: _miss(m, budget))
    if best.parameters > 2 * budget:
        raise RegardError(
            f"the smallest width makes {best.parameters:,} parameters, more than twice the "
            f"{budget:,} asked for (the vocabulary counts too); raise --parameters, or choose a "
            "smaller vocabulary with --set tokenizer.vocabulary=N"
        )
    return best


def resized(config: ModelConfig, width: int) -> dict[str, int]:
    """The settings that make a model so wide, all else in proportion."""
    usual = cast(Widened, config).width
    hidden = getattr(config, "hidden", 0)
    if not hidden:
        return {"width": width}
    grown = MULTIPLE * max(1, round(hidden * width / usual / MULTIPLE))
    return {"width": width, "hidden": grown}


def _step(config: ModelConfig) -> int:
    """Widths are multiples of this: heads divide them, into even parts, and so do kernels."""
    heads = getattr(config, "heads", 1)
    step = 2 * heads  # rotary positions turn pairs
    return int(step * -(-MULTIPLE // step))


def _first(reached: Callable[[int], bool], most: int) -> int:
    """The first of 1 … `most` for which it holds, by halving; `most` if for none."""
    low, high = 1, 1
    while high < most and not reached(high):
        low, high = high + 1, min(2 * high, most)
    while low < high:
        middle = (low + high) // 2
        if reached(middle):
            high = middle
        else:
            low = middle + 1
    return high


def _miss(match: Match, budget: int) -> int:
    return abs(match.parameters - budget)

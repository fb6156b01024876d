"""What a setting may be, said beside it in its dataclass, and the one check of all settings.

    cell: Literal["elman", "gru", "lstm"] = "lstm"
    layers: Annotated[int, Range(1, 64)] = 2  # of the decoder
    dropout: Share = 0.0

Types alone are rules too: True is no number, a whole number is a fine float, NaN and infinity are
no settings. Settings that are fine each but not together are for each dataclass to tell.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from regard.errors import Problems, nearest

FINITE = 1 << 1000  # a float holds it
SHOWN = 80  # characters of a wrong value


@dataclass(frozen=True)
class Range:
    """The numbers that a setting may be, or those in a list of numbers."""

    least: float
    most: float = math.inf
    above: bool = False  # `least` itself is too little
    below: bool = False  # `most` itself is too much
    also: float | None = None  # with a meaning of its own

    def holds(self, number: float) -> bool:
        if self.also is not None and number == self.also:
            return True
        least = self.least < number if self.above else self.least <= number
        return least and (number < self.most if self.below else number <= self.most)

    def of(self, noun: str) -> str:
        """What it must be: a whole number from 1 to 64."""
        least, most = _spelled(self.least), _spelled(self.most)
        if self.below:
            words = f"in {'(' if self.above else '['}{least}, {most})"
        elif self.above:
            words = f"{noun} above {least}" + ("" if self.most == math.inf else f", {most} at most")
        elif self.most == math.inf:
            words = f"{noun}, {least} or more"
        else:
            words = f"{noun} from {least} to {most}"
        return words if self.also is None else f"{words} or {_spelled(self.also)}"


Share = Annotated[float, Range(0, 1, below=True)]
Positive = Annotated[float, Range(0, above=True)]


@dataclass(frozen=True)
class Rule:
    """What one setting may be."""

    kind: Any  # a type, or a Literal
    range: Range | None = None
    optional: bool = False  # None is fine

    def allows(self, value: object) -> bool:
        if value is None:
            return self.optional
        if get_origin(self.kind) is Literal:
            return value in get_args(self.kind)
        if get_origin(self.kind) is tuple:
            element = Rule(get_args(self.kind)[0], self.range)
            return isinstance(value, tuple) and all(map(element.allows, value))
        if self.kind in (int, float):
            return self._allows_number(value)
        return isinstance(value, get_origin(self.kind) or self.kind)

    def _allows_number(self, value: object) -> bool:
        number = isinstance(value, int if self.kind is int else int | float)
        if not number or isinstance(value, bool):
            return False
        assert isinstance(value, int | float)
        return -FINITE < value < FINITE and (self.range is None or self.range.holds(value))

    def refusal(self, value: object) -> str:
        """What is wrong with a value that it does not allow, in words that follow its name."""
        shown = _shown(value)
        if get_origin(self.kind) is Literal:
            hint = nearest(value if isinstance(value, str) else shown, get_args(self.kind))
            return f"cannot be {shown}; {hint}"
        kind, nouns = self.kind, NOUNS
        if get_origin(kind) is tuple:
            kind, nouns = get_args(kind)[0], LISTS
        kind = get_origin(kind) or kind
        noun = nouns.get(kind) or f"a {kind.__name__}"
        words = noun if self.range is None else self.range.of(noun)
        return f"must be {words}, not {shown}"


NOUNS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    Mapping: "a table",
}
LISTS = {int: "a list of whole numbers", float: "a list of numbers", str: "a list of texts"}


@cache
def rules(settings: type) -> Mapping[str, Rule]:
    """What each field of a dataclass may be."""
    hints = get_type_hints(settings, include_extras=True)
    return MappingProxyType({field.name: _rule(hints[field.name]) for field in fields(settings)})


def _rule(hint: Any) -> Rule:
    kind, limits = get_args(hint) if get_origin(hint) is Annotated else (hint, None)
    if get_origin(kind) not in (Union, UnionType):
        return Rule(kind, limits)
    (kind,) = (one for one in get_args(kind) if one is not NoneType)
    return Rule(kind, limits, optional=True)


def check(settings: Any, problems: Problems, named: Callable[[str], str] = str) -> set[str]:
    """Note what is wrong with each field by itself, and return the names of those; `named` gives
    the name of a field in messages."""
    made_of: type = type(settings)
    wrong = {
        name: rule
        for name, rule in rules(made_of).items()
        if not rule.allows(getattr(settings, name))
    }
    for name, rule in wrong.items():
        problems.add(f"{named(name)} {rule.refusal(getattr(settings, name))}")
    return {*wrong}


def _spelled(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"


def _shown(value: object) -> str:
    try:
        return f"{value!r:.{SHOWN}}"
    except ValueError:  # Python spells no number of more than 4,300 digits
        return "a number of thousands of digits"

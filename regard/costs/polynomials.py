"""Polynomials with exact coefficients, found from what is counted at a few sizes.

A count is a polynomial in the sizes of a job: rows, tokens, width, heads. Enough counts on a grid
of sizes determine it, in fractions, without rounding; others, off the grid, must agree with it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod

Powers = tuple[tuple[str, int], ...]  # (("b", 1), ("n", 2)): bn²
Count = Callable[[Mapping[str, int]], Mapping[str, int]]
RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Polynomial:
    """A sum of monomials."""

    terms: Mapping[Powers, Fraction]

    @classmethod
    def constant(cls, value: int | Fraction) -> "Polynomial":
        return cls({(): Fraction(value)} if value else {})

    def __add__(self, other: "Polynomial") -> "Polynomial":
        found = dict(self.terms)
        for powers, factor in other.terms.items():
            found[powers] = found.get(powers, Fraction(0)) + factor
        return Polynomial({powers: factor for powers, factor in found.items() if factor})

    def __mul__(self, other: "Polynomial") -> "Polynomial":
        found = Polynomial({})
        for left, a in self.terms.items():
            for right, b in other.terms.items():
                found += Polynomial({_joined(left, right): a * b})
        return found

    def __call__(self, **sizes: int) -> Fraction:
        """Its value at some sizes."""
        terms = self.terms.items()
        return sum(
            (factor * prod(sizes[v] ** p for v, p in powers) for powers, factor in terms),
            Fraction(0),
        )

    def degree(self, variable: str) -> int:
        """The highest power of a variable."""
        return max((dict(powers).get(variable, 0) for powers in self.terms), default=0)

    def largest(self, variable: str) -> "Polynomial":
        """What is left where a variable is much larger than all others."""
        top = self.degree(variable)
        return Polynomial({p: f for p, f in self.terms.items() if dict(p).get(variable, 0) == top})

    def __str__(self) -> str:
        ordered = sorted(self.terms, key=lambda p: (-sum(e for _, e in p), p))
        parts = [_spelled(self.terms[powers], powers) for powers in ordered]
        return " + ".join(parts).replace("+ −", "− ") or "0"


def _joined(left: Powers, right: Powers) -> Powers:
    found = dict(left)
    for variable, power in right:
        found[variable] = found.get(variable, 0) + power
    return tuple(sorted(found.items(), key=lambda item: _rank(item[0])))


def _rank(variable: str) -> tuple[int, str]:
    order = "bkhnmd"
    return order.find(variable), variable


def _spelled(factor: Fraction, powers: Powers) -> str:
    if factor < 0:
        return f"−{_spelled(-factor, powers)}"
    signs = "".join(v + (str(p).translate(RAISED) if p > 1 else "") for v, p in powers)
    if factor == 1 and signs:
        return signs
    whole = str(factor) if factor.denominator == 1 else f"({factor})"
    return f"{whole}{signs}"


class NoPolynomialError(ValueError):
    """What was counted does not follow from the sizes as a polynomial of these degrees."""


def fitted(count: Count, sizes: Mapping[str, Sequence[int]]) -> dict[str, Polynomial]:
    """The polynomials of all that is counted, of degree len(sizes) − 2 in each variable.

    The last size of each variable is not used to find them, but to see that they hold.
    """
    found = _on_grid(count, list(sizes), {}, {v: s[:-1] for v, s in sizes.items()})
    for aside in _held_out(sizes):
        for name, value in count(aside).items():
            if found[name](**aside) != value:
                raise NoPolynomialError(f"{name} is {value} at {aside}, not {found[name]}")
    return found


def _held_out(sizes: Mapping[str, Sequence[int]]) -> list[dict[str, int]]:
    """Off the grid: all variables at once, and each of them alone."""
    first = {variable: listed[0] for variable, listed in sizes.items()}
    last = {variable: listed[-1] for variable, listed in sizes.items()}
    return [last, *({**first, variable: last[variable]} for variable in sizes)]


def _on_grid(
    count: Count,
    variables: Sequence[str],
    fixed: Mapping[str, int],
    points: Mapping[str, Sequence[int]],
) -> dict[str, Polynomial]:
    if not variables:
        return {name: Polynomial.constant(value) for name, value in count(fixed).items()}
    variable, *rest = variables
    listed = points[variable]
    found: dict[str, Polynomial] = {}
    for i, point in enumerate(listed):
        basis = _basis(variable, listed, i)
        for name, inner in _on_grid(count, rest, {**fixed, variable: point}, points).items():
            found[name] = found.get(name, Polynomial({})) + inner * basis
    return found


def _basis(variable: str, points: Sequence[int], i: int) -> Polynomial:
    """Lagrange's: 1 at point i and 0 at the others."""
    found = Polynomial.constant(1)
    for j, point in enumerate(points):
        if j != i:
            scale = Fraction(1, points[i] - point)
            line = {((variable, 1),): scale, (): -point * scale}
            found = found * Polynomial({p: f for p, f in line.items() if f})
    return found

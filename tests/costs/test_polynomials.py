"""Polynomials are found from a few counts, exactly, or not at all."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.costs.polynomials import NoPolynomialError, Polynomial, fitted

SIZES = {"n": (2, 3, 5, 7), "d": (1, 4, 6)}
POWERS = [(i, j) for i in range(3) for j in range(2)]


@given(st.lists(st.integers(-50, 50), min_size=len(POWERS), max_size=len(POWERS)))
def test_any_polynomial_is_found_again(factors):
    def count(at):
        terms = zip(POWERS, factors, strict=True)
        return {"it": sum(f * at["n"] ** i * at["d"] ** j for (i, j), f in terms)}

    found = fitted(count, SIZES)["it"]
    assert found(n=11, d=13) == count({"n": 11, "d": 13})["it"]
    assert len(found.terms) == sum(1 for factor in factors if factor)


def test_what_is_none_is_told():
    for count in (lambda at: at["n"] ** 3, lambda at: at["n"] // 2, lambda at: at["d"] ** 2):
        with pytest.raises(NoPolynomialError):
            fitted(lambda at, count=count: {"it": count(at)}, SIZES)


def test_it_is_written_as_people_write_it():
    found = fitted(lambda at: {"it": at["n"] * (at["n"] + 1) // 2 - 3 * at["d"] + 1}, SIZES)["it"]
    assert str(found) == "(1/2)n² − 3d + (1/2)n + 1"
    assert str(found.largest("n")) == "(1/2)n²"
    assert str(Polynomial({})) == "0"
    assert found(n=4, d=1) == Fraction(8)

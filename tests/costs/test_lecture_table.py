"""The lectures' table, from traces: every O(·) is the leading behaviour of what was counted."""

import re
from pathlib import Path

import pytest

from regard.costs import lecture_table
from regard.costs.polynomials import RAISED

GUIDE = Path(__file__).parents[2] / "docs/guide/cost-table.md"
RAISED_BACK = {chr(big): int(chr(small)) for small, big in RAISED.items()}


@pytest.fixture(scope="module")
def tables():
    return lecture_table.sections()


def monomials(text):
    """bhn² + 2bnd -> [{b: 1, h: 1, n: 2}, {b: 1, n: 1, d: 1}]."""
    found = []
    for term in re.split(" [+−] ", text):
        powers = {}
        for letter, power in re.findall(r"([a-z])([²³]?)", term):
            powers[letter] = powers.get(letter, 0) + (RAISED_BACK[power] if power else 1)
        found.append(powers)
    return found


def below(one, other):
    return all(power <= other.get(letter, 0) for letter, power in one.items())


def check(exact, said):
    """Each exact term is bounded by one of what is said, and each of those is there."""
    found, bounds = monomials(exact), monomials(said)
    assert all(any(below(term, bound) for bound in bounds) for term in found), (exact, said)
    assert all(bound in found for bound in bounds), (exact, said)


def test_every_bound_of_the_lectures_is_the_leading_behaviour(tables):
    rows = {row.name: row.cells for row in tables[0].rows}
    for name in lecture_table.LECTURES:
        for cell in rows[name]:
            exact, said = cell.split("  O(")
            check(exact, said.rstrip(")"))


def test_an_encoder_decoder_costs_what_the_lectures_say(tables):
    section = tables[3]
    said = re.search(r"O\((.*)\)", section.title)[1]
    together = " + ".join(row.cells[0] for row in section.rows).replace("b", "")
    exact = monomials(together)
    for bound in monomials(said):
        assert bound in exact
    assert all(any(below(term, bound) for bound in monomials(said)) for term in exact)


def test_golden_polynomials(tables):
    rows = {row.name: row.cells for row in tables[0].rows}
    assert rows["together"][0] == "24bnd² + 2bn²d + 2bnd"  # 12d² weights, used twice each
    caches = {row.name: row.cells for row in tables[2].rows}
    assert caches["with the cache"] == ("24bnd² + 2bn²d + 2bnd", "2bnd")
    assert caches["without"][0].startswith("12bn²d² + (2/3)bn³d")
    layers = {row.name: row.cells for row in tables[4].rows}
    assert layers["fully connected over all tokens"][:2] == ("n²d²", "2bn²d²")
    assert layers["self-attention"][0] == "4d²"
    assert layers["recurrent, lstm"] == ("8d² + 8d", "16bnd²", "2bd")
    assert layers["convolution, gated"][1] == "4bknd²"


def test_the_guide_shows_the_table_as_it_is(tables):
    assert lecture_table.markdown(tables) in GUIDE.read_text(encoding="utf-8")

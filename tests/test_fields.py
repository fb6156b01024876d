"""Rules of settings: each is checked against a plain statement of what it should allow."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import Problems, RegardError
from regard.fields import Positive, Range, Share, check, rules


@dataclass(frozen=True)
class Nested:
    size: int = 1


@dataclass(frozen=True)
class Example:
    word: Literal["one", "two"] = "one"
    whole: Annotated[int, Range(1, 9)] = 1
    any_whole: int = 0
    share: Share = 0.0
    share_or_not: Annotated[float, Range(0, 1, below=True, also=-1)] = -1
    positive: Positive = 1.0
    most: Annotated[float, Range(0, 2.5, above=True)] = 1.0
    number: float = 0.0
    flag: bool = False
    text: str = ""
    texts: tuple[str, ...] = ()
    ids: Annotated[tuple[int, ...], Range(0)] = ()
    maybe: Annotated[int | None, Range(0)] = None
    inner: Nested | None = None


def is_number(value: object) -> bool:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return (
        plain and not (isinstance(value, float) and not math.isfinite(value)) and abs(value) < 1e301
    )


def is_whole(value: object) -> bool:
    return isinstance(value, int) and is_number(value)


# What each field of `Example` may be, written out.
PLAIN = {
    "word": lambda v: isinstance(v, str) and v in ("one", "two"),
    "whole": lambda v: is_whole(v) and v in range(1, 10),
    "any_whole": is_whole,
    "share": lambda v: is_number(v) and 0 <= v < 1,
    "share_or_not": lambda v: is_number(v) and (v == -1 or 0 <= v < 1),
    "positive": lambda v: is_number(v) and v > 0,
    "most": lambda v: is_number(v) and 0 < v <= 2.5,
    "number": is_number,
    "flag": lambda v: v is True or v is False,
    "text": lambda v: isinstance(v, str),
    "texts": lambda v: isinstance(v, tuple) and all(isinstance(t, str) for t in v),
    "ids": lambda v: isinstance(v, tuple) and all(is_whole(t) and t >= 0 for t in v),
    "maybe": lambda v: v is None or (is_whole(v) and v >= 0),
    "inner": lambda v: v is None or isinstance(v, Nested),
}
ODD = (math.nan, math.inf, -math.inf, 10**400, -(10**400), True, False, None, 0, 1, -1)
ODD += (0.0, 1.0, -1.0, 2.5, 9, 10, 0.999, 5e-324, "one", "", ("a",), (), (1, 2), (1, -1), (True,))
ODD += (["one"], [1], {}, Nested(), Nested, (1.0,), (None,), b"one")
values = st.one_of(
    st.sampled_from(ODD),
    st.integers(-2, 12),
    st.floats(),
    st.text(max_size=3),
    st.tuples(st.floats()),
)


def test_every_field_of_the_example_has_a_plain_statement():
    assert {*PLAIN} == {*rules(Example)}


@given(st.dictionaries(st.sampled_from(sorted(PLAIN)), values))
def test_exactly_what_is_not_allowed_is_reported_all_of_it_at_once(given_):
    problems = Problems("example")
    wrong = check(Example(**given_), problems)
    assert wrong == {name for name, value in given_.items() if not PLAIN[name](value)}
    assert len(problems.found) == len(wrong)
    for name in wrong:
        assert any(found.startswith(f"{name} must be ") for found in problems.found) or (
            name == "word" and any(found.startswith("word cannot be ") for found in problems.found)
        )


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("word", "tow", "word cannot be 'tow'; did you mean 'two'?"),
        ("word", 3, "word cannot be 3; known: one, two"),
        ("whole", 10, "whole must be a whole number from 1 to 9, not 10"),
        ("any_whole", 1.0, "any_whole must be a whole number, not 1.0"),
        ("share", 1.0, "share must be in [0, 1), not 1.0"),
        ("share_or_not", -2, "share_or_not must be in [0, 1) or -1, not -2"),
        ("positive", 0, "positive must be a number above 0, not 0"),
        ("most", 3, "most must be a number above 0, 2.5 at most, not 3"),
        ("number", math.nan, "number must be a number, not nan"),
        ("flag", 1, "flag must be true or false, not 1"),
        ("text", None, "text must be a text, not None"),
        ("texts", "a", "texts must be a list of texts, not 'a'"),
        ("ids", (-1,), "ids must be a list of whole numbers, 0 or more, not (-1,)"),
        ("maybe", -1, "maybe must be a whole number, 0 or more, not -1"),
        ("inner", 3, "inner must be a Nested, not 3"),
        ("text", [0] * 99, f"text must be a text, not {str([0] * 99)[:80]}"),
    ],
)
def test_a_wrong_setting_is_one_sentence(name, value, sentence):
    problems = Problems("example")
    assert check(Example(**{name: value}), problems) == {name}
    with pytest.raises(RegardError) as caught:
        problems.report()
    assert str(caught.value) == f"example: {sentence}"


@pytest.mark.parametrize("name", ["any_whole", "text", "texts", "word", "number"])
def test_a_number_that_python_does_not_spell_is_one_sentence_too(name):
    problems = Problems("example")
    assert check(Example(**{name: [10**5000]}), problems) == {name}
    assert "a number of thousands of digits" in problems.found[0]


def test_a_name_in_messages_can_be_another():
    problems = Problems("example")
    assert check(Example(whole=0, flag=None), problems, "--{}".format) == {"whole", "flag"}
    assert [found.split()[0] for found in problems.found] == ["--whole", "--flag"]

"""One sentence for one problem; all of them for several."""

import pytest

from regard.errors import Problems, RegardError, nearest


def test_a_single_problem_is_one_sentence():
    problems = Problems("settings")
    problems.require(True, "never said")
    problems.require(False, "width must be positive")
    with pytest.raises(RegardError) as caught:
        problems.report()
    assert str(caught.value) == "settings: width must be positive"


def test_several_problems_are_reported_together_in_order():
    problems = Problems("settings")
    problems.add("first")
    problems.require(False, "second")
    with pytest.raises(RegardError) as caught:
        problems.report()
    assert str(caught.value) == "settings: 2 problems\n  - first\n  - second"


def test_no_problem_raises_nothing():
    Problems("settings").report()


def test_the_nearest_known_word_is_offered_and_otherwise_all_of_them():
    assert nearest("rotery", ["rotary", "learned"]) == "did you mean 'rotary'?"
    assert nearest("xyzzy", ["rotary", "learned"]) == "known: learned, rotary"

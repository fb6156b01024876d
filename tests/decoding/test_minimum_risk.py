"""The sample with the least risk, against every pair of samples taken one by one."""

import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

from regard.decoding.search import minimum_risk
from regard.decoding.search.minimum_risk import least_risk
from regard.errors import RegardError

SAMPLES = [
    "a man is riding a brown horse",
    "a man rides a brown horse",
    "a man rides a horse",
    "two dogs play in the snow",
    "",
    "a man rides a brown horse",
    "the man is riding on a horse .",
]


def chrf(text: str, right: str) -> float:
    return sacrebleu.sentence_chrf(text, [right]).score


def bleu(text: str, right: str) -> float:
    return sacrebleu.sentence_bleu(text, [right], use_effective_order=True).score


UTILITIES = {"chrf": chrf, "bleu": bleu}


def expected(texts: list[str], utility: str) -> list[float]:
    """Each against all the others, by hand."""
    worth = UTILITIES[utility]
    means = []
    for i, text in enumerate(texts):
        others = [other for j, other in enumerate(texts) if j != i]
        means.append(sum(worth(text, other) for other in others) / len(others))
    return means


@pytest.mark.parametrize("utility", UTILITIES)
def test_it_is_the_text_with_the_highest_mean_utility(utility):
    choice = least_risk(SAMPLES, utility)
    assert choice.utilities == pytest.approx(expected(SAMPLES, utility))
    assert choice.index == 1  # the first of the two
    assert choice.utilities[1] == choice.utilities[5] == max(choice.utilities)


def test_chrf_is_what_is_asked_for_by_default():
    assert least_risk(SAMPLES) == least_risk(SAMPLES, "chrf") != least_risk(SAMPLES, "bleu")


@given(
    st.lists(st.sampled_from(["ab cd", "ab ce", "xy", "a b c d e", ""]), min_size=2, max_size=8),
    st.sampled_from(sorted(UTILITIES)),
)
def test_any_samples_in_any_number(texts, utility):
    choice = least_risk(texts, utility)
    by_hand = expected(texts, utility)
    assert choice.utilities == pytest.approx(by_hand)
    assert by_hand[choice.index] == pytest.approx(max(by_hand))
    assert choice.index == texts.index(texts[choice.index])


def test_what_was_drawn_more_often_counts_as_often():
    texts = ["a red ball", "a red balloon", "some blue cubes", "some blue cuboids"]
    assert least_risk([*texts, texts[1]]).index == 1
    assert least_risk([*texts, texts[3], texts[3]]).index == 3


def test_no_pair_is_compared_twice(monkeypatch):
    asked = []

    def counting(text: str, right: str) -> float:
        asked.append((text, right))
        return 1.0

    monkeypatch.setitem(minimum_risk.UTILITIES, "chrf", lambda: counting)
    least_risk(["a", "b", "a", "a", "b", "c"])
    assert len(asked) == len(set(asked)) == 8  # 3 · 3 pairs; "c" was drawn once: not with itself


def test_one_sample_is_the_choice():
    assert least_risk(["a man rides"]).index == 0
    assert least_risk(["a man rides"]).utilities == pytest.approx((100.0,))


def test_mistakes_are_one_sentence():
    with pytest.raises(RegardError, match="no samples to choose from"):
        least_risk([])
    with pytest.raises(RegardError, match="'chfr'; did you mean 'chrf'"):
        least_risk(["a", "b"], "chfr")
    with pytest.raises(RegardError, match="a list of texts"):
        least_risk("abc")
    with pytest.raises(RegardError, match="a list of texts"):
        least_risk(["abc", 3])  # type: ignore[list-item]

"""Analogies and likeness are counted as gensim counts them, correlations as scipy does."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from regard.errors import RegardError
from regard.inspection import word_questions
from regard.inspection.word_questions import (
    evaluate_analogies,
    evaluate_similarity,
    is_questions,
    pearson,
    read_judgements,
    spearman,
)
from regard.inspection.word_table import WordTable

LETTERS = [*"abcdefghijkl", "A", "B", "L", "m"]
CHANGES = [{}, {"case": True}, {"restrict": 9}]


@pytest.fixture
def table() -> WordTable:
    return WordTable(LETTERS, np.random.default_rng(5).normal(size=(len(LETTERS), 4)))


def drawn() -> list[str]:
    """400 questions of four letters, some of them unknown, some twice in one."""
    rng = np.random.default_rng(6)
    return ["".join(rng.choice(list("abcdefghijklmnABC"), 4)) for _ in range(400)]


@pytest.fixture
def questions(tmp_path):
    lines = []
    for number, letters in enumerate(drawn()):
        if number % 100 == 0:
            lines.append(f": {'gram' if number >= 200 else ''}{number}")
        lines.append(" ".join(letters))
    (tmp_path / "questions.txt").write_text("\n".join(lines) + "\n")
    return tmp_path / "questions.txt"


@pytest.fixture
def judgements(tmp_path):
    lines = [f"{q[0]}\t{q[1]}\t{ord(q[2]) % 7}\n" for q in drawn()[:60]]
    (tmp_path / "pairs.tsv").write_text("".join(lines))
    return tmp_path / "pairs.tsv"


# By gensim 4.4.0, `evaluate_word_analogies`: correct and asked of each section
GENSIM = [
    [(1, 72), (5, 75), (9, 80), (8, 79)],
    [(1, 54), (4, 60), (6, 64), (8, 69)],
    [(1, 31), (2, 20), (5, 22), (2, 29)],
]


@pytest.mark.parametrize("at_once", [1 << 24, 50])
@pytest.mark.parametrize(("changes", "wanted"), list(zip(CHANGES, GENSIM, strict=True)))
def test_analogies_are_those_of_gensim(table, questions, changes, wanted, at_once, monkeypatch):
    monkeypatch.setattr(word_questions, "AT_ONCE", at_once)
    found = evaluate_analogies(table, questions, **changes)
    assert [(one.correct, one.asked) for one in found.sections] == wanted
    assert [one.asked + one.skipped for one in found.sections] == [100] * 4
    sums = [tuple(map(sum, zip(*part, strict=True))) for part in (wanted[:2], wanted[2:], wanted)]
    for section, (correct, asked) in zip(
        (found.semantic, found.syntactic, found.total), sums, strict=True
    ):
        assert (section.correct, section.asked) == (correct, asked)
        assert section.accuracy == correct / asked


def test_an_answer_is_that_of_the_table_itself(table, tmp_path):
    """Each question asked alone, without regard to case there is nothing to fold."""
    rows = [q for q in drawn() if set(q) <= set(LETTERS)]
    (tmp_path / "q").write_text(": all\n" + "\n".join(" ".join(q) for q in rows))
    right = sum(table.analogy(*q[:3], 1)[0].word == q[3] for q in rows)
    assert right > 5
    assert evaluate_analogies(table, tmp_path / "q", case=True).total.correct == right


def test_a_question_is_not_answered_by_its_own_words_in_another_case(tmp_path):
    # b − a + c is exactly C; without regard to case that is the question's own word.
    table = WordTable(["a", "b", "c", "C", "d"], [[1, 0], [1, 0], [0, 1], [0, 1], [0.1, 1]])
    (tmp_path / "q").write_text(": s\na b c d\n")
    assert evaluate_analogies(table, tmp_path / "q").total.correct == 1
    assert evaluate_analogies(table, tmp_path / "q", case=True).total.correct == 0
    few = WordTable(["a", "b", "A"], np.eye(3))  # nothing is left to answer
    (tmp_path / "q").write_text(": s\na b a b\n")
    assert evaluate_analogies(few, tmp_path / "q").total.correct == 0


# By gensim 4.4.0, `evaluate_word_pairs`: Pearson, Spearman and unknown pairs
PAIRS = [
    (0.09738993768979481, 0.07931098130205526, 7),
    (0.1630665321932742, 0.16180738401761202, 15),
    (-0.029073137309453385, -0.058560871723795836, 30),
]


@pytest.mark.parametrize(("changes", "wanted"), list(zip(CHANGES, PAIRS, strict=True)))
def test_likeness_is_that_of_gensim(table, judgements, changes, wanted):
    found = evaluate_similarity(table, judgements, **changes)
    assert (found.pearson, found.spearman) == pytest.approx(wanted[:2], abs=1e-6)
    assert (found.unknown, found.pairs) == (wanted[2], 60 - wanted[2])
    assert found.unknown_share == wanted[2] / 60


@given(st.lists(st.tuples(st.integers(-4, 4), st.floats(-1e6, 1e6)), min_size=2, max_size=30))
def test_correlations_are_those_of_scipy(pairs):
    x, y = (np.array(side, float) for side in zip(*pairs, strict=True))
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert math.isnan(pearson(x, y))
        assert math.isnan(spearman(x, y))
        return
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-9)
    if np.ptp(y) > 1e-6 * np.abs(y).max():  # else both are rounding
        assert pearson(x, y) == pytest.approx(stats.pearsonr(x, y).statistic, abs=1e-6)


@pytest.mark.parametrize(
    "content",
    [
        "cat\tdog\t7.5\r\nsea\tsky\t2\r\n",
        "cat,dog,7.5\nsea,sky,2",
        "cat dog 7.5\n\n  sea   sky 2\n",
        "# comment\nWord 1,Word 2,Human (mean)\ncat,dog,7.5\nsea,sky,2\n",
        "\ufeffword1\tword2\tSimLex999\ncat\tdog\t7.5\nsea\tsky\t2\n",
    ],
)
def test_pairs_stand_behind_tabs_commas_or_blanks(tmp_path, content):
    (tmp_path / "p").write_bytes(content.encode())
    assert read_judgements(tmp_path / "p") == [("cat", "dog", 7.5), ("sea", "sky", 2.0)]
    assert not is_questions(tmp_path / "p")


def test_questions_are_told_by_their_first_section(tmp_path):
    (tmp_path / "q").write_text("\n: capitals\nathens greece rome italy\n")
    assert is_questions(tmp_path / "q")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (": s\na b c d\na b c\n", "line 3 has 3 words; a question has four"),
        (": s\n", "has no questions"),
        (": s\na b c d\n", None),
    ],
)
def test_questions_that_are_none_are_told_with_their_line(table, tmp_path, content, said):
    (tmp_path / "q").write_text(content)
    if said is None:
        assert evaluate_analogies(table, tmp_path / "q").total.asked == 1
        return
    with pytest.raises(RegardError, match=said):
        evaluate_analogies(table, tmp_path / "q")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a b 1\na b\n", "line 2 is not two words and a number"),
        ("a b 1\na b one\n", "line 2 is not two words and a number"),
        ("a b nan\na b 1\nb c nan\n", "line 3 is not two words and a number"),
        ("a b 1 2\n", "line 1 is not two words and a number"),
        ("a,,1\n", "line 1 is not two words and a number"),
        ("# nothing\n", "has no pairs of words"),
        ("a b 1\na zz 2\n", "of its 2 pairs the words know 1"),
    ],
)
def test_pairs_that_are_none_are_told_with_their_line(table, tmp_path, content, said):
    (tmp_path / "p").write_text(content)
    with pytest.raises(RegardError, match=said):
        evaluate_similarity(table, tmp_path / "p")


def test_questions_before_a_section_and_no_words_are_refused(table, questions, tmp_path):
    (tmp_path / "q").write_text("a b c d\n")
    with pytest.raises(RegardError, match="line 1 has no section"):
        evaluate_analogies(table, tmp_path / "q")
    with pytest.raises(RegardError, match="at least one word"):
        evaluate_analogies(table, questions, restrict=0)
    with pytest.raises(RegardError, match="does not exist"):
        evaluate_similarity(table, tmp_path / "nowhere")

"""Built-in tasks: right targets, true alignments, parts that never mix."""

import calendar
import re
from datetime import date, timedelta

import pytest

from regard.data.builtin.tasks import CASES, FORMS, TASKS, Example, Task, pairs, written
from regard.errors import RegardError

WORDS = {"copy": list, "reverse": lambda word: list(word)[::-1], "sort": sorted}


@pytest.mark.parametrize("name", WORDS)
def test_words_become_what_the_task_says_and_each_letter_is_aligned_to_itself(name):
    lengths = set()
    for source, target, alignment in pairs(name, 2000, 0, "train"):
        assert re.fullmatch("[a-z]{3,12}", source)
        assert list(target) == WORDS[name](source)
        assert [source[start:stop] for start, stop in alignment] == list(target)
        assert sorted(alignment) == [(i, i + 1) for i in range(len(source))]
        lengths.add(len(source))
    assert lengths == set(range(3, 13))


def test_equal_letters_are_sorted_in_their_order():
    met = 0
    for _, target, alignment in pairs("sort", 500, 0, "train"):
        for j in range(1, len(target)):
            if target[j] == target[j - 1]:
                assert alignment[j] > alignment[j - 1]
                met += 1
    assert met > 100


def test_reversed_letters_are_aligned_backwards_even_when_they_are_equal():
    for source, _, alignment in pairs("reverse", 200, 0, "train"):
        assert [start for start, _ in alignment] == list(range(len(source)))[::-1]


# --- dates -----------------------------------------------------------------------------------


def test_a_date_is_written_in_these_forms():
    assert [written(date(2021, 3, 5), form).source for form in range(len(FORMS))] == [
        "March 5, 2021",
        "March 5 2021",
        "March 5th, 2021",
        "March the 5th, 2021",
        "5 March 2021",
        "5. March 2021",
        "5th March 2021",
        "5th of March 2021",
        "the 5th of March, 2021",
        "2021, March 5",
        "2021, 5th of March",
        "Mar 5 2021",
        "Mar. 5, 2021",
        "5 Mar 2021",
        "05 Mar 2021",
        "5-Mar-2021",
        "05Mar2021",
        "2021 Mar 05",
        "2021-Mar-05",
        "Friday, March 5, 2021",
        "Friday, 5 March 2021",
        "Friday the 5th of March 2021",
        "Fri 5 Mar 2021",
        "Fri, 05 Mar 2021",
        "Fri Mar 5 2021",
        "5 III 2021",
        "5.III.2021",
        "5.3.2021",
        "05.03.2021",
        "2021/03/05",
        "2021.03.05",
        "20210305",
        "2021-03-05",
    ]


def test_days_have_their_endings():
    form = FORMS.index("{d}{th} {month} {year}")
    endings = [written(date(1999, 1, day), form).source.split()[0] for day in range(1, 32)]
    assert " ".join(endings) == (
        "1st 2nd 3rd 4th 5th 6th 7th 8th 9th 10th 11th 12th 13th 14th 15th 16th 17th 18th 19th "
        "20th 21st 22nd 23rd 24th 25th 26th 27th 28th 29th 30th 31st"
    )


def test_an_alignment_written_out_by_hand():
    example = written(date(2021, 3, 5), FORMS.index("the {d}{th} of {month}, {year}"), 3)
    assert example == Example(
        "THE 5TH OF MARCH, 2021",
        "2021-03-05",
        (
            *((18, 19), (19, 20), (20, 21), (21, 22), (22, 22)),  # the year, behind it
            *((11, 16), (11, 16), (16, 16)),  # MARCH, behind it
            *((4, 5), (4, 5)),  # 5
        ),
    )


def month_of(text: str) -> int:
    """An independent reading of a month, in any form."""
    roman = ["i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x", "xi", "xii"]
    if text.isdigit():
        return int(text)
    if text.lower() in roman:
        return roman.index(text.lower()) + 1
    names = [*calendar.month_name], [*calendar.month_abbr]
    return next(known.index(text.capitalize()) for known in names if text.capitalize() in known)


def test_dates_are_real_and_aligned_to_what_tells_them():
    years, cased = set(), set()
    for source, target, alignment in pairs("dates", 5000, 0, "train"):
        day = date.fromisoformat(target)
        assert len(target) == len(alignment) == 10
        told = [source[start:stop] for start, stop in alignment]
        assert "".join(told[:4]) == target[:4]
        assert told[5] == told[6]
        assert month_of(told[5]) == day.month
        assert told[8] == told[9]
        assert int(told[8]) == day.day
        assert told[4] == told[7] == ""
        assert alignment[4][0] == alignment[3][1]
        assert alignment[7][0] == alignment[6][1]
        assert not source[alignment[5][1] :][:1].isalpha()  # March, not only its Mar
        years.add(day.year)
        cased.add((source.isupper(), source.islower()))
        weekday = re.match("(mon|tue|wed|thu|fri|sat|sun)", source.lower())
        if weekday:
            assert day.strftime("%a").lower() == weekday[0]
            named = re.match("[a-z]{4,}", source.lower())
            assert not named or named[0] == day.strftime("%A").lower()
    assert min(years) < 1905
    assert max(years) > 2094
    assert min(years) >= 1900
    assert max(years) <= 2099
    assert cased == {(True, False), (False, True), (False, False)}


def test_no_text_stands_for_two_dates():
    meanings: dict[str, str] = {}
    for offset in range(366):
        day = date(2012, 1, 1) + timedelta(offset)
        for form in range(len(FORMS)):
            for case in range(len(CASES)):
                example = written(day, form, case)
                assert meanings.setdefault(example.source, example.target) == example.target
    assert len(meanings) > 366 * len(FORMS)


def test_the_first_and_last_day_and_leap_days_are_drawn():
    class Extreme:
        def __init__(self, last: bool) -> None:
            self.last = last

        def integers(self, high: int) -> int:
            return high - 1 if self.last else 0

    assert TASKS["dates"].example(Extreme(False)).target == "1900-01-01"
    assert TASKS["dates"].example(Extreme(True)).target == "2099-12-31"
    drawn = {example.target[5:] for example in pairs("dates", 10_000, 0, "train")}
    assert len(drawn) == 366


# --- parts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TASKS)
def test_parts_are_disjoint_under_any_seed_and_sources_distinct(name):
    sources = {
        part: [e.source for seed in (0, 1) for e in pairs(name, 700, seed, part)]
        for part in ("train", "valid", "test")
    }
    for one in sources:
        assert len(set(sources[one][:700])) == len(set(sources[one][700:])) == 700
        assert sources[one][:700] != sources[one][700:]
        for other in sources:
            assert one == other or not set(sources[one]) & set(sources[other])


@pytest.mark.parametrize("name", TASKS)
def test_pairs_are_a_function_of_the_arguments_and_a_larger_count_continues(name):
    longer = list(pairs(name, 60, 3, "valid"))
    assert list(pairs(name, 60, 3, "valid")) == longer
    assert list(pairs(name, 20, 3, "valid")) == longer[:20]
    assert len(longer) == 60


def test_an_example_never_changes():
    # Golden: the hash and the stream are the same on every machine and in every version.
    assert next(pairs("reverse", 1, 0, "train")).source == "gwr"
    assert next(pairs("dates", 1, 0, "valid")).source == "2007/04/11"


def drained(name: str, part: str) -> tuple[list[str], str]:
    """All sources of a part, and what is told when there are no more."""
    found: list[str] = []
    with pytest.raises(RegardError) as told:
        found.extend(example.source for example in pairs(name, 10**9, 0, part))
    return found, str(told.value)


def test_an_exhausted_task_gives_all_there_is_and_says_how_many(monkeypatch):
    few = Task("few", "numbers", lambda rng: Example(str(rng.integers(500)), "", ()))
    monkeypatch.setitem(TASKS, "few", few)
    everything: list[str] = []
    for part, share in (("train", 0.8), ("valid", 0.1), ("test", 0.1)):
        found, told = drained("few", part)
        assert f"only {len(found)} different {part} examples" in told
        assert len(list(pairs("few", len(found), 0, part))) == len(found)
        assert abs(len(found) / 500 - share) < 5 * (share * (1 - share) / 500) ** 0.5
        everything += found
    assert sorted(map(int, everything)) == list(range(500))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("revers", 1, 0, "train"), "no task 'revers'; did you mean 'reverse'"),
        (("chess", 1, 0, "train"), "known: copy, dates, reverse, sort"),
        (("copy", 1, 0, "validation"), "no part 'validation'; did you mean 'valid'"),
        (("copy", -1, 0, "train"), "-1 examples"),
        (("copy", 1, -1, "train"), "not -1"),
    ],
)
def test_mistakes_are_told_before_anything_is_drawn(arguments, told):
    with pytest.raises(RegardError, match=told):
        pairs(*arguments)


def test_each_task_is_filed_under_its_name_with_one_line_of_help():
    for name, task in TASKS.items():
        assert task.name == name
        assert task.summary
        assert "\n" not in task.summary

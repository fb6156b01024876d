"""Built-in tasks of pairs, made on the spot, with the alignment that a model ought to find.

A task draws pairs of texts whose natural tokens are characters, and knows which source characters
each target character comes from. So there is always something to learn, without a download, and a
truth to hold attention maps against.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from string import Formatter
from typing import Literal, NamedTuple

import numpy as np

from regard.data.feeds.order import generator
from regard.errors import RegardError, nearest

Part = Literal["train", "valid", "test"]
TRAIN: tuple[Part, ...] = ("train",)
TENTHS: tuple[Part, ...] = ("valid", "test", *TRAIN * 8)  # by a hash of the source
PATIENCE = 10_000  # draws in a row that bring nothing new, before a task counts as exhausted


class Example(NamedTuple):
    """A pair, and where it comes from.

    `alignment[j]` is the span (start, stop) of the source characters that decide target character
    j. It is empty, (k, k), where the character follows from none: it is written having read up
    to k.
    """

    source: str
    target: str
    alignment: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Task:
    """Something to learn from pairs."""

    name: str
    summary: str  # one line for help
    example: Callable[[np.random.Generator], Example]


def pairs(name: str, count: int, seed: int, part: Part) -> Iterator[Example]:
    """`count` examples with different sources; the same for the same arguments.

    A hash of the source decides its part, so that no source of one part occurs in another, under
    any seed. A larger count continues a smaller one.
    """
    if name not in TASKS:
        raise RegardError(f"there is no task {name!r}; {nearest(name, TASKS)}")
    if part not in TENTHS:
        raise RegardError(f"a task has no part {part!r}; {nearest(part, set(TENTHS))}")
    if count < 0:
        raise RegardError(f"a task cannot give {count} examples; ask for 0 or more")
    return _drawn(TASKS[name], count, generator(seed, *b"tasks", *name.encode()), part)


def _drawn(task: Task, count: int, rng: np.random.Generator, part: Part) -> Iterator[Example]:
    seen: set[int] = set()
    vain = 0
    while len(seen) < count:
        example = task.example(rng)
        digest = hashlib.blake2b(example.source.encode(), digest_size=8).digest()
        number = int.from_bytes(digest, "little")
        if number not in seen and TENTHS[number % 10] == part:
            seen.add(number)
            vain = 0
            yield example
        elif (vain := vain + 1) == PATIENCE:
            raise RegardError(
                f"task {task.name!r} found only {len(seen)} different {part} examples with this "
                f"seed, not {count}; ask for that many or fewer"
            )


# --- words -----------------------------------------------------------------------------------

SHORTEST, LONGEST = 3, 12
EACH = tuple((i, i + 1) for i in range(LONGEST))  # the span of each letter


def _word(rng: np.random.Generator) -> str:
    length = rng.integers(SHORTEST, LONGEST + 1)
    return rng.integers(ord("a"), ord("z") + 1, length, np.uint8).tobytes().decode()


def _copied(rng: np.random.Generator) -> Example:
    word = _word(rng)
    return Example(word, word, EACH[: len(word)])


def _reversed(rng: np.random.Generator) -> Example:
    word = _word(rng)
    return Example(word, word[::-1], EACH[: len(word)][::-1])


def _sorted(rng: np.random.Generator) -> Example:
    """Equal letters keep their order."""
    word = _word(rng)
    order = sorted(range(len(word)), key=word.__getitem__)
    return Example(word, "".join([word[i] for i in order]), tuple([EACH[i] for i in order]))


# --- dates -----------------------------------------------------------------------------------

FIRST, LAST = date(1900, 1, 1).toordinal(), date(2099, 12, 31).toordinal()
# Written out: what `calendar` knows depends on the machine's language.
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
ROMAN = ("I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII")
ENDINGS = {1: "st", 21: "st", 31: "st", 2: "nd", 22: "nd", 3: "rd", 23: "rd"}

# What a form can be made of: which part of the date it tells, and how it is written.
FIELDS: dict[str, tuple[str, Callable[[date], str]]] = {
    "year": ("year", lambda day: str(day.year)),
    "month": ("month", lambda day: MONTHS[day.month - 1]),
    "mon": ("month", lambda day: MONTHS[day.month - 1][:3]),
    "roman": ("month", lambda day: ROMAN[day.month - 1]),
    "m": ("month", lambda day: str(day.month)),
    "mm": ("month", lambda day: f"{day.month:02}"),
    "d": ("day", lambda day: str(day.day)),
    "dd": ("day", lambda day: f"{day.day:02}"),
    "th": ("ending", lambda day: ENDINGS.get(day.day, "th")),
    "weekday": ("weekday", lambda day: WEEKDAYS[day.weekday()]),
    "wkd": ("weekday", lambda day: WEEKDAYS[day.weekday()][:3]),
}

# Numbers alone appear only where convention fixes their order: dots after a day, or year first.
FORMS = (
    "{month} {d}, {year}",
    "{month} {d} {year}",
    "{month} {d}{th}, {year}",
    "{month} the {d}{th}, {year}",
    "{d} {month} {year}",
    "{d}. {month} {year}",
    "{d}{th} {month} {year}",
    "{d}{th} of {month} {year}",
    "the {d}{th} of {month}, {year}",
    "{year}, {month} {d}",
    "{year}, {d}{th} of {month}",
    "{mon} {d} {year}",
    "{mon}. {d}, {year}",
    "{d} {mon} {year}",
    "{dd} {mon} {year}",
    "{d}-{mon}-{year}",
    "{dd}{mon}{year}",
    "{year} {mon} {dd}",
    "{year}-{mon}-{dd}",
    "{weekday}, {month} {d}, {year}",
    "{weekday}, {d} {month} {year}",
    "{weekday} the {d}{th} of {month} {year}",
    "{wkd} {d} {mon} {year}",
    "{wkd}, {dd} {mon} {year}",
    "{wkd} {mon} {d} {year}",
    "{d} {roman} {year}",
    "{d}.{roman}.{year}",
    "{d}.{m}.{year}",
    "{dd}.{mm}.{year}",
    "{year}/{mm}/{dd}",
    "{year}.{mm}.{dd}",
    "{year}{mm}{dd}",
    "{year}-{mm}-{dd}",
)
PARSED = [[(text, name or "") for text, name, _, _ in Formatter().parse(form)] for form in FORMS]
CASES: tuple[Callable[[str], str], ...] = (str, str, str.lower, str.upper)  # mostly as it is


def written(day: date, form: int, case: int = 0) -> Example:
    """A date in `FORMS[form]`, to be turned into YYYY-MM-DD.

    Each digit of the year comes from the same digit in the source; both digits of the month from
    the whole of its name or number; both digits of the day from the whole of its number, without
    its ending. Each hyphen comes from the empty span behind the number written before it.
    """
    source, spans = "", {}
    for text, name in PARSED[form]:
        source += text
        if name:
            told, write = FIELDS[name]
            start = len(source)
            source += write(day)
            spans[told] = (start, len(source))
    year, month = spans["year"], spans["month"]
    digits = [(i, i + 1) for i in range(*year)]
    after_year, after_month = (year[1], year[1]), (month[1], month[1])
    alignment = (*digits, after_year, month, month, after_month, spans["day"], spans["day"])
    return Example(CASES[case](source), day.isoformat(), alignment)


def _dated(rng: np.random.Generator) -> Example:
    # One draw for all three: a call of the generator costs as much as writing the date.
    rest, case = divmod(int(rng.integers((LAST - FIRST + 1) * len(FORMS) * len(CASES))), len(CASES))
    ordinal, form = divmod(rest, len(FORMS))
    return written(date.fromordinal(FIRST + ordinal), form, case)


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("copy", "a word of 3 to 12 letters -> the same word", _copied),
        Task("reverse", "a word of 3 to 12 letters -> backwards", _reversed),
        Task("sort", "a word of 3 to 12 letters -> its letters in order", _sorted),
        Task("dates", "a date as people write it -> YYYY-MM-DD", _dated),
    )
}

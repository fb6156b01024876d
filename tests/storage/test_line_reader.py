"""Lines are what stands between newlines, however they are read; one that never ends is refused."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import RegardError
from regard.storage import parse_line
from regard.storage.line_reader import LineReader
from regard.storage.reading import VALUES

BYTES = st.lists(st.sampled_from([b"a", b"b", b"\n", b"\r", b"\0"]), max_size=40).map(b"".join)


def lines_of(content: bytes) -> list[bytes]:
    return content.removesuffix(b"\n").split(b"\n") if content else []


@given(content=BYTES, block=st.integers(1, 9))
def test_lines_are_those_of_a_split_in_blocks_of_any_size(content, block):
    def reader() -> LineReader:
        return LineReader(io.BytesIO(content).read, "file", block=block)

    assert list(reader()) == lines_of(content)
    one_by_one, in_columns = reader(), reader()
    assert list(iter(one_by_one.next, None)) == lines_of(content)
    found: list[bytes] = []
    while len((some := in_columns.columns(2)).ends):
        assert len(some.ends) <= 2
        found += lines_of(some.text.tobytes())
    assert found == lines_of(content)
    assert one_by_one.line == in_columns.line == len(found)


@given(sizes=st.lists(st.integers(0, 12), min_size=1), block=st.integers(1, 20))
@pytest.mark.parametrize("how", ["all", "next", "columns"])
def test_a_line_may_be_as_long_as_the_bound_and_no_longer(how, sizes, block):
    reader = LineReader(
        io.BytesIO(b"".join(b"a" * size + b"\n" for size in sizes)).read, "file", 9, block
    )
    read = {
        "all": lambda: list(reader),
        "next": lambda: list(iter(reader.next, None)),
        "columns": lambda: list(iter(lambda: len(reader.columns(3).ends), 0)),
    }[how]
    first = next((number for number, size in enumerate(sizes, 1) if size > 9), None)
    if first is None:
        assert read()
        return
    with pytest.raises(RegardError, match=rf"^file: line {first} is longer than 9 B, .*divide it"):
        read()


def test_of_a_line_without_an_end_little_more_than_the_bound_is_read():
    taken = []

    def endless(count: int) -> bytes:
        taken.append(count)
        return b"a" * count

    with pytest.raises(RegardError, match=r"line 1 is longer than 10\.0 kB"):
        list(LineReader(endless, "endless", longest=10_000, block=100))
    assert sum(taken) <= 3 * 10_000


def test_a_long_text_in_json_may_say_what_it_likes_but_values_are_counted():
    marks = ', [ { \\" \\\\' * VALUES
    assert parse_line(f'{{"text": "{marks}"}}')["text"].count("[") == VALUES
    for many in ("[]," * VALUES + "0", '"a",' * VALUES + "0", "{}," * VALUES + "0"):
        with pytest.raises(ValueError, match="more than 1,048,576 values"):
            parse_line(f'{{"text": "a", "more": [{many}]}}')
    assert len(parse_line(f"[{'1,' * 1000}0]")) == 1001

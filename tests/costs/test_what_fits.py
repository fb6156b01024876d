"""The largest size that fits."""

import pytest

from regard.costs.largest_fit import largest, on_a_line


def tried(bytes_of):
    sizes = []

    def held(size):
        sizes.append(size)
        return bytes_of(size)

    return held, sizes


@pytest.mark.parametrize("room", [0, 99, 100, 1234, 10**7])
def test_on_a_line_the_largest_is_found_in_five_tries(room):
    held, sizes = tried(lambda size: 100 + 7 * size)
    assert largest(held, room, 4, 1000) == max(0, min(1000, (room - 100) // 7))
    assert len(sizes) <= 5


def bent(size):
    """Three jobs in one, of which the one that holds the most counts; in blocks."""
    return max(5000, 1000 + 300 * size, 700 * size - 9000) // 512 * 512


@pytest.mark.parametrize("start", [1, 4, 20, 30, 512])
@pytest.mark.parametrize("room", [4999, 5000, 9000, 12_000, 15_777, 40_000, 1_000_000])
def test_where_it_bends_it_is_the_largest_still(start, room):
    held, sizes = tried(bent)
    found = largest(held, room, start, 1 << 20)
    assert bent(found) <= room or found == 0
    assert bent(found + 1) > room
    assert len(sizes) < 12


def test_sizes_that_hold_alike_are_followed_by_larger_ones_but_not_the_largest():
    held, sizes = tried(lambda size: max(5000, size))
    assert largest(held, 10**6, 10, 1 << 26) == 10**6
    assert max(sizes) < 4 * 10**6


def test_a_size_that_cannot_be_counted_ends_the_search():
    held, sizes = tried(lambda size: 10 if size < 100 else None)
    assert largest(held, 1000, 10, 1 << 20) == 80
    assert sizes == [10, 20, 80, 320]


def test_only_what_lies_on_a_line_is_read_off_it():
    assert on_a_line({4: 140, 8: 180, 12: 220}, 1100) == 100
    assert on_a_line({4: 140, 8: 180, 12: 260}, 1100) is None
    assert on_a_line({4: 140, 8: 140, 12: 140}, 1100) is None

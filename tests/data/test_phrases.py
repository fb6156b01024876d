"""Phrases: found by their score, joined from left to right, told by the vocabulary alone."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from regard.data.feeds import phrases
from regard.data.feeds.phrases import Joined, find_phrases, phrases_in, spelled
from regard.text.specials import BOS, EOS, SPECIALS

WORDS = (*SPECIALS, "new", "york", "is", "a", "city", "old")
NEW, YORK, IS, A, CITY, OLD = range(5, 11)


class Row:
    def __init__(self, ids):
        self.ids = np.array(ids, np.int64)

    def __len__(self):
        return len(self.ids)

    def read(self, start, stop):
        return self.ids[start:stop]


def test_words_that_are_mostly_seen_together_are_a_phrase():
    lines = [[NEW, YORK, IS, A, CITY], [A, CITY, IS, OLD], [IS, A, NEW, YORK], [A, OLD, CITY, IS]]
    ids = [token for line in lines * 10 for token in (BOS, *line, EOS)]
    found = find_phrases(Row(ids), len(WORDS), threshold=5.0, least=5)
    assert found.tolist() == [[NEW, YORK]]
    # (20 - 5) · 170 / (20 · 20) = 6.375
    assert len(find_phrases(Row(ids), len(WORDS), threshold=6.3, least=5)) == 1
    assert len(find_phrases(Row(ids), len(WORDS), threshold=6.4, least=5)) == 0
    assert spelled(found, WORDS) == ["new york"]


def naive(ids, pairs):
    """Joined by a loop."""
    result, i = [], 0
    while i < len(ids):
        whole = pairs.get(tuple(ids[i : i + 2]))
        result.append(ids[i] if whole is None else whole)
        i += 1 if whole is None else 2
    return result


words = st.integers(1, 8)


@given(st.lists(words, max_size=40), st.sets(st.tuples(st.integers(5, 8), st.integers(5, 8))))
def test_joining_is_what_a_loop_does(ids, pairs):
    names = [*SPECIALS, "a", "b", "c", "d"]
    listed = sorted(pairs)
    whole = [*names, *spelled(np.array(listed).reshape(-1, 2), names)]
    expected = {pair: len(names) + i for i, pair in enumerate(listed)}
    assert {(a, b): c for a, b, c in phrases_in(whole).tolist()} == expected
    assert Joined(Row(ids), whole).read(0, 99).tolist() == naive(ids, expected)


@given(st.lists(words, min_size=1, max_size=60), st.integers(1, 7))
def test_counting_in_stretches_changes_nothing(ids, size):
    def found():
        return find_phrases(Row(ids), 9, threshold=0.1, least=1).tolist()

    once, before = found(), phrases.STRETCH
    try:
        phrases.STRETCH = size
        assert found() == once
    finally:
        phrases.STRETCH = before


def test_where_there_is_no_room_for_all_pairs_the_rare_ones_go(monkeypatch):
    rng = np.random.default_rng(0)
    chance = rng.integers(IS, 200, 4000).tolist()
    ids = [
        token
        for i, word in enumerate(chance)
        for token in ((NEW, YORK, word) if i % 40 == 0 else (word,))
    ]
    whole = find_phrases(Row(ids), 200, threshold=20.0, least=5)
    monkeypatch.setattr(phrases, "STRETCH", 500)
    monkeypatch.setattr(phrases, "ROOM", 1500)
    assert [NEW, YORK] in find_phrases(Row(ids), 200, threshold=20.0, least=5).tolist()
    assert [NEW, YORK] in whole.tolist()

"""Pairs: read from every form, divided without overlap, and nothing dropped without a count."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.readers import pairs as module
from regard.data.readers.pairs import (
    Pair,
    PairCounts,
    clean,
    encode_pairs,
    gather_pairs,
    read_pairs,
)
from regard.errors import RegardError
from regard.text.learning import learn
from regard.text.specials import BOS, EOS

PAIRS = [Pair(f"ein Satz {n}", f"a sentence number {n}") for n in range(200)]


def write(path: Path, content: str | bytes) -> Path:
    raw = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(raw) if path.suffix.lower() == ".gz" else raw)
    return path


def aligned(folder: Path, pairs: list[Pair], end: str = "\n", gz: str = "") -> list[Path]:
    sides = zip(*pairs, strict=True)
    return [
        write(folder / f"text.{name}{gz}", "".join(line + end for line in side))
        for name, side in zip(("de", "en"), sides, strict=True)
    ]


def as_tsv(pairs: list[Pair]) -> str:
    return "".join(f"{source}\t{target}\n" for source, target in pairs)


def as_jsonl(pairs: list[Pair]) -> str:
    return "".join(json.dumps(pair._asdict()) + "\n" for pair in pairs)


# --- forms -----------------------------------------------------------------------------------


def test_every_form_gives_the_same_pairs(tmp_path):
    forms = [
        aligned(tmp_path, PAIRS),
        aligned(tmp_path, PAIRS, gz=".gz"),
        aligned(tmp_path, PAIRS, end="\r\n"),
        [write(tmp_path / "a.tsv", as_tsv(PAIRS))],
        [write(tmp_path / "b.v1.TSV.GZ", as_tsv(PAIRS))],
        [write(tmp_path / "c.tsv", as_tsv(PAIRS).replace("\n", "\r\n"))],
        [write(tmp_path / "d.jsonl", as_jsonl(PAIRS))],
        [str(write(tmp_path / "e.ndjson.gz", as_jsonl(PAIRS)))],
    ]
    for form in forms:
        assert list(read_pairs(form)) == PAIRS
        found = gather_pairs(form)
        assert sorted([*found.train, *found.valid]) == sorted(PAIRS)
        assert found.counts == PairCounts(read=200, kept=200)
        assert found.counts.sentences() == []


def test_a_mark_at_the_beginning_and_blanks_around_are_no_text(tmp_path):
    one = write(tmp_path / "a.de", b"\xef\xbb\xbf eins \r\n\tzwei\xc2\xa0")
    two = write(tmp_path / "a.en", "one\ntwo\n")
    assert list(clean(read_pairs([one, two]), PairCounts())) == [("eins", "one"), ("zwei", "two")]


@pytest.mark.parametrize("name", ["copy", "reverse", "sort", "dates"])
def test_a_built_in_task_has_parts_without_a_source_in_common(name):
    found = gather_pairs([name], examples=300, seed=1)
    assert (len(found.train), len(found.valid)) == (300, 15)
    assert not {p.source for p in found.train} & {p.source for p in found.valid}
    other = gather_pairs([name], examples=300, seed=2)
    assert found.train != other.train
    assert found.valid == other.valid  # figures of runs with other seeds can be compared


# --- mistakes --------------------------------------------------------------------------------


@pytest.mark.parametrize(("one", "other"), [(3, 2), (2, 3), (0, 1), (1, 0), (1500, 1000)])
def test_files_of_unequal_length_are_refused_with_both_counts(one, other, tmp_path):
    paths = [write(tmp_path / name, "word\n" * n) for name, n in (("a", one), ("b", other))]
    with pytest.raises(RegardError) as told:
        gather_pairs(paths)
    assert f"{paths[0]} has {one:,} lines but {paths[1]} has {other:,};" in str(told.value)
    with pytest.raises(RegardError, match="a line for a line"):
        gather_pairs(aligned(tmp_path, PAIRS), paths)


def test_a_missing_last_newline_is_no_missing_line(tmp_path):
    paths = write(tmp_path / "a", "x\ny"), write(tmp_path / "b", "1\n2\n")
    assert list(read_pairs(paths)) == [("x", "1"), ("y", "2")]


def test_every_file_that_is_none_is_named_at_once(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(RegardError) as told:
        read_pairs([folder, tmp_path / "missing.txt"])
    assert f"{folder} is a folder" in str(told.value)
    assert f"{tmp_path / 'missing.txt'} is not there" in str(told.value)


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ([], "nothing was given"),
        (["a.txt"], r"a\.txt was given, but pairs are two aligned files.*copy, reverse"),
        (["a.txt", "b.txt", "c.txt"], "two aligned files"),
    ],
)
def test_what_is_no_form_of_pairs_is_told(names, told, tmp_path):
    with pytest.raises(RegardError, match=told):
        gather_pairs([write(tmp_path / name, "x\n") for name in names])


def test_files_that_are_no_text_are_told(tmp_path):
    good, utf16 = write(tmp_path / "a", "x\n"), write(tmp_path / "b", "x\n".encode("utf-16"))
    with pytest.raises(RegardError, match="UTF-16; convert it"):
        read_pairs([good, utf16])
    torn = tmp_path / "c.tsv.gz"
    torn.write_bytes(gzip.compress(as_tsv(PAIRS).encode())[:-20])
    with pytest.raises(RegardError, match="damaged gzip"):
        list(read_pairs([torn]))


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("a.tsv", "a\tb\n", ["alone", "one\ttwo\tthree"]),
        (
            "a.jsonl",
            '{"source": "a", "target": "b", "id": 3}\n',
            ["{", "[]", '"text"', '{"source": "x"}', '{"source": 1, "target": "x"}', "[" * 100_000],
        ),
    ],
)
def test_every_line_that_is_no_pair_is_told_by_its_number(name, good, bad, tmp_path):
    path = write(tmp_path / name, good + good.join(line + "\n" for line in bad) + good)
    with pytest.raises(RegardError) as told:
        gather_pairs([path])
    assert str(told.value).startswith(f"{path}: {len(bad)} problems")
    for number in range(len(bad)):
        assert f"line {2 * number + 2}: " in str(told.value)
    assert str(told.value).count("a pair is ") == len(bad)
    alone = write(tmp_path / name, good + bad[0] + "\n")
    with pytest.raises(RegardError) as told:
        gather_pairs([alone])
    assert str(told.value).startswith(f"{alone}: line 2: ")
    assert "\n" not in str(told.value)


def test_no_usable_pair_is_told(tmp_path):
    empty = [write(tmp_path / name, "\n \n") for name in ("a", "b")]
    with pytest.raises(RegardError, match="no pairs in it with text on both sides"):
        gather_pairs(empty)
    with pytest.raises(RegardError, match="no pairs in it with text on both sides"):
        gather_pairs(aligned(tmp_path, PAIRS), empty)


@pytest.mark.parametrize("count", [1, 50])
def test_one_pair_over_and_over_cannot_be_divided(count, tmp_path):
    paths = aligned(tmp_path, PAIRS[:1] * count)
    with pytest.raises(RegardError, match="only one pair, or one over and over"):
        gather_pairs(paths)
    assert gather_pairs(paths, held_out=0.0).train == PAIRS[:1] * count


# --- counts ----------------------------------------------------------------------------------


def test_empty_and_broken_pairs_are_counted_and_broken_bytes_replaced(tmp_path):
    sources = [b"gut", b"", b"kaputt \xff\xc3", b"  ", b"gut", b"\xe2\x82"]
    targets = [b"good", b"x", b"broken", b"", b"\t", b"half"]
    paths = [
        write(tmp_path / name, b"\n".join(side) + b"\n")
        for name, side in (("a", sources), ("b", targets))
    ]
    found = gather_pairs(paths, held_out=0.0)
    assert found.train == [("gut", "good"), ("kaputt ��", "broken"), ("��", "half")]
    assert found.counts == PairCounts(read=6, empty=3, broken=2, kept=3)
    assert found.counts.sentences() == [
        "3 of 6 pairs have an empty side and were left out",
        "2 of 6 pairs have bytes that are not UTF-8, replaced by �",
    ]
    assert found.bytes == sum(len(text.encode()) for pair in found.train for text in pair)


def test_blank_lines_of_a_table_are_empty_pairs(tmp_path):
    for path in (write(tmp_path / "a.tsv", "a\tb\n\n\t\n"), write(tmp_path / "a.jsonl", "")):
        counts = PairCounts()
        if path.suffix == ".jsonl":
            path.write_text(as_jsonl([Pair("a", "b"), Pair("", "x")]) + "\n")
        assert list(clean(read_pairs([path]), counts)) == [("a", "b")]
        assert counts == PairCounts(read=3, empty=2, kept=1)


def test_surrogates_that_json_can_spell_are_replaced(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"source": "a \\ud800 b", "target": "\\udcff"}\n' * 2)
    found = gather_pairs([path], held_out=0.0)
    assert found.train == [("a � b", "�")] * 2
    assert found.counts.broken == 2
    assert found.bytes > 0


def test_what_is_left_out_of_named_files_is_counted_too(tmp_path):
    train = write(tmp_path / "a.tsv", as_tsv(PAIRS) + "\tx\n")
    valid = write(tmp_path / "b.tsv", as_tsv([Pair("neu", "new"), Pair("x", "")]))
    found = gather_pairs([train], [valid])
    assert found.counts == PairCounts(read=203, empty=2, kept=201)


# --- parts -----------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 30), min_size=2, max_size=80), st.floats(0.01, 0.5))
@settings(max_examples=60)
def test_no_pair_is_in_both_parts_however_often_it_stands(tmp_path_factory, numbers, share):
    pairs = [PAIRS[number] for number in numbers]
    path = write(tmp_path_factory.mktemp("pairs") / "a.tsv", as_tsv(pairs))
    if len(set(numbers)) == 1:
        return
    found = gather_pairs([path], held_out=share)
    assert found.train
    assert found.valid
    assert not set(found.train) & set(found.valid)
    assert sorted([*found.train, *found.valid]) == sorted(pairs)


def test_about_the_share_asked_for_is_held_out_in_any_order(tmp_path, monkeypatch):
    found = gather_pairs([write(tmp_path / "a.tsv", as_tsv(PAIRS))], held_out=0.1)
    assert len(found.valid) == 20
    assert found.rule == "held out: 0.1 of the pairs, chosen by their source"
    turned = gather_pairs([write(tmp_path / "b.tsv", as_tsv(PAIRS[::-1]))], held_out=0.1)
    assert turned.valid == list(found.valid)[::-1]
    monkeypatch.setattr(module, "MOST_HELD_OUT", 7)
    assert len(gather_pairs([tmp_path / "a.tsv"], held_out=0.1).valid) == 7


def test_a_pair_that_is_most_of_the_text_is_trained_on(tmp_path):
    for often in PAIRS[:10]:  # wherever it stands in the order of marks
        path = write(tmp_path / "a.tsv", as_tsv([*[often] * 500, *PAIRS]))
        found = gather_pairs([path])
        assert often in found.train
        assert 1 <= len(found.valid) <= 40


def test_named_files_stay_as_they_are_and_what_they_share_is_told(tmp_path):
    train = aligned(tmp_path, PAIRS)
    valid = write(tmp_path / "v.tsv", as_tsv([Pair("neu", "new"), *PAIRS[:3]]))
    found = gather_pairs(train, [valid])
    assert found.train == PAIRS
    assert found.valid == [("neu", "new"), *PAIRS[:3]]
    assert found.rule == "held out: named files, 3 of their 4 pairs are also trained on"
    fresh = write(tmp_path / "w.tsv", as_tsv([Pair("neu", "new")]))
    assert gather_pairs(train, [fresh]).rule == "held out: named files"


def test_texts_are_those_of_the_training_part(tmp_path):
    found = gather_pairs(aligned(tmp_path, PAIRS))
    assert list(found.texts(0)) == [pair.source for pair in found.train]
    assert list(found.texts(1)) == [pair.target for pair in found.train]
    assert list(found.texts()) == [text for pair in found.train for text in pair]


# --- ids -------------------------------------------------------------------------------------


def test_sources_end_and_targets_begin_and_end():
    source, target = learn("char", ["ein Satz 0123"]), learn("word", ["a sentence number 0 1 2"])
    found = encode_pairs(PAIRS[:5], source, target)
    assert len(found) == 5
    for pair, read, write_ in zip(PAIRS, found.sources, found.targets, strict=False):
        assert read.tolist() == [*source.encode(pair.source).tolist(), EOS]
        assert write_.tolist() == [BOS, *target.encode(pair.target).tolist(), EOS]
        assert read.dtype == write_.dtype == np.int64
    assert found.unknown == 3  # 4 in the last source, 3 and 4 in two targets
    lengths = found.lengths
    assert lengths[0].tolist() == [11] * 5  # with </s>
    assert lengths[1].tolist() == [5] * 5  # without <s>
    assert found.counts == PairCounts(read=5, kept=5)


def test_long_and_uneven_pairs_are_left_out_and_counted():
    how = learn("char", ["ab"])
    sizes = [(5, 5), (9, 9), (10, 1), (1, 10), (8, 2), (2, 8), (3, 3), (8, 3)]
    pairs = [Pair("a" * one, "b" * other) for one, other in sizes]

    def kept(longest: int, ratio: float) -> tuple[list[tuple[int, int]], PairCounts]:
        found = encode_pairs(pairs, how, how, longest, ratio)
        assert len(found) == len(found.sources) == len(found.targets)
        return [(len(p.source), len(p.target)) for p in found.texts], found.counts

    assert kept(0, 0) == (sizes, PairCounts(read=8, kept=8))
    # </s> counts: 9 characters are 10 tokens.
    assert kept(10, 0)[0] == [size for size in sizes if max(size) + 1 <= 10]
    assert kept(10, 0)[1] == PairCounts(read=8, long=2, kept=6)
    assert kept(0, 3.0)[0] == [s for s in sizes if max(s) + 1 <= 3 * (min(s) + 1)]
    found, counts = kept(10, 2.0)
    assert found == [(5, 5), (9, 9), (3, 3)]
    assert counts == PairCounts(read=8, long=2, uneven=3, kept=3)
    assert counts.sentences(10, 2.0) == [
        "2 of 8 pairs have a side of more than 10 tokens and were left out",
        "3 of 8 pairs have one side over 2 times the other and were left out",
    ]


def test_translations_of_one_source_stay_in_one_part(tmp_path):
    pairs = [Pair(f"source {i % 40}", f"target {i}") for i in range(200)]
    found = gather_pairs([write(tmp_path / "a.tsv", as_tsv(pairs))], held_out=0.1)
    assert len(found.valid) == 20
    assert not {pair.source for pair in found.train} & {pair.source for pair in found.valid}

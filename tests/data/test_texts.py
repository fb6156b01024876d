"""Texts are divided by content alone, and nothing is lost or doubled on the way."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.readers import texts as module
from regard.data.readers.files import pieces
from regard.data.readers.texts import Texts, chosen, gather, take_census
from regard.errors import RegardError


def files(folder: Path, *contents: str | bytes) -> list[Path]:
    paths = [folder / f"{number:04}.txt" for number in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return paths


def parts(texts: Texts) -> dict[str, list[str]]:
    """The documents of each part, put together from passages by their `last` flags."""
    found: dict[str, list[str]] = {"train": [], "valid": []}
    unfinished = {"train": "", "valid": ""}
    for part, text, last in texts.passages():
        assert text
        unfinished[part] += text
        if last:
            found[part].append(unfinished[part])
            unfinished[part] = ""
    assert unfinished == {"train": "", "valid": ""}
    return found


def in_pieces(patch: pytest.MonkeyPatch, size: int) -> None:
    patch.setattr(module, "pieces", lambda path: pieces(path, size))


def words(count: int, seed: int) -> str:
    rng = np.random.default_rng(seed)
    return " ".join(
        "".join(map(chr, rng.integers(97, 123, rng.integers(1, 9)))) for _ in range(count)
    )


# --- one document, or a few ------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 10, 11, 99, 1000, 12_345])
def test_one_document_is_cut_at_nine_tenths_of_its_characters(size, tmp_path):
    text = "é" * size
    found = parts(gather(files(tmp_path, text)))
    assert found == {"train": [text[: int(size * 0.9)]], "valid": [text[int(size * 0.9) :]]}


@given(
    st.lists(st.text("ab \n€", min_size=2, max_size=60), min_size=1, max_size=6),
    st.integers(1, 9),
    st.sampled_from([0.1, 0.25, 0.5]),
)
@settings(max_examples=100)
def test_few_documents_are_each_cut_once_wherever_their_pieces_end(
    tmp_path_factory, documents, size, share
):
    paths = files(tmp_path_factory.mktemp("few"), *documents)
    bounds = [int(len(text) * (1 - share)) for text in documents]
    with pytest.MonkeyPatch.context() as patch:
        in_pieces(patch, size)
        found = parts(gather(paths, held_out=share))
    heads = [text[:bound] for text, bound in zip(documents, bounds, strict=True)]
    tails = [text[bound:] for text, bound in zip(documents, bounds, strict=True)]
    assert found == {"train": heads, "valid": tails}


def test_a_cut_between_two_pieces_ends_the_part_before_it(tmp_path):
    text = "aaaaaaaa bbbbbbb cc c"[:20]  # pieces of 8, 8 and 4 characters; the cut is at 16
    with pytest.MonkeyPatch.context() as patch:
        in_pieces(patch, 8)
        found = gather(files(tmp_path, text), held_out=0.2)
        assert list(found.passages()) == [
            ("train", "aaaaaaaa", False),
            ("train", " bbbbbbb", True),
            ("valid", " cc ", True),
        ]


def test_a_text_too_small_to_divide_is_refused(tmp_path):
    paths = files(tmp_path, "x")
    with pytest.raises(RegardError, match="too little text"):
        gather(paths)
    assert parts(gather(paths, held_out=0.0)) == {"train": ["x"], "valid": []}


@pytest.mark.parametrize("share", [-0.1, 1.0, 2.0])
def test_a_share_that_is_none_is_refused(share, tmp_path):
    with pytest.raises(RegardError, match="from 0 to below 1"):
        gather(files(tmp_path, "text"), held_out=share)


def test_a_long_text_has_only_so_much_held_out(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST_HELD_OUT", 50)
    found = parts(gather(files(tmp_path, "x" * 1000)))
    assert len(found["valid"][0]) == 50


# --- many documents --------------------------------------------------------------------------


@given(
    st.lists(st.text("abc \n", min_size=1, max_size=30), min_size=20, max_size=40),
    st.integers(1, 9),
)
def test_many_documents_are_held_out_whole(tmp_path_factory, documents, size):
    paths = files(tmp_path_factory.mktemp("many"), *documents)
    with pytest.MonkeyPatch.context() as patch:
        in_pieces(patch, size)
        found = parts(gather(paths))
    assert found["train"]
    assert found["valid"]
    assert sorted(found["train"] + found["valid"]) == sorted(documents)
    if len(set(documents)) > 1:  # what stands twice is in one part only
        assert not set(found["train"]) & set(found["valid"])


def test_about_a_tenth_of_the_text_is_held_out_and_the_rule_says_how_much(tmp_path):
    texts = gather(files(tmp_path, *(words(20 + n % 7, n) for n in range(300))))
    held = sum(map(len, parts(texts)["valid"])) / texts.census.characters
    assert 0.098 < held < 0.102
    assert texts.characters("valid") == sum(map(len, parts(texts)["valid"]))
    assert texts.rule() == f"held out: whole documents chosen by content, {held:.3g} of the text"


def test_the_division_does_not_depend_on_names_or_order(tmp_path):
    documents = [words(20, n) for n in range(60)]
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    one = parts(gather(files(tmp_path / "one", *documents)))
    other = parts(gather(files(tmp_path / "other", *documents[::-1])))
    assert {part: sorted(found) for part, found in one.items()} == {
        part: sorted(found) for part, found in other.items()
    }
    assert one == parts(gather(files(tmp_path / "one", *documents)))


def test_one_document_more_moves_few_others(tmp_path):
    documents = [words(20, n) for n in range(200)]
    before = set(parts(gather(files(tmp_path, *documents)))["valid"])
    for extra in range(5):
        more = [*documents, words(40, 1000 + extra)]
        after = set(parts(gather(files(tmp_path, *more)))["valid"])
        assert len((before ^ after) - {more[-1]}) <= 3
        assert len(before) > 15


def test_huge_documents_are_trained_on_and_some_of_the_tiny_held_out(tmp_path):
    for seed in range(8):  # whichever comes first in the order
        huge = [words(5000, seed), words(5000, 100 + seed)]
        tiny = [words(3, 1000 * (seed + 1) + n) for n in range(40)]
        found = parts(gather(files(tmp_path, *huge, *tiny)))
        assert set(huge) <= set(found["train"])
        assert found["valid"]
        assert len(found["train"]) > 12


def test_documents_all_alike_are_divided_all_the_same(tmp_path):
    found = parts(gather(files(tmp_path, *["the same"] * 40)))
    assert found == {"train": ["the same"] * 36, "valid": ["the same"] * 4}


def test_a_share_smaller_than_any_document_holds_one_out(tmp_path):
    found = parts(gather(files(tmp_path, *(words(10, n) for n in range(30))), held_out=0.001))
    assert len(found["valid"]) == 1


@given(
    st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 12)), min_size=2, max_size=40),
    st.floats(0.0001, 0.99),
)
@settings(max_examples=200)
def test_neither_nothing_nor_everything_is_chosen_and_equal_marks_stay_together(items, share):
    sizes, marks = (np.array(column) for column in zip(*items, strict=True))
    held = chosen(sizes, marks, share)
    assert held.any()
    assert not held.all()
    if len(set(marks)) > 1:
        assert not set(marks[held]) & set(marks[~held])
    order = np.random.default_rng(0).permutation(len(sizes))
    if len(set(marks)) > 1:
        assert np.array_equal(chosen(sizes[order], marks[order], share), held[order])


# --- named files -----------------------------------------------------------------------------


def test_named_files_are_held_out_whole(tmp_path):
    one, two, three = files(tmp_path, "one text", "two", "three")
    texts = gather([one, two], [three])
    assert parts(texts) == {"train": ["one text", "two"], "valid": ["three"]}
    assert texts.rule() == "held out: 1 named file"
    assert (texts.characters("train"), texts.characters("valid"), texts.bytes) == (11, 5, 16)
    assert texts.warnings == ()


def test_a_file_held_out_of_a_folder_is_not_trained_on(tmp_path):
    files(tmp_path, "one", "two", "three")
    found = parts(gather([tmp_path], [tmp_path / "0001.txt"]))
    assert found == {"train": ["one", "three"], "valid": ["two"]}


def test_held_out_documents_that_are_trained_on_are_told(tmp_path):
    one, two, three = files(tmp_path, "same", "other", "same")
    assert gather([one, two], [three]).warnings == (
        "1 of 1 held-out documents are also trained on",
    )
    assert gather([one], [one]).warnings == ("1 of 1 held-out documents are also trained on",)


# --- odd files -------------------------------------------------------------------------------


def test_empty_files_are_no_documents(tmp_path):
    assert parts(gather(files(tmp_path, "", "some text", ""), held_out=0.0)) == {
        "train": ["some text"],
        "valid": [],
    }
    empty = files(tmp_path, "", "")
    with pytest.raises(RegardError, match="there is no text in"):
        gather(empty)
    (tmp_path / "b.txt").write_text("text")
    with pytest.raises(RegardError, match=r"there is no text in .*0000\.txt"):
        gather([tmp_path / "b.txt"], [empty[0]])


def test_broken_bytes_are_counted_and_kept(tmp_path):
    texts = gather(files(tmp_path, b"a\xff\xfeb \xc3", "ok"), held_out=0.0)
    assert texts.census.broken == 3
    assert texts.bytes == 8
    assert len(texts.warnings) == 1
    assert texts.warnings[0].startswith("3 bytes are not UTF-8")
    assert parts(texts)["train"][0].encode("utf-8", "surrogateescape") == b"a\xff\xfeb \xc3"


def test_lines_of_json_are_documents_and_gzip_is_opened(tmp_path):
    documents = [words(5, n) for n in range(30)]
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(json.dumps({"text": t}) for t in documents).encode()))
    found = parts(gather([path]))
    assert sorted(found["train"] + found["valid"]) == sorted(documents)


def test_a_digest_names_content_documents_and_division(tmp_path):
    def digest(*contents: bytes, **how) -> str:
        for path in tmp_path.iterdir():
            path.unlink()
        return gather(files(tmp_path, *contents), **how).digest

    same = digest(b"some text", b"more")
    assert digest(b"some text", b"more") == same
    others = [
        digest(b"some text", b"more", held_out=0.2),
        digest(b"some text", b"mor\xc3\xa9"),
        digest(b"some text", b"mor\xe9"),
        digest(b"some textmore"),
        digest(b"some tex", b"tmore"),
        digest(b"more", b"some text"),
    ]
    assert len({same, *others}) == len(others) + 1
    apart, together = (files(tmp_path, *c) for c in ([b"a", b"b"], [b"a\xff\x00b\xff\x00"]))
    assert take_census(apart).digest != take_census(together).digest


@pytest.mark.parametrize("later", ["longer than it was before", "short", '{"text": "a"}'])
def test_a_file_that_changes_between_the_readings_is_noticed(later, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\n{"text": "two"}\n')
    plain = files(tmp_path, "as it was before")[0]
    lines, whole = gather([path]), gather([plain])
    path.write_text('{"text": "one"}\n' if len(later) < 15 else '{"text": "one"}\n' * 3)
    plain.write_text(later)
    for texts in (lines, whole):
        with pytest.raises(RegardError, match="while it was read"):
            list(texts.passages())


def test_progress_is_told_in_characters_read(tmp_path, monkeypatch):
    in_pieces(monkeypatch, 10)
    told: list[int] = []
    gather(files(tmp_path, "word " * 10, "x"), progress=told.append)
    assert told == sorted(told)
    assert len(told) > 3
    assert told[-1] == 51


def test_a_census_is_the_same_however_files_are_cut(tmp_path, monkeypatch):
    paths = files(tmp_path, "some words in a file\n" * 9, b"broken \xff bytes " * 5, "é")
    whole = take_census(paths)
    in_pieces(monkeypatch, 7)
    cut = take_census(paths)
    assert (whole.digest, whole.bytes, whole.broken) == (cut.digest, cut.bytes, cut.broken)
    assert whole.sizes.tolist() == cut.sizes.tolist() == [189, 75, 1]
    assert whole.marks.tolist() == cut.marks.tolist()
    assert whole.broken == 5


# --- samples ---------------------------------------------------------------------------------


def test_all_of_a_part_is_read_when_nothing_is_asked_for(tmp_path):
    documents = [words(30, n) for n in range(25)]
    texts = gather(files(tmp_path, *documents))
    for part in ("train", "valid"):
        for most in (0, 10**9):
            assert "".join(texts.texts(part, most)) == "".join(parts(texts)[part])


@pytest.mark.parametrize("sizes", [[50_000], [50] * 1000, [20_000, *[100] * 300]])
def test_a_sample_is_bounded_and_evenly_spread(sizes, tmp_path):
    # Numbers that grow through the corpus: a sample's mean and quarters tell where it was taken.
    numbers = iter(range(100_000, 999_999))
    documents = ["".join(f"{next(numbers)} " for _ in range(size // 7)) for size in sizes]
    texts = gather(files(tmp_path, *documents), held_out=0.0)
    taken = list(texts.texts("train", 5000))
    assert 4500 <= sum(map(len, taken)) <= 5200
    found = [int(word) - 100_000 for text in taken for word in text.split()]
    assert min(found) >= 0  # no word is torn
    total = sum(size // 7 for size in sizes)
    quarters = np.histogram(found, bins=4, range=(0, total))[0] / len(found)
    assert np.abs(quarters - 0.25).max() < 0.05


def test_a_sample_of_the_held_out_part_is_measured_by_its_own_size(tmp_path):
    one, two = files(tmp_path, words(10_000, 0), words(1000, 1))
    texts = gather([one], [two])
    size = texts.characters("valid")
    assert sum(map(len, texts.texts("valid", size // 2))) == pytest.approx(size / 2, rel=0.05)

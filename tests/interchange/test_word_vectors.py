"""Word vectors come back to the bit, and a broken file is told in one sentence with the place."""

import gzip
import struct
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from regard.errors import RegardError
from regard.inspection.word_table import WordTable
from regard.interchange import word_vectors
from regard.interchange.word_vectors import read_vectors, write_vectors

ROWS = [("the", (0.5, -1.25, 3.0)), ("né", (1e-30, -0.0, 2.5)), ("猫_x", (7.0, 8.0, 1 / 3))]
NAMES = [("v.txt", False), ("v.bin", True), ("v.txt.gz", False), ("v.gz", True)]


def table(words: int = 20, width: int = 7) -> WordTable:
    vectors = np.random.default_rng(words).normal(size=(words, width)) * 10.0 ** np.arange(width)
    return WordTable([f"wörd{i}" for i in range(words)], vectors)


def same(found: WordTable, wanted: WordTable) -> bool:
    bits = [one.vectors.view(np.uint32) for one in (found, wanted)]
    return found.words == wanted.words and np.array_equal(*bits)


def text(rows=ROWS, header: str | None = "3 3") -> bytes:
    lines = [header] if header is not None else []
    lines += [" ".join([word, *(repr(float(n)) for n in numbers)]) for word, numbers in rows]
    return ("\n".join(lines) + "\n").encode()


def binary(rows=ROWS, header: str = "3 3", end: bytes = b"\n") -> bytes:
    """As word2vec.c writes it with `end` a newline, as gensim with none."""
    parts = [f"{word} ".encode() + struct.pack(f"<{len(n)}f", *n) + end for word, n in rows]
    return header.encode() + b"\n" + b"".join(parts)


ROWS_TABLE = WordTable([word for word, _ in ROWS], np.array([n for _, n in ROWS]))


@pytest.mark.parametrize(
    "content",
    [
        text(),
        text().removesuffix(b"\n"),
        text() + b"\n\n",
        text().replace(b"\n", b"\r\n"),
        text().replace(b"\n", b" \n"),  # word2vec.c has a blank at the end of each line
        text().replace(b" ", b"\t"),
        text(header=None),
        binary(),
        binary(end=b""),
    ],
)
@pytest.mark.parametrize("compressed", [False, True])
def test_every_way_to_write_the_same_vectors_is_read(tmp_path, content, compressed):
    path = tmp_path / "vectors.of.any.name"
    path.write_bytes(gzip.compress(content, mtime=0) if compressed else content)
    assert same(read_vectors(path), ROWS_TABLE)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.text("aé猫0_-", min_size=1, max_size=4), min_size=1, max_size=5, unique=True),
    st.integers(1, 4),
    st.sampled_from(NAMES),
    st.data(),
)
def test_what_is_written_is_read_back_to_the_bit(tmp_path, words, width, name, drawn):
    rows = st.lists(
        st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=width, max_size=width
    )
    vectors = drawn.draw(st.lists(rows, min_size=len(words), max_size=len(words)))
    wanted = WordTable(words, np.array(vectors, np.float32))
    write_vectors(wanted, tmp_path / name[0], binary=name[1])
    assert same(read_vectors(tmp_path / name[0]), wanted)


def test_binary_numbers_that_look_like_letters_are_no_text(tmp_path):
    rows = [(word, struct.unpack("<f", word.encode() * 2)) for word in ("ab", "cd")]
    (tmp_path / "v").write_bytes(binary(rows, "2 1"))
    assert (tmp_path / "v").read_bytes() == b"2 1\nab abab\ncd cdcd\n"
    found = read_vectors(tmp_path / "v")
    assert found.vectors.tobytes() == b"ababcdcd"


def test_more_rows_than_are_made_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(word_vectors, "ROWS", 8)
    for name, is_binary in NAMES:
        write_vectors(table(20), tmp_path / name, binary=is_binary)
        assert same(read_vectors(tmp_path / name), table(20))


def test_the_bytes_are_those_of_word2vec(tmp_path):
    write_vectors(ROWS_TABLE, tmp_path / "v", binary=True)
    assert (tmp_path / "v").read_bytes() == binary()
    write_vectors(ROWS_TABLE, tmp_path / "v")
    first, *lines = (tmp_path / "v").read_text().splitlines()
    assert first == "3 3"
    assert lines[0] == "the 0.5 -1.25 3"


def test_compressed_files_are_the_same_each_time(tmp_path):
    write_vectors(ROWS_TABLE, tmp_path / "one.gz")
    write_vectors(ROWS_TABLE, tmp_path / "two.gz")
    assert (tmp_path / "one.gz").read_bytes() == (tmp_path / "two.gz").read_bytes()
    assert (tmp_path / "one.gz").read_bytes()[3:8] == bytes(5)  # neither a name nor a time


def test_words_of_glove_may_have_blanks(tmp_path):
    (tmp_path / "v").write_bytes(b"the 0.1 0.2\n. . . 0.3 0.4\nat a@b.c 1 2\n")
    assert read_vectors(tmp_path / "v").words == ("the", ". . .", "at a@b.c")


MIDDLE = text().split(b"\n")  # header, three rows, nothing


@pytest.mark.parametrize(
    ("content", "said"),
    [
        # the first line
        (b"", "is no file of word vectors"),
        (b"Once upon a time\n", "is no file of word vectors"),
        (b"\x89PNG\r\n\x1a\n 1 2", "is no file of word vectors"),
        (b"word\n", "is no file of word vectors"),
        (text(header="0 3"), "line 1 says 0 vectors of width 3"),
        (text(header="3 0"), "line 1 says 3 vectors of width 0"),
        (text(header="9999999999999999 3"), "line 1 says 1.0e.16 vectors of width 3, more than"),
        (binary(header="3 999999999999999999"), "line 1 says 3 vectors of width 1.0e.18, more"),
        # text
        (text(header="4 3"), "has 3 vectors, but line 1 says 4"),
        (text(header="2 3"), "has 3 vectors, but line 1 says 2"),
        (text().replace(b" 2.5", b""), ": line 3 has 2 numbers, not 3"),
        (text().replace(b" 2.5", b" 2.5 1"), ": line 3 has 4 numbers, not 3"),
        (text().replace(b"2.5", b"two"), ": line 3 has 'two' where a number should be"),
        (text().replace(b"2.5", b"2_5"), ": line 3 has '2_5' where a number should be"),
        (text().replace(b"0.5", b"half"), ": line 2 has 'half' where a number should be"),
        (text().replace(b"2.5", b"nan"), ": line 3 has a number that is not finite"),
        (text().replace(b"2.5", b"-inf"), ": line 3 has a number that is not finite"),
        (text().replace(b"2.5", b"1e39"), ": line 3 has a number that is not finite"),
        (text().replace("né".encode(), b"the"), ": line 3 has the word 'the' again, of line 2"),
        (text().replace("né".encode(), b"n\xe9"), r": line 3 has a word that is not UTF-8: .*xe9"),
        (text().replace("né".encode(), b"\n"), ": line 3 has 0 numbers, not 3"),
        (text(header=None).replace(b" 2.5", b""), ": line 2 has 2 numbers, not 3"),
        (text(header=None).replace(b"2.5", b"nan"), ": line 2 has a number that is not finite"),
        # binary
        (binary()[:-5], ": vector 3 is cut off; line 1 says 3"),
        (binary(end=b"")[:-1], ": vector 3 is cut off; line 1 says 3"),
        (binary(ROWS[:2]), ": vector 3 is missing; line 1 says 3"),
        (binary(ROWS[:2]) + b"cat", ": vector 3 is missing"),
        (binary(header="2 3"), "goes on behind the 2 vectors that line 1 says"),
        (binary() + b" ", "goes on behind the 3 vectors"),
        (binary([ROWS[0], ROWS[0], ROWS[1]]), ": vector 2 has the word 'the' again, of vector 1"),
        (binary([*ROWS[:2], ("x", (0.0, np.nan, 0.0))]), ": vector 3 has a number that is not"),
        (binary([*ROWS[:2], ("", (0.0, 1.0, 0.0))]), ": vector 3 has no word"),
        (binary().replace("né".encode(), b"n\xe9"), ": vector 2 has a word that is not UTF-8"),
        (binary(header="2 9") + b"x" * 5000, ": vector 2 has no word: no blank within 4,096"),
        # compressed
        (gzip.compress(text(), mtime=0)[:-9], "is a damaged gzip file"),
        (b"\x1f\x8b nonsense", "is a damaged gzip file"),
        (
            gzip.compress(text(header="99999999 99"), mtime=0),
            "line 1 says 99,999,999 vectors of width 99",
        ),
    ],
)
def test_what_is_broken_is_told_with_the_file_and_the_place(tmp_path, content, said):
    path = tmp_path / "vectors"
    path.write_bytes(content)
    with pytest.raises(RegardError, match=said) as caught:
        read_vectors(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from([text(), binary(), binary(end=b""), gzip.compress(text(), mtime=0)]), st.data()
)
def test_any_damage_is_an_error_or_another_table(tmp_path, content, drawn):
    content = bytearray(content)
    for _ in range(drawn.draw(st.integers(1, 3))):
        content[drawn.draw(st.integers(0, len(content) - 1))] = drawn.draw(st.integers(0, 255))
    (tmp_path / "v").write_bytes(content[: drawn.draw(st.integers(0, len(content)))])
    with suppress(RegardError):
        found = read_vectors(tmp_path / "v")
        assert found.vectors.shape == (len(set(found.words)), found.width)
        assert np.isfinite(found.vectors).all()


def test_a_first_line_that_lies_takes_no_memory(tmp_path, monkeypatch):
    """As many vectors as could be in the file, were they compressed as well as can be."""
    content = gzip.compress(b"400 100\nthe " + b"0 " * 100 + b"\n" + b" " * 90_000, mtime=0)
    (tmp_path / "v").write_bytes(content)
    made = []
    array = np.array
    monkeypatch.setattr(
        word_vectors.np, "array", lambda *given: made.append(len(given[0])) or array(*given)
    )
    with pytest.raises(RegardError, match="has 1 vectors, but line 1 says 400"):
        read_vectors(tmp_path / "v")
    assert made == [1]


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(RegardError, match="nowhere does not exist"):
        read_vectors(tmp_path / "nowhere")
    with pytest.raises(RegardError, match="not a regular file"):
        read_vectors(tmp_path)


@pytest.mark.parametrize("word", ["two words", "", "new\nline", "\ud800", "x" * 5000])
def test_words_that_the_format_cannot_hold_are_refused_before_anything_is_written(tmp_path, word):
    wrong = WordTable(["fine", word], np.ones((2, 3)))
    for is_binary in (False, True):
        with pytest.raises(RegardError, match="cannot be written"):
            write_vectors(wrong, tmp_path / "v", binary=is_binary)
    assert not list(tmp_path.iterdir())


def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    (tmp_path / "v").write_bytes(text())

    def breaks(word, vector):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(word_vectors, "_bytes", breaks)
    with pytest.raises(RegardError, match=r"cannot write .*: no space left"):
        write_vectors(table(), tmp_path / "v", binary=True)
    assert [path.name for path in tmp_path.iterdir()] == ["v"]
    assert same(read_vectors(tmp_path / "v"), ROWS_TABLE)


@pytest.mark.parametrize(("name", "is_binary"), NAMES)
def test_gensim_reads_and_writes_the_same(tmp_path, name, is_binary):
    keyed = pytest.importorskip("gensim.models").KeyedVectors
    write_vectors(table(), tmp_path / name, binary=is_binary)
    theirs = keyed.load_word2vec_format(str(tmp_path / name), binary=is_binary)
    assert same(WordTable(theirs.index_to_key, theirs.vectors), table())
    theirs.save_word2vec_format(str(tmp_path / f"2{name}"), binary=is_binary)
    assert same(read_vectors(tmp_path / f"2{name}"), table())

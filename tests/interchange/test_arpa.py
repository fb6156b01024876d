"""ARPA files: what is written says what the table says, to any reader; what is broken is told."""

import gzip
import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import regard.interchange.arpa
from regard.errors import RegardError
from regard.interchange.arpa import read_arpa, write_arpa
from regard.interchange.columns import LineBlock
from regard.models.counting.estimate import estimate, smoothing

UNKNOWN, BEGIN, END = 0, 1, 2
WORDS = ["<unk>", "<s>", "</s>", "a", "bé", "'", "戦場のヴァルキュリア3", "d" * 40, "e", "f"]
CORPORA = st.lists(st.lists(st.integers(3, 8), max_size=8), min_size=1, max_size=25)
TEXTS = st.lists(st.integers(3, 9), max_size=6)
KINDS = st.sampled_from(["kneser-ney", "add-k", "maximum-likelihood"])

SMALL = """\
\\data\\
ngram 1=4
ngram 2=3
ngram 3=1

\\1-grams:
-1.5\t<unk>
0\t<s>\t-0.5
-0.75\t</s>
-0.25\ta\t0.125

\\2-grams:
-0.5\t<s> a\t-0.0625
-0.3\ta a\t-1e-1
-0.2\ta </s>

\\3-grams:
-0.1\t<s> a </s>

\\end\\
"""


def counted(sentences, order, kind="kneser-ney", **more):
    ids = [token for words in sentences for token in (BEGIN, *words, END)]
    return estimate(np.array(ids), order, len(WORDS), BEGIN, smoothing(kind, k=0.5), **more)


class Naive:
    """An ARPA file line by line into a dictionary, and back-off as a recursion."""

    def __init__(self, text):
        self.logs, self.backoffs = {}, {}
        for line in text.splitlines():
            if "\t" in line:
                log, words, *backoff = line.split("\t")
                gram = tuple(words.split(" "))
                self.logs[gram] = float(log)
                self.backoffs[gram] = float(backoff[0]) if backoff else 0.0
        self.order = max(map(len, self.logs))

    def score(self, words):
        words = words[-self.order :]
        if words in self.logs:
            return self.logs[words]
        return self.backoffs.get(words[:-1], 0.0) + self.score(words[1:])


def log10s(table, ids):
    return table.logprobs(np.array(ids))[0] / math.log(10)


@settings(max_examples=60, deadline=None)
@given(CORPORA, st.integers(1, 4), KINDS, TEXTS, st.integers(0, 2), st.integers(1, 300))
def test_what_is_written_is_what_was_known(
    tmp_path_factory, corpus, order, kind, text, least, block
):
    more = {"prune": [0, least]} if kind == "kneser-ney" and order > 1 else {}
    table = counted(corpus, order, kind, **more)
    path = tmp_path_factory.mktemp("arpa") / "x.arpa"
    write_arpa(table, WORDS, path)
    naive = Naive(path.read_text())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(regard.interchange.arpa, "BLOCK", block)  # lines come in pieces
        again, words = read_arpa(path)
    assert (words, again.begin, again.order) == (WORDS, BEGIN, order)
    ids = [BEGIN, *text, END]
    one, other = log10s(table, ids), log10s(again, ids)
    for end in range(1, len(ids)):
        wanted = naive.score(tuple(WORDS[token] for token in ids[: end + 1]))
        if wanted > -90:
            assert other[end] == pytest.approx(wanted, abs=2e-6)
            assert one[end] == pytest.approx(wanted, abs=4e-6)
        else:
            assert one[end] == other[end] == -math.inf


def test_a_small_file_means_what_it_says(tmp_path):
    path = tmp_path / "small.arpa"
    path.write_text("made by hand\n\n" + SMALL)
    table, words = read_arpa(path)
    assert words == ["<unk>", "<s>", "</s>", "a"]
    found, lengths = table.logprobs(np.array([1, 3, 2, 1, 3, 3, 2, 1, 0]))
    wanted = [-math.inf, -0.5, -0.1, -math.inf, -0.5, -0.3 - 0.0625, -0.2 - 0.1, -math.inf, -2]
    np.testing.assert_allclose(found / math.log(10), wanted, rtol=1e-6)
    assert lengths.tolist() == [1, 2, 3, 1, 2, 2, 2, 1, 1]


def test_an_n_gram_may_be_known_whose_ending_is_not(tmp_path):
    """As tools that prune by entropy leave them."""
    path = tmp_path / "sparse.arpa"
    lines = SMALL.replace("ngram 2=3", "ngram 2=2").replace("-0.2\ta </s>\n", "")
    path.write_text(lines)
    table, _ = read_arpa(path)
    for context, token in (([1, 3], 2), ([1, 3], 3), ([3], 2)):
        found = log10s(table, [*context, token])[-1]
        wanted = Naive(lines).score(
            tuple(["<unk>", "<s>", "</s>", "a"][t] for t in [*context, token])
        )
        assert found == pytest.approx(wanted, rel=1e-6)
        assert table.following(context)[token] / math.log(10) == pytest.approx(wanted, rel=1e-6)


def test_what_was_read_can_be_written_again_back_offs_above_one_too(tmp_path):
    (tmp_path / "one.arpa").write_text(SMALL.replace("<unk>", "a\0"))  # a word of its own
    table, words = read_arpa(tmp_path / "one.arpa")
    assert words == ["a\0", "<s>", "</s>", "a"]
    words[0] = "<unk>"
    write_arpa(table, words, tmp_path / "other.arpa")
    again, _ = read_arpa(tmp_path / "other.arpa")
    for one, other in zip(table.levels, again.levels, strict=True):
        np.testing.assert_array_equal(one.keys, other.keys)
        np.testing.assert_array_equal(one.logprobs, other.logprobs)
        np.testing.assert_array_equal(one.backoffs, other.backoffs)


def test_packed_by_gzip_it_is_the_same(tmp_path):
    table = counted([[3, 4, 5, 6], [3, 4, 7]], 3)
    for name in ("x.arpa", "x.arpa.gz"):
        write_arpa(table, WORDS, tmp_path / name)
    assert (
        gzip.decompress((tmp_path / "x.arpa.gz").read_bytes()) == (tmp_path / "x.arpa").read_bytes()
    )
    plain, packed = (read_arpa(tmp_path / name)[0] for name in ("x.arpa", "x.arpa.gz"))
    np.testing.assert_array_equal(packed.levels[2].logprobs, plain.levels[2].logprobs)
    np.testing.assert_array_equal(packed.levels[1].backoffs, plain.levels[1].backoffs)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("\\data\\", "\\date\\", "no ARPA file"),
        ("ngram 1=4", "ngram 0=4", "line 2: 'ngram 1=' and a number"),
        ("ngram 2=3\n", "", "line 3: 'ngram 2=' and a number"),
        ("ngram 1=4\nngram 2=3\nngram 3=1\n", "", "line 2: the header promises no words"),
        ("ngram 1=4", "ngram 1=x", "line 2: .*not 'ngram 1=x'"),
        ("ngram 2=3", "ngram 2=4", "line 16: a number, 2 words"),
        ("ngram 2=3", "ngram 2=2", r"line 15: \\3-grams: should be here, not '-0.2"),
        ("ngram 3=1", "ngram 3=100", "line 19: a number, 3 words"),
        ("\\2-grams:", "\\3-grams:", r"line 12: \\2-grams: should be here, not '\\\\3-grams:'"),
        ("\\end\\\n", "", r"line 19: the file ends before \\end\\"),
        ("-0.75\t</s>", "x\t</s>", "line 9: a number should be here"),
        ("-0.75\t</s>", "nan\t</s>", "line 9: a number should be here"),
        ("-0.75\t</s>", "-0.7.5\t</s>", "line 9: a number should be here"),
        ("-0.75\t</s>", "-0_7\t</s>", "line 9: a number should be here"),
        ("a\t0.125", "a\t0.125x", "line 10: a number should be here"),
        ("-0.75\t</s>", "0.75\t</s>", "line 9: .* above 0"),
        ("a\t0.125", "a\t120", "line 10: a back-off is too large to be one"),
        ("-0.75\t</s>", "-0.75\ta", "line 10: the word 'a' was there before"),
        ("\t<s>\t-0.5", "\tb\t-0.5", "line 13: a word is not among the 1-grams"),
        ("-0.3\ta a", "-0.3\t<s> a", "line 14: this 2-gram was there before"),
        ("-0.3\ta a", "-0.3\ta b", "line 14: a word is not among the 1-grams"),
        ("-0.2\ta </s>", "-0.2\ta", "line 15: a number, 2 words and perhaps a number"),
        ("-0.1\t<s> a </s>", "-0.1\ta <unk> </s>", "line 18: its first 2 words are not among"),
        ("-0.1\t<s> a </s>", "-0.1\t<s> a </s>\t-1", "line 18: a number, 3 words should"),
        ("a\t0.125", "a" * 5000 + "\t0.125", "line 10: a word is too long"),
    ],
)
def test_a_broken_file_is_one_sentence_with_its_line(tmp_path, old, new, words):
    assert old in SMALL
    path = tmp_path / "broken.arpa"
    path.write_text(SMALL.replace(old, new, 1))
    with pytest.raises(RegardError, match=words) as raised:
        read_arpa(path)
    assert "\n" not in str(raised.value)
    assert str(path) in str(raised.value)


def test_a_file_without_a_beginning_or_not_in_utf_8_is_one_sentence(tmp_path):
    path = tmp_path / "x.arpa"
    path.write_text("\\data\\\nngram 1=1\n\n\\1-grams:\n-1\ta\n\n\\end\\\n")
    with pytest.raises(RegardError, match="has no word <s>"):
        read_arpa(path)
    path.write_bytes(SMALL.encode().replace(b"<unk>", b"\xff\xfe"))
    with pytest.raises(RegardError, match="line 7: the word is not UTF-8"):
        read_arpa(path)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_is_cut_off_or_changed_there_is_a_sentence_or_a_table(tmp_path_factory, data):
    content = bytearray(SMALL.encode())
    cut = data.draw(st.integers(0, len(content)))
    if data.draw(st.booleans()):
        content = content[:cut]
    else:
        content[cut : cut + data.draw(st.integers(0, 5))] = data.draw(st.binary(max_size=6))
    path = tmp_path_factory.mktemp("arpa") / "x.arpa"
    path.write_bytes(gzip.compress(content)[:-9] if data.draw(st.booleans()) else content)
    said = ""
    try:
        table, words = read_arpa(path)
        assert [len(level.logprobs) for level in table.levels[:1]] == [len(words)]
        assert not np.isnan(table.logprobs(np.array([table.begin, 0, 0]))[0]).any()
    except RegardError as error:
        said = str(error)
    assert not said or re.fullmatch(r"[^\n]*x\.arpa[^\n]*", said)


@pytest.mark.parametrize(
    ("spelling", "words"),
    [
        (["<unk>", "<s>", "</s>", "a b"], "no blanks, but there is 'a b'"),
        (["<unk>", "<s>", "</s>", "a\n"], "no blanks"),
        (["<unk>", "<s>", "</s>", ""], "no blanks"),
        (["<unk>", "<s>", "</s>", "<unk>"], "4 different words, not 3"),
        (["<unk>", "<s>", "</s>"], "4 different words, not 3"),
        (["<unk>", "BOS", "</s>", "a"], "is <s> in ARPA, not 'BOS'"),
        (["<unk>", "<s>", "</s>", "\ud800"], "not every word is Unicode"),
    ],
)
def test_words_that_arpa_cannot_hold_are_one_sentence(tmp_path, spelling, words):
    table = estimate(np.array([1, 3, 3, 2]), 2, 4, BEGIN)
    with pytest.raises(RegardError, match=words):
        write_arpa(table, spelling, tmp_path / "x.arpa")
    assert not list(tmp_path.iterdir())


def test_scores_that_are_no_probabilities_are_not_written(tmp_path):
    with pytest.raises(RegardError, match="scores, not probabilities"):
        write_arpa(counted([[3]], 2, "stupid-backoff"), WORDS, tmp_path / "x.arpa")


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.floats(-1e6, 1e6).map(repr)
        | st.floats(-99, 1).map("{:.6f}".format)
        | st.text("-+.0123456789e_n", min_size=1, max_size=20),
        min_size=1,
    )
)
def test_numbers_are_read_as_python_reads_them(spelled):
    text = np.frombuffer("".join(f"x {word} y\n" for word in spelled).encode(), np.uint8)
    block = LineBlock.of(text, np.flatnonzero(text == ord("\n")) + 1)
    assert block.fields.tolist() == [3] * len(spelled)
    assert [word.decode() for word in block.texts(block.first + 1)] == spelled
    for word, found in zip(spelled, block.numbers(block.first + 1), strict=True):
        try:
            wanted = math.nan if "_" in word else float(word)
        except ValueError:
            wanted = math.nan
        np.testing.assert_equal(found, wanted)


def test_kenlm_scores_what_is_written_as_the_table_does(tmp_path):
    kenlm = pytest.importorskip("kenlm")
    rng = np.random.default_rng(0)
    corpus = [(3 + rng.zipf(1.5, rng.integers(1, 9)) % 6).tolist() for _ in range(300)]
    texts = [rng.integers(3, 10, rng.integers(0, 8)).tolist() for _ in range(50)]
    for kind, more in (("kneser-ney", {}), ("kneser-ney", {"prune": [0, 0, 1]}), ("add-k", {})):
        table = counted(corpus, 4, kind, **more)
        path = tmp_path / "x.arpa"
        write_arpa(table, WORDS, path)
        model = kenlm.Model(str(path))
        for text in texts:
            wanted = [score for score, *_ in model.full_scores(" ".join(WORDS[t] for t in text))]
            found = log10s(table, [BEGIN, *text, END])[1:]
            np.testing.assert_allclose(found, wanted, atol=1e-5)

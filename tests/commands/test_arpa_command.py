"""`regard arpa`: an n-gram run goes out and comes back the same."""

import gzip
import json

import pytest
from command_line import call, mistake

TEXT = "the cat sat\nthe dog sat on the cat\n\na cat ran\nthe dog ran on\n" * 6
THEIRS = """
\\data\\
ngram 1=5
ngram 2=3

\\1-grams:
-0.7\tcat\t-0.2
-99\t<s>\t-0.3
-0.5\t</s>
-0.6\tthe\t-0.1
-0.9\t<UNK>

\\2-grams:
-0.2\t<s> the
-0.3\tthe cat
-0.1\tcat </s>

\\end\\
"""


@pytest.fixture
def counted(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    model = ("--model", "trigram", "--tokenizer", "word", "--out", "run")
    assert call("train", "text.txt", *model, "--set", "data.held_out=0").code == 0
    return "run"


@pytest.mark.parametrize("name", ["model.arpa", "model.arpa.gz"])
def test_a_run_goes_out_and_comes_back(counted, name):
    assert "3-grams" in call("arpa", counted, name).out
    assert call("arpa", name, "back").code == 0
    lines = ("the cat ran", "a dog sat on", "zebra", "")
    one, other = (call("score", run, *lines, "--json").out.splitlines() for run in ("run", "back"))
    for mine, theirs in zip(one, other, strict=True):
        found = json.loads(theirs)["logprobs"]
        assert found == pytest.approx(json.loads(mine)["logprobs"], abs=1e-5)
    assert json.loads(call("runs", "back", "--json").out)[0]["state"] == "finished"


def test_a_file_of_other_makers_is_scored_as_it_says(tmp_path):
    (tmp_path / "theirs.arpa.gz").write_bytes(gzip.compress(THEIRS.encode()))
    assert call("arpa", "theirs.arpa.gz", "theirs").code == 0
    said = json.loads(call("score", "theirs", "the cat", "--json").out)
    assert sum(said["logprobs"]) / 2.302585 == pytest.approx(-0.2 - 0.3 - 0.1, abs=1e-5)
    unknown = json.loads(call("score", "theirs", "the dog", "--json").out)
    # the dog: back-off of "the" and <UNK>; then </s> alone, <UNK> being nobody's context
    assert unknown["logprobs"][1] / 2.302585 == pytest.approx(-0.1 - 0.9, abs=1e-5)


def test_mistakes_are_one_sentence(counted, decoder, tmp_path):
    assert "is not an n-gram model" in mistake(call("arpa", decoder, "x.arpa"))
    (tmp_path / "bad.arpa").write_text(THEIRS.replace("-0.3\tthe cat", "-x\tthe cat"))
    assert "bad.arpa" in mistake(call("arpa", "bad.arpa", "x"))
    assert "line" in mistake(call("arpa", "bad.arpa", "x"))
    assert not (tmp_path / "x").exists()
    (tmp_path / "none.arpa").write_text(THEIRS.replace("</s>", "END"))
    assert "has no </s>" in mistake(call("arpa", "none.arpa", "x"))
    assert "already" in mistake(call("arpa", "bad.arpa", "text.txt"))


def test_nothing_that_is_there_is_replaced(counted, tmp_path):
    (tmp_path / "theirs.arpa").write_text(THEIRS)
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    assert "already there" in mistake(call("arpa", "theirs.arpa", "run"))
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def test_a_length_without_n_grams_is_no_trouble(tmp_path):
    empty = THEIRS.replace("ngram 2=3", "ngram 2=3\nngram 3=0").replace(
        "\\end", "\\3-grams:\n\n\\end"
    )
    (tmp_path / "theirs.arpa").write_text(empty)
    assert call("arpa", "theirs.arpa", "theirs").code == 0
    assert call("score", "theirs", "the cat").code == 0

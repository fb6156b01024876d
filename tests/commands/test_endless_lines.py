"""A few kilobytes of gzip that hold a line of many megabytes are refused by whoever reads lines."""

import gzip
from pathlib import Path

import pytest
from command_line import call, mistake

from regard.data.readers import files
from regard.storage.line_reader import LINE

PAIRS = "the cat\tcat the\n" * 30
READ = {  # by what is read: the run, the command, what comes behind the run
    "translate": ("translator", "translate", "b.gz"),
    "translate from a pipe": ("translator", "translate"),
    "score --file": ("decoder", "score", "--file", "b.gz"),
    "score": ("decoder", "score"),
    "score pairs": ("translator", "score", "--source", "b.gz", "--target", "good.txt"),
    "score columns": ("translator", "score"),
    "embed --file": ("decoder", "embed", "--file", "b.gz"),
    "embed": ("encoder", "embed"),
    "align --pairs": ("translator", "align", "--pairs", "b.tsv.gz"),
    "align --gold": ("translator", "align", "--pairs", "good.tsv", "--gold", "b.gz"),
    "evaluate pairs": ("translator", "evaluate", "b.gz", "good.txt"),
    "evaluate a table": ("translator", "evaluate", "b.tsv.gz"),
    "evaluate objects": ("translator", "evaluate", "b.jsonl.gz"),
}
MADE = {
    "train --pairs": ("--pairs", "b.tsv.gz"),
    "train --pairs of objects": ("--pairs", "b.jsonl.gz"),
    "train --pairs of two": ("--pairs", "good.txt", "b.gz"),
    "train --images": ("--images", "images"),
}


@pytest.fixture(scope="module")
def bomb() -> bytes:
    return gzip.compress(b"a" * (LINE + 2), 1)


@pytest.fixture(autouse=True)
def _files(bomb, tmp_path, monkeypatch):
    """The bomb under all names, and good files to stand beside it."""
    (tmp_path / "images").mkdir()
    for name in ("b.gz", "b.tsv.gz", "b.jsonl.gz", "images/captions.jsonl.gz"):
        (tmp_path / name).write_bytes(bomb)
    (tmp_path / "good.txt").write_text("the cat\n" * 30)
    (tmp_path / "good.tsv").write_text(PAIRS)
    monkeypatch.setattr(files, "DOCUMENT", LINE)


@pytest.mark.parametrize("how", READ)
def test_a_command_that_reads_lines_says_which_one_has_no_end(how, request, bomb):
    run, command, *more = READ[how]
    piped = b"" if more else b"a cat\n" + gzip.decompress(bomb)
    said = mistake(call(command, request.getfixturevalue(run), *more, stdin=piped))
    assert f"line {2 if piped else 1} is longer than 16.8 MB, the most that a line may have" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("how", MADE)
def test_training_on_a_line_without_an_end_is_refused_before_it_begins(how, tmp_path):
    said = mistake(call("train", *MADE[how], "--out", "run", "--steps", 1))
    assert "line 1 is longer than 16.8 MB" in said
    assert not Path("run").exists()


def test_documents_of_a_line_have_a_bound_and_plain_text_has_none(monkeypatch, tmp_path):
    monkeypatch.setattr(files, "DOCUMENT", 1000)
    for name in ("few.jsonl.gz", "few.txt.gz"):
        (tmp_path / name).write_bytes(gzip.compress(b"a" * 5000))
    for command in (("tokenize", "byte"), ("train",), ("tokenizer", "--kind", "byte")):
        said = mistake(call(*command, "few.jsonl.gz"))
        assert "few.jsonl.gz: line 1 is longer than 1.0 kB, the most that a line may have" in said
    assert "5,000 tokens, 1 distinct" in call("tokenize", "byte", "few.txt.gz").out


def test_standard_input_that_is_one_text_has_a_bound(encoder, monkeypatch):
    monkeypatch.setattr("regard.commands.arguments.DOCUMENT", 1000)
    for command in (("fill", encoder), ("generate", encoder), ("tokenize", "byte", "-")):
        if command[0] != "generate":
            assert "standard input is longer than 1.0 kB" in mistake(
                call(*command, stdin=b"a" * 1001)
            )
    assert "1,000 tokens" in call("tokenize", "byte", "-", stdin=b"a" * 1000).out


def test_questions_and_an_arpa_file_have_bounded_lines(tmp_path):
    (tmp_path / "vectors.txt").write_text("2 2\na 1 0\nb 0 1\n")
    said = mistake(call("words", "vectors.txt", "evaluate", "b.gz"))
    assert "b.gz: line 1 is longer than 16.8 MB" in said
    assert "b.gz: line 1 is longer than 1.0 MB" in mistake(call("arpa", "b.gz", "run"))

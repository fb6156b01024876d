"""`regard tokenize` and `regard tokenizer`: tokens are shown apart and counted right."""

import io
from pathlib import Path

import pytest
from command_line import call, mistake
from rich.console import Console

from regard.commands.tokenize import COLOURS, SHOWN, Tokenize
from regard.runs.stored_run import open_run
from regard.text.learning import learn
from regard.text.tokenizer import Tokenizer


def shown(*arguments: object, stdin: bytes = b"") -> list[str]:
    said = call("tokenize", *arguments, stdin=stdin)
    assert said.code == 0, said.err
    return said.out.split("\n")


@pytest.mark.parametrize("kind", ["decoder", "words"])
def test_tokens_of_a_run_are_separated_and_counted(request, kind):
    run = request.getfixturevalue(kind)
    text = "the cat 猫 sat. cat"
    lines = shown(run, text, "--ids")
    tokenizer = open_run(run).tokenizer
    ids = tokenizer.encode(text).tolist()
    assert lines[0].split("|") == tokenizer.pieces(ids)
    assert lines[1] == " ".join(map(str, ids))
    counts = " ".join(" ".join(lines[2:]).split())
    assert f"{len(ids)} tokens, {len(set(ids))} distinct, of {len(text.encode())} bytes" in counts
    assert f"{len(tokenizer)} in the vocabulary" in counts


def test_unknown_tokens_are_counted(words):
    assert "2 unknown" in shown(words, "the zebra and cat")
    assert not any("unknown" in line for line in shown(words, "the cat"))


def test_a_run_and_its_tokenizer_json_cut_alike(words):
    assert shown(words, "the cat") == shown(words / "tokenizer.json", "the cat")


def test_a_text_a_file_and_standard_input_give_the_same(decoder, data):
    text = (data / "other.txt").read_text(encoding="utf-8")
    expected = shown(decoder, text)
    assert shown(decoder, data / "other.txt") == expected
    assert shown(decoder, "-", stdin=text.encode()) == expected


def test_a_compressed_file_is_read_as_what_is_in_it(data):
    assert shown("char", data / "notes.txt.gz") == shown("char", data / "notes.txt")


def test_a_newline_ends_a_line_and_a_long_text_is_cut_but_counted_whole():
    assert shown("char", "a\nb")[:2] == ["a|↵|", "b"]
    lines = shown("byte", "x" * (SHOWN + 7))
    assert lines[0].count("x") == SHOWN
    assert "… and 7 more" in lines
    assert any(f"{SHOWN + 7:,} tokens, 1 distinct" in line for line in lines)


@pytest.mark.parametrize("no_color", [False, True])
def test_a_terminal_shows_colours_and_one_without_them_bars(no_color):
    out = io.StringIO()
    options = {"force_terminal": True, "color_system": "truecolor", "no_color": no_color}
    Tokenize("char", "abc").run(Console(file=out, width=80, **options))
    first = out.getvalue().splitlines()[0]
    assert ("\x1b[" in first) == (not no_color)
    assert first.count("|") == (2 if no_color else 0)
    assert len(set(COLOURS)) == len(COLOURS)  # neighbours differ


def test_a_name_that_looks_like_a_file_but_is_none_is_noted(words):
    said = call("tokenize", words, "nots.txt")
    assert said.code == 0
    assert "there is no file nots.txt" in said.err
    assert call("tokenize", words, "the cat").err == ""


@pytest.mark.parametrize(
    ("how", "text", "words"),
    [
        ("nowhere", "the cat", "nowhere is no run"),
        (".", "the cat", "is no run"),
        ("x" * 5000, "the cat", ""),
        ("broken.json", "the cat", "broken.json cannot be used"),
        ("char", "", "empty text"),
        ("char", "binary", "is not text"),
    ],
)
def test_a_mistake_is_one_sentence(how, text, words):
    Path("broken.json").write_text("{}")
    Path("binary").write_bytes(b"a\0b")
    assert words in mistake(call("tokenize", how, text))


# Learning one


@pytest.mark.parametrize("kind", ["bpe", "byte", "char", "word"])
def test_a_learned_tokenizer_is_the_librarys_and_cuts_like_it(data, kind):
    size = ("--vocabulary", 300) if kind == "bpe" else ()
    said = call("tokenizer", data / "notes.txt", "--kind", kind, "-o", "new/t.json", *size)
    assert said.code == 0, said.err
    text = (data / "notes.txt").read_text(encoding="utf-8")
    expected = learn(kind, [text], 300 if kind == "bpe" else 0)
    found = Tokenizer.load("new/t.json")
    assert found.fingerprint == expected.fingerprint
    assert f"wrote new/t.json: {kind}, {len(found):,} tokens" in said.out
    assert shown("new/t.json", "the cat")[0].split("|") == found.pieces(found.encode("the cat"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "name some text to learn from"),
        ("nothing.txt", "nothing.txt does not exist"),
        ("text --vocabulary 7", "at least 261"),
        ("text --vocabulary -7", "at least 261"),
        ("nothing.txt -o .", "is a folder"),
        ("nothing.txt -o text/t.json", "cannot write text/t.json"),
    ],
)
def test_a_mistake_in_learning_is_one_sentence_and_writes_nothing(arguments, words):
    Path("text").write_text("the cat sat")
    assert words in mistake(call("tokenizer", *arguments.split()))
    assert [path.name for path in Path().iterdir()] == ["text"]

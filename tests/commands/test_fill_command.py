"""`regard fill`: the gaps of a text, and what may stand in them."""

import io
import json
import sys

import pytest
from command_line import call, mistake, trained
from rich.console import Console

from regard.commands.fill import Fill
from regard.decoding.gaps import filled
from regard.formats import percent
from regard.loading import text_model_of
from regard.runs.stored_run import open_run

TEXT = "the [mask] sat on<mask> né"


def test_the_filled_text_comes_first_and_then_each_candidate(encoder):
    run = open_run(encoder)
    expected = filled(text_model_of(run), TEXT, top=3)
    said = call("fill", encoder, TEXT, "--top", 3)
    text, empty, head, *rows = said.out.splitlines()
    assert (said.code, said.err, empty) == (0, "", "")
    assert text == expected.text
    assert head.split() == ["gap", "token", "probability"]
    assert len(rows) == 6
    for number, (gap, ids) in enumerate(zip(expected.gaps, expected.ids, strict=True)):
        some = rows[3 * number : 3 * number + 3]
        assert some[0].split()[0] == str(number + 1)
        for row, candidate, piece in zip(some, gap, run.tokenizer.pieces(ids), strict=True):
            assert f" {piece} " in row
            assert row.endswith(percent(candidate.probability, 3))


def test_json_holds_every_candidate(encoder):
    expected = filled(text_model_of(open_run(encoder)), TEXT)
    said = call("fill", encoder, "-", "--json", stdin=f"{TEXT}\n".encode())
    found = json.loads(said.out)
    assert found["text"] == expected.text
    assert [[c["token"] for c in gap] for gap in found["gaps"]] == [
        [c.text for c in gap] for gap in expected.gaps
    ]
    assert [tuple(c["id"] for c in gap) for gap in found["gaps"]] == list(expected.ids)
    for gap in found["gaps"]:
        assert len(gap) == 5
        shares = [c["probability"] for c in gap]
        assert shares == sorted(shares, reverse=True)
        assert 0 < sum(shares) < 1


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_unknown_words_are_noted(tmp_path, data, options):
    trained(tmp_path / "run", data / "notes.txt", "--model", "bert-tiny", "--tokenizer", "word")
    said = call("fill", "run", "the zebra [mask] on [mask]", *options)
    assert said.err == "note: 1 of the text's 3 tokens are unknown to this run\n"
    assert call("fill", "run", "the cat [mask]", *options).err == ""


def test_a_terminal_is_not_sent_what_it_would_obey(encoder, monkeypatch):
    out = io.StringIO()
    out.isatty = lambda: True
    monkeypatch.setattr(sys, "stdout", out)
    Fill(str(encoder), "a\x1b[2J [mask]").run(Console(file=out, color_system=None))
    assert "a\\x1b[2J" in out.getvalue()
    assert "\x1b" not in out.getvalue()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("the cat",), "there is no gap to fill"),
        (("-",), "there is no text in standard input"),
        (("<mask>" * 100,), "102 tokens; this model reads at most 32"),
        ((TEXT, "--top", "0"), "--top must be at least 1"),
        ((TEXT, "--top", "-3"), "--top must be at least 1"),
        ((TEXT, "--device", "abacus"), "abacus"),
    ],
)
def test_a_wrong_command_is_one_sentence_and_nothing_is_printed(encoder, arguments, words):
    said = call("fill", encoder, *arguments)
    assert words in mistake(said)
    assert said.out == ""


def test_runs_that_do_not_fill_gaps_are_told_apart(decoder):
    assert f"{decoder} (decoder) cannot fill gaps" in mistake(call("fill", decoder, TEXT))
    assert "is no run" in mistake(call("fill", "nowhere", TEXT))
    assert call("fill", decoder, TEXT, "--top", "nan").code == 2

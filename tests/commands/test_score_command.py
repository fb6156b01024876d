"""`regard score`: what it prints is what the run's model says, line for line."""

import io
import json
import math
import sys

import pytest
from command_line import call, mistake
from rich.console import Console

from regard.commands.score import Score
from regard.decoding.scoring import scored
from regard.loading import text_model_of
from regard.runs.stored_run import open_run
from regard.text.specials import EOS, UNK

LINES = ["the cat sat", "", "a dog ran under the né .", "the"]


def scores_of(folder, texts, **options):
    return scored(text_model_of(open_run(folder)), texts, **options)


def printed(texts, scores) -> str:
    both = zip(texts, scores, strict=True)
    return "".join(f"{score.logprob:.4f}\t{score.tokens}\t{text}\n" for text, score in both)


def test_arguments_a_file_and_standard_input_are_scored_alike_and_summed(decoder, tmp_path):
    scores = scores_of(decoder, LINES)
    text = "\n".join(LINES) + "\n"
    (tmp_path / "lines.txt").write_text("\ufeff" + text, encoding="utf-8")
    said = call("score", decoder, *LINES)
    assert (said.code, said.out) == (0, printed(LINES, scores))
    assert said == call("score", decoder, "--file", "lines.txt")
    assert said == call("score", decoder, stdin=text.encode())
    assert said == call("score", decoder, "-", stdin=text.replace("\n", "\r\n").encode())
    assert said == call("score", decoder, "--file", "-", stdin=b"\xef\xbb\xbf" + text.encode())
    total, tokens = sum(s.logprob for s in scores), sum(s.tokens for s in scores)
    perplexity = math.exp(-total / tokens)
    expected = f"total {total:.4f} nats, {tokens} tokens, perplexity {perplexity:,.2f} per token\n"
    assert said.err == expected


def test_json_holds_every_token(decoder):
    run = open_run(decoder)
    said = call("score", decoder, "the né", "a\tb\x1b", "--json")
    found = [json.loads(line) for line in said.out.splitlines()]
    for text, score, one in zip(
        ("the né", "a\tb\x1b"), scores_of(decoder, ["the né", "a\tb\x1b"]), found, strict=True
    ):
        ids = [*run.tokenizer.encode(text).tolist(), EOS]
        assert one["text"] == text
        assert one["ids"] == ids
        assert one["tokens"] == run.tokenizer.pieces(ids)
        assert one["logprobs"] == pytest.approx(score.logprobs, abs=1e-5)
        assert one["logprob"] == pytest.approx(sum(one["logprobs"]), abs=1e-9)
        assert one["perplexity"] == pytest.approx(score.perplexity, rel=1e-5)
    assert "\x1b" not in said.out


def test_unknown_words_are_told(words):
    said = call("score", words, "the zebra", "--json")
    assert json.loads(said.out)["unknown"] == 1
    assert json.loads(said.out)["ids"].count(UNK) == 1
    assert "note: 1 of the 3 tokens are unknown" in said.err.splitlines()[0]


def test_a_text_of_several_lines_is_one_score_and_one_line(decoder):
    said = call("score", decoder, "the\ncat\rsat")
    (score,) = scores_of(decoder, ["the\ncat\rsat"])
    assert said.out == printed(["the cat sat"], [score])


def test_broken_bytes_are_scored_as_they_are_and_shown_as_replaced(decoder):
    said = call("score", decoder, stdin=b"\xffa\n")
    assert said.out == printed(["�a"], scores_of(decoder, ["\udcffa"]))


@pytest.mark.parametrize("kind", ["translator", "separate"])
def test_pairs_come_as_two_files_or_as_columns(request, data, kind):
    folder = request.getfixturevalue(kind)
    sources, targets = (
        (data / f"{side}2").read_text(encoding="utf-8").splitlines()
        for side in ("source", "target")
    )
    files = ("--source", data / "source2", "--target", data / "target2")
    said = call("score", folder, *files)
    assert said.out == printed(targets, scores_of(folder, targets, sources=sources))
    columns = "".join(f"{s} \t {t}\n" for s, t in zip(sources, targets, strict=True))
    assert call("score", folder, stdin=columns.encode()) == said
    assert call("score", folder, *columns.splitlines()) == said
    first = json.loads(call("score", folder, *files, "--json").out.splitlines()[0])
    assert (first["source"], first["text"]) == (sources[0], targets[0])


def test_the_sum_over_pairs_is_the_loss_that_evaluation_finds(translator, data):
    measured = json.loads(call("evaluate", translator, "--json").out)
    said = call("score", translator, "--source", data / "source2", "--target", data / "target2")
    total, tokens = said.err.removeprefix("total ").split(" nats, ")
    assert int(tokens.split()[0].replace(",", "")) == measured["tokens"]
    assert -float(total) == pytest.approx(measured["loss"] * measured["tokens"], rel=1e-5)


def test_a_terminal_is_not_sent_what_it_would_obey(decoder, monkeypatch):
    out = io.StringIO()
    out.isatty = lambda: True
    monkeypatch.setattr(sys, "stdout", out)
    Score(str(decoder), ("a\x1b[2Jb\x9bc",)).run(Console())
    assert out.getvalue().endswith("\ta\\x1b[2Jb\\x9bc\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--file", "nowhere.txt"), "nowhere.txt is not there"),
        (("--file", "."), ". is a folder"),
        (("--file", "empty.txt"), "there is no text in empty.txt"),
        (("--file", "/dev/null"), "/dev/null is no file"),
        (("--file", "binary"), "is not text"),
        (("a", "--file", "empty.txt"), "texts or --file, not both"),
        (("a", "-"), "give it alone"),
        ((), "there is no text in standard input"),
        (("-",), "there is no text in standard input"),
        (("--source", "empty.txt"), "--source and --target go together"),
        (("--source", "x", "--target", "x"), "are for runs on pairs"),
        (("a", "--source", "x", "--target", "x"), "not both"),
        (("a", "x " * 500), "text 2 has"),
        (("a", "--device", "abacus"), "abacus"),
    ],
)
def test_a_wrong_command_is_one_sentence_and_nothing_is_printed(
    decoder, tmp_path, arguments, words
):
    (tmp_path / "empty.txt").touch()
    (tmp_path / "binary").write_bytes(b"a\0b")
    said = call("score", decoder, *arguments)
    assert words in mistake(said)
    assert said.out == ""


def test_wrong_pairs_are_told_by_their_lines(translator, tmp_path):
    (tmp_path / "one").write_text("the cat\n")
    (tmp_path / "two").write_text("the cat\nthe dog\n")
    (tmp_path / "none").touch()
    for names, words in (
        (("one", "two"), "one has 1 lines but two has 2"),
        (("two", "one"), "two has 2 lines but one has 1"),
        (("one", "nowhere"), "nowhere is not there"),
        (("none", "none"), "there are no pairs in none and none"),
    ):
        said = call("score", translator, "--source", names[0], "--target", names[1])
        assert words in mistake(said)
        assert said.out == ""
    told = mistake(call("score", translator, stdin=b"a\tb\nthe cat\na\tb\tc\n"))
    assert "line 2 has no tab; a pair is source, tab, target" in told
    assert "line 3 has 2 tabs" in told
    told = mistake(call("score", translator, stdin=b"a\tb\n \tb\n"))
    assert "line 2 has an empty source" in told
    said = call("score", translator, "the cat\t")
    assert said.out.split("\t")[1:] == ["1", "\n"]


def test_a_run_that_fills_gaps_has_no_scores(encoder):
    assert f"{encoder} (encoder) cannot score texts" in mistake(call("score", encoder, "the cat"))
    assert "is no run" in mistake(call("score", "nowhere", "the"))

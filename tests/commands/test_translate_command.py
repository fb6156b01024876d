"""`regard translate`: lines in, lines out, in order, whatever is asked beside."""

import gzip
import json
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command_line import call, mistake

from regard.commands.translate import in_parts
from regard.data.readers.pairs import Pair, encode_pairs
from regard.decoding.settings import Beam
from regard.loading import load
from regard.runs.stored_run import open_run
from regard.training.validation import translations


@pytest.fixture
def lines(data: Path) -> list[str]:
    return (data / "source2").read_text(encoding="utf-8").split("\n")[:5]


@pytest.mark.parametrize("kind", ["translator", "separate"])
def test_lines_are_translated_as_evaluation_translates_them(request, lines, kind):
    folder = request.getfixturevalue(kind)
    run = open_run(folder)
    pairs = encode_pairs([Pair(line, "") for line in lines], run.source_tokenizer, run.tokenizer)
    for beams in (1, 4):
        expected = translations(run.module, pairs, run.tokenizer, beam=Beam(beams=beams))
        text = "\n\n".join(lines).encode()
        said = call("translate", folder, "--beam", beams, "--batch-size", 2, stdin=text)
        assert said[:2] == (0, "\n\n".join(expected) + "\n")


def test_a_file_is_read_as_standard_input_is(translator, data):
    path = data / "source2"
    expected = call("translate", translator, stdin=path.read_bytes())
    assert call("translate", translator, path) == expected
    assert len(expected.out.splitlines()) == len(path.read_text().splitlines())


def test_sides_with_vocabularies_of_their_own_are_read_by_their_own(separate):
    run = open_run(separate)
    assert run.source_tokenizer is not run.tokenizer
    assert call("translate", separate, stdin=b"the cat").code == 0


def test_the_n_best_come_with_number_and_score_best_first(translator, lines):
    said = call("translate", translator, "--n-best", 3, stdin="\n".join(lines[:2]).encode())
    rows = [line.split("\t") for line in said.out.splitlines()]
    assert [row[0] for row in rows] == ["1"] * 3 + ["2"] * 3
    for number in ("1", "2"):
        scores = [float(row[1]) for row in rows if row[0] == number]
        assert scores == sorted(scores, reverse=True)
    assert len({row[2] for row in rows[:3]}) == 3


def test_translations_that_are_cut_off_are_told(translator, lines):
    text = "\n".join(lines).encode()
    said = call("translate", translator, "--json", "--max-tokens", 1, stdin=text)
    ends = [json.loads(line)["translations"][0]["end"] for line in said.out.splitlines()]
    cut = ends.count("limit")
    assert cut
    assert f"{cut} of {len(ends)} translations were cut off at their limit" in said.err
    whole = call("translate", translator, "--json", stdin=text)
    ends = [json.loads(line)["translations"][0]["end"] for line in whole.out.splitlines()]
    assert ("cut off" in whole.err) is ("limit" in ends)


def test_alignments_name_the_source_token_each_target_token_looked_at(translator, lines):
    said = call("translate", translator, "--alignments", "--scores", "--json", stdin=b"the cat")
    (found,) = json.loads(said.out)["translations"]
    weights = torch.tensor(found["attention"])
    assert len(found["tokens"]) <= len(weights) <= len(found["tokens"]) + 1  # the end, if written
    assert weights.shape[1] == len(json.loads(said.out)["source"])
    torch.testing.assert_close(weights.sum(-1), torch.ones(len(weights)))
    plain = call("translate", translator, "--alignments", "--scores", stdin=b"the cat").out
    score, text, pairs = plain.rstrip("\n").split("\t")
    assert text == found["text"]
    assert float(score) == pytest.approx(found["score"], abs=1e-4)
    most = weights[: len(found["tokens"])].argmax(-1).tolist()
    assert pairs.split() == [f"{source}-{target}" for target, source in enumerate(most)]


def test_a_forced_beginning_begins_every_translation(translator, lines):
    forced = "straße"
    said = call("translate", translator, "--prefix", forced, stdin="\n".join(lines).encode())
    assert all(line.startswith(forced) for line in said.out.splitlines())
    plain = call("translate", translator, stdin="\n".join(lines).encode())
    assert not all(line.startswith(forced) for line in plain.out.splitlines())


@pytest.mark.parametrize("options", [(), ("--mbr", 2)])
def test_unknown_words_are_counted_over_all_lines(translator, options):
    said = call("translate", translator, *options, stdin=b"the zebra\n\nzebra\na cat")
    assert "note: 2 of the sources' 5 tokens are unknown to this run\n" in said.err
    assert len(said.out.split("\n")) == 5
    assert "unknown" not in call("translate", translator, *options, stdin=b"a cat").err


def test_the_tree_holds_every_step(translator, tmp_path):
    said = call("translate", translator, "--tree", tmp_path / "tree.jsonl", stdin=b"the cat\n\na")
    trees = [json.loads(line) for line in (tmp_path / "tree.jsonl").read_text().splitlines()]
    assert [tree["line"] for tree in trees] == [1, 2, 3]
    assert trees[1]["steps"] == []
    kept = [one for one in trees[0]["steps"][0] if one["fate"] == "kept"]
    assert len(kept) == 5
    assert said.code == 0


def test_a_run_with_itself_is_an_ensemble_that_says_the_same(translator, lines):
    text = "\n".join(lines).encode()
    alone = call("translate", translator, "--scores", stdin=text)
    both = call("translate", translator, "--scores", "--ensemble", translator, stdin=text)
    for one, other in zip(alone.out.splitlines(), both.out.splitlines(), strict=True):
        assert one.split("\t")[1] == other.split("\t")[1]
        assert float(one.split("\t")[0]) == pytest.approx(float(other.split("\t")[0]), abs=2e-4)


def test_the_least_risky_sample_is_one_that_was_drawn(translator):
    options = ("--mbr", 8, "--seed", 3)
    said = call("translate", translator, *options, stdin=b"the cat\n\n")
    assert said == call("translate", translator, *options, stdin=b"the cat\n\n")
    model = load(translator)
    limit = int(1.5 * len(model.speaker.source("the cat"))) + 10
    drawn = model.generate("the cat", n=8, seed=3, max_tokens=limit)
    assert said.out.split("\n")[0] in {one.text for one in drawn}
    assert said.out.split("\n")[1] == ""


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--beam 0", "beam search: --beam must be a whole number from 1 to 1,024, not 0"),
        ("--n-best 9", "9 best of 5 beams cannot be had; raise --beam"),
        ("--length-penalty nan", "--length-penalty must be"),
        ("--coverage-penalty -1", "--coverage-penalty must be a number from 0 to 100"),
        ("--batch-size 0", "--batch-size must be at least 1"),
        ("--max-tokens -3", "--max-tokens must not be negative"),
        ("--mbr -1", "--mbr must be a whole number from 0 to 4,096, not -1"),
        ("--mbr 4 --alignments", "--alignments is for beam search"),
        ("--mbr 4 --beam 3", "--beam is for beam search"),
        ("--mbr 4 --temperature nan", "--temperature must be"),
        ("--seed 3", "--seed is for --mbr"),
        ("--tree /dev/null/tree", "cannot write"),
        ("--tree .", ". is a folder; name a file to write to"),
        ("--ensemble nowhere", "nowhere"),
        ("--prefix zebra", "no translation can begin with 'zebra': the model lacks a word of it"),
    ],
)
def test_a_wrong_option_is_one_sentence_and_nothing_is_printed(translator, option, words):
    said = call("translate", translator, *option.split(), stdin=b"the cat")
    assert words in mistake(said)
    assert said.out == ""


def test_a_line_too_long_is_named_before_its_batches_are_translated(translator):
    text = ("the cat\n" + "dog " * 500 + "\nthe dog").encode()
    said = call("translate", translator, stdin=text)
    assert "line 2: a source of 501 tokens is too long" in mistake(said)
    assert said.out == ""


def test_what_does_not_translate_and_what_is_no_file_is_said(decoder, translator):
    refusal = f"{decoder} (decoder) cannot translate: it continues texts"
    assert refusal in mistake(call("translate", decoder, stdin=b"the"))
    assert refusal in mistake(call("translate", translator, "--ensemble", decoder, stdin=b"the"))
    for name in ("nowhere.txt", "~nobody.txt"):
        assert f"there is no file {name}" in mistake(call("translate", translator, name))


def test_a_pipe_is_read_as_a_file_is(translator, data):
    text = (data / "source2").read_bytes()
    reading, writing = os.pipe()
    os.write(writing, text)
    os.close(writing)
    assert call("translate", translator, f"/dev/fd/{reading}") == call(
        "translate", translator, stdin=text
    )
    os.close(reading)


def test_a_compressed_file_is_read_as_score_reads_it(translator, data, tmp_path):
    text = (data / "source2").read_bytes()
    (tmp_path / "lines.gz").write_bytes(gzip.compress(text))
    expected = call("translate", translator, stdin=text)
    assert call("translate", translator, "lines.gz") == expected


def test_what_holds_no_text_is_said_with_its_name(translator, tmp_path):
    (tmp_path / "empty.txt").touch()
    (tmp_path / "binary.txt").write_bytes(b"ab\0c")
    for arguments, sentence in (
        ((), "there is no text in standard input"),
        (("empty.txt",), "there is no text in empty.txt"),
        (("empty.txt", "--mbr", 2), "there is no text in empty.txt"),
        (("/dev/null",), "there is no text in /dev/null"),
        (("binary.txt",), "binary.txt is not text (it has NUL bytes)"),
        ((".",), ". is a folder; name a text file"),
    ):
        said = call("translate", translator, *arguments)
        assert sentence in mistake(said)
        assert said.out == ""
    assert call("translate", translator, stdin=b"\n\n") == (0, "\n\n", "")


def test_json_is_no_line_to_translate_nor_to_score(translator, decoder):
    texts = Path("texts.jsonl.gz")
    texts.write_bytes(gzip.compress(b'{"text": "the cat"}\n'))
    for asked in (("translate", translator, texts), ("score", decoder, "--file", texts)):
        said = call(*asked)
        assert f"{texts} is JSON Lines by its name, but here a line is a text" in mistake(said)
        assert said.out == ""


def test_whoever_writes_a_line_and_waits_gets_its_translation(translator):
    """Not only when 2,048 lines are there."""
    command = [sys.executable, "-m", "regard", "translate", str(translator), "--beam", "2"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        for text in (b"the cat\n", b"a dog\n"):
            process.stdin.write(text)
            process.stdin.flush()
            ready, _, _ = select.select([process.stdout], [], [], 120)
            assert ready
            said = process.stdout.readline()
            assert said == call("translate", translator, "--beam", 2, stdin=text).out.encode()
        process.stdin.close()
        assert process.wait(60) == 0


@pytest.mark.parametrize("most", [1, 2, 3, 100])
@pytest.mark.parametrize("text", ["", "one", "one\n", "\ufeffone\r\n\ntwo\nthree\n\n", "\n"])
def test_lines_come_in_parts_and_none_is_lost(tmp_path, text, most):
    path = tmp_path / "lines.txt"
    path.write_text(text, encoding="utf-8", newline="")
    with open(path, "rb") as file:
        parts = list(in_parts(file, most))
    assert all(0 < len(part) <= most for part in parts)
    plain = text.removeprefix("\ufeff").replace("\r\n", "\n")
    wanted = plain.removesuffix("\n").split("\n") if plain else []
    assert [line for part in parts for line in part] == wanted


def test_all_lines_that_are_too_long_are_named(translator):
    said = call("translate", translator, stdin=("dog " * 500 + "\na\n" + "cat " * 600).encode())
    assert "line 1: a source of 501" in said.err
    assert "line 3: a source of 601" in said.err
    assert (said.code, said.out) == (2, "")

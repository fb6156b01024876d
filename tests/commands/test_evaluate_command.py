"""`regard evaluate`: its figures are those of an independent count, and its JSON is JSON."""

import json
import math
import re
import shutil
from pathlib import Path

import pytest
import torch
from command_line import call, mistake, trained
from torch.nn import functional as F

from regard.commands.evaluate import figures
from regard.metrics.scores import Scores
from regard.runs.stored_run import open_run
from regard.storage import event_log
from regard.text.specials import BOS, EOS

TEXT = {"loss", "perplexity", "bits_per_byte", "tokens"}
PAIRS = TEXT | {"bleu", "chrf", "exact"}


def measured(*arguments: object, stdin: bytes = b"") -> dict:
    said = call("evaluate", *arguments, "--json", stdin=stdin)
    assert said.code == 0, said.err
    assert said.out.count("\n") == 1
    return json.loads(said.out, parse_constant=pytest.fail)


@torch.inference_mode()
def counted(run_folder: Path, text: str, context: int = 32) -> tuple[float, int]:
    """Summed nats and tokens of one document, by plain forwards over rows that do not overlap."""
    run = open_run(run_folder)
    ids = [BOS, *run.tokenizer.encode(text).tolist(), EOS]
    total = 0.0
    for start in range(0, len(ids) - 1, context):
        row = torch.tensor([ids[start : start + context + 1]])
        inputs, targets = row[:, :context][:, : row.shape[1] - 1], row[0, 1:]
        total += float(F.cross_entropy(run.module(inputs)[0], targets, reduction="sum"))
    return total, len(ids) - 1


@pytest.mark.parametrize("kind", ["decoder", "words"])
def test_the_figures_of_a_text_are_those_of_plain_forwards(request, data, kind):
    run = request.getfixturevalue(kind)
    text = (data / "other.txt").read_text(encoding="utf-8")
    total, tokens = counted(run, text)
    found = measured(run, data / "other.txt")
    assert found.keys() >= TEXT
    assert found["tokens"] == tokens
    assert found["loss"] == pytest.approx(total / tokens, rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(total / tokens), rel=1e-5)
    bits = total / math.log(2) / len(text.encode())
    if kind == "words":  # which lose blanks and hide the unknown: their bits would be too few
        assert found["bits_per_byte"] is None
    else:
        assert found["bits_per_byte"] == pytest.approx(bits, rel=1e-5)


@pytest.mark.parametrize("kind", ["decoder", "words", "encoder", "translator", "separate"])
def test_without_data_it_is_what_training_reported_and_the_same_each_time(request, kind):
    run = request.getfixturevalue(kind)
    found = measured(run)
    reported, last = event_log.read(run)[-2:]
    assert (reported["event"], last["event"]) == ("evaluation", "end")
    for name in found.keys() & {"loss", "tokens", "bleu", "chrf", "exact", "accuracy"}:
        assert found[name] == pytest.approx(reported[name], rel=1e-5), name
    assert measured(run) == found
    assert found.keys() >= (PAIRS if kind in ("translator", "separate") else TEXT)


def test_a_run_finds_what_it_held_out_from_any_folder(data, monkeypatch, tmp_path):
    monkeypatch.chdir(data)
    trained(tmp_path / "r", "note*.txt", "--model", "gpt2-tiny", steps=1)
    here = measured(tmp_path / "r")
    monkeypatch.chdir(tmp_path)
    assert measured("r") == here


def test_a_model_that_remembers_reads_a_short_text_in_one_go_as_score_does(data):
    small = ("training.context=16", "model.width=32", "model.layers=1")
    trained("r", data / "notes.txt", "--model", "lstm", settings=small)
    text = " ".join((data / "other.txt").read_text(encoding="utf-8").split())[:400]
    Path("short.txt").write_text(text, encoding="utf-8")
    found = measured("r", "short.txt")
    said = json.loads(call("score", "r", text, "--json").out)
    assert found["tokens"] == len(said["ids"]) > 5 * 16
    assert found["perplexity"] == pytest.approx(said["perplexity"], rel=1e-5)


def test_standard_input_counts_like_the_file(decoder, data):
    text = (data / "other.txt").read_bytes()
    assert measured(decoder, "-", stdin=text) == measured(decoder, data / "other.txt")


def test_what_has_no_meaning_is_null(encoder, translator):
    assert measured(encoder)["bits_per_byte"] is None
    assert 0 <= measured(encoder)["accuracy"] <= 1
    assert measured(translator)["bits_per_byte"] is None


@pytest.mark.parametrize("loss", [800.0, math.inf, math.nan])
def test_figures_without_end_are_valid_json(loss):
    found = figures(Scores(loss, math.inf, 7))
    assert json.loads(json.dumps(found, allow_nan=False))["perplexity"] is None
    assert found["tokens"] == 7


def test_two_files_a_tsv_and_a_jsonl_are_the_same_pairs(translator, data):
    sides = [(data / name).read_text(encoding="utf-8").split("\n") for name in FILES]
    pairs = [pair for pair in zip(*sides, strict=True) if all(pair)]
    Path("p.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in pairs), encoding="utf-8")
    lines = (json.dumps({"source": s, "target": t}) + "\n" for s, t in pairs)
    Path("p.jsonl").write_text("".join(lines))
    expected = measured(translator, *(data / name for name in FILES))
    assert expected.keys() >= PAIRS
    assert measured(translator, "p.tsv") == expected
    assert measured(translator, "p.jsonl") == expected
    assert measured(translator, "--pairs", *(data / name for name in FILES)) == expected
    assert measured(translator) == expected  # those that it was told to hold out


FILES = ("source2", "target2")


def test_exact_is_the_share_of_written_lines_that_equal_the_target(translator, data):
    files = [data / name for name in FILES]
    for beam in (1, 3):
        found = measured(translator, *files, "--written", "w.txt", "--beam", beam)
        written = Path("w.txt").read_text(encoding="utf-8").split("\n")[:-1]
        gold = files[1].read_text(encoding="utf-8").split("\n")[:-1]
        assert len(written) == len(gold) == 15
        same = sum(a == b for a, b in zip(written, gold, strict=True))
        assert found["exact"] == pytest.approx(same / 15)
        assert f"{'beam 3' if beam > 1 else 'greedy'}" in found["rules"]


def test_a_note_goes_to_stderr_so_that_stdout_is_json_alone(words):
    Path("new.txt").write_text("the zebra sat")
    said = call("evaluate", words, "new.txt", "--json")
    assert json.loads(said.out)["tokens"] == 4
    assert "1 of 5 tokens are unknown" in said.err


def test_the_table_holds_the_same_figures_in_80_columns(decoder, data):
    found = measured(decoder, data / "other.txt")
    said = call("evaluate", decoder, data / "other.txt")
    assert f"{found['loss']:.4f}" in said.out
    assert f"{found['bits_per_byte']:.4f}" in said.out
    assert all(len(line) <= 80 for line in said.out.splitlines())


def test_a_run_without_held_out_part_asks_for_data(data):
    trained("r", data / "notes.txt", "--model", "gpt2-tiny", steps=1, settings=NOTHING)
    assert "held nothing out" in mistake(call("evaluate", "r"))
    files = ("--pairs", data / "source", data / "target")
    trained("p", *files, "--model", "t5-tiny", steps=1, settings=NOTHING)
    assert "held nothing out" in mistake(call("evaluate", "p"))


NOTHING = ("data.held_out=0",)


@pytest.mark.parametrize(
    ("kind", "arguments", "words"),
    [
        ("decoder", "nothing.txt", "nothing.txt does not exist"),
        ("decoder", "empty.txt", "there is no text in empty.txt"),
        ("decoder", "--pairs a b", "--pairs is for runs on pairs"),
        ("decoder", "--written w", "--written is for runs on pairs"),
        ("decoder", "--device abacus", "abacus"),
        ("translator", "{data}/source {data}/target2", "lines but"),
        ("translator", "{data}/source", "pairs are two aligned files"),
        ("translator", "empty.txt empty.txt", "no pairs in"),
        ("translator", "a b --pairs a b", "not both"),
        ("translator", "--beam 0", "--beam must be at least 1"),
        ("translator", "--written no/such/folder/w", "cannot write"),
    ],
)
def test_a_mistake_is_one_sentence(request, data, kind, arguments, words):
    Path("empty.txt").touch()
    Path("no").touch()
    run = request.getfixturevalue(kind)
    given = [argument.format(data=data) for argument in arguments.split()]
    said = call("evaluate", run, *given, "--json")
    assert words in mistake(said)
    assert said.out == ""


def test_what_is_no_run_or_not_yet_one_is_said(decoder):
    assert "is no run" in mistake(call("evaluate", "nowhere"))
    assert "is no run" in mistake(call("evaluate", "."))
    Path("run.toml").write_bytes((decoder / "run.toml").read_bytes())
    assert "which the end of training writes" in mistake(call("evaluate", "."))


def test_data_that_changed_since_training_is_not_taken_for_what_was_held_out(data, tmp_path):
    text = tmp_path / "changing.txt"
    text.write_text((data / "notes.txt").read_text())
    trained(tmp_path / "r", text, "--model", "gpt2-tiny", steps=1)
    text.write_text(text.read_text()[: len(text.read_text()) // 2])
    said = call("evaluate", tmp_path / "r", "--json")
    assert (said.code, said.out) == (2, "")
    assert "has changed since" in said.err
    assert call("evaluate", tmp_path / "r", text, "--json").code == 0


def test_unknown_tokens_of_pairs_are_told(tmp_path):
    pairs = [f"word{i % 7} common\tcommon word{i % 5}\n" for i in range(60)]
    (tmp_path / "p.tsv").write_text("".join(pairs))
    (tmp_path / "q.tsv").write_text("never seen\tcommon thing\n" * 3)
    said = trained(
        tmp_path / "r",
        "--pairs",
        tmp_path / "p.tsv",
        "--tokenizer",
        "word",
        "--model",
        "marian-tiny",
        steps=1,
        settings=("tokenizer.vocabulary=8",),
    )
    assert "tokens are unknown" in said.out
    measured_on = call("evaluate", tmp_path / "r", tmp_path / "q.tsv")
    assert "9 of 18 evaluated tokens are unknown" in measured_on.out


@pytest.mark.parametrize("kind", ["decoder", "translator", "encoder"])
def test_eight_bits_are_told_beside_the_weights_as_they_are(request, kind):
    run = request.getfixturevalue(kind)
    plain = json.loads(call("evaluate", run, "--json").out)
    small = json.loads(call("evaluate", run, "--json", "--int8").out)
    assert small["plain_perplexity"] == pytest.approx(plain["perplexity"])
    assert small["perplexity"] != plain["perplexity"]
    assert small["perplexity"] == pytest.approx(plain["perplexity"], rel=0.1)
    assert "int8 weights: perplexity" in small["rules"]
    assert "plain_perplexity" not in plain


def test_one_word_targets_have_no_bleu_in_the_table_and_null_in_json(translator):
    pairs = [("the cat", "cat"), ("a dog sat on", "dog"), ("the dog ran", "ran"), ("a", "a")]
    Path("p.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in pairs))
    found = measured(translator, "p.tsv", "--by-length")
    assert found["bleu"] is None
    assert {one["bleu"] for one in found["by_length"]} == {None}
    said = call("evaluate", translator, "p.tsv", "--by-length").out
    assert "BLEU" not in said
    assert said.count("exact") == 2


def test_figures_by_the_length_of_the_source(translator, data, decoder):
    files = (data / "source2", data / "target2")
    found = json.loads(call("evaluate", translator, *files, "--by-length", "--json").out)
    assert sum(one["pairs"] for one in found["by_length"]) == 15
    said = call("evaluate", translator, *files, "--by-length").out
    table = said.split("source tokens")[1].splitlines()[1:]
    for one, line in zip(found["by_length"], table, strict=False):
        assert f"{one['bleu']:.2f} ± {one['bleu_margin']:.2f}" in line
    assert "by_length" not in json.loads(call("evaluate", translator, *files, "--json").out)
    assert "--by-length is for runs on pairs" in mistake(call("evaluate", decoder, "--by-length"))


def test_a_run_whose_settings_leave_its_context_open_is_refused(decoder, data, tmp_path):
    run = shutil.copytree(decoder, tmp_path / "run")
    before, training = (run / "run.toml").read_text("utf-8").split("[training]")
    unsealed = re.sub(r"(?m)^settings = .*$", "", before)
    opened = re.sub(r"(?m)^context = \d+$", "context = 0", training)
    (run / "run.toml").write_text(f"{unsealed}[training]{opened}", "utf-8")
    told = mistake(call("evaluate", run, data / "other.txt"))
    assert "run.toml: [training] context must be at least 1" in told

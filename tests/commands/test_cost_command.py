"""`regard cost` and `regard calibrate` as a person types them."""

import json
import re

import pytest
from command_line import call, mistake, trained

import regard

KEYS = {
    "parameters",
    "operations",
    "bytes_read",
    "bytes_written",
    "cache_bytes",
    "memory_bytes",
    "seconds",
    "bound",
}


def counted(*arguments):
    said = call("cost", *arguments, "--json", "--device", "cpu")
    assert said.code == 0, said.err
    return json.loads(said.out)


def test_every_figure_is_there_as_json():
    found = counted("gpt2-tiny", "--train", "--batch", 2, "--tokens", 16)
    assert found.keys() >= KEYS
    assert found["parameters"] == sum(w.numel() for w in regard.build("gpt2-tiny").parameters())
    assert found["fits"] is True
    assert found["seconds"] > 0
    assert sum(found["memory"].values()) <= found["memory_bytes"]


@pytest.mark.parametrize("name", ["t5-tiny", "gru", "conv", "bag-perceptron", "shakespeare-char"])
def test_every_kind_of_model_has_a_price(name):
    found = counted(name, "--tokens", 4)
    assert found["operations"] > 0
    assert found["bytes_read"] > 0


def test_writing_costs_a_prompt_and_steps():
    found = counted("llama-tiny", "--tokens", 8, "--generate", 4)
    assert found["cache_bytes"] == 2 * 12 * 16 * 2 * 4  # room for twelve, two heads of eight
    assert found["tokens_per_second"] > 0


def test_the_report_is_readable(tmp_path):
    said = call("cost", "gpt2-tiny", "--train", "--plot", tmp_path / "roof.svg", "--device", "h200")
    assert said.code == 0, said.err
    for word in ("parameters", "operations", "traffic", "memory", "tokens/s", "it fits", "first:"):
        assert word in said.out
    assert "datasheet" in said.out or "measured" in said.out
    assert (tmp_path / "roof.svg").read_text().startswith("<?xml")


def test_what_does_not_fit_is_said_with_what_would():
    said = call("cost", "gpt2", "--train", "--device", "l4", "--batch", 512, "--tokens", 1024)
    found = re.search(r"it does not fit; (\d+) rows of 1,024 tokens, or 512 rows of", said.out)
    assert 1 <= int(found[1]) < 512


def test_a_run_and_a_folder_have_a_price(tmp_path):
    (tmp_path / "text.txt").write_text("the cat sat on the mat\n" * 100)
    trained(tmp_path / "run", tmp_path / "text.txt", "--model", "llama-tiny", "--tokenizer", "char")
    found = counted(tmp_path / "run", "--train")
    assert found["parameters"] < counted("llama-tiny")["parameters"]  # fewer characters
    regard.save(regard.build(regard.preset("marian-tiny")), tmp_path / "folder")
    whole = counted(tmp_path / "folder")["parameters"]
    assert whole == counted("marian-tiny")["parameters"]


def test_an_ngram_run_has_a_price(tmp_path):
    (tmp_path / "text.txt").write_text("the cat sat on the mat\n" * 100)
    run = tmp_path / "run"
    said = call(
        "train", tmp_path / "text.txt", "--model", "bigram", "--tokenizer", "char", "--out", run
    )
    assert said.code == 0, said.err
    found = counted(run, "--generate", 3)
    assert found["products"] == 0
    assert found["bytes_read"] > 0


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((), "name a model"),
        (("gpt3",), "gpt2"),
        (("gpt2-tiny", "--batch", 0), "--batch must be at least 1"),
        (("gpt2-tiny", "--tokens", -1), "--tokens"),
        (("gpt2-tiny", "--train", "--generate", 5), "not both"),
        (("gpt2-tiny", "--device", "abacus"), "no device"),
        (("gpt2-tiny", "--tokens", 100), "positions"),
        (("bert-tiny", "--generate", 5), "writes nothing"),
        (("ngram",), "trained run"),
        (("word2vec", "--generate", 3), "write nothing"),
        (("gpt2-tiny", "--processes", 0), "--processes"),
    ],
)
def test_mistakes_are_one_sentence(arguments, word):
    assert word in mistake(call("cost", *arguments))


def test_a_machine_can_be_measured_in_a_moment(tmp_path, monkeypatch):
    from regard.cost import calibrate, launching

    monkeypatch.setitem(calibrate.PRODUCTS, "cpu", ((1, 8), (64,), (64, 128)))
    monkeypatch.setitem(calibrate.BYTES, "cpu", (1 << 12, 1 << 14))
    monkeypatch.setattr(calibrate, "BATCHED", ((1, 8), (16,), (16,)))
    monkeypatch.setattr(calibrate, "ATTENTION", ((1, 8), (16,), (16,)))
    monkeypatch.setattr(calibrate, "RECURRENCE", ((1, 4), (1,), (16,)))
    monkeypatch.setattr(calibrate, "FAR", 1 << 22)
    monkeypatch.setattr(launching, "larger_models", list)
    path = tmp_path / "mine.json"
    said = call("calibrate", "--device", "cpu", "--seconds", 0.1, "--out", path)
    assert said.code == 0, said.err
    found = json.loads(path.read_text())
    assert found["kind"] == "cpu"
    again = call("cost", "gpt2-tiny", "--json", "--device", path)
    assert json.loads(again.out)["device_source"].startswith("measured")


def test_calibrating_for_no_time_is_a_mistake():
    assert "--seconds" in mistake(call("calibrate", "--seconds", 0))

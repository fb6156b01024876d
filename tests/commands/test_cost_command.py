"""`regard cost` and `regard calibrate` as a person types them."""

import json
import re

import pytest
from command_line import call, mistake, trained

import regard
from regard.commands.cost import short
from regard.costs.device.ceilings import device_named
from regard.training import r_drop

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
    found = counted("gpt2-tiny", "--train", "--batch-size", 2, "--tokens", 16)
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
    said = call("cost", "gpt2", "--train", "--device", "l4", "--batch-size", 512, "--tokens", 1024)
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
        (("gpt2-tiny", "--batch-size", 0), "--batch-size must be at least 1"),
        (("gpt2-tiny", "--tokens", -1), "--tokens"),
        (("gpt2-tiny", "--train", "--generate", 5), "not both"),
        (("gpt2-tiny", "--device", "abacus"), "no device"),
        (("gpt2-tiny", "--tokens", 100), "a context of 64 tokens"),
        (("llama-tiny", "--tokens", 100_000), "a context of 64 tokens"),
        (("llama-tiny", "--tokens", 60, "--generate", 5), "65 do not fit"),
        (("captioner", "--tokens", 500), "a context of 64 tokens"),
        (("t5-tiny", "--tokens", 4, "--source", 10_000), "10,000 do not fit"),
        (("gpt2-tiny", "--tokens", 0), "--tokens must be at least 1"),
        (("gpt2-tiny", "--generate", 0), "--generate must be at least 1"),
        (("gpt2-tiny", "--source", 5), "leave out --source"),
        (("captioner", "--source", 10), "leave out --source"),
        (("gpt2-tiny", "--recompute"), "--train"),
        (("gpt2-tiny", "--steps", 5), "--train"),
        (("gpt2-tiny", "--table"), "leave out MODEL"),
        (("gpt2-tiny", "--device", "cpu-0"), "no device is called 'cpu-0'"),
        (("gpt2-tiny", "--processes", 4, "--batch-size", 3), "cannot share 3 rows"),
        (("word2vec", "--batch-size", 3), "leave out --batch-size"),
        (("runs/none",), "is not there"),
        (("regard-999",), "from 1 to 128"),
        (("bert-tiny", "--generate", 5), "generates nothing"),
        (("ngram",), "trained run"),
        (("word2vec", "--generate", 3), "generate nothing"),
        (("gpt2-tiny", "--processes", 0), "--processes"),
    ],
)
def test_mistakes_are_one_sentence(arguments, word):
    assert word in mistake(call("cost", *arguments))


def test_a_name_that_is_not_known_gets_a_few_others_and_not_all():
    said = mistake(call("cost", "llama-9"))
    assert "llama-3-8b" in said
    assert "bert" not in said
    assert "regard models" in mistake(call("cost", "xyzzy"))


def test_a_text_without_a_limit_may_be_long():
    assert counted("conv", "--tokens", 3000)["tokens"] == 3000


RECIPE = """
[model]
preset = "llama-tiny"
[tokenizer]
vocabulary = 300
[optimizer]
kind = "sgd"
[training]
steps = 70
context = 16
tokens_per_step = 128
rows = 4
"""


def test_a_recipe_is_priced_as_it_says(tmp_path):
    (tmp_path / "mine.toml").write_text(RECIPE)
    found = counted(tmp_path / "mine.toml", "--train")
    assert (found["rows"], found["tokens"], found["parts_of_a_step"]) == (4, 16, 2)
    assert found["vocabulary"] == 300
    assert found["memory"]["optimizer"] == 0  # SGD remembers nothing
    assert found["seconds_in_all"] == pytest.approx(70 * found["seconds"])
    whole = counted(tmp_path / "mine.toml", "--train", "--batch-size", 8, "--steps", 2)
    assert whole["products"] == found["products"]
    assert whole["seconds_in_all"] == pytest.approx(2 * whole["seconds"])


def test_pairs_of_a_recipe_fill_its_step(tmp_path):
    pairs = RECIPE.replace("llama-tiny", "marian-tiny") + "[data]\npairs = true\n"
    assert "marian-tiny" in pairs
    (tmp_path / "mine.toml").write_text(pairs)
    found = counted(tmp_path / "mine.toml", "--train")
    assert (found["rows"], found["tokens"], found["parts_of_a_step"]) == (4, 16, 2)


def test_rows_that_a_recipe_leaves_open_are_as_many_as_fit(tmp_path):
    (tmp_path / "mine.toml").write_text(RECIPE.replace("rows = 4", ""))
    small = device_named("cpu-2").to_json() | {"memory": 600_000}
    (tmp_path / "small.json").write_text(json.dumps(small))
    given = (tmp_path / "mine.toml", "--train", "--json", "--device", tmp_path / "small.json")
    found = json.loads(call("cost", *given).out)
    assert found["fits"]
    assert 1 <= found["rows"] < 8
    assert found["parts_of_a_step"] == -(-8 // found["rows"])


def test_rows_that_are_read_twice_cost_twice_as_much(tmp_path, monkeypatch):
    monkeypatch.setattr(r_drop, "NUMBERS", 1 << 40)  # in one part: it is the sum that counts
    once, twice = tmp_path / "once.toml", tmp_path / "twice.toml"
    once.write_text(RECIPE)
    twice.write_text(RECIPE + "consistency = 1.0\n")
    prices = [counted(path, "--train")["products"] for path in (once, twice)]
    assert prices[1] == 2 * prices[0]


def test_a_recipe_that_leaves_the_vocabulary_open_is_told_so(tmp_path):
    (tmp_path / "mine.toml").write_text(RECIPE.replace("vocabulary = 300", ""))
    said = call("cost", tmp_path / "mine.toml", "--device", "cpu")
    assert "vocabulary is that of the preset; the data decides" in said.out
    assert counted("gpt2-124m", "--tokens", 4)["vocabulary"] == 50304


def test_word_vectors_are_priced_by_a_step_of_training():
    said = call("cost", "word2vec", "--tokens", 200, "--device", "cpu")
    assert "a step of training, 1 row of 200 tokens" in said.out
    found = counted("word2vec", "--tokens", 200)
    assert found["work"] == "train"
    assert found["tokens_per_second"] == pytest.approx(200 / found["seconds"])


def test_what_is_counted_for_one_of_many_processes_says_so():
    given = ("gpt2-tiny", "--train", "--tokens", 8, "--batch-size", 4, "--processes", 2)
    assert counted(*given)["counted_for"] == "each of 2 processes"
    said = call("cost", *given, "--device", "cpu")
    assert "for each of 2 processes, 2 rows each" in said.out
    assert "counted_for" not in counted(*given[:-2])


@pytest.mark.parametrize("name", ["llama-tiny", "marian-tiny", "bert-tiny"])
def test_a_folder_needs_no_weights_to_be_priced(tmp_path, name):
    regard.save(regard.build(regard.preset(name)), tmp_path)
    with_weights = counted(tmp_path, "--tokens", 4)
    for path in tmp_path.glob("*.safetensors"):
        path.unlink()
    assert counted(tmp_path, "--tokens", 4) == with_weights


def test_numbers_are_written_without_exponents():
    assert [short(x) for x in (0.1234, 12.34, 999.4, 1250, 1e6)] == [
        "0.123",
        "12.3",
        "999",
        "1,250",
        "1,000,000",
    ]


def test_a_machine_can_be_measured_in_a_moment(tmp_path, monkeypatch):
    from regard.costs.device import calibrate, host_overhead

    monkeypatch.setitem(calibrate.PRODUCTS, "cpu", ((1, 8), (64,), (64, 128)))
    monkeypatch.setitem(calibrate.BYTES, "cpu", (1 << 12, 1 << 14))
    monkeypatch.setattr(calibrate, "BATCHED", ((1, 8), (16,), (16,)))
    monkeypatch.setattr(calibrate, "ATTENTION", ((1, 8), (16,), (16,)))
    monkeypatch.setattr(calibrate, "RECURRENCE", ((1, 4), (1,), (16,)))
    monkeypatch.setattr(calibrate, "FAR", 1 << 22)
    monkeypatch.setattr(host_overhead, "larger_models", list)
    path = tmp_path / "mine.json"
    said = call("calibrate", "--device", "cpu", "--seconds", 0.1, "--out", path)
    assert said.code == 0, said.err
    found = json.loads(path.read_text())
    assert found["kind"] == "cpu"
    again = call("cost", "gpt2-tiny", "--json", "--device", path)
    assert json.loads(again.out)["device_source"].startswith("measured")


def test_calibrating_for_no_time_is_a_mistake():
    assert "--seconds" in mistake(call("calibrate", "--seconds", 0))


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--device", "meta"), "--device must be one of auto, cpu, cuda"),
        (("--device", "foo"), "--device must be one of auto, cpu, cuda"),
        (("--device", "cpu", "--out", "file/mine.json"), "cannot write"),
        (("--device", "cpu", "--out", "folder"), "is a folder"),
    ],
)
def test_calibrating_says_what_is_wrong_before_it_measures(tmp_path, arguments, word, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr("regard.commands.calibrate.calibrate", None)
    assert word in mistake(call("calibrate", *arguments))

"""Texts with labels: trained in the loop like any pairs, labelled by `regard classify`."""

import json
import random
import shutil

import pytest
import torch
from command_line import call, mistake
from safetensors.torch import load_file

from regard.runs.run_folder import WEIGHTS
from regard.storage.tensors import write_safetensors

GOOD, BAD = ("lovely", "moving", "funny"), ("dull", "slow", "flat")
OTHERS = ("the", "film", "was", "a", "story")


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    rng, folder = random.Random(0), tmp_path_factory.mktemp("reviews")
    lines = []
    for _ in range(400):
        label, words = rng.choice((("good", GOOD), ("bad", BAD)))
        text = [*rng.choices(OTHERS, k=5), rng.choice(words)]
        rng.shuffle(text)
        lines.append(f"{' '.join(text)}\t{label}\n")
    (folder / "reviews.tsv").write_text("".join(lines))
    return folder / "reviews.tsv"


@pytest.fixture(scope="module", params=["bag-linear", "bag-perceptron"])
def run(request, reviews, cache, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(cache))
        patch.setattr("regard.training.throughput._fastest_product", lambda device, kind: 1e11)
        said = call("train", "--pairs", reviews, "--model", request.param, "--steps", 100,
                    "--out", folder, "--set", "training.tokens_per_step=512")  # fmt: skip
    assert said.code == 0, said.err
    return folder


def test_it_learns_and_the_held_out_labels_are_right(run):
    found = json.loads(call("evaluate", run, "--json").out)
    assert found["accuracy"] == 1.0
    assert "bleu" not in found
    assert found["tokens"] == 20  # a twentieth of the pairs, one label each


def test_labels_of_texts_lines_and_standard_input(run):
    said = call("classify", run, "a lovely film", "the slow story")
    assert [line.split("\t")[0] for line in said.out.splitlines()] == ["good", "bad"]
    assert call("classify", run, stdin=b"a lovely film\nthe slow story").out == said.out
    both = json.loads(call("classify", run, "a lovely film", "--top", 2, "--json").out)
    assert [one["label"] for one in both["labels"]] == ["good", "bad"]
    assert sum(one["probability"] for one in both["labels"]) == pytest.approx(1)
    assert call("translate", run, stdin=b"a lovely film\n").out == "good\n"


def test_a_text_without_known_words_is_told(run):
    assert "1 of 1 texts have no word" in call("classify", run, "zzz").err


def test_mistakes_are_one_sentence(run, reviews, tmp_path, decoder):
    (tmp_path / "two.tsv").write_text("a film\tvery good\nanother\tbad\n" * 30)
    said = call("train", "--pairs", "two.tsv", "--model", "bag-linear", "--out", "r")
    assert "a label must be one word" in mistake(said)
    assert "does not label texts" in mistake(call("classify", decoder, "the cat"))
    assert "--top must be at least 1" in mistake(call("classify", run, "a", "--top", 0))
    wrong = call("train", reviews, "--model", "bag-linear", "--out", "r")
    assert "labels texts learns from pairs, not from text" in mistake(wrong)


def test_labels_that_were_not_trained_count_as_wrong_and_not_in_the_loss(run, tmp_path):
    (tmp_path / "new.tsv").write_text("a lovely film\tgood\na slow film\tawful\n")
    found = json.loads(call("evaluate", run, "new.tsv", "--json").out)
    assert (found["accuracy"], found["tokens"]) == (0.5, 1)
    assert found["loss"] < 1
    assert "1 of 2 labels are none of this run's" in call("evaluate", run, "new.tsv").out
    (tmp_path / "two.tsv").write_text("a film\tvery good\n")
    assert "a label must be one word" in mistake(call("evaluate", run, "two.tsv"))
    assert "are for translations" in mistake(call("evaluate", run, "--beam", 3))


def test_a_tokenizer_file_is_for_the_texts_only(run, reviews):
    given = ("train", "--pairs", reviews, "--model", "bag-linear", "--steps", 60, "--out", "r")
    said = call(*given, "--set", f"tokenizer.file={run / 'source_tokenizer.json'}")
    assert said.code == 0, said.err
    assert json.loads(call("evaluate", "r", "--json").out)["accuracy"] > 0.9


def test_a_special_token_is_no_label(tmp_path):
    lines = [f"film {i}\t<unk>\nbook {i}\tbad\n" for i in range(30)]
    (tmp_path / "odd.tsv").write_text("".join(lines))
    said = call("train", "--pairs", "odd.tsv", "--model", "bag-linear", "--out", "r")
    assert "stands for no label" in mistake(said)


def test_what_it_cannot_do_is_told_by_what_it_can(run):
    for command in (("embed", run, "a film"), ("fill", run, "a [mask]")):
        assert "labels texts (`classify`)" in mistake(call(*command))


def test_an_answer_that_is_no_number_is_not_given(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    weights = {n: torch.full_like(w, 3e38) for n, w in load_file(run / WEIGHTS).items()}
    write_safetensors(weights, tmp_path / "run" / WEIGHTS)  # each of them is a number
    said = mistake(call("classify", tmp_path / "run", "a lovely film"))
    assert "gives no numbers (NaN or infinity); its weights are damaged" in said

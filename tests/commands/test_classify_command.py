"""Texts with labels: trained in the loop like any pairs, labelled by `regard classify`."""

import json
import random

import pytest
from command_line import call, mistake

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
    assert "text can be learned by" in mistake(wrong)

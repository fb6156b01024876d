"""`regard train --model ngram`: the same commands as for any other run."""

import json
import math

import numpy as np
import pytest
from command_line import call, mistake

from regard.loading import load
from regard.runs.stored_run import open_run
from regard.text.specials import BOS, EOS

TEXT = "the cat sat\nthe dog sat on the cat\n\na cat ran\nthe dog ran on\n" * 6
HELD = "the cat ran on\na dog sat\n"


@pytest.fixture(scope="module")
def counted(tmp_path_factory, cache):
    """A trigram of words, each line a text."""
    folder = tmp_path_factory.mktemp("ngram")
    (folder / "text.txt").write_text(TEXT)
    (folder / "held.txt").write_text(HELD)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(cache))
        said = call(
            *("train", folder / "text.txt", "--valid", folder / "held.txt"),
            *("--model", "ngram", "--order", 3, "--tokenizer", "word", "--out", folder / "run"),
        )
    assert said.code == 0, said.err
    return folder


def test_every_line_is_a_text_and_the_figures_are_those_of_the_table(counted):
    run = open_run(counted / "run")
    found = json.loads(call("evaluate", counted / "run", "--json").out)
    total, tokens = 0.0, 0
    for line in HELD.splitlines():
        ids = [BOS, *run.tokenizer.encode(line).tolist(), EOS]
        logprobs, _ = run.module.table.logprobs(np.array(ids))
        total, tokens = total - logprobs[1:].sum(), tokens + len(ids) - 1
    assert found["tokens"] == tokens
    assert found["perplexity"] == pytest.approx(math.exp(total / tokens), rel=1e-6)
    named = json.loads(call("evaluate", counted / "run", counted / "held.txt", "--json").out)
    assert named == found


def test_scores_generation_and_beam_work_as_for_other_runs(counted):
    said = call("score", counted / "run", "the cat sat", "sat cat the", "--json")
    good, bad = (json.loads(line) for line in said.out.splitlines())
    assert good["logprob"] > bad["logprob"]
    model = load(counted / "run")
    greedy = call("generate", counted / "run", "the", "--temperature", 0).out
    assert greedy == "the" + model.generate("the", temperature=0)[0].text + "\n"
    drawn = call("generate", counted / "run", "the", "--n", 2, "--seed", 3).out.split("---\n")
    assert all(text.startswith("the") for text in drawn)
    best = call("generate", counted / "run", "the", "--beam", 4).out
    assert best.startswith("the")


def test_the_run_says_what_it_holds(counted):
    described = call("describe", counted / "run").out
    assert "3-gram, kneser-ney" in described
    assert "2-grams" in described
    listed = json.loads(call("runs", counted / "run", "--json").out)[0]
    assert (listed["state"], listed["model"]) == ("finished", "ngram")
    events = [json.loads(line) for line in (counted / "run/log.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events][-1] == "end"
    again = call("train", counted / "text.txt", "--valid", counted / "held.txt", "--model", "ngram",
                 "--order", 3, "--tokenizer", "word", "--out", counted / "run")  # fmt: skip
    assert (again.code, "is finished" in again.out) == (0, True)


@pytest.mark.parametrize("smoothing", ["add-k", "stupid-backoff", "maximum-likelihood"])
def test_other_smoothings(counted, smoothing):
    said = call(
        *("train", counted / "text.txt", "--valid", counted / "held.txt", "--model", "bigram"),
        *("--out", "run", "--set", f"model.smoothing={smoothing}"),
    )
    assert said.code == 0, said.err
    found = json.loads(call("evaluate", "run", "--json").out)
    # "a dog" was never seen: without smoothing that is impossible, and JSON has no infinity.
    assert (found["perplexity"] is None) == (smoothing == "maximum-likelihood")


@pytest.mark.parametrize("kind", ["char", "byte", "bpe"])
def test_over_any_tokenizer(counted, kind):
    files = (counted / "text.txt", "--valid", counted / "held.txt")
    said = call("train", *files, "--model", "trigram", "--tokenizer", kind, "--out", "run")
    assert said.code == 0, said.err
    found = json.loads(call("evaluate", "run", "--json").out)
    assert found["bits_per_byte"] is not None
    assert call("generate", "run", "the c", "--temperature", 0).out.startswith("the c")


def test_a_unigram_ignores_order(counted):
    files = (counted / "text.txt", "--valid", counted / "held.txt")
    assert call("train", *files, "--model", "unigram", "--out", "run").code == 0
    said = call("score", "run", "the cat sat", "sat the cat")
    one, other = (line.split("\t")[0] for line in said.out.splitlines())
    assert one == other


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--order", 0), "order must be a whole number from 1 to 64, not 0"),
        (("--set", "model.smoothing=good-turing"), "smoothing cannot be 'good-turing'"),
        (("--set", "model.prune=[1, 0]"), "0 for single tokens"),
        (("--set", "model.layers=3"), "[model] has no key 'layers'"),
        (("--set", "model.k=0", "model.smoothing=add-k"), "k must be a number above 0"),
    ],
)
def test_what_cannot_be_is_one_sentence(counted, arguments, sentence):
    said = call("train", counted / "text.txt", "--model", "ngram", "--out", "run", *arguments)
    assert sentence in mistake(said)


def test_what_it_cannot_do_is_one_sentence(counted):
    assert "counts and no vectors" in mistake(call("embed", counted / "run", "the cat"))
    assert "cannot fill gaps: it has counts" in mistake(call("fill", counted / "run", "the [mask]"))
    assert "--int8 is for Transformers" in mistake(call("evaluate", counted / "run", "--int8"))


def test_an_order_longer_than_every_line_is_no_trouble(counted):
    files = (counted / "text.txt", "--valid", counted / "held.txt")
    said = call("train", *files, "--model", "ngram", "--order", 12, "--out", "run")
    assert said.code == 0, said.err
    assert "0 12-grams" in said.out
    assert call("generate", "run", "the cat", "--temperature", 0).out.startswith("the cat")


def test_stupid_back_off_says_that_it_has_no_perplexity(counted):
    files = (counted / "text.txt", "--valid", counted / "held.txt", "--model", "bigram")
    call("train", *files, "--out", "run", "--set", "model.smoothing=stupid-backoff")
    assert "no true perplexity" in call("evaluate", "run").out


def test_an_unknown_word_is_followed_by_a_blank(counted):
    texts = call("generate", counted / "run", "zzz", "--n", 8).out.split("---\n")
    assert any(text != "zzz\n" for text in texts)
    assert all(text == "zzz\n" or text.startswith("zzz ") for text in texts)


def test_what_it_says_to_do_next_works(counted):
    files = (counted / "text.txt", "--valid", counted / "held.txt")
    said = call("train", *files, "--model", "bigram", "--out", "run").out
    command = said[said.index("next: regard ") + len("next: regard ") :].splitlines()[0]
    assert call(*command.split()).code == 0
    assert "regard plot" not in said
    again = call("train", *files, "--model", "bigram", "--out", "run").out
    assert "is finished; choose another --out" in again


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--model", "ngram", "--steps", 3), "counts its text once"),
        (("--model", "ngram", "--epochs", 3), "counts its text once"),
        (("--model", "bigram", "--order", 3), "--order is for n-gram models; give --model ngram"),
        (("--model", "gpt2", "--order", 3), "--order is for n-gram models"),
        (("--model", "bigram", "--set", "model.prune=[0,0,1]"), "does not fit order 2"),
        (
            ("--model", "ngram", "--set", "model.prune=[0,1]", "model.smoothing=add-k"),
            "nothing can be pruned",
        ),
    ],
)
def test_what_means_nothing_is_refused_before_anything_is_read(arguments, sentence):
    assert sentence in mistake(call("train", "nothere.txt", "--dry-run", *arguments))


@pytest.mark.parametrize("smoothing", ["stupid-backoff", "maximum-likelihood"])
def test_a_rival_that_is_impossible_is_null_in_json(counted, smoothing):
    files = (counted / "text.txt", "--valid", counted / "held.txt", "--model", "bigram")
    call("train", *files, "--out", "run", "--set", f"model.smoothing={smoothing}")
    said = call("generate", "run", "the", "--json", "--logprobs", 50, "--max-tokens", 2)
    assert said.code == 0, said.err
    values = [value for one in json.loads(said.out)["tokens"] for _, value in one["top"]]
    assert None in values
    assert all(value is None or math.isfinite(value) for value in values)


def test_a_run_whose_sample_cannot_be_written_is_kept_with_a_warning(counted):
    """What the held-out text begins with was never seen, so nothing may follow it."""
    (counted / "strange.txt").write_text("on a on a on a on a\n")
    said = call(
        *("train", counted / "text.txt", "--valid", counted / "strange.txt", "--model", "ngram"),
        *("--out", "run", "--set", "model.smoothing=maximum-likelihood"),
    )
    assert said.code == 0, said.err
    assert "no sample could be written: the model gives no probability" in said.out
    assert json.loads(call("runs", "run", "--json").out)[0]["state"] == "finished"
    assert call("score", "run", "the cat sat").out.endswith("the cat sat\n")

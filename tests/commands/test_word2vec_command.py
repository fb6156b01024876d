"""`regard train --model word2vec`: a run like any other, and vectors for other models."""

import json
import random
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import QUICK, call, mistake
from safetensors.torch import load_file

from regard.errors import RegardError
from regard.families.word_vectors import walk as walking
from regard.families.word_vectors.family import Neighbours
from regard.families.word_vectors.processes import Helper
from regard.loading import load
from regard.runs import train_run
from regard.runs.stored_run import open_run
from regard.runs.word_vectors import table_of
from regard.storage.event_log import Sink
from regard.training.checkpoints.reading import stored_steps

SETTINGS = (
    *("tokenizer.min_frequency=2", "model.width=16", "model.subsample=0"),
    *("training.log_every=1", "training.tokens_per_step=4096"),
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Two kinds of sentence with words that stand for one another within each."""
    rng, path = random.Random(0), tmp_path_factory.mktemp("corpus") / "text.txt"
    animals, cities = ("cat", "dog", "fox"), ("rome", "paris", "oslo")
    lines = [
        f"the {rng.choice(animals)} sleeps on the warm mat"
        if rng.random() < 0.5
        else f"a train goes to {rng.choice(cities)} every morning"
        for _ in range(3000)
    ]
    path.write_text("\n".join(lines) + "\nrarely\n")
    return path


def made(corpus, out, *settings, model="word2vec"):
    said = call("train", corpus, "--model", model, "--out", out, "--set", *SETTINGS, *settings)
    assert said.code == 0, said.err
    return said


def test_words_that_stand_for_one_another_become_neighbours(corpus, tmp_path):
    said = made(corpus, "r", "training.epochs=10")
    assert "regard words r nearest" in said.out
    table = table_of(tmp_path / "r")
    near = [neighbour.word for neighbour in table.nearest("cat", 2)]
    assert sorted(near) == ["dog", "fox"]
    assert table.similarity("rome", "oslo") > table.similarity("rome", "cat")
    assert "rarely" not in table


@pytest.mark.parametrize("model", ["skip-gram", "cbow"])
@pytest.mark.parametrize("loss", ["negative", "hierarchical"])
def test_the_loss_falls(corpus, model, loss):
    made(corpus, "r", "training.epochs=3", f"model.loss={loss}", model=model)
    events = [json.loads(line) for line in open("r/log.jsonl")]  # noqa: SIM115
    losses = [event["loss"] for event in events if event["event"] == "step"]
    assert losses[-1] < losses[0]
    assert [event["event"] for event in events][-1] == "end"
    assert json.loads(call("runs", "r", "--json").out)[0]["state"] == "finished"


def test_a_sample_that_cannot_be_shown_is_a_warning(corpus, monkeypatch):
    def sample():
        raise RegardError("no word has a neighbour")

    monkeypatch.setattr(Neighbours, "sampler", lambda work, plan, module: sample)
    said = made(corpus, "r", "training.epochs=1", "training.sample_every=1")
    assert "no sample could be written: no word has a neighbour" in said.out
    assert json.loads(call("runs", "r", "--json").out)[0]["state"] == "finished"


class KilledError(Exception):
    """Ends a command as a kill would."""


class Killing(Sink):
    """A view that ends the process's work at a step."""

    def __init__(self, step):
        self.step = step

    def write(self, event):
        if event["event"] == "step" and event["step"] == self.step:
            raise KilledError

    def close(self):
        pass


def test_a_run_that_was_killed_goes_on_to_the_same_vectors(corpus, monkeypatch):
    often = ("training.epochs=4", "training.checkpoint_every=2", "training.sample_every=-1")
    made(corpus, "whole", *often)
    steps = open_run_steps("whole")
    assert steps > 4
    with monkeypatch.context() as patch:
        patch.setattr(train_run, "view", lambda console, every: Killing(3))
        with pytest.raises(KilledError):
            made(corpus, "torn", *often)
    assert stored_steps_of("torn") == [2]
    made(corpus, "torn", *often)
    for name in ("input", "output"):
        one, other = (dict(load(run).module.named_parameters())[name] for run in ("whole", "torn"))
        assert np.array_equal(one.detach().numpy(), other.detach().numpy())
    assert "is finished" in made(corpus, "torn", *often).out


@pytest.mark.parametrize("model", ["skip-gram", "cbow"])
def test_vectors_that_blow_up_are_never_saved(corpus, model):
    """Though no report has seen it yet: one every thousand steps."""
    rare = ("training.checkpoint_every=1", "training.log_every=1000", "optimizer.learning_rate=100")
    some = (*SETTINGS, "training.tokens_per_step=128", *rare)
    arguments = ("--model", model, "--out", "r", "--epochs", 1, "--set", *some)
    for _ in range(2):  # it is the same each time
        told = mistake(call("train", corpus, *arguments))
        assert "word vectors are no longer finite at step" in told
        assert "lower optimizer.learning_rate" in told
        (step,) = stored_steps(Path("r"))
        weights = load_file(f"r/checkpoints/{step}/model.safetensors").values()
        assert all(weight.isfinite().all() for weight in weights)
    assert not Path("r/model.safetensors").exists()


def test_two_processes_make_the_same_run_also_when_it_is_killed(corpus, monkeypatch):
    """Checkpoints hold what both have learnt, and what is learnt is what one process learns."""
    often = ("training.epochs=4", "training.checkpoint_every=2", "model.width=32")
    made(corpus, "alone", *often)
    for name, value in {"FEW": 0, "LEAST": 1, "TRIAL": 2, "LONG": 4}.items():
        monkeypatch.setattr(walking, name, value)
    together = []

    def walk(helper, first, last, really=Helper.walk):
        together.append((first, last))
        return really(helper, first, last)

    def start(helper, *rest, really=Helper.__init__):
        really(helper, *rest)
        while not helper.ready():
            time.sleep(0.01)

    monkeypatch.setattr(Helper, "walk", walk)
    monkeypatch.setattr(Helper, "__init__", start)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(train_run, "view", lambda console, every: Killing(7))
            with pytest.raises(KilledError):
                made(corpus, "torn", *often)
        assert stored_steps_of("torn")[-1] == 6
        assert (4, 6) in together  # the checkpoint is of such steps
        made(corpus, "torn", *often)
    finally:
        torch.set_num_threads(before)
    assert together[-1][0] > 6
    for name in ("input", "output"):
        one, other = (dict(load(run).module.named_parameters())[name] for run in ("alone", "torn"))
        assert np.array_equal(one.detach().numpy(), other.detach().numpy())


def stored_steps_of(name):
    from pathlib import Path

    return stored_steps(Path(name))


def open_run_steps(name):
    from pathlib import Path

    return open_run(Path(name)).settings.training.steps


def test_vectors_start_the_embedding_of_a_language_model(corpus):
    made(corpus, "r", "training.epochs=1")
    model = ("--model", "llama-tiny", "--tokenizer", "word", "--steps", 1, "--out", "lm")
    wide = ("model.width=16", "model.heads=2", "model.kv_heads=1", "optimizer.learning_rate=1e-9")
    said = call("train", corpus, *model, "--set", *QUICK, *wide, "training.vectors=r")
    assert said.code == 0, said.err
    assert "begin with the vectors of r" in said.out
    words, lm = table_of_name("r"), table_of_name("lm")
    for word in ("cat", "rome"):
        one, other = words.vector(word), lm.vector(word)
        cosine = one @ other / np.linalg.norm(one) / np.linalg.norm(other)
        assert cosine == pytest.approx(1, abs=1e-4)
    wrong = call("train", corpus, *model[:-1], "lm2", "--set", *QUICK, "training.vectors=r")
    assert "vectors of 16 numbers and the model an embedding of 32" in mistake(wrong)


def table_of_name(name):
    from pathlib import Path

    return table_of(Path(name))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--set", "model.window=0"), "window must be"),
        (("--set", "model.method=glove"), "method cannot be 'glove'"),
        (("--epochs", 0.5), "whole passes over the text, not 0.5"),
        (("--set", "tokenizer.min_frequency=100000"), "or lower tokenizer.min_frequency"),
        (("--epochs", 2, "--steps", 3), "give --steps or --epochs, not both"),
        (("--set", "training.vectors=nothere"), "is not there"),
    ],
)
def test_what_cannot_be_is_one_sentence(corpus, arguments, sentence):
    assert sentence in mistake(call("train", corpus, "--model", "cbow", "--out", "r", *arguments))


def test_what_vectors_cannot_do_is_one_sentence(corpus):
    made(corpus, "r", "training.epochs=1")
    for command in (("evaluate", "r"), ("generate", "r", "cat"), ("score", "r", "cat")):
        assert "neither write nor judge texts" in mistake(call(*command))


def test_words_that_only_stand_in_phrases_are_not_listed(tmp_path):
    lines = ["new york is a big city", "a city is big", "the city is a new york"] * 200
    (tmp_path / "text.txt").write_text("\n".join(lines))
    made("text.txt", "r", "training.epochs=2", "model.phrases=3")
    table = table_of(tmp_path / "r")
    assert "new_york" in table
    assert "york" not in table
    said = call("words", "r", "export", "vectors.txt")
    assert said.code == 0, said.err
    assert "new_york" in (tmp_path / "vectors.txt").read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--steps", 3), "give --epochs"),
        (("--epochs", 0), "--epochs must be more than 0"),
        (("--valid", "x.txt"), "leave out --valid"),
    ],
)
def test_what_means_nothing_is_refused_before_anything_is_read(arguments, sentence):
    given = ("train", "nothere.txt", "--model", "word2vec", "--dry-run")
    assert sentence in mistake(call(*given, *arguments))

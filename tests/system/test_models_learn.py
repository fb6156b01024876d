"""Small models that really learn: each must beat what needs no learning, or solve its task."""

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from regard.commands.train import train
from regard.data.builtin import python_library
from regard.data.feeds.masking import IGNORE
from regard.data.feeds.stream import MaskedTextFeed, TextFeed
from regard.data.readers.pairs import encode_pairs, task_pairs
from regard.families.settings import Settings
from regard.runs import recipes
from regard.runs.plan import Plan, plan
from regard.runs.stored_run import open_run
from regard.text.specials import BOS
from regard.training.validation import measure, translations


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))


def made(*changes: str, data: tuple[str, ...]) -> Plan:
    """A plan of the default settings with some changes."""
    quiet = ("training.validate_every=100000", "training.sample_every=-1", "training.device=cpu")
    settings = recipes.override(Settings(), [*quiet, *changes])
    return plan(replace(settings, data=replace(settings.data, train=data)))


def python_text(folder: Path) -> tuple[str, ...]:
    """Some of the standard library's source, half a megabyte."""
    named = ("argparse.py", "ast.py", "difflib.py", "inspect.py", "tarfile.py", "typing.py")
    files = [path for path in python_library.files() if path.name in named]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(files))
    (folder / "text.py").write_text(text, encoding="utf-8")
    return (str(folder / "text.py"),)


def bigram_loss(train_ids: np.ndarray, valid_ids: np.ndarray, vocabulary: int) -> float:
    """Nats per token of a bigram with the smoothing that suits the held-out part best."""
    counts = np.zeros((vocabulary, vocabulary))
    np.add.at(counts, (train_ids[:-1], train_ids[1:]), 1)
    asked = valid_ids[1:] != BOS
    losses = []
    for extra in (0.003, 0.01, 0.03, 0.1, 0.3, 1.0):
        smooth = counts + extra
        chances = smooth / smooth.sum(axis=1, keepdims=True)
        losses.append(-np.log(chances[valid_ids[:-1], valid_ids[1:]][asked]).mean())
    return float(min(losses))


READER = (
    "model.context=64",
    "optimizer.kind=muon",
    "optimizer.learning_rate=0.004",
    "training.tokens_per_step=1024",
)


def test_a_decoder_beats_a_bigram_on_held_out_text(tmp_path):
    ready = made(
        *READER,
        "tokenizer.kind=byte",
        "model.preset=regard-2",
        "training.steps=150",
        data=python_text(tmp_path),
    )
    outcome = train(ready, tmp_path / "run", Console(quiet=True))
    feed = ready.feed
    assert isinstance(feed, TextFeed)
    parts = [tokens.read(0, len(tokens)) for tokens in (feed.train, feed.valid)]
    assert outcome.scores
    assert outcome.scores.tokens == len(parts[1]) - 1
    assert outcome.scores.loss < bigram_loss(*parts, ready.config.vocabulary) - 0.2


def test_an_encoder_fills_gaps_better_than_the_most_frequent_token(tmp_path):
    ready = made(
        *READER,
        "tokenizer.kind=char",
        "model.preset=regard-2-encoder",
        "training.steps=200",
        data=python_text(tmp_path),
    )
    outcome = train(ready, tmp_path / "run", Console(quiet=True))
    feed = ready.feed
    assert isinstance(feed, MaskedTextFeed)
    hidden = np.concatenate([batch.targets.numpy().ravel() for batch in feed.held_out(64)])
    hidden = hidden[hidden != IGNORE]
    seen = Counter(feed.train.read(0, len(feed.train)).tolist())
    total = sum(seen.values())
    frequent = np.mean(hidden == seen.most_common(1)[0][0])
    unigram = -np.mean([np.log((seen[token] + 0.1) / total) for token in hidden.tolist()])
    assert outcome.scores
    assert outcome.scores.accuracy is not None
    assert outcome.scores.tokens == len(hidden)
    assert outcome.scores.accuracy > frequent + 0.1
    assert outcome.scores.loss < unigram - 0.3


SMALL = (
    "model.preset=transformer-tiny",
    "model.layers=2",
    "model.width=64",
    "model.hidden=256",
    "model.norm_place=pre",
    "model.dropout=0.0",
    "optimizer.kind=muon",
    "optimizer.learning_rate=0.004",
    "optimizer.beta2=0.98",
    "schedule.decay_fraction=0.6",
    "training.tokens_per_step=512",
)


# Dates take longer: Roman months differ by one letter, and 20410129 has no marks to go by.
SOAK = pytest.mark.skipif("REGARD_SEEDS" not in os.environ, reason="takes a minute: `make soak`")


@pytest.mark.parametrize(
    ("task", "steps"), [("reverse", 1000), pytest.param("dates", 1800, marks=SOAK)]
)
def test_an_encoder_decoder_solves_a_task_on_examples_it_never_saw(tmp_path, task, steps):
    ready = made(*SMALL, f"training.steps={steps}", "data.examples=50000", data=(task,))
    train(ready, tmp_path / "run", Console(quiet=True))
    run = open_run(tmp_path / "run")
    unseen = encode_pairs(task_pairs(task, 500, 0, "test"), run.source_tokenizer, run.tokenizer)
    written = translations(run.module, unseen, run.tokenizer)
    right = [text == pair.target for text, pair in zip(written, unseen.texts, strict=True)]
    assert np.mean(right) >= 0.99


def test_a_run_repeated_from_its_settings_is_the_same_to_the_bit(tmp_path):
    ready = made(*SMALL, "training.steps=12", "training.validate_every=6", data=("copy",))
    train(ready, tmp_path / "one", Console(quiet=True))
    again = plan(recipes.load(str(tmp_path / "one" / "run.toml")))
    train(again, tmp_path / "two", Console(quiet=True))
    first, second = (open_run(tmp_path / name).module.state_dict() for name in ("one", "two"))
    assert all(torch.equal(first[name], second[name]) for name in first)
    other = replace(again, settings=recipes.override(again.settings, ["training.seed=1"]))
    train(other, tmp_path / "three", Console(quiet=True))
    third = open_run(tmp_path / "three").module.state_dict()
    assert not all(torch.equal(first[name], third[name]) for name in first)


def test_scores_of_an_opened_run_are_those_that_training_gave(tmp_path):
    ready = made(*SMALL, "training.steps=20", data=("sort",))
    outcome = train(ready, tmp_path / "run", Console(quiet=True))
    run = open_run(tmp_path / "run")
    again = measure(run.module, ready.objective, ready.feed.held_out(7))
    assert outcome.scores
    assert again.loss == pytest.approx(outcome.scores.loss, rel=1e-5)

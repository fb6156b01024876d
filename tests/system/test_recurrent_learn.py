"""Small recurrent models that really learn: more than bigrams know, and what attention is for."""

from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from test_models_learn import bigram_loss, made, python_text

from regard.commands.train import train
from regard.data.batch import padded
from regard.data.builtin import tasks
from regard.data.feeds.stream import ContinuedTextFeed
from regard.data.readers.pairs import EncodedPairs, Pair, encode_pairs
from regard.metrics.scores import Bucket, by_length
from regard.runs.stored_run import Run, open_run
from regard.training.validation import at_rest, translations


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))


def test_an_lstm_beats_a_bigram_on_held_out_text(tmp_path):
    ready = made(
        "model.preset=lstm",
        "model.layers=1",
        "model.width=128",
        "model.dropout=0.0",
        "optimizer.learning_rate=0.01",
        "tokenizer.kind=byte",
        "training.context=32",
        "training.tokens_per_step=1024",
        "training.steps=300",
        data=python_text(tmp_path),
    )
    outcome = train(ready, tmp_path / "run", Console(quiet=True))
    feed = ready.feed
    assert isinstance(feed, ContinuedTextFeed)
    parts = [tokens.read(0, len(tokens)) for tokens in (feed.train, feed.valid)]
    assert outcome.scores
    assert outcome.scores.tokens == len(parts[1]) - 1
    assert outcome.scores.loss < bigram_loss(*parts, ready.config.vocabulary) - 0.2


# Words of 3 to 12 letters, written from behind.
REVERSE = (
    "model.width=64",
    "model.hidden=64",
    "optimizer.learning_rate=0.01",
    "training.tokens_per_step=512",
    "training.steps=400",
    "data.examples=50000",
)


def learned(folder: Path, *changes: str) -> Run:
    """A run of a model that has learned the task."""
    train(made(*REVERSE, *changes, data=("reverse",)), folder, Console(quiet=True))
    return open_run(folder)


UNSEEN = list(tasks.pairs("reverse", 500, 0, "test"))


def encoded(run: Run) -> EncodedPairs:
    pairs = [Pair(example.source, example.target) for example in UNSEEN]
    return encode_pairs(pairs, run.source_tokenizer, run.tokenizer)


def judged(run: Run) -> tuple[Bucket, ...]:
    """How many words of about one length are right to the letter; the longest come last."""
    written = translations(run.module, encoded(run), run.tokenizer)
    lengths = [len(example.source) for example in UNSEEN]
    return by_length(lengths, written, [example.target for example in UNSEEN], tokenised=False)


def exact(buckets: tuple[Bucket, ...]) -> float:
    return sum(bucket.exact * bucket.pairs for bucket in buckets) / len(UNSEEN)


def alignment_error(run: Run) -> float:
    """The share of letters written with most of the attention on another than theirs.

    It is the alignment error rate, as each letter has one link in the truth and one in what is
    found.
    """
    pairs = encoded(run)
    source, lengths = padded(list(pairs.sources))
    target, _ = padded([ids[:-1] for ids in pairs.targets])  # from <s> on
    state = run.module.start(len(source), target.shape[1], return_attention=True)
    with at_rest(run.module):
        run.module(target, run.module.encode(source, lengths), state)
    looked = state.attention[:, 0, 0].argmax(-1)  # (rows, target positions)
    right = [
        start <= int(looked[row, place]) < stop
        for row, example in enumerate(UNSEEN)
        for place, (start, stop) in enumerate(example.alignment)
    ]
    return 1 - float(np.mean(right))


def test_a_model_with_attention_solves_a_task_and_looks_where_it_should(tmp_path):
    """Dropout of what it reads makes it look there. Without any, words are right as well, but for
    a letter in four (300 steps) or twelve (600) most attention is on the one behind it, whose
    vector in the encoder knows its neighbour too."""
    run = learned(tmp_path / "run", "model.preset=bahdanau", "model.input_dropout=0.5")
    found = judged(run)
    assert exact(found) >= 0.95  # of three seeds 1.0 each
    assert found[-1].exact >= 0.9
    assert alignment_error(run) <= 0.02  # 0.001, 0.0 and 0.001


def test_one_vector_does_not_hold_a_long_word(tmp_path):
    """The same size and as many steps, no dropout: short words are right, long ones are not."""
    found = judged(learned(tmp_path / "run", "model.preset=rnn", "model.dropout=0.0"))
    assert found[0].last <= 5
    assert found[0].exact >= 0.6
    assert found[-1].exact <= 0.3

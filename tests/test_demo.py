"""The demo's task is what it says, and its model really learns it."""

import io

import torch
from rich.console import Console

import regard
from regard import demo


def test_each_target_is_its_word_backwards_between_markers():
    words, lengths, backwards = demo.batch(50, torch.Generator().manual_seed(0))
    assert set(lengths.tolist()) <= set(range(3, demo.LONGEST + 1))
    for word, length, gold in zip(
        words.tolist(), lengths.tolist(), backwards.tolist(), strict=True
    ):
        expected = [demo.START, *reversed(word[:length]), demo.STOP]
        assert gold == expected + [demo.PAD] * (demo.LONGEST + 2 - len(expected))


def test_exact_counts_rows_that_are_right_to_the_stop_marker():
    gold = torch.tensor([[demo.START, 1, demo.STOP, demo.PAD], [demo.START, 1, 2, demo.STOP]])
    written = torch.tensor([[demo.START, 1, demo.STOP, 9], [demo.START, 1, 2, 2]])
    assert demo.exact(written, gold) == 0.5


def test_the_model_learns_to_reverse_short_words_within_seconds(monkeypatch):
    # Words of at most four letters need few steps; an untrained model gets none right.
    monkeypatch.setattr(demo, "LONGEST", 4)
    monkeypatch.setattr(demo, "STEPS", 250)
    model = regard.build(demo.CONFIG)
    words, lengths, gold = demo.batch(200, torch.Generator().manual_seed(2))
    before = demo.exact(demo.reverse(model.eval(), words, lengths), gold)
    demo.train(model.train(), Console(file=io.StringIO()))
    after = demo.exact(demo.reverse(model.eval(), words, lengths), gold)
    assert before < 0.05
    assert after > 0.95

"""What is shown while a model learns: from the held-out part, or from training if there is none."""

import random

import pytest
import torch

from regard.decoding.decode_batch import continued
from regard.decoding.settings import Sampling
from regard.families.registry import family_of
from regard.families.settings import Settings
from regard.families.tasks.text import SHOWN
from regard.models.construction import build
from regard.runs.plan import plan
from regard.text.specials import EOS, SPECIALS

WORDS = ("the", "a", "cat", "dog", "sat", "ran", "on", "under", "mat", "tree", "and", "then", "it")


def sampler(made, module):
    return family_of(made.config).work(made.config).sampler(made, module)


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))


def made_plan(train: object, preset: str, **data: object):
    model = {"preset": preset, "layers": 1, "width": 16, "heads": 2, "hidden": 16}
    training = {"tokens_per_step": 256, "device": "cpu", "rows": 4}
    tables = {"data": {"train": train, **data}, "model": model, "training": training}
    return plan(Settings().changed({**tables, "tokenizer": {"kind": "char"}}, "test"))


def text(tmp_path, words: int = 400) -> str:
    path = tmp_path / "text.txt"
    path.write_text(" ".join(random.Random(0).choices(WORDS, k=words)))
    return str(path)


@pytest.mark.parametrize("held_out", [0.1, 0.0])
def test_a_decoder_goes_on_from_the_beginning_of_the_held_out_text(tmp_path, held_out):
    made = made_plan(text(tmp_path), "gpt2-tiny", held_out=held_out)
    module = build(made.config).train()
    found = sampler(made, module)()
    part = made.feed.valid if held_out else made.feed.train
    prompt = part.read(1, 1 + min(16, made.config.context // 4)).tolist()
    tokenizer = made.tokenizers[0]
    assert found["prompt"] == tokenizer.decode(prompt)
    written = list(continued(module.eval(), prompt, Sampling(limit=60, temperature=0.8, seed=0)))
    assert found["text"] == tokenizer.decode(written)


def test_a_prompt_does_not_reach_into_the_next_document(tmp_path):
    for number in range(30):
        (tmp_path / f"{number}.txt").write_text(f"{number:02}")
    made = made_plan(str(tmp_path / "*.txt"), "gpt2-tiny")
    found = sampler(made, build(made.config))()
    first = made.feed.valid.read(1, 50).tolist()
    half = (first.index(EOS) + 1) // 2  # the rest is for the model to write
    assert found["prompt"] == made.tokenizers[0].decode(first[:half])


@pytest.mark.parametrize("held_out", [0.1, 0.0])
def test_an_encoder_fills_the_gaps_and_changes_nothing_else(tmp_path, held_out):
    made = made_plan(text(tmp_path), "bert-tiny", held_out=held_out)
    module = build(made.config).train()
    found = sampler(made, module)()
    assert module.training
    mask = SPECIALS[4]
    if held_out:
        assert mask in found["prompt"]
        batch = next(made.feed.held_out(1))
        shown = batch.tokens[0, :SHOWN].tolist()
        assert found["prompt"] == "".join(made.tokenizers[0].pieces(shown))
    assert SPECIALS[0] not in found["prompt"]
    pieces = found["prompt"].split(mask)
    assert len(found["text"]) >= sum(map(len, pieces))


def test_a_short_text_with_gaps_is_shown_without_its_padding(tmp_path):
    (tmp_path / "text.txt").write_text("a few words")
    made = made_plan(str(tmp_path / "text.txt"), "bert-tiny", held_out=0.0)
    assert made.feed.step(0).lengths is not None
    assert SPECIALS[0] not in sampler(made, build(made.config))()["prompt"]


@pytest.mark.parametrize("held_out", [0.2, 0.0])
def test_pairs_are_shown_in_turn(tmp_path, held_out):
    rng = random.Random(0)
    lines = sorted({" ".join(rng.choices(WORDS, k=4)) for _ in range(20)})
    (tmp_path / "pairs.tsv").write_text("".join(f"{line}\t{line.upper()}\n" for line in lines))
    made = made_plan(str(tmp_path / "pairs.tsv"), "transformer-tiny", pairs=True, held_out=held_out)
    torch.manual_seed(1)
    sample = sampler(made, build(made.config))
    shown = made.feed.valid if held_out else made.feed.train
    assert len(made.feed.valid) == (2 if held_out else 0)
    for turn in range(len(shown) + 1):
        found, pair = sample(), shown.texts[turn % len(shown)]
        assert (found["source"], found["target"]) == pair
        assert isinstance(found["written"], str)

"""How far back a loss is felt: against other computations, and without a trace in the run."""

import random
import signal
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.nn import functional as F

from regard.families.recurrent.family import Recurrent
from regard.families.recurrent.through_time import ROWS, gradient_norms, recorder
from regard.families.registry import family_of
from regard.families.settings import Settings
from regard.models.construction import build
from regard.models.recurrent.config import RecurrentConfig
from regard.runs import train_run
from regard.runs.plan import plan
from regard.runs.run_folder import WEIGHTS
from regard.storage.event_log import read
from regard.text.specials import BOS
from regard.training.signals import Stop
from regard.training.throughput import NO_PEAK

SINGLE = {"elman": nn.RNNCell, "gru": nn.GRUCell, "lstm": nn.LSTMCell}


@pytest.fixture(autouse=True)
def _alone(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(train_run, "peak", lambda *_: NO_PEAK)  # which takes a second to measure


def model(cell: str, **changes: object):
    torch.manual_seed(0)
    return build(RecurrentConfig(cell=cell, vocabulary=11, layers=1, width=6, **changes))


def by_hand(module, tokens, steps):
    """The same with torch's cells, one row and one state at a time, in float64.

    A state is made a leaf of its own, and what follows is computed again from there.
    """
    cells = []
    for ours in module.decoder.cells:
        theirs = SINGLE[module.config.cell](ours.width, ours.hidden)
        for name, weight in zip(
            ("weight_ih", "weight_hh", "bias_ih", "bias_hh"), ours.parameters(), strict=True
        ):
            getattr(theirs, name).data.copy_(weight.data)
        cells.append(theirs.double())
    table = module.embed.tokens.weight.detach().double()
    two = module.config.cell == "lstm"

    def step(token, state):
        x, after = table[token][None], []
        for cell, held in zip(cells, state, strict=True):
            found = cell(x, held if two else held[0])
            after.append(found if two else (found,))
            x = after[-1][0]
        return after

    norms = torch.zeros(len(tokens), steps, dtype=torch.float64)
    for row, ids in enumerate(tokens.tolist()):
        parts = 2 if two else 1
        blank = [[torch.zeros(1, c.hidden_size).double()] * parts for c in cells]
        states = [blank]
        for token in ids[:-1]:
            states.append(step(token, states[-1]))
        for k in range(steps):
            place = len(states) - 1 - k
            leaves = [[p.detach().requires_grad_() for p in held] for held in states[place]]
            state = leaves
            for token in ids[place:-1]:
                state = step(token, state)
            logits = state[-1][0] @ table.T + module.head.bias.detach().double()
            loss = F.cross_entropy(logits, torch.tensor([ids[-1]]))
            flat = [p for held in leaves for p in held]
            found = torch.autograd.grad(loss, flat, materialize_grads=True)
            norms[row, k] = torch.cat(found, -1).norm()
    return norms.square().mean(0).sqrt()


@pytest.mark.parametrize("cell", ["elman", "gru", "lstm"])
@pytest.mark.parametrize("layers", [1, 2])
def test_norms_are_those_of_torchs_cells(cell, layers):
    module = model(cell)
    module = build(replace(module.config, layers=layers))
    tokens = torch.randint(0, 11, (3, 10))
    found = gradient_norms(module, tokens, 7)
    torch.testing.assert_close(torch.tensor(found), by_hand(module, tokens, 7).float())


def test_the_norm_is_what_a_nudge_of_the_memory_does_to_the_loss():
    module = model("lstm")
    tokens = torch.randint(0, 11, (1, 8))
    found = gradient_norms(module, tokens, 7)
    module.double()
    step, (first, *others) = module.decoder.steps(1), module.embed(tokens[:, :-1]).unbind(1)
    (held,) = step(first, module.decoder.blank(1))

    def loss(place, size):
        nudged = torch.cat(held, dim=-1)
        nudged[0, place] += size
        state = [tuple(nudged.chunk(2, dim=-1))]
        for x in others:
            state = step(x, state)
        return F.cross_entropy(module.logits(state[0][0]), tokens[:, -1])

    with torch.no_grad():
        slopes = [(loss(place, 1e-4) - loss(place, -1e-4)) / 2e-4 for place in range(12)]
    assert found[6] == pytest.approx(torch.stack(slopes).norm().item(), rel=1e-4)


@pytest.mark.parametrize("a", [0.5, 1.0, 2.0])
def test_a_matrix_that_scales_gives_powers(a):
    """All that is remembered stays 0, where tanh is straight."""
    module = model("elman")
    with torch.no_grad():
        for weight in module.parameters():
            weight.zero_()
        module.decoder.cells[0].recurrent.copy_(a * torch.eye(6))
        module.embed.tokens.weight.normal_()
    found = gradient_norms(module, torch.randint(0, 11, (4, 20)), 19)
    for before, after in pairwise(found):
        assert after / before == pytest.approx(a, rel=1e-4)


def test_what_has_vanished_is_still_told_and_nothing_of_the_module_changes():
    module = model("elman", dropout=0.5, weight_dropout=0.5).train()
    module.head.eval()
    with torch.no_grad():
        module.decoder.cells[0].recurrent.mul_(0.03)
    module.head.bias.grad = torch.ones(11)
    modes = [part.training for part in module.modules()]
    weights = {name: weight.clone() for name, weight in module.named_parameters()}
    drawn = torch.get_rng_state()
    tokens = torch.randint(0, 11, (2, 20))
    torch.set_rng_state(drawn)
    first, second = gradient_norms(module, tokens, 19), gradient_norms(module, tokens, 19)
    assert first == second  # no dropout
    assert 0 < first[18] < 1e-22  # its square is nothing in float32
    assert torch.equal(torch.get_rng_state(), drawn)
    assert [part.training for part in module.modules()] == modes
    assert all(torch.equal(weights[name], weight) for name, weight in module.named_parameters())
    assert [n for n, w in module.named_parameters() if w.grad is not None] == ["head.bias"]


# In a run


def made_plan(tmp_path, preset="elman", documents=1, **data):
    folder = tmp_path / "texts"
    folder.mkdir(exist_ok=True)
    for number in range(documents):
        letters = random.Random(number).choices("abcdef ", k=1200 // documents)
        (folder / f"{number}.txt").write_text("".join(letters))
    small = {"preset": preset, "layers": 1, "width": 16}
    small |= {"heads": 2, "hidden": 16} if preset == "gpt2-tiny" else {"dropout": 0.3}
    training = {"tokens_per_step": 64, "context": 16, "device": "cpu", "rows": 2, "steps": 6}
    every = {"validate_every": 2, "checkpoint_every": 2, "log_every": 1, "sample_every": -1}
    tables = {"data": {"train": str(folder), **data}, "model": small}
    tables |= {"training": {**training, **every}, "tokenizer": {"kind": "char"}}
    return plan(Settings().changed(tables, "test"))


def told(folder):
    """What a log tells, without what differs from run to run."""
    clocks = ("time", "tokens_per_second", "share_of_peak", "memory", "seconds_left", "stalled")
    kinds = ("step", "validation", "through_time")
    return [
        {key: value for key, value in event.items() if key not in clocks}
        for event in read(folder)
        if event["event"] in kinds
    ]


def trained(tmp_path, name, stop=None):
    made = made_plan(tmp_path)
    train_run.train_run(made, tmp_path / name, Console(quiet=True), stop=stop)
    return tmp_path / name


def test_recording_changes_nothing_of_a_run(tmp_path, monkeypatch):
    with_it = trained(tmp_path, "with")
    monkeypatch.setattr(Recurrent, "recorder", lambda *_: None)
    without = trained(tmp_path, "without")
    assert (with_it / WEIGHTS).read_bytes() == (without / WEIGHTS).read_bytes()
    recorded = [event for event in told(with_it) if event["event"] == "through_time"]
    assert [event["step"] for event in recorded] == [2, 4, 6]
    assert all(len(event["norms"]) == 16 for event in recorded)
    assert recorded[0]["norms"] != recorded[-1]["norms"]
    others = [event for event in told(with_it) if event["event"] != "through_time"]
    assert others == told(without)


def test_a_run_that_was_stopped_records_what_it_would_have(tmp_path, monkeypatch):
    whole, stop, plain = trained(tmp_path, "whole"), Stop(), Recurrent.recorder

    def stopping(*given):
        record = plain(*given)

        def once():
            stop.heard(signal.SIGTERM)
            return record()

        return once

    monkeypatch.setattr(Recurrent, "recorder", stopping)
    part = trained(tmp_path, "part", stop)
    assert max(event["step"] for event in told(part)) < 6
    monkeypatch.setattr(Recurrent, "recorder", plain)
    trained(tmp_path, "part")
    assert told(part) == told(whole)


@pytest.mark.parametrize("held_out", [0.1, 0.0])
def test_rows_are_of_the_held_out_text_or_else_of_the_training_text(
    tmp_path, monkeypatch, held_out
):
    made = made_plan(tmp_path, held_out=held_out)
    asked = []
    name = "regard.families.recurrent.through_time.gradient_norms"
    monkeypatch.setattr(
        name, lambda _, tokens, steps: asked.append(tokens) or [1 / 3, 1e40 * 1e300]
    )
    record = recorder(build(made.config), made.feed)
    assert record() == {"norms": [0.3333, None]}
    (tokens,) = asked
    known = made.feed.valid if held_out else made.feed.train
    text = known.read(0, len(known)).tolist()
    rows = [text[start : start + 33] for start in range(1, len(text) - 32)]
    assert len(tokens) == ROWS
    assert all(row in rows for row in tokens.tolist())
    assert tokens[0].tolist() == rows[0]
    assert tokens[-1].tolist() == rows[-1]


def test_no_row_is_asked_for_the_beginning_of_a_document(tmp_path, monkeypatch):
    made = made_plan(tmp_path, documents=300, held_out=0.5)
    asked = []
    name = "regard.families.recurrent.through_time.gradient_norms"
    monkeypatch.setattr(name, lambda _, tokens, steps: asked.append(tokens) or [1.0])
    recorder(build(made.config), made.feed)()
    (tokens,) = asked
    assert (tokens == BOS).any()
    assert (tokens[:, -1] != BOS).all()


def test_a_text_shorter_than_the_way_back_is_gone_back_as_far_as_it_goes(tmp_path):
    (tmp_path / "texts").mkdir()
    made = made_plan(tmp_path)
    (tmp_path / "texts" / "0.txt").write_text("abcde")
    made = plan(replace(made.settings, data=replace(made.settings.data, held_out=0.0)))
    record = recorder(build(made.config), made.feed)
    assert len(record()["norms"]) == 6  # of <s> a b c d e </s>


def test_other_models_have_nothing_to_record(tmp_path):
    made = made_plan(tmp_path, "gpt2-tiny")
    assert family_of(made.config).recorder(made, build(made.config)) is None

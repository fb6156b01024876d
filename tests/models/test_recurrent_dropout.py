"""Dropout of recurrent models: what falls, for how long, and that nothing does in use."""

from dataclasses import replace

import pytest
import torch
from tiny_models import assert_same, ids
from tiny_recurrent import EVERY, SOME, fresh, memory_of
from torch import Tensor

from regard.models.construction import build
from regard.models.recurrent.cells import Cell
from regard.models.recurrent.model import Recurrent

ALL = {
    "dropout": 0.5,
    "input_dropout": 0.3,
    "output_dropout": 0.4,
    "weight_dropout": 0.5,
    "embedding_dropout": 0.2,
}
MATRICES = ["lstm 3 wide", "gru 2", "gru none ahead 1", "lstm additive ahead 2"]
WIDE = {"width": 40, "hidden": 40}  # so that two masks are never equal by chance
ROWS, POSITIONS = 3, 5


def pass_of(model: Recurrent, tokens: Tensor) -> Tensor:
    return model(tokens, memory_of(model, len(tokens)))


def factors(after: Tensor, before: Tensor, share: float) -> Tensor:
    """What each number was multiplied by: nothing but 0 and 1 / (1 − share)."""
    found = after / before
    assert ((found == 0) | (found - 1 / (1 - share)).abs().lt(1e-6)).all()
    assert 0.6 * share < (found == 0).double().mean() < 1.4 * share
    return found


def assert_alike(masks: Tensor) -> None:
    """masks (rows, positions, width): one for all positions of a row, another for each row."""
    assert_same(masks, masks[:, :1].expand_as(masks))
    assert not torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[1], masks[2])


def assert_unlike(masks: Tensor) -> None:
    for row in masks:
        assert not torch.equal(row[0], row[1])


# --- numbers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("variational", [True, False])
@torch.no_grad()
def test_of_embeddings(variational: bool):
    model = fresh("lstm", input_dropout=0.5, variational=variational, **WIDE)
    tokens = torch.full((ROWS, POSITIONS), 7)
    masks = factors(model.embed(tokens), model.embed.tokens(tokens), 0.5)
    (assert_alike if variational else assert_unlike)(masks)


@pytest.mark.parametrize("case", ["lstm", "gru none both 1", "gru additive both 1"])
@pytest.mark.parametrize("variational", [True, False])
@torch.no_grad()
def test_of_outputs(case: str, variational: bool):
    model = fresh(case, output_dropout=0.5, variational=variational, **WIDE)
    tokens = ids(ROWS, POSITIONS)
    trained = model.hidden(tokens, memory_of(model, ROWS))
    model.eval()
    masks = factors(trained, model.hidden(tokens, memory_of(model, ROWS)), 0.5)
    (assert_alike if variational else assert_unlike)(masks)


@pytest.mark.parametrize(
    ("where", "case"),
    [
        ("layers", "lstm 3 wide"),
        ("steps", "lstm general fed both 2"),
        ("encoder", "lstm dot ahead 2"),
    ],
)
@pytest.mark.parametrize("variational", [True, False])
@torch.no_grad()
def test_between_layers(where: str, case: str, variational: bool, monkeypatch: pytest.MonkeyPatch):
    """What one layer gives against what the next one gets, for all calls and steps."""
    model = fresh(case, dropout=0.5, input_dropout=0.0, variational=variational, **WIDE)
    calls: list[tuple[Tensor, Tensor]] = []  # what went in and came out, (rows, new, width)
    run, step = Cell.forward, Cell.step

    def heard(cell, x, *more, **named):
        y, after = run(cell, x, *more, **named)
        calls.append((x, y))
        return y, after

    def stepped(cell, x, held, recurrent=None):
        found = step(cell, x, held, recurrent)
        calls.append((x[:, None], found[0][:, None]))
        return found

    monkeypatch.setattr(Cell, "forward", heard)
    monkeypatch.setattr(Cell, "step", stepped)
    memory, read = memory_of(model, ROWS), ids(ROWS, POSITIONS, seed=7)
    if where != "encoder":
        calls.clear()
        model(read, memory)
    assert_same(calls[0][0][:, :1, :40], model.embed.tokens(read[:, :1]))  # nothing falls there
    layers = model.config.layers
    for layer in range(1, layers):
        given = torch.cat([y for _, y in calls[layer - 1 :: layers]], dim=1)
        got = torch.cat([x for x, _ in calls[layer::layers]], dim=1)
        assert given.shape == (ROWS, POSITIONS, 40)
        masks = factors(got, given, 0.5)
        (assert_alike if variational else assert_unlike)(masks)


@torch.no_grad()
def test_between_layers_it_falls_in_training_only():
    model = fresh("gru 2", dropout=0.5, input_dropout=0.0, output_dropout=0.0)
    tokens = ids(2, 3)
    assert (model(tokens) - model(tokens)).abs().max() > 0.01
    model.eval()
    assert torch.equal(model(tokens), model(tokens))
    one = fresh("lstm", dropout=0.5, input_dropout=0.0, output_dropout=0.0)
    assert torch.equal(one(tokens), one(tokens))  # there is no place between layers


# --- words, matrices -------------------------------------------------------------------------


@torch.no_grad()
def test_of_words_takes_them_wherever_they_stand():
    model = fresh("lstm", embedding_dropout=0.4)
    tokens = torch.arange(60).repeat(2, 2)  # each word twice in each of two rows
    masks = factors(model.embed(tokens), model.embed.tokens(tokens), 0.4)
    assert_same(masks, masks[..., :1].expand_as(masks))  # all of a word, or nothing
    places = masks[..., 0].view(4, 60)
    assert_same(places, places[:1].expand_as(places))
    assert not torch.equal(model.embed(tokens), model.embed(tokens))  # others the next time


@pytest.mark.parametrize(
    "case", ["lstm 3 wide", "gru 2", "gru none ahead 1", "lstm additive ahead 2"]
)
@torch.no_grad()
def test_of_matrices_takes_nothing_where_nothing_is_remembered(case: str):
    """U is multiplied with zeros at the first token, so that no dropout of it can be seen."""
    model = fresh(case, weight_dropout=0.5)
    tokens = ids(1, 3).repeat(2, 1)
    if model.config.kind == "decoder":
        trained, again = model(tokens), model(tokens)
        model.eval()
        used = model(tokens)
    else:
        trained, again = (model.encoder(model.embed(tokens), None)[0] for _ in range(2))
        model.eval()
        used = model.encoder(model.embed(tokens), None)[0]
    assert_same(trained[:, 0], used[:, 0])
    assert (trained[:, 1] - used[:, 1]).abs().max() > 1e-4
    assert (trained[:, 1] - again[:, 1]).abs().max() > 1e-4  # drawn for each pass
    assert_same(trained[0], trained[1])  # but one for all rows


@pytest.mark.parametrize("case", ["lstm 3 wide", "gru 2", "lstm general fed both 2"])
def test_of_matrices_takes_numbers_and_stays_for_a_pass(case: str, monkeypatch):
    model = fresh(case, weight_dropout=0.5, hidden=20)
    used: list[Tensor] = []
    layers = model.decoder.layers if model.config.kind == "encoder-decoder" else model.decoder
    run, step = Cell.forward, Cell.step

    def heard(cell, x, held, counts=None, recurrent=None):
        if cell in list(layers.cells):  # not the encoder's
            used.append(recurrent)
        return run(cell, x, held, counts, recurrent)

    def stepped(cell, x, held, recurrent=None):
        used.append(recurrent)
        return step(cell, x, held, recurrent)

    monkeypatch.setattr(Cell, "forward", heard)
    monkeypatch.setattr(Cell, "step", stepped)
    pass_of(model, ids(2, 4)).sum().backward()
    assert len(used) % len(layers.cells) == 0
    for place, matrix in enumerate(used):
        cell = layers.cells[place % len(layers.cells)]
        factors(matrix.detach(), cell.recurrent.detach(), 0.5)
        assert matrix is used[place % len(layers.cells)]
        assert cell.recurrent.grad is not None  # what is learnt are the weights themselves


# --- all of it -------------------------------------------------------------------------------


@pytest.mark.parametrize("variational", [True, False])
@pytest.mark.parametrize("case", SOME)
@torch.no_grad()
def test_in_use_nothing_falls(case: str, variational: bool):
    model = fresh(case, variational=variational, **ALL)
    plain = build(EVERY[case]).double().eval()
    plain.load_state_dict(model.state_dict())
    tokens = ids(2, 5)
    assert (pass_of(model, tokens) - pass_of(model, tokens)).abs().max() > 0.01
    model.eval()
    assert_same(pass_of(model, tokens), pass_of(plain, tokens))


@pytest.mark.parametrize("variational", [True, False])
@pytest.mark.parametrize("case", SOME)
def test_training_goes_on_from_a_state(case: str, variational: bool):
    model = fresh(case, variational=variational, **ALL)
    state, memory = model.start(2, 6), memory_of(model, 2, [5, 3])
    first = model(ids(2, 3), memory, state, lengths=[3, 2])
    second = model(ids(2, 3, seed=1), memory, state)
    (first.sum() + second.sum()).backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.isfinite().all(), name
    assert not any(part.requires_grad for part in state.tensors())


def test_one_share_stands_for_those_left_open():
    config = replace(EVERY["lstm"], dropout=0.2).resolved()
    assert (config.input_dropout, config.output_dropout) == (0.2, 0.2)
    config = replace(EVERY["lstm"], dropout=0.2, input_dropout=0.0).resolved()
    assert (config.input_dropout, config.output_dropout) == (0.0, 0.2)

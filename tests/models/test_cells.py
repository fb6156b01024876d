"""Recurrent cells against torch's own, against their equations, and each row against itself alone.

`step` is written out and a call takes kernels, so that each is a reference for the other too.
"""

import math

import pytest
import torch
from tiny_models import assert_same
from torch import Tensor, nn

from regard.models.recurrent.cells import CELLS, Cell, Held

WHOLE = {"elman": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
SINGLE = {"elman": nn.RNNCell, "gru": nn.GRUCell, "lstm": nn.LSTMCell}
NAMES = list(CELLS)
WIDTH, HIDDEN, ROWS, POSITIONS = 5, 3, 4, 6
THEIRS = {
    "input": "weight_ih",
    "recurrent": "weight_hh",
    "input_bias": "bias_ih",
    "recurrent_bias": "bias_hh",
}


def stack(name: str, layers: int = 1) -> list[Cell]:
    """Layers in float64, their weights drawn wide."""
    cells = [CELLS[name](HIDDEN if layer else WIDTH, HIDDEN).double() for layer in range(layers)]
    for weight in (weight for cell in cells for weight in cell.parameters()):
        weight.data.normal_(0.0, 0.7)
    return cells


def copied(cells: list[Cell], into: nn.Module, ends: list[str]) -> nn.Module:
    """torch's module with our weights; `ends` is how the names of each layer end there."""
    into = into.double()
    for cell, end in zip(cells, ends, strict=True):
        for ours, theirs in THEIRS.items():
            getattr(into, theirs + end).data.copy_(getattr(cell, ours))
    return into


def begun(cells: list[Cell], rows: int = ROWS) -> list[Held]:
    """What layers might remember of an earlier call."""
    return [
        tuple(torch.randn(rows, HIDDEN, dtype=torch.float64) for _ in range(cell.parts))
        for cell in cells
    ]


def inputs(*shape: int) -> Tensor:
    return torch.randn(*shape, WIDTH, dtype=torch.float64, requires_grad=True)


def assert_same_gradients(cells: list[Cell], theirs: nn.Module, ends: list[str]) -> None:
    for cell, end in zip(cells, ends, strict=True):
        for ours, name in THEIRS.items():
            assert_same(getattr(cell, ours).grad, getattr(theirs, name + end).grad)


def run(cells, x, held, counts=None):
    """Layers on top of one another."""
    after = []
    for cell, before in zip(cells, held, strict=True):
        x, end = cell(x, before, counts)
        after.append(end)
    return x, after


@pytest.mark.parametrize("name", NAMES)
def test_a_step_is_that_of_torch_and_so_are_its_gradients(name: str):
    cells = stack(name)
    theirs = copied(cells, SINGLE[name](WIDTH, HIDDEN), [""])
    x, (held,) = inputs(ROWS), begun(cells)
    y = x.detach().clone().requires_grad_()
    ours = cells[0].step(x, held)
    wanted = theirs(y, held if len(held) > 1 else held[0])
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    weight = torch.randn(ROWS, HIDDEN, dtype=torch.float64)
    for one, other in zip(ours, wanted, strict=True):
        assert_same(one, other)
    sum((part * weight).sum() for part in ours).backward()
    sum((part * weight).sum() for part in wanted).backward()
    assert_same(x.grad, y.grad)
    assert_same_gradients(cells, theirs, [""])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layers", [1, 3])
def test_many_positions_are_those_of_torch_and_of_steps(name: str, layers: int):
    cells, ends = stack(name, layers), [f"_l{layer}" for layer in range(layers)]
    theirs = copied(cells, WHOLE[name](WIDTH, HIDDEN, layers, batch_first=True), ends)
    x, held = inputs(ROWS, POSITIONS), begun(cells)
    y, after = run(cells, x, held)
    stacked = [torch.stack(parts) for parts in zip(*held, strict=True)]
    wanted, last = theirs(x, tuple(stacked) if len(stacked) > 1 else stacked[0])
    assert_same(y, wanted)
    for part, end in enumerate(last if isinstance(last, tuple) else (last,)):
        assert_same(torch.stack([layer[part] for layer in after]), end)
    stepped, now = [], held
    for token in x.unbind(1):
        found: list[Held] = []
        for cell, before in zip(cells, now, strict=True):
            found.append(cell.step(found[-1][0] if found else token, before))
        now = found
        stepped.append(now[-1][0])
    assert_same(y, torch.stack(stepped, dim=1))
    weight = torch.randn_like(y)
    (y * weight).sum().backward()
    assert x.grad is not None
    ours, x.grad = x.grad.clone(), None
    (wanted * weight).sum().backward()
    assert_same(ours, x.grad)
    assert_same_gradients(cells, theirs, ends)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("counts", [[6, 2, 0, 3], [0, 0, 0, 1], [1, 4, 4, 6]])
@torch.no_grad()
def test_rows_of_different_lengths_are_as_if_each_ran_alone(name: str, counts: list[int]):
    cells = stack(name, 2)
    x, held = inputs(ROWS, POSITIONS), begun(cells)
    y, after = run(cells, x, held, counts=counts)
    assert y.shape == (ROWS, POSITIONS, HIDDEN)
    for row, count in enumerate(counts):
        before = [tuple(part[row : row + 1] for part in layer) for layer in held]
        if count:
            alone, before = run(cells, x[row : row + 1, :count], before)
            assert_same(y[row, :count], alone[0])
        for ours, wanted in zip(after, before, strict=True):  # of no tokens: what was held
            for one, other in zip(ours, wanted, strict=True):
                assert_same(one[row : row + 1], other)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_another_matrix_may_stand_in_for_the_recurrent_one(name: str):
    cells, (other,) = stack(name), stack(name)
    x, (held,) = inputs(ROWS, 1), begun(cells)
    y, after = cells[0](x, held, recurrent=other.recurrent)
    stepped = cells[0].step(x[:, 0], held, other.recurrent)
    assert_same(y[:, 0], stepped[0])
    cells[0].recurrent.copy_(other.recurrent)
    for found in (stepped, after):
        for one, wanted in zip(found, cells[0].step(x[:, 0], held), strict=True):
            assert_same(one, wanted)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def sums(matrix: Tensor, bias: Tensor, vector: Tensor) -> list[list[float]]:
    """Mx + b number by number, in parts of HIDDEN: one for each gate."""
    pairs = zip(matrix.tolist(), bias.tolist(), strict=True)
    flat = [b + sum(w * v for w, v in zip(row, vector.tolist(), strict=True)) for row, b in pairs]
    return [flat[first : first + HIDDEN] for first in range(0, len(flat), HIDDEN)]


def by_hand(name: str, cell: Cell, x: Tensor, held: tuple[Tensor, ...]) -> list[list[float]]:
    """The cell's equations for one row: Elman 1990, Cho 2014, Gers 2000."""
    given = sums(cell.input, cell.input_bias, x)
    before = sums(cell.recurrent, cell.recurrent_bias, held[0])
    h = held[0].tolist()
    if name == "elman":
        return [[math.tanh(given[0][i] + before[0][i]) for i in range(HIDDEN)]]
    if name == "gru":
        new = []
        for i in range(HIDDEN):
            reset, update = (sigmoid(given[gate][i] + before[gate][i]) for gate in (0, 1))
            candidate = math.tanh(given[2][i] + reset * before[2][i])
            new.append((1 - update) * candidate + update * h[i])
        return [new]
    outputs, cells = [], []
    for i in range(HIDDEN):
        entering, forgetting, candidate, leaving = (given[g][i] + before[g][i] for g in range(4))
        kept = sigmoid(forgetting) * float(held[1][i])
        cells.append(kept + sigmoid(entering) * math.tanh(candidate))
        outputs.append(sigmoid(leaving) * math.tanh(cells[-1]))
    return [outputs, cells]


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_a_step_is_the_equations_number_by_number(name: str):
    (cell,) = cells = stack(name)
    x, (held,) = inputs(ROWS), begun(cells)
    found = cell.step(x, held)
    for row in range(ROWS):
        wanted = by_hand(name, cell, x[row], tuple(part[row] for part in held))
        for one, other in zip(found, wanted, strict=True):
            assert one[row].tolist() == pytest.approx(other, abs=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_weights_begin_within_one_over_the_root_and_an_lstm_remembers(name: str):
    cell = CELLS[name](20, 64)
    for part, weight in cell.named_parameters():
        if name == "lstm" and part == "input_bias":
            gates = weight.view(4, 64)
            assert torch.equal(gates[1], torch.ones(64))  # that of forgetting
            weight = gates[[0, 2, 3]]
        assert 0.11 < weight.abs().max() <= 0.125
        assert weight.mean().abs() < 0.03
    assert all(part.abs().sum() == 0 for part in cell.blank(3))
    assert [part.shape for part in cell.blank(3)] == [(3, 64)] * cell.parts

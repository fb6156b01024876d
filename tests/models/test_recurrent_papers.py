"""Recurrent encoder–decoders against the papers' equations, written out for one row in numpy.

No batch, no padding, one position after the other. And the encoder against torch's own.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from numpy import ndarray as Vector
from tiny_models import assert_same, ids
from tiny_recurrent import LOOKING, PAIRS, memory_of, tiny
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.models.protocol import Memory
from regard.models.recurrent.model import Recurrent

SOURCES = [5, 2, 3]
Weights = dict[str, Vector]
Held = list[Vector]  # h; of an LSTM also c


# --- the equations ---------------------------------------------------------------------------


def sigmoid(x: Vector) -> Vector:
    return 1 / (1 + np.exp(-x))


def softmax(scores: list[float]) -> Vector:
    shares = np.exp(np.array(scores))
    return shares / shares.sum()


def step(cell: str, w: Weights, place: str, x: Vector, held: Held) -> Held:
    """One step of the cell at `place`."""
    given = w[f"{place}.input"] @ x + w[f"{place}.input_bias"]
    before = w[f"{place}.recurrent"] @ held[0] + w[f"{place}.recurrent_bias"]
    if cell == "elman":
        return [np.tanh(given + before)]
    if cell == "gru":
        (wr, wz, wn), (ur, uz, un) = np.split(given, 3), np.split(before, 3)
        z = sigmoid(wz + uz)
        return [(1 - z) * np.tanh(wn + sigmoid(wr + ur) * un) + z * held[0]]
    i, f, g, o = np.split(given + before, 4)
    c = sigmoid(f) * held[1] + sigmoid(i) * np.tanh(g)
    return [sigmoid(o) * np.tanh(c), c]


class Twin:
    """A model's weights, and what its parts do with one row."""

    def __init__(self, model: Recurrent) -> None:
        self.config = model.config
        self.w = {name: weight.numpy() for name, weight in model.state_dict().items()}
        self.parts = 2 if self.config.cell == "lstm" else 1

    def word(self, token: int) -> Vector:
        return self.w["embed.tokens.weight"][token]

    def linear(self, place: str, *parts: Vector) -> Vector:
        bias = self.w.get(f"{place}.bias", 0.0)
        return self.w[f"{place}.weight"] @ np.concatenate(parts) + bias

    def encoded(self, source: list[int]) -> tuple[list[Vector], Vector]:
        """h_1 … h_n, each of both directions, and where the directions end."""
        table = self.w.get("source_embed.tokens.weight", self.w["embed.tokens.weight"])
        xs, ends = [table[token] for token in source], []
        for layer in range(self.config.encoder_layers):
            columns = [self.read(f"encoder.ahead.{layer}", xs)]
            ends = [columns[0][-1]]
            if self.config.bidirectional:
                columns.append(self.read(f"encoder.back.{layer}", xs[::-1])[::-1])
                ends.append(columns[1][0])
            xs = [np.concatenate(column) for column in zip(*columns, strict=True)]
        return xs, np.concatenate(ends)

    def read(self, place: str, xs: list[Vector]) -> list[Vector]:
        held, found = [np.zeros(self.w[f"{place}.recurrent"].shape[1])] * self.parts, []
        for x in xs:
            held = step(self.config.cell, self.w, place, x, held)
            found.append(held[0])
        return found

    def begun(self, whole: Vector) -> list[Held]:
        """Each layer's first h (and c), from the source as one vector."""
        numbers = np.tanh(self.linear("decoder.start", whole))
        numbers = numbers.reshape(self.config.layers, self.parts, -1)
        return [list(layer) for layer in numbers]

    def stepped(self, x: Vector, held: list[Held]) -> list[Held]:
        found = []
        for layer, before in enumerate(held):
            place = f"decoder.layers.cells.{layer}"
            found.append(step(self.config.cell, self.w, place, x, before))
            x = found[-1][0]
        return found

    def logits(self, output: Vector) -> Vector:
        matrix = self.w.get("head.project.weight", self.w["embed.tokens.weight"])
        return matrix @ output + self.w["head.bias"]


def seen(twin: Twin, state: Vector, annotations: list[Vector]) -> Vector:
    """e_j = v·tanh(W s + U h_j + b), and the annotations by the softmax of that."""
    asking = twin.w["decoder.attend.similarity.query.weight"] @ state
    scores = [
        float(
            twin.w["decoder.attend.similarity.score.weight"][0]
            @ np.tanh(asking + twin.linear("decoder.key", annotation))
        )
        for annotation in annotations
    ]
    return sum(a * h for a, h in zip(softmax(scores), annotations, strict=True))


def bahdanau(twin: Twin, source: list[int], target: list[int]) -> list[Vector]:
    """Who asks is the state before the step; with feeding, as Luong has it, the one behind it."""
    annotations, whole = twin.encoded(source)
    held, found = twin.begun(whole), []
    fed = np.zeros(twin.config.width)
    for token in target:
        if twin.config.input_feeding:
            held = twin.stepped(np.concatenate([twin.word(token), fed]), held)
            context = seen(twin, held[-1][0], annotations)
            fed = np.tanh(twin.linear("decoder.combine", held[-1][0], context, twin.word(token)))
            found.append(twin.logits(fed))
            continue
        context = seen(twin, held[-1][0], annotations)
        held = twin.stepped(np.concatenate([twin.word(token), context]), held)
        output = twin.linear("decoder.combine", held[-1][0], context, twin.word(token))
        found.append(twin.logits(np.tanh(output)))
    return found


def luong(twin: Twin, source: list[int], target: list[int]) -> list[Vector]:
    """score = h_t·W h_s: who asks is the state behind the step; h̃ may be fed to the next one."""
    states, whole = twin.encoded(source)
    held, found = twin.begun(whole), []
    attentional = np.zeros(twin.config.width)
    for token in target:
        fed = [attentional] if twin.config.input_feeding else []
        held = twin.stepped(np.concatenate([twin.word(token), *fed]), held)
        asking = held[-1][0]
        if twin.config.attention == "general":
            asking = asking @ twin.w["decoder.key.weight"]  # hᵀW
        weights = softmax([float(asking @ state) for state in states])
        context = sum(a * h for a, h in zip(weights, states, strict=True))
        attentional = np.tanh(twin.linear("decoder.combine", held[-1][0], context))
        found.append(twin.logits(attentional))
    return found


def cho(twin: Twin, source: list[int], target: list[int]) -> list[Vector]:
    """One vector starts the decoder, and may stand beside every token and every output."""
    _, whole = twin.encoded(source)
    held, found = twin.begun(whole), []
    beside = [whole] if twin.config.input_feeding else []
    for token in target:
        held = twin.stepped(np.concatenate([twin.word(token), *beside]), held)
        output = np.tanh(twin.linear("decoder.combine", held[-1][0], *beside))
        found.append(twin.logits(output))
    return found


PAPERS: dict[str, Callable[..., list[Vector]]] = {
    "additive": bahdanau,
    "dot": luong,
    "general": luong,
    "none": cho,
}
CASES = [
    "gru additive both 1",  # Bahdanau 2014
    "lstm general fed both 2",  # Luong 2015
    "lstm dot fed ahead 1",
    "elman general ahead 2",
    "lstm additive both 2",
    "lstm additive fed ahead 2",
    "gru none fed ahead 1",  # Cho 2014
    "lstm none ahead 2",  # Sutskever 2014
    "elman none fed both 2",
    "gru additive odd",
]


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_a_model_is_its_papers_equations(case: str):
    model, targets, texts = tiny(case), ids(3, 4), ids(3, 5, seed=7)
    logits = model(targets, memory_of(model, 3, SOURCES))
    write = partial(PAPERS[model.config.attention], Twin(model))
    for row, length in enumerate(SOURCES):
        wanted = write(texts[row, :length].tolist(), targets[row].tolist())
        assert_same(logits[row], torch.from_numpy(np.stack(wanted)))


# --- the encoder against torch ---------------------------------------------------------------

WHOLE = {"elman": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


@pytest.mark.parametrize("cell", WHOLE)
@pytest.mark.parametrize("layers", [1, 3])
@torch.no_grad()
def test_the_encoder_is_torchs_bidirectional_one_over_packed_rows(cell: str, layers: int):
    model = tiny(f"{cell} dot both 1", encoder_layers=layers)
    theirs = WHOLE[cell](6, 4, layers, batch_first=True, bidirectional=True).double()
    names = {"input": "weight_ih", "recurrent": "weight_hh"}
    names |= {"input_bias": "bias_ih", "recurrent_bias": "bias_hh"}
    for cells, end in ((model.encoder.ahead, ""), (model.encoder.back, "_reverse")):
        for layer, one in enumerate(cells):
            for ours, name in names.items():
                getattr(theirs, f"{name}_l{layer}{end}").copy_(getattr(one, ours))
    texts = ids(3, 5, seed=7)
    packed = pack_padded_sequence(
        model.embed(texts), torch.tensor(SOURCES), batch_first=True, enforce_sorted=False
    )
    found, last = theirs(packed)
    wanted, _ = pad_packed_sequence(found, batch_first=True)
    ends = last[0] if isinstance(last, tuple) else last  # (layers · directions, rows, 4)
    memory = model.encode(texts, SOURCES)
    for row, length in enumerate(SOURCES):
        assert_same(memory.values[row, :length], wanted[row, :length])
    assert_same(memory.whole, torch.cat((ends[-2], ends[-1]), dim=-1))


# --- what of a source reaches the decoder ----------------------------------------------------


@pytest.mark.parametrize("case", [case for case in PAIRS if " none " in case])
@torch.no_grad()
def test_without_attention_one_vector_is_all_of_a_source(case: str):
    model, targets = tiny(case), ids(3, 4)
    memory = memory_of(model, 3, SOURCES)
    assert memory.values.shape == (3, 1, 8)
    assert memory.mask is None
    assert torch.equal(memory.values[:, 0], memory.whole)
    alike = Memory(torch.randn_like(memory.values), whole=memory.whole)
    assert torch.equal(model(targets, alike), model(targets, memory))
    other = replace(memory, whole=memory.whole.flip(0))
    assert (model(targets, other) - model(targets, memory)).abs().max() > 0.01


@pytest.mark.parametrize("case", LOOKING)
@torch.no_grad()
def test_with_attention_every_real_position_matters(case: str):
    model, targets = tiny(case), ids(3, 4)
    memory = memory_of(model, 3, SOURCES)
    plain = model(targets, memory)
    for place in range(5):
        values = memory.values.clone()
        values[:, place] += 1.0
        moved = (model(targets, replace(memory, values=values)) - plain).abs().amax((1, 2))
        assert [bool(much > 1e-6) for much in moved] == [place < real for real in SOURCES]


@pytest.mark.parametrize("case", ["gru none both 1", "lstm additive both 2"])
@torch.no_grad()
def test_of_a_source_without_tokens_nothing_is_seen(case: str):
    model, targets = tiny(case), ids(2, 4)
    one, other = (model(targets, model.encode(ids(2, 3, seed=seed), [0, 3])) for seed in (1, 2))
    assert torch.equal(one[0], other[0])
    assert not torch.equal(one[1], other[1])

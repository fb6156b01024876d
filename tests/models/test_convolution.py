"""Convolutional models: one layer is torch's, and the whole is what plain loops make."""

from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from every_family import reached
from tiny_models import VOCABULARY, assert_same, draw, ids
from tiny_recurrent import weighted
from torch import Tensor, nn
from torch.nn import functional as F

from regard.models.construction import build
from regard.models.convolution.config import ConvolutionConfig
from regard.models.convolution.model import Convolution, Gated

TEXT = ConvolutionConfig(vocabulary=VOCABULARY, width=6, layers=2)
PAIR = replace(TEXT, kind="encoder-decoder")
TEXTS = {
    "text": TEXT,
    "text even": replace(TEXT, kernel=2, dilation_growth=2, layers=3, tied=False),
    "text cycle": replace(TEXT, dilation_growth=3, dilation_cycle=2, layers=3),
    "text alone": replace(TEXT, kernel=1),
}
PAIRS = {
    "pairs": PAIR,
    "pairs grown": replace(PAIR, dilation_growth=2, layers=3, encoder_layers=2, heads=2),
    "pairs odd": replace(PAIR, source_vocabulary=300, tied=False, layers=1, encoder_layers=3),
}
EVERY = {**TEXTS, **PAIRS}


@cache
def tiny(case: str, **changes: object) -> Convolution:
    """A model in evaluation mode and float64, shared between tests: do not change it."""
    return fresh(case, **changes).eval()


def fresh(case: str, **changes: object) -> Convolution:
    """The same in training mode, for one test alone."""
    model: Convolution = build(replace(EVERY[case], **changes))
    draw(model)
    return model.double()


# --- one layer, all layers -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "gap", "causal"),
    [
        (3, 1, True),
        (2, 3, True),
        (1, 1, True),
        (4, 2, True),
        (3, 9, True),  # beyond the text
        (3, 1, False),
        (5, 2, False),
        (5, 4, False),
    ],
)
def test_a_layer_is_torchs_convolution_and_gate(kernel: int, gap: int, causal: bool):
    layer = Gated(replace(TEXT, kernel=kernel), gap, causal=causal).double()
    draw(layer)
    theirs = nn.Conv1d(6, 12, kernel, dilation=gap, dtype=torch.float64)
    weight = layer.mix.weight.view(12, kernel, 6).transpose(1, 2)  # (out, in, kernel)
    theirs.load_state_dict({"weight": weight, "bias": layer.mix.bias})
    x = torch.randn(2, 7, 6, dtype=torch.float64, requires_grad=True)
    back = (kernel - 1) * gap if causal else (kernel - 1) * gap // 2
    normed = layer.norm(x).mT  # (rows, width, positions)
    mixed = theirs(F.pad(normed, (back, (kernel - 1) * gap - back)))
    wanted = x + F.glu(mixed, dim=1).mT
    found, joined = layer(x)
    assert_same(found, wanted)
    assert joined.shape[1] <= 3 * 7  # nothing is laid out for the rest of a long reach
    share = [x, layer.norm.weight, layer.norm.bias]
    ours = torch.autograd.grad(weighted(found), [*share, layer.mix.weight, layer.mix.bias])
    other = torch.autograd.grad(weighted(wanted), [*share, theirs.weight, theirs.bias])
    for one, two in zip(ours, (*other[:3], other[3].mT.flatten(1), other[4]), strict=True):
        assert_same(one, two)


def offsets(kernel: int, gaps: tuple[int, ...]) -> set[int]:
    """How far back some way through the layers leads."""
    ways = product(*([step * gap for step in range(kernel)] for gap in gaps))
    return {sum(way) for way in ways}


@pytest.mark.parametrize(
    ("kernel", "dilation_growth", "dilation_cycle", "layers", "reach"),
    [
        (3, 1, 0, 2, 5),
        (3, 2, 0, 3, 15),
        (2, 2, 0, 4, 16),
        (3, 3, 2, 3, 11),
        (5, 2, 1, 2, 9),
        (1, 8, 0, 3, 1),
        (2, 3, 0, 2, 5),  # with a hole: growth is larger than the kernel
    ],
)
def test_a_position_sees_as_many_tokens_as_its_settings_say(
    kernel: int, dilation_growth: int, dilation_cycle: int, layers: int, reach: int
):
    """By the gradient of the last one's logits; every position has a token of its own."""
    model = fresh(
        "text",
        tied=False,
        kernel=kernel,
        dilation_growth=dilation_growth,
        dilation_cycle=dilation_cycle,
        layers=layers,
    )
    assert model.config.reach == reach
    most = reach + 4
    weighted(model(torch.arange(most)[None])[:, -1]).backward()
    back = offsets(kernel, model.config.gaps)
    assert reached(model.embed.tokens.weight.grad) == {most - 1 - step for step in back}
    assert max(back) == reach - 1
    assert (back == {*range(reach)}) == (dilation_growth <= kernel or layers == 1 or kernel == 1)


@pytest.mark.parametrize(("kernel", "dilation_growth", "layers"), [(3, 1, 2), (3, 2, 2), (5, 2, 2)])
def test_an_encoder_sees_as_far_ahead_as_back(kernel: int, dilation_growth: int, layers: int):
    more = {"kernel": kernel, "dilation_growth": dilation_growth, "encoder_layers": layers}
    model = fresh("pairs odd", **more)
    side = (kernel // 2) * sum(dilation_growth**layer for layer in range(layers))
    assert model.config.source_reach == 2 * side + 1
    middle, most = side + 2, 2 * side + 5
    for real in (most, middle + 1, middle + 2):
        model.zero_grad()
        values = model.encode(torch.arange(most)[None], [real]).values
        weighted(values[:, middle]).backward()
        seen = reached(model.source_embed.tokens.weight.grad)
        assert seen == {*range(middle - side, min(middle + side + 1, real))}


def twin(model: Convolution, source: list[int], text: list[int]) -> np.ndarray:
    """The logits (positions, vocabulary) of one text, by loops over positions and heads."""
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    config, width = model.config, model.config.width

    def embedded(tokens: list[int], name: str) -> list[np.ndarray]:
        found = []
        for place, token in enumerate(tokens):
            x = weights[f"{name}.tokens.weight"][token] * np.sqrt(width)
            waves = [place / 10000 ** (2 * (i // 2) / width) for i in range(width)]
            found.append(x + [(np.cos if i % 2 else np.sin)(wave) for i, wave in enumerate(waves)])
        return found

    def linear(name: str, x: np.ndarray) -> np.ndarray:
        return weights[f"{name}.weight"] @ x + weights[f"{name}.bias"]

    def normed(name: str, x: np.ndarray) -> np.ndarray:
        x = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
        return x * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def gated(name: str, xs: list[np.ndarray], first: int, gap: int) -> list[np.ndarray]:
        """`first`: where the window begins, counted from the position."""
        found = []
        for place, x in enumerate(xs):
            window = []
            for there in range(place + first, place + first + config.kernel * gap, gap):
                real = 0 <= there < len(xs)
                window.append(normed(f"{name}.norm", xs[there]) if real else np.zeros(width))
            mixed = linear(f"{name}.mix", np.concatenate(window))
            found.append(x + mixed[:width] / (1 + np.exp(-mixed[width:])))
        return found

    def looked(name: str, x: np.ndarray) -> np.ndarray:
        query, size = linear(f"{name}.query", x), width // config.heads
        both = [linear(f"{name}.key_value", one) for one in memory]
        found = []
        for first in range(0, width, size):
            scores = [query[first:][:size] @ one[first:][:size] / np.sqrt(size) for one in both]
            shares = np.exp(scores) / np.exp(scores).sum()
            values = [one[width + first :][:size] for one in both]
            found += list(sum(share * value for share, value in zip(shares, values, strict=True)))
        return linear(f"{name}.output", np.array(found))

    memory = embedded(source, "source_embed" if config.source_vocabulary else "embed")
    for layer in range(config.encoder_layers):
        gap = config.dilation_growth**layer
        memory = gated(f"encoder.{layer}", memory, -(config.kernel // 2) * gap, gap)
    memory = [normed("encoder_norm", one) for one in memory]
    xs = embedded(text, "embed")
    for layer in range(config.layers):
        gap = config.dilation_growth**layer
        name = f"decoder.{layer}"
        xs = gated(f"{name}.convolution", xs, -(config.kernel - 1) * gap, gap)
        xs = [x + looked(f"{name}.cross", normed(f"{name}.cross_norm", x)) for x in xs]
    out = weights["embed.tokens.weight" if config.tied else "head.project.weight"]
    return np.stack([out @ normed("head.norm", x) + weights["head.bias"] for x in xs])


@pytest.mark.parametrize("case", PAIRS)
@torch.no_grad()
def test_all_of_it_is_what_plain_loops_make(case: str):
    model, source, text = tiny(case), ids(5, seed=1), ids(7, seed=2)
    found = model(text[None], model.encode(source[None]))[0]
    wanted = twin(model, source.tolist(), text.tolist())
    assert found.std() > 0.1
    assert_same(found, torch.from_numpy(wanted), 1e-6)  # the model has its waves in float32


# --- gradients -------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["text", "text even", "text cycle"])
def test_gradients_end_where_a_call_began(case: str):
    """What is carried over is numbers alone, but they count."""
    model = fresh(case, tied=False)
    first, second = torch.tensor([[5, 6, 7], [8, 9, 5]]), torch.tensor([[10, 11], [12, 10]])
    state = model.start(2, 5)
    before = model(first, None, state)
    assert not any(part.requires_grad for part in state.held)
    assert all(part.abs().sum() > 0 for part in state.held)
    after = model(second, None, state)
    assert_same(after, model(torch.cat((first, second), dim=1))[:, 3:])
    weighted(after).backward()
    table = model.embed.tokens.weight
    assert reached(table.grad) == {10, 11, 12}
    table.grad = None
    weighted(before).backward()  # its graph is whole still
    assert reached(table.grad) == {5, 6, 7, 8, 9}


# --- vocabularies, dropout -------------------------------------------------------------------


def fallen(after: Tensor, before: Tensor) -> None:
    """Some numbers are 0, all others doubled."""
    found = after / before
    assert ((found.abs() < 1e-9) | (found - 2).abs().lt(1e-6)).all()
    assert 0.3 < (found.abs() < 1e-9).double().mean() < 0.7


@torch.no_grad()
def test_dropout_is_of_embeddings_and_of_what_layers_add():
    model, memory = fresh("pairs", dropout=0.5, width=40), tiny("pairs", width=40).encode(ids(2, 5))
    tokens, x = ids(2, 5), torch.randn(2, 5, 40, dtype=torch.float64)
    fallen(model.embed(tokens), tiny("pairs", width=40).embed(tokens))
    layer, still = model.decoder[0], tiny("pairs", width=40).decoder[0]
    fallen(layer.convolution(x)[0] - x, still.convolution(x)[0] - x)
    layer.convolution.eval()
    state = tiny("pairs", width=40).start(2, 5)
    tiny("pairs", width=40)(tokens, memory, state)
    given = (None, state.reading, 0, state.reading.overlay(5), None)
    begun = still.convolution(x)[0]
    fallen(layer(x, *given)[0] - begun, still(x, *given)[0] - begun)

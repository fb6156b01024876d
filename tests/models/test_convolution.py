"""Convolutional models: one layer is torch's, the whole is plain loops', and the protocol holds."""

from dataclasses import replace
from functools import cache
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_recurrent import SOURCES, feed, orders, reached, read, three
from tiny_models import VOCABULARY, assert_same, draw, ids
from tiny_recurrent import alone, memory_of, memory_of_row, weighted
from torch import Tensor, nn
from torch.nn import functional as F

import regard
from regard.models.construction import build
from regard.models.convolution.config import ConvolutionConfig
from regard.models.convolution.model import Convolution, Gated
from regard.models.convolution.state import LastInputs
from regard.models.protocol import Memory, SequenceModel

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
few = settings(max_examples=4)


@cache
def tiny(case: str, **changes: object) -> Convolution:
    """A model in evaluation mode and float64, shared between tests: do not change it."""
    return fresh(case, **changes).eval()


def fresh(case: str, **changes: object) -> Convolution:
    """The same in training mode, for one test alone."""
    model: Convolution = build(replace(EVERY[case], **changes))
    draw(model)
    return model.double()


def looks(model: Convolution, tokens: Tensor, memory: Memory) -> Tensor:
    """What the tape says of a pass: (rows, layers, heads, new, source positions)."""
    with regard.record(model) as tape:
        model(tokens, memory)
    layers = range(model.config.layers)
    return torch.stack([tape[f"decoder.{layer}.cross"].probabilities for layer in layers], dim=1)


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


@pytest.mark.parametrize("case", EVERY)
@torch.no_grad()
def test_a_later_token_changes_nothing_before_it(case: str):
    model, tokens = tiny(case), ids(2, 8)
    memory = memory_of(model, 2)
    whole = model(tokens, memory)
    for place in (1, 5, 7):
        changed = tokens.clone()
        changed[:, place] = (changed[:, place] + 1) % VOCABULARY
        found = model(changed, memory)
        assert torch.equal(found[:, :place], whole[:, :place])
        assert (found[:, place] - whole[:, place]).abs().amax(-1).min() > 1e-3


# --- pieces ----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", EVERY)
@few
@given(cut=st.lists(st.integers(0, 12), max_size=8))
@example(cut=[*range(12)])  # one by one
@example(cut=[3, 3, 4])  # nothing at all may come
@torch.no_grad()
def test_a_full_pass_equals_one_in_any_pieces(case: str, cut: list[int]):
    model, tokens = tiny(case), ids(2, 12)
    assert isinstance(model, SequenceModel)
    memory = memory_of(model, 2, [5, 3])
    whole = model(tokens, memory)
    assert whole.shape == (2, 12, 256)
    assert whole.std() > 0.1  # else a mistake would drown
    state = model.start(2, 12)
    ends = [0, *sorted(cut), 12]
    parts = [model(tokens[:, first:last], memory, state) for first, last in pairwise(ends)]
    assert_same(torch.cat(parts, dim=1), whole)
    assert state.lengths == [12, 12]


@pytest.mark.parametrize("case", EVERY)
@torch.no_grad()
def test_padding_changes_nothing_for_a_row(case: str):
    """With a state and without; behind the padding, nothing of it is left."""
    model, tokens, counts = tiny(case), ids(3, 4), [2, 4, 1]
    memory = memory_of(model, 3, SOURCES)
    state = model.start(3, 9)
    plain = model(tokens, memory, lengths=counts)
    begun = model(tokens, memory, state, lengths=counts)
    more = ids(3, 1, seed=5)
    after = model(more, None, state)
    for row, (count, length) in enumerate(zip(counts, SOURCES, strict=True)):
        text = torch.cat((tokens[row, :count], more[row]))
        wanted = alone(model, 3, row, text, length)
        assert_same(plain[row, :count], wanted[:count])
        assert_same(begun[row, :count], wanted[:count])
        assert_same(after[row], wanted[count:])
        if memory is not None:
            own = memory_of_row(model, 3, row, length)
            assert_same(memory.values[row, :length], own.values[0])


@pytest.mark.parametrize("case", ["text cycle", "pairs grown"])
@torch.no_grad()
def test_with_last_only_what_follows_the_last_real_token_comes(case: str):
    model, tokens, counts = tiny(case), ids(3, 4), [2, 4, 1]
    memory = memory_of(model, 3, SOURCES)
    whole = model(tokens, memory)
    ends = torch.stack([whole[row, count - 1] for row, count in enumerate(counts)])[:, None]
    assert_same(model(tokens, memory, last=True), whole[:, -1:])
    assert_same(model(tokens, memory, lengths=counts, last=True), ends)
    state = model.start(3, 4)
    assert_same(model(tokens, memory, state, lengths=torch.tensor(counts), last=True), ends)


@pytest.mark.parametrize("case", EVERY)
@few
@given(steps=st.lists(three, min_size=1, max_size=3))
@example(steps=[[4, 0, 1], [0, 4, 2], [3, 1, 0]])
@torch.no_grad()
def test_ragged_rows_equal_each_row_by_itself(case: str, steps: list[list[int]]):
    """Rows that get nothing for a while wait."""
    model, texts = tiny(case), ids(3, 12)
    state, memory = model.start(3, 12), memory_of(model, 3, SOURCES)
    held = [0, 0, 0]
    parts: list[list[Tensor]] = [[], [], []]
    for counts in steps:
        pieces = [texts[row, held[row] : held[row] + count] for row, count in enumerate(counts)]
        for row, logits in enumerate(feed(model, state, pieces, memory)):
            parts[row].append(logits)
        held = [before + count for before, count in zip(held, counts, strict=True)]
        assert state.lengths == held
    for row, count in enumerate(held):
        if count:
            wanted = alone(model, 3, row, texts[row, :count], SOURCES[row])
            assert_same(torch.cat(parts[row]), wanted)


# --- rows that move, tokens that are forgotten -----------------------------------------------


def assert_continues(
    model: Convolution, state: LastInputs, held: list[Tensor], origin: list[int], seed: int
) -> None:
    """Two more tokens a row, compared with a pass over what each row should hold."""
    new = ids(len(held), 2, seed=seed)
    logits = model(new, None, state)
    assert state.rows == len(held)
    for row, text in enumerate(held):
        held[row] = torch.cat((text, new[row]))
        length = SOURCES[origin[row]]
        assert_same(logits[row], alone(model, 3, origin[row], held[row], length)[-2:])
        if state.attention is not None:
            memory = memory_of_row(model, 3, origin[row], length)
            seen = looks(model, held[row][None], memory)[0, ..., -2:, :]
            assert_same(state.attention[row, ..., :length], seen)
            assert state.attention[row, ..., length:].abs().sum() == 0


@pytest.mark.parametrize("case", EVERY)
@few
@given(turns=st.lists(orders, min_size=1, max_size=3))
@example([[0, 0, 1, 1, 2, 2], [1, 0, 2, 2, 5, 4], [5, 0]])
@torch.no_grad()
def test_any_reorders_are_as_if_each_row_had_been_read_anew(case: str, turns: list[list[int]]):
    model, texts, counts = tiny(case), ids(3, 3), [2, 1, 3]
    state = model.start(3, 20, return_attention=case in PAIRS)
    held, origin = [texts[row, :count] for row, count in enumerate(counts)], [0, 1, 2]
    feed(model, state, held, memory_of(model, 3, SOURCES))
    for turn, order in enumerate(turns):
        rows = [row % state.rows for row in order]
        state.reorder(rows)
        held, origin = [held[row] for row in rows], [origin[row] for row in rows]
        assert_continues(model, state, held, origin, seed=40 + turn)


@pytest.mark.parametrize("case", EVERY)
@few
@given(
    more=three,
    forget=three,
    order=st.lists(st.integers(0, 2), min_size=1, max_size=5),
    when=st.sampled_from(["never", "before", "between", "after"]),
)
@example(more=[3, 1, 2], forget=[1, 0, 2], order=[0, 0, 2, 0], when="between")
@example(more=[3, 1, 2], forget=[1, 0, 2], order=[2, 0], when="after")
@example(more=[4, 4, 4], forget=[4, 4, 4], order=[0], when="never")
@torch.no_grad()
def test_going_on_after_forgetting_is_never_having_read(
    case: str, more: list[int], forget: list[int], order: list[int], when: str
):
    """`when` rows change places: before the tokens come, before they are forgotten, or after."""
    model, texts, counts = tiny(case), ids(3, 4), [2, 4, 1]
    state = model.start(3, 30)
    held, origin = [texts[row, :count] for row, count in enumerate(counts)], [0, 1, 2]
    feed(model, state, held, memory_of(model, 3, SOURCES))
    if when == "before":
        state.reorder(order)
        held, origin = [held[row] for row in order], [origin[row] for row in order]
    pieces = [ids(more[row % 3], seed=7 + row) for row in range(len(held))]
    feed(model, state, pieces)
    if when == "between":  # rows that repeat may forget different counts
        state.reorder(order)
        held, origin = [held[row] for row in order], [origin[row] for row in order]
        pieces = [pieces[row] for row in order]
    taken = [min(forget[row % 3], len(piece)) for row, piece in enumerate(pieces)]
    state.rollback(taken)
    held = [
        torch.cat((text, piece[: len(piece) - count]))
        for text, piece, count in zip(held, pieces, taken, strict=True)
    ]
    if when == "after":
        state.reorder(order)
        held, origin = [held[row] for row in order], [origin[row] for row in order]
    assert_continues(model, state, held, origin, seed=1)
    state.rollback([row % 2 for row in range(len(held))])
    state.rollback([1 for _ in held])  # in two goes
    held = [text[: len(text) - 1 - row % 2] for row, text in enumerate(held)]
    assert_continues(model, state, held, origin, seed=2)


@pytest.mark.parametrize("case", ["text cycle", "pairs grown"])
@torch.no_grad()
def test_all_may_be_forgotten_and_the_source_stays(case: str):
    model = tiny(case)
    state, memory = model.start(2, 6), memory_of(model, 2)
    model(ids(2, 4), memory, state)
    state.rollback([4, 4])
    assert_same(model(ids(2, 6, seed=3), None, state), model(ids(2, 6, seed=3), memory))
    state.free()
    assert (state.rows, state.held, state.reading) == (0, [], None)


# --- what is seen ----------------------------------------------------------------------------


@pytest.mark.parametrize("case", PAIRS)
@torch.no_grad()
def test_what_is_seen_is_what_the_tape_records(case: str):
    model, texts = tiny(case), ids(3, 6)
    memory = memory_of(model, 3, SOURCES)
    whole = looks(model, texts, memory)
    plain, state = model.start(3, 6), model.start(3, 6, return_attention=True)
    assert state.attention is None
    for first, last in ((0, 3), (3, 4), (4, 6)):
        logits = model(texts[:, first:last], memory, state)
        assert torch.equal(logits, model(texts[:, first:last], memory, plain))
        assert plain.attention is None
        layers, heads = model.config.layers, model.config.heads
        assert state.attention.shape == (3, layers, heads, last - first, 5)
        assert_same(state.attention, whole[..., first:last, :])
        assert_same(state.attention.sum(-1), torch.ones_like(state.attention[..., 0]))
        for row, length in enumerate(SOURCES):
            assert state.attention[row, ..., length:].abs().sum() == 0
    assert whole[0].std() > 0.01  # else all would look alike
    for change in (lambda: state.rollback([1, 0, 0]), lambda: state.reorder([1, 0, 2])):
        model(texts[:, :1], None, state)
        assert state.attention is not None
        change()
        assert state.attention is None  # it was of other tokens, of other rows


# --- gradients -------------------------------------------------------------------------------


@pytest.mark.parametrize("case", EVERY)
def test_gradients_reach_every_parameter(case: str):
    model, tokens = fresh(case), ids(3, 12)
    weighted(model(tokens, memory_of(model, 3, SOURCES))).backward()
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        assert gradient is not None, name
        if name == "embed.tokens.weight" and not model.config.tied:
            assert reached(gradient) == {*tokens.flatten().tolist()}
        elif name == "source_embed.tokens.weight":
            assert reached(gradient) == {*read()}  # without the padding
        elif name.endswith("key_value.bias"):  # what all keys share moves no share of attention
            assert gradient[: model.config.width].abs().max() < 1e-9
            assert gradient[model.config.width :].ne(0).all()
        else:
            assert gradient.ne(0).all(), name


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


def test_a_source_learns_from_every_call_but_a_prefix_only_from_its_own():
    model = fresh("pairs odd")
    state = model.start(2, 4)
    model(torch.tensor([[5, 6], [7, 8]]), model.encode(ids(2, 5)), state)
    weighted(model(torch.tensor([[9], [9]]), None, state)).backward()
    assert reached(model.embed.tokens.weight.grad) == {9}
    assert reached(model.source_embed.tokens.weight.grad) == {*ids(2, 5).flatten().tolist()}


# --- vocabularies, dropout -------------------------------------------------------------------


@pytest.mark.parametrize("case", ["text", "pairs"])
@torch.no_grad()
def test_a_tied_output_matrix_is_the_embedding(case: str):
    tied, own = tiny(case), tiny(case, tied=False)
    assert not any("project" in name for name in tied.state_dict())
    hidden = tied.hidden(ids(2, 3), memory_of(tied, 2))
    assert hidden.shape == (2, 3, 6)
    table = tied.state_dict()["embed.tokens.weight"]
    assert_same(tied(ids(2, 3), memory_of(tied, 2)), hidden @ table.T + tied.head.bias)
    hidden = own.hidden(ids(2, 3), memory_of(own, 2))
    assert not torch.equal(own.head.project.weight, own.embed.tokens.weight)
    assert_same(own.logits(hidden), hidden @ own.head.project.weight.T + own.head.bias)


@torch.no_grad()
def test_a_source_may_have_words_of_its_own():
    """Those of the source count for nothing but the source, and the other way round."""
    model, apart, tokens = tiny("pairs odd"), fresh("pairs odd").eval(), ids(2, 3)
    source = torch.tensor([[299, 7, 256], [8, 280, 9]])
    assert model(tokens, model.encode(source)).shape == (2, 3, 256)
    apart.embed.tokens.weight.zero_()
    assert torch.equal(apart.encode(source).values, model.encode(source).values)
    assert tiny("pairs").source_embed is None


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


@pytest.mark.parametrize("case", ["text cycle", "pairs grown"])
@torch.no_grad()
def test_in_use_nothing_falls(case: str):
    model, tokens = fresh(case, dropout=0.5), ids(2, 5)
    memory = memory_of(model.eval(), 2)
    used = model(tokens, memory)
    assert torch.equal(used, tiny(case)(tokens, memory_of(tiny(case), 2)))
    model.train()
    assert (model(tokens, memory) - model(tokens, memory)).abs().max() > 0.01

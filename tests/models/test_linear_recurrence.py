"""Gated linear recurrence: the scan is a loop, whatever the gates, and both forms are one model."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny_models import VOCABULARY, assert_same, draw, ids
from torch import Tensor, nn
from torch.nn import functional as F

from regard.errors import RegardError
from regard.models.construction import build
from regard.models.linear_recurrence.config import LinearRecurrenceConfig
from regard.models.linear_recurrence.model import SPANS, GatedRecurrence, LinearRecurrence
from regard.models.linear_recurrence.scan import Scan, scan
from regard.models.masks import Documents
from regard.models.protocol import Memory, SequenceModel
from regard.models.registry import named

TEXT = LinearRecurrenceConfig(vocabulary=VOCABULARY, width=6, layers=2)
CASES = {
    "plain": TEXT,
    "wide": replace(TEXT, hidden=11, feedforward=5, layers=3),
    "no convolution": replace(TEXT, kernel=1, hidden=4),
    "long convolution": replace(TEXT, kernel=7, layers=1),
}
LONG = 4096
three = st.lists(st.integers(0, 4), min_size=3, max_size=3)


def fresh(case: str, **changes: object) -> LinearRecurrence:
    """A model in training mode and float64, of wide weights, for one test alone."""
    model: LinearRecurrence = build(replace(CASES[case], **changes))
    draw(model)
    return model.double()


@cache
def tiny(case: str) -> LinearRecurrence:
    """The same in evaluation mode, shared between tests: do not change it."""
    return fresh(case).eval()


def loop(a: Tensor, b: Tensor, first: Tensor) -> Tensor:
    """The recurrence as it is written, in float64."""
    h = [first.double()]
    for t in range(a.shape[1]):
        h.append(a[:, t].double() * h[-1] + b[:, t].double())
    return torch.stack(h, dim=1)


def backward(way, a: Tensor, b: Tensor, first: Tensor, weight: Tensor) -> list[Tensor]:
    """What a way of computing it gives, and its gradients."""
    parts = [tensor.detach().clone().requires_grad_() for tensor in (a, b, first)]
    h = way(*parts)
    total = (h * weight.to(h.dtype)).sum()
    return [h.detach(), *torch.autograd.grad(total, parts, materialize_grads=True)]


# --- the scan --------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(1, 3), n=st.integers(0, 70), width=st.integers(1, 3), seed=st.integers(0, 9)
)
@example(rows=1, n=64, width=1, seed=0)
@example(rows=2, n=63, width=2, seed=0)
@example(rows=2, n=65, width=2, seed=0)
def test_the_scan_is_the_loop_there_and_back(rows: int, n: int, width: int, seed: int):
    """Gates of exactly 0 and 1 are among the others."""
    draws = torch.Generator().manual_seed(seed)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draws, dtype=torch.float64)

    a = (0.5 + numbers(rows, n, width)).clamp(0, 1)
    b, first, weight = numbers(rows, n, width), numbers(rows, width), numbers(rows, n + 1, width)
    found = backward(scan, a, b, first, weight)
    for one, other in zip(found, backward(loop, a, b, first, weight), strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("n", [1, 4, 7])
def test_derivatives_of_the_scan_have_derivatives(n: int, back: bool):
    draws = torch.Generator().manual_seed(n)
    shapes = (2, n, 2), (2, n, 2), (2, 2)
    given = [torch.rand(shape, generator=draws, dtype=torch.float64) for shape in shapes]
    given = [tensor.requires_grad_() for tensor in given]
    assert torch.autograd.gradcheck(lambda *parts: Scan.apply(*parts, back), given)
    assert torch.autograd.gradgradcheck(lambda *parts: Scan.apply(*parts, back), given)


GATES = {
    "shut": lambda draws: torch.full((LONG,), -30.0),  # all is kept
    "nearly shut": lambda draws: torch.full((LONG,), -9.0),
    "open": lambda draws: torch.full((LONG,), 30.0),  # all is replaced
    "any": lambda draws: 10 * torch.randn(LONG, generator=draws),
    "one or the other": lambda draws: 90.0 * torch.randn(LONG, generator=draws).sign(),
    "open once": lambda draws: torch.where(torch.arange(LONG) == 100, 90.0, -90.0),
}


@pytest.mark.parametrize("gates", GATES)
def test_long_rows_stay_exact_whatever_the_gates(gates: str):
    """In float32, against float64: errors are those of rounding once a token, and no more."""
    draws = torch.Generator().manual_seed(0)
    logits = GATES[gates](draws).view(1, LONG, 1).expand(2, LONG, 3).requires_grad_()
    candidates = torch.randn(2, LONG, 3, generator=draws).requires_grad_()
    weight = torch.randn(2, LONG + 1, 3, generator=draws)

    def run(way, logits: Tensor, candidates: Tensor) -> tuple[Tensor, ...]:
        z = torch.sigmoid(logits)
        h = way(1 - z, z * candidates, candidates[:, 0])
        return h, *torch.autograd.grad((h * weight.to(h.dtype)).sum(), (logits, candidates))

    found = run(scan, logits, candidates)
    # 1 − z is what float32 has of it in both: how far a gate is from 1 is not the scan's affair.
    wanted = run(loop, logits, candidates)
    for one, other in zip(found, wanted, strict=True):
        assert one.isfinite().all()
        assert (one - other).abs().max() <= LONG * 2**-24 * other.abs().max()


# --- the layer and the model -----------------------------------------------------------------


def one_by_one(layer: GatedRecurrence, x: Tensor) -> Tensor:
    """A recurrent layer for one row, (new, width), written with torch's convolution and a loop."""
    kernel, _, width = layer.taps.shape
    padded = F.pad(layer.norm(x).mT, (kernel - 1, 0))  # (width, kernel − 1 + new)
    mixed = F.conv1d(padded, layer.taps.permute(2, 1, 0), groups=width).mT
    h, found = torch.zeros(layer.contract.in_features, dtype=x.dtype), []
    for token in mixed:
        z, c, g = layer.expand(token).chunk(3)
        h = (1 - z.sigmoid()) * h + z.sigmoid() * c
        found.append(layer.contract(h * g * g.sigmoid()))
    return x + torch.stack(found)


def written_out(model: LinearRecurrence, tokens: Tensor) -> Tensor:
    """The logits of one row, token by token."""
    x = model.embed.tokens.weight[tokens] * model.config.width**0.5
    for block in model.blocks:
        x, layer = one_by_one(block.recurrence, x), block.feedforward
        a, b = layer.expand(layer.norm(x)).chunk(2, dim=-1)
        x = x + layer.contract(a * a.sigmoid() * b)
    return model.head.norm(x) @ model.embed.tokens.weight.mT + model.head.bias


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_the_model_is_the_loops_it_is_written_as(case: str):
    model, tokens = tiny(case), ids(2, 9)
    assert isinstance(model, SequenceModel)
    found = model(tokens)
    assert found.std() > 0.1  # else a mistake would drown
    for row, text in zip(found, tokens, strict=True):
        assert_same(row, written_out(model, text))


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=12, deadline=None)
@given(
    steps=st.lists(three, min_size=1, max_size=4), order=st.permutations([0, 1, 2]), data=st.data()
)
@torch.no_grad()
def test_any_pieces_of_ragged_rows_are_one_pass(case: str, steps, order, data):
    """Rows that wait, change places and forget tokens of the last call; padding is garbage."""
    model, texts = tiny(case), ids(3, 20)
    state = model.start(3, 20)
    held = [texts[row, :0] for row in range(3)]
    for counts in steps:
        batch = ids(3, 4, seed=99)
        for row, count in enumerate(counts):
            piece = texts[row, len(held[row]) : len(held[row]) + count]
            batch[row, :count] = piece
            held[row] = torch.cat((held[row], piece))
        found = model(batch, None, state, lengths=counts)
        for row, count in enumerate(counts):
            if count:
                assert_same(found[row, :count], model(held[row][None])[0, -count:])
        gone = [data.draw(st.integers(0, count)) for count in counts]
        state.rollback(gone)
        held = [text[: len(text) - less] for text, less in zip(held, gone, strict=True)]
    state.reorder(order)
    held, texts = [held[row] for row in order], texts[order]
    more = ids(3, 2, seed=5)
    found = model(more, None, state)
    for row, text in enumerate(held):
        assert_same(found[row], model(torch.cat((text, more[row]))[None])[0, -2:])


@pytest.mark.parametrize("case", CASES)
def test_a_position_sees_all_before_it_and_nothing_after(case: str):
    """By the gradients of its vector; every position has a token of its own."""
    model = fresh(case)
    model.hidden(torch.arange(12)[None])[:, 7].square().sum().backward()
    grad = model.embed.tokens.weight.grad
    assert grad is not None
    assert set(grad.abs().sum(1).nonzero().flatten().tolist()) == {*range(8)}


@torch.no_grad()
def test_a_state_is_as_large_after_a_long_text_as_before():
    model = tiny("wide")
    state = model.start(2, 1)
    before = state.bytes
    model(ids(2, 300), None, state)
    assert state.bytes == before == 3 * 2 * (3 * 6 + 11) * 8  # layers, rows, inputs and h, float64


@torch.no_grad()
def test_under_autocast_what_is_remembered_stays_float32():
    """1 − z with z = 1 / 1,000 is 1 in bfloat16: nothing of a text would fade."""
    model = build(replace(TEXT, width=32)).eval()
    for block in model.blocks:
        block.recurrence.expand.bias[:32] = -7.0  # z about 1 / 1,000
    tokens = ids(2, 2000)
    state = model.start(2, 1)
    wanted = model(tokens)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = model(tokens)
        model(tokens, None, state)
        step = model(ids(2, 1), None, state)
    assert {tensor.dtype for tensor in state.held} == {torch.float32}
    assert step.isfinite().all()
    assert (found - wanted).abs().max() < 0.05 * wanted.abs().max()


def test_it_compiles_in_one_piece_and_agrees():
    torch.compiler.reset()
    module, tokens = tiny("plain"), ids(2, 9)
    # The eager backend runs the captured graph as it is: only the capture is judged.
    compiled = torch.compile(lambda t: module(t), fullgraph=True, backend="eager")
    assert_same(compiled(tokens), module(tokens))


def test_hidden_numbers_begin_with_spans_from_one_token_to_many():
    layer = build(replace(TEXT, hidden=9)).blocks[0].recurrence
    spans = 1 / torch.sigmoid(layer.expand.bias[:9])
    assert_same(spans[[0, -1]], torch.tensor(SPANS), 1e-4)
    assert_same(spans[1:] / spans[:-1], (spans[1] / spans[0]).expand(8), 1e-4)  # evenly, as powers


def test_it_learns_to_keep_the_one_token_that_matters():
    """Far before the end, where a convolution of four tokens does not see it, among 24 others."""
    torch.manual_seed(0)
    model = build(replace(TEXT, vocabulary=8, width=16))
    learn = torch.optim.Adam(model.parameters(), lr=2e-2)
    for _ in range(120):
        tokens, wanted = torch.randint(4, (32, 24)), torch.randint(4, 8, (32,))
        tokens[torch.arange(32), torch.randint(12, (32,))] = wanted
        loss = F.cross_entropy(model(tokens, last=True)[:, 0], wanted)
        learn.zero_grad()
        loss.backward()
        learn.step()
    assert loss < 0.1  # 1.4 for a guess


# --- what is refused -------------------------------------------------------------------------


def refusal(call) -> str:
    with pytest.raises(RegardError) as caught:
        call()
    return str(caught.value)


def test_what_it_does_not_know_is_refused_in_a_sentence():
    model, tokens = tiny("plain"), ids(2, 3)
    documents = Documents(torch.zeros(2, 3, dtype=torch.long))
    assert "leave out `mask`" in refusal(lambda: model(tokens, mask=documents))
    assert "reads no source" in refusal(lambda: model(tokens, Memory(torch.zeros(2, 3, 6))))
    assert "no attention to return" in refusal(lambda: model.start(2, 3, return_attention=True))
    other = build(named("lstm").__class__(vocabulary=9, width=6, layers=1)).start(2, 3)
    assert "continues LastInputs, not a HiddenState" in refusal(lambda: model(tokens, None, other))
    mine = model.start(3, 3)
    assert "the state has 3 rows, the tokens have 2" in refusal(lambda: model(tokens, None, mine))
    assert "another model's" in refusal(lambda: tiny("wide")(tokens, None, mine))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"kernel": 0}, "kernel must be a whole number from 1 to 64, not 0"),
        ({"hidden": -1}, "hidden must be a whole number from 0 to 65,536, not -1"),
        ({"dropout": 1.0}, "dropout must be in [0, 1), not 1.0"),
    ],
)
def test_settings_out_of_range_are_named(changes: dict, sentence: str):
    assert sentence in refusal(lambda: LinearRecurrenceConfig(**changes))


def test_what_is_left_open_follows_the_width():
    config = LinearRecurrenceConfig(width=96).resolved()
    assert (config.hidden, config.feedforward) == (96, 128)
    assert named("mingru") == named("linear-recurrence")
    assert isinstance(build(named("mingru"), "meta").head.norm, nn.LayerNorm)

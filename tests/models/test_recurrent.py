"""Recurrent models answer the protocol: passes in any pieces, rows in any company, any order."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny_models import assert_same, ids
from tiny_recurrent import (
    EVERY,
    LOOKING,
    SOME,
    TEXTS,
    alone,
    fresh,
    memory_of,
    memory_of_row,
    tiny,
    weighted,
)
from torch import Tensor

import regard
from regard.models.construction import build
from regard.models.protocol import SequenceModel
from regard.models.recurrent.model import Recurrent
from regard.models.recurrent.state import HiddenState
from regard.models.registry import named

SOURCES = [5, 2, 3]
few = settings(max_examples=3)
three = st.lists(st.integers(0, 4), min_size=3, max_size=3)


def feed(model: Recurrent, state: HiddenState, pieces: list[Tensor], memory=None) -> list[Tensor]:
    """Each row takes in its own piece, padded with garbage; the logits of the real tokens."""
    counts = [len(piece) for piece in pieces]
    batch = ids(len(pieces), max(1, *counts), seed=99)
    for row, piece in enumerate(pieces):
        batch[row, : len(piece)] = piece
    logits = model(batch, memory, state, lengths=counts)
    return [logits[row, :count] for row, count in enumerate(counts)]


def looks(model: Recurrent, tokens: Tensor, memory) -> Tensor:
    """What the tape says of a pass: (rows, 1, 1, new, source positions)."""
    with regard.record(model) as tape:
        model(tokens, memory)
    return tape.probabilities("decoder")[:, None, None]


# --- pieces ----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", EVERY)
@torch.no_grad()
def test_a_full_pass_equals_one_in_pieces(case: str):
    model, tokens = tiny(case), ids(2, 7)
    assert isinstance(model, SequenceModel)
    memory = memory_of(model, 2, [5, 3])
    whole = model(tokens, memory)
    assert whole.shape == (2, 7, 256)
    assert whole.std() > 0.1  # else a mistake would drown
    state = model.start(2, 7)
    parts = [
        model(piece, None if done else memory, state)
        for done, piece in enumerate(tokens.split([1, 3, 1, 2], dim=1))
    ]
    assert_same(torch.cat(parts, dim=1), whole)


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


@pytest.mark.parametrize("case", ["lstm", "lstm general fed both 2", "gru none both 1"])
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


@pytest.mark.parametrize("case", SOME)
@few
@given(steps=st.lists(three, min_size=1, max_size=3))
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
    for row, count in enumerate(held):
        if count:
            wanted = alone(model, 3, row, texts[row, :count], SOURCES[row])
            assert_same(torch.cat(parts[row]), wanted)


# --- rows that move, tokens that are forgotten -----------------------------------------------


def assert_continues(
    model: Recurrent, state: HiddenState, held: list[Tensor], origin: list[int], seed: int
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


orders = st.one_of(
    st.lists(st.integers(0, 99), min_size=1, max_size=6),  # anything
    st.integers(1, 3).map(lambda each: [r for r in range(3) for _ in range(each)]),  # beams
    st.permutations(range(6)),
)


@pytest.mark.parametrize("case", SOME)
@few
@given(turns=st.lists(orders, min_size=1, max_size=3))
@example([[0, 0, 1, 1, 2, 2], [1, 0, 2, 2, 5, 4], [5, 0]])
@torch.no_grad()
def test_any_reorders_are_as_if_each_row_had_been_read_anew(case: str, turns: list[list[int]]):
    model, texts, counts = tiny(case), ids(3, 3), [2, 1, 3]
    state = model.start(3, 20, return_attention=model.config.attention != "none")
    held, origin = [texts[row, :count] for row, count in enumerate(counts)], [0, 1, 2]
    feed(model, state, held, memory_of(model, 3, SOURCES))
    for turn, order in enumerate(turns):
        rows = [row % state.rows for row in order]
        state.reorder(rows)
        held, origin = [held[row] for row in rows], [origin[row] for row in rows]
        assert_continues(model, state, held, origin, seed=40 + turn)


@pytest.mark.parametrize("case", SOME)
@few
@given(
    more=three,
    forget=three,
    order=st.lists(st.integers(0, 2), min_size=1, max_size=5),
    when=st.sampled_from(["never", "before", "between", "after"]),
)
@example(more=[3, 1, 2], forget=[1, 0, 2], order=[0, 0, 2, 0], when="between")
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
        order = [row % len(held) for row in order]
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


@pytest.mark.parametrize("case", ["lstm", "lstm general fed both 2"])
@torch.no_grad()
def test_all_may_be_forgotten_and_the_source_stays(case: str):
    model = tiny(case)
    state, memory = model.start(2, 6), memory_of(model, 2)
    model(ids(2, 4), memory, state)
    state.rollback([4, 4])
    assert_same(model(ids(2, 6, seed=3), None, state), model(ids(2, 6, seed=3), memory))
    state.free()
    assert (state.rows, state.tensors(), state.source) == (0, [], None)


# --- what is seen ----------------------------------------------------------------------------


@pytest.mark.parametrize("case", LOOKING)
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
        assert state.attention.shape == (3, 1, 1, last - first, 5)
        assert_same(state.attention, whole[..., first:last, :])
        assert_same(state.attention.sum(-1), torch.ones_like(state.attention[..., 0]))
        for row, length in enumerate(SOURCES):
            assert state.attention[row, ..., length:].abs().sum() == 0
    assert whole[0].std() > 0.01  # else all would look alike


# --- gradients -------------------------------------------------------------------------------


@pytest.mark.parametrize("case", EVERY)
def test_gradients_reach_every_parameter(case: str):
    model, tokens = fresh(case), ids(3, 4)
    weighted(model(tokens, memory_of(model, 3, SOURCES))).backward()
    tied, apart = model.config.tied, model.config.source_vocabulary
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        assert gradient is not None, name
        if name == "embed.tokens.weight" and not tied:
            real = [] if apart or model.config.kind == "decoder" else read()
            assert reached(gradient) == {*tokens.flatten().tolist(), *real}
        elif name == "source_embed.tokens.weight":
            assert reached(gradient) == {*read()}
        else:
            assert gradient.ne(0).all(), name


def read() -> list[int]:
    """What `memory_of` reads, without the padding."""
    texts = ids(3, 5, seed=7).tolist()
    return [token for text, real in zip(texts, SOURCES, strict=True) for token in text[:real]]


def reached(gradient: Tensor) -> set[int]:
    """The words whose embeddings learn something."""
    return {*gradient.abs().sum(-1).nonzero().flatten().tolist()}


@pytest.mark.parametrize("case", TEXTS)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradients_end_where_a_call_began(case: str, dropout: float):
    """Truncated backpropagation through time: what is carried over is numbers alone."""
    model = fresh(case, tied=False, dropout=dropout)
    first, second = torch.tensor([[5, 6, 7], [8, 9, 5]]), torch.tensor([[10, 11], [12, 10]])
    state = model.start(2, 5)
    before = model(first, None, state)
    assert not any(part.requires_grad for part in state.tensors())
    assert any(part.abs().sum() > 0 for part in state.tensors())
    after = model(second, None, state)
    weighted(after).backward()
    table = model.embed.tokens.weight
    assert reached(table.grad) == {10, 11, 12}
    table.grad = None
    weighted(before).backward()  # its graph is whole still
    assert reached(table.grad) == {5, 6, 7, 8, 9}


def test_what_is_carried_over_counts_although_no_gradient_does():
    """The gradient of a second call is that of a pass which is given its numbers to begin with."""
    model, tokens = fresh("lstm"), ids(2, 5)
    state = model.start(2, 5)
    model(tokens[:, :3], None, state)
    kept = state.remembered
    carried = weighted(model(tokens[:, 3:], None, state))
    apart = model.decoder(model.embed(tokens[:, 3:]), kept.held)[0]
    wanted = weighted(model.logits(apart))
    assert_same(carried, wanted)
    ours = torch.autograd.grad(carried, list(model.parameters()))
    theirs = torch.autograd.grad(wanted, list(model.parameters()))
    for one, other in zip(ours, theirs, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("case", ["gru additive both 1", "lstm general fed both 2"])
def test_a_source_learns_from_every_call_but_a_prefix_only_from_its_own(case: str):
    model = fresh(case, tied=False, source_vocabulary=256)
    state = model.start(2, 4)
    model(torch.tensor([[5, 6], [7, 8]]), model.encode(ids(2, 5)), state)
    weighted(model(torch.tensor([[9], [9]]), None, state)).backward()
    assert reached(model.embed.tokens.weight.grad) == {9}
    assert reached(model.source_embed.tokens.weight.grad) == {*ids(2, 5).flatten().tolist()}


# --- the output matrix -----------------------------------------------------------------------


@pytest.mark.parametrize("case", ["lstm 3 wide", "gru additive both 1"])
@torch.no_grad()
def test_a_tied_output_matrix_is_the_embedding(case: str):
    tied, own = tiny(case), tiny(case, tied=False)
    assert tied.head.project is None
    assert not any("project" in name for name in tied.state_dict())
    hidden = tied.hidden(ids(2, 3), memory_of(tied, 2))
    assert hidden.shape == (2, 3, 6)
    table = tied.state_dict()["embed.tokens.weight"]
    assert_same(tied(ids(2, 3), memory_of(tied, 2)), hidden @ table.T + tied.head.bias)
    hidden = own.hidden(ids(2, 3), memory_of(own, 2))
    assert own.head.project is not None
    assert own.head.project.weight.data_ptr() != own.embed.tokens.weight.data_ptr()
    assert_same(own.logits(hidden), hidden @ own.head.project.weight.T + own.head.bias)


@pytest.mark.parametrize("name", ["elman", "gru", "lstm", "rnn", "bahdanau", "luong"])
def test_a_model_without_memory_for_its_weights_runs(name: str):
    model, tokens = build(named(name), "meta"), torch.zeros(2, 3, dtype=torch.long, device="meta")
    memory = model.encode(tokens) if model.config.kind == "encoder-decoder" else None
    assert model(tokens, memory).shape == (2, 3, model.config.vocabulary)

"""What holds of a model of any family: the protocol, whatever the model is made of.

A new family is checked by its line in `every_family`.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise as neighbours
from itertools import product

import pytest
import torch
from every_family import (
    EVERY,
    FAMILY,
    LEARNING,
    LOOKING,
    ONE_OF_EACH,
    PARTLY,
    POSITIONS,
    READERS,
    SEQUENCES,
    VOCABULARY,
    WORDS,
    WRITERS,
    alone,
    assert_same,
    feed,
    fresh,
    has,
    ids,
    memory_of,
    memory_of_row,
    reached,
    source_of,
    tiny,
    weighted,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

import regard
from regard.costs import jobs
from regard.costs.jobs import Shape, tensors_in
from regard.errors import RegardError
from regard.models.config import Ability
from regard.models.construction import build
from regard.models.protocol import Memory, SequenceModel, State
from regard.models.registry import FAMILIES

few = settings(max_examples=2)
three = st.lists(st.integers(0, 4), min_size=3, max_size=3)
every_sequence = pytest.mark.parametrize("name", SEQUENCES)
one_of_each = pytest.mark.parametrize("name", ONE_OF_EACH)
every_reader = pytest.mark.parametrize("name", READERS)
every_learner = pytest.mark.parametrize("name", LEARNING)
pytestmark = pytest.mark.usefixtures("poisoned")  # who reads what was never written gets NaN


def refusal(call: Callable[[], object]) -> str:
    """The message of the one error, which is one line."""
    with pytest.raises(RegardError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def lengths_for(name: str) -> list[int]:
    """How much of each of three sources is real; pictures are all of one size."""
    of_text = EVERY[name].reads_text
    return [POSITIONS, 2, 3] if of_text else [POSITIONS] * 3


def looks(model: SequenceModel, tokens: Tensor, memory: Memory) -> Tensor:
    """What the tape says of a pass: (rows, layers, heads, new, source positions)."""
    with regard.record(model) as tape:
        model(tokens, memory)
    places = memory.values.shape[1]
    assert tokens.shape[1] != places  # or attention to the text itself would look alike
    found = [tape.probabilities(name) for name in tape.names]
    crossing = [look for look in found if look.shape[-2:] == (tokens.shape[1], places)]
    return torch.stack([look if look.dim() == 4 else look[:, None] for look in crossing], dim=1)


# --- what there is ---------------------------------------------------------------------------


def test_every_family_is_here():
    assert {*FAMILY} == {*FAMILIES}
    assert all(config.family == family for family in FAMILY for config in FAMILY[family].values())
    assert all(FAMILY.values())


@every_sequence
@torch.no_grad()
def test_it_answers_the_protocol_on_meta_too(name: str):
    model = tiny(name)
    assert isinstance(model, SequenceModel)
    logits = model(ids(2, 8), memory_of(model, 2))
    assert logits.shape == (2, 8, VOCABULARY)
    assert model.start(3, 4).rows == 3
    if name not in LEARNING:
        return
    assert logits.std() > 0.1  # else a mistake would drown
    shapes = build(EVERY[name], "meta")
    assert shapes.state_dict().keys() == model.state_dict().keys()
    memory = shapes.encode(source_of(model, 2).to("meta")) if model.config.reads else None
    found = shapes(ids(2, 3).to("meta"), memory)
    assert (found.device.type, found.shape) == ("meta", (2, 3, VOCABULARY))


# --- one pass, or several --------------------------------------------------------------------


@pytest.mark.parametrize("name", WRITERS)
@torch.no_grad()
def test_a_later_token_changes_nothing_before_it(name: str):
    model, tokens = tiny(name), ids(2, 8)
    memory = memory_of(model, 2)
    whole = model(tokens, memory)
    for place in (1, 5, 7):
        changed = tokens.clone()
        changed[:, place] = (changed[:, place] + 1) % VOCABULARY
        found = model(changed, memory)
        assert_same(found[:, :place], whole[:, :place], 1e-12)
        if name in LEARNING:  # counts of what was never seen are all alike
            assert (found[:, place] - whole[:, place]).abs().amax(-1).min() > 1e-3


@every_sequence
@few
@given(ends=st.sets(st.integers(1, 11)))
@example(ends={*range(12)} - {0})  # one by one
@example(ends={3, 4, 9})
@torch.no_grad()
def test_a_full_pass_equals_one_in_any_pieces(name: str, ends: set[int]):
    """Whether the source is given once or with every call."""
    model, tokens = tiny(name), ids(2, 12)
    memory = memory_of(model, 2, lengths_for(name)[:2])
    whole = model(tokens, memory)
    state = model.start(2, 12)
    parts = [
        model(tokens[:, first:last], memory if first % 2 == 0 else None, state)
        for first, last in neighbours([0, *sorted(ends), 12])
    ]
    assert_same(torch.cat(parts, dim=1), whole)


@every_sequence
@torch.no_grad()
def test_padding_changes_nothing_for_a_row(name: str):
    """With a state and without; nothing of it is left after it."""
    model, tokens, counts, sources = tiny(name), ids(3, 4), [2, 4, 1], lengths_for(name)
    memory = memory_of(model, 3, sources)
    state = model.start(3, 9)
    plain = model(tokens, memory, lengths=torch.tensor(counts))
    begun = model(tokens, memory, state, lengths=counts)
    more = ids(3, 1, seed=5)
    after = model(more, None, state)
    for row, (count, length) in enumerate(zip(counts, sources, strict=True)):
        text = torch.cat((tokens[row, :count], more[row]))
        wanted = alone(model, 3, row, text, length)
        assert_same(plain[row, :count], wanted[:count])
        assert_same(begun[row, :count], wanted[:count])
        assert_same(after[row], wanted[count:])
        if memory is not None:
            own = memory_of_row(model, 3, row, length)
            assert_same(memory.values[row, : own.values.shape[1]], own.values[0])


@every_reader
@torch.no_grad()
def test_padding_of_a_source_changes_nothing(name: str):
    """Nor does what stands there."""
    model, tokens, sources = tiny(name), ids(3, 4), lengths_for(name)
    if not model.config.reads_text:
        assert refusal(lambda: model.encode(source_of(model, 3), sources))
        return
    source = source_of(model, 3)
    other = source.clone()
    for row, length in enumerate(sources):
        other[row, length:] = 5 + (other[row, length:] - 4) % (VOCABULARY - 5)
    assert not torch.equal(source, other)
    found = [model(tokens, model.encode(one, sources)) for one in (source, other)]
    assert_same(*found)
    assert (found[0] - model(tokens, model.encode(source))).abs().max() > 1e-3


@one_of_each
@torch.no_grad()
def test_with_last_only_what_follows_the_last_real_token_comes(name: str):
    model, tokens, counts = tiny(name), ids(3, 4), [2, 4, 1]
    memory = memory_of(model, 3, lengths_for(name))
    whole = model(tokens, memory)
    ends = torch.stack([whole[row, count - 1] for row, count in enumerate(counts)])[:, None]
    assert_same(model(tokens, memory, last=True), whole[:, -1:])
    assert_same(model(tokens, memory, lengths=counts, last=True), ends)
    state = model.start(3, 4)
    assert_same(model(tokens, memory, state, lengths=torch.tensor(counts), last=True), ends)


@every_sequence
@few
@given(steps=st.lists(three, min_size=1, max_size=3))
@example(steps=[[4, 0, 1], [0, 4, 2], [3, 1, 0]])
@torch.no_grad()
def test_ragged_rows_equal_each_row_by_itself(name: str, steps: list[list[int]]):
    """Rows that get nothing for a while wait."""
    model, texts, sources = tiny(name), ids(3, 12), lengths_for(name)
    state, memory = model.start(3, 12), memory_of(model, 3, sources)
    held = [0, 0, 0]
    parts: list[list[Tensor]] = [[], [], []]
    for counts in steps:
        pieces = [texts[row, held[row] : held[row] + count] for row, count in enumerate(counts)]
        for row, logits in enumerate(feed(model, state, pieces, memory)):
            parts[row].append(logits)
        held = [before + count for before, count in zip(held, counts, strict=True)]
    for row, count in enumerate(held):
        if count:
            wanted = alone(model, 3, row, texts[row, :count], sources[row])
            assert_same(torch.cat(parts[row]), wanted)


# --- rows that move, tokens that are forgotten -----------------------------------------------


def assert_continues(
    model: SequenceModel, state: State, held: list[Tensor], origin: list[int], seed: int
) -> None:
    """Two more tokens a row, compared with a pass over what each row should hold."""
    new = ids(len(held), 2, seed=seed)
    logits = model(new, None, state)
    assert state.rows == len(held)
    sources = [POSITIONS, 2, 3] if model.config.reads_text else [POSITIONS] * 3
    for row, text in enumerate(held):
        held[row] = torch.cat((text, new[row]))
        length = sources[origin[row]]
        assert_same(logits[row], alone(model, 3, origin[row], held[row], length)[-2:])
        if state.attention is None:
            continue
        memory = memory_of_row(model, 3, origin[row], length)
        places = memory.values.shape[1]
        if held[row].shape[0] != places:
            seen = looks(model, held[row][None], memory)[0, ..., -2:, :]
            assert_same(state.attention[row, ..., :places], seen)
        assert state.attention[row, ..., places:].abs().sum() == 0


orders = st.one_of(
    st.lists(st.integers(0, 99), min_size=1, max_size=6),  # anything
    st.integers(1, 3).map(lambda each: [r for r in range(3) for _ in range(each)]),  # beams
    st.permutations(range(6)),
)


@every_sequence
@few
@given(turns=st.lists(orders, min_size=1, max_size=3))
@example([[0, 0, 1, 1, 2, 2], [1, 0, 2, 2, 5, 4], [5, 0]])
@torch.no_grad()
def test_any_reorders_are_as_if_each_row_had_been_read_anew(name: str, turns: list[list[int]]):
    model, texts, counts = tiny(name), ids(3, 3), [2, 0, 3]
    state = model.start(3, 20, return_attention=name in LOOKING)
    held, origin = [texts[row, :count] for row, count in enumerate(counts)], [0, 1, 2]
    feed(model, state, held, memory_of(model, 3, lengths_for(name)))
    for turn, order in enumerate(turns):
        rows = [row % state.rows for row in order]
        state.reorder(torch.tensor(rows) if turn % 2 else rows)
        held, origin = [held[row] for row in rows], [origin[row] for row in rows]
        assert_continues(model, state, held, origin, seed=40 + turn)


@every_sequence
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
    name: str, more: list[int], forget: list[int], order: list[int], when: str
):
    """`when` rows change places: before the tokens come, before they are forgotten, or after."""
    model, texts, counts = tiny(name), ids(3, 4), [2, 4, 1]
    state = model.start(3, 30)
    held, origin = [texts[row, :count] for row, count in enumerate(counts)], [0, 1, 2]
    feed(model, state, held, memory_of(model, 3, lengths_for(name)))
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


@one_of_each
@torch.no_grad()
def test_all_may_be_forgotten_and_the_source_stays(name: str):
    model = tiny(name)
    state, memory = model.start(2, 6), memory_of(model, 2)
    model(ids(2, 4), memory, state)
    state.rollback([4, 4])
    assert_same(model(ids(2, 6, seed=3), None, state), model(ids(2, 6, seed=3), memory))


# --- attention to the source -----------------------------------------------------------------


@pytest.mark.parametrize("name", LOOKING)
@torch.no_grad()
def test_what_is_seen_is_what_the_tape_records(name: str):
    model, texts, sources = tiny(name), ids(3, 6), lengths_for(name)
    memory = memory_of(model, 3, sources)
    whole = looks(model, texts, memory)
    plain, state = model.start(3, 6), model.start(3, 8, return_attention=True)
    assert state.attention is None
    for first, last in ((0, 3), (3, 4), (4, 6)):
        logits = model(texts[:, first:last], memory, state)
        assert torch.equal(logits, model(texts[:, first:last], memory, plain))
        assert plain.attention is None
        assert_same(state.attention, whole[..., first:last, :])
        assert_same(state.attention.sum(-1), torch.ones_like(state.attention[..., 0]))
        if model.config.reads_text:
            for row, length in enumerate(sources):
                assert state.attention[row, ..., length:].abs().sum() == 0
    assert whole[0].std() > 0.003  # else all would look alike
    for change in (lambda: state.rollback([1, 0, 0]), lambda: state.reorder([1, 0, 2])):
        model(texts[:, :1], None, state)
        assert state.attention is not None
        change()
        assert state.attention is None  # it was of other tokens, of other rows


@pytest.mark.parametrize("name", LOOKING)
@torch.no_grad()
def test_what_ragged_rows_see_is_what_each_sees_alone(name: str):
    model, texts, counts, sources = tiny(name), ids(3, 4), [2, 4, 1], lengths_for(name)
    state = model.start(3, 9, return_attention=True)
    model(texts, memory_of(model, 3, sources), state, lengths=counts)
    for row, (count, length) in enumerate(zip(counts, sources, strict=True)):
        memory = memory_of_row(model, 3, row, length)
        places = memory.values.shape[1]
        own = model.start(1, 9, return_attention=True)
        model(texts[row : row + 1, :count], memory, own)
        assert_same(state.attention[row, ..., :count, :places], own.attention[0])


@pytest.mark.parametrize("name", [name for name in SEQUENCES if name not in LOOKING])
def test_where_there_is_no_attention_there_is_none_to_return(name: str):
    said = refusal(lambda: tiny(name).start(2, 4, return_attention=True))
    assert said.endswith("so there is no attention to return")


# --- gradients -------------------------------------------------------------------------------


@every_learner
def test_gradients_reach_every_parameter(name: str):
    """Every number of it; of embeddings those of words that were read, and of no padding."""
    model, tokens, sources = fresh(name), ids(3, 24), lengths_for(name)
    weighted(model(tokens, memory_of(model, 3, sources))).backward()
    config = model.config
    source = source_of(model, 3).tolist() if config.reads_text else []
    read = {word for row, real in zip(source, sources, strict=False) for word in row[:real]}
    apart = bool(getattr(config, "source_vocabulary", 0))
    for part, weight in model.named_parameters():
        gradient = weight.grad
        assert gradient is not None, part
        if part == "source_embed.tokens.weight":
            assert reached(gradient) == read
        elif part.endswith("embed.tokens.weight") and not config.ties_output:
            assert reached(gradient) == {*tokens.flatten().tolist()} | (
                read if not apart else set()
            )
        elif part == "words.weight":
            assert reached(gradient) == read
        else:
            least = min((share for word, share in PARTLY.items() if word in part), default=1.0)
            share = gradient.ne(0).double().mean()
            assert share >= least, part
            assert share > 0, part


CARRYING = [name for name in LEARNING if Ability.CARRY in EVERY[name].abilities]


@pytest.mark.parametrize("name", CARRYING)
def test_gradients_end_where_a_call_began(name: str):
    """What is carried over is numbers alone, but they count."""
    model = fresh(name, tied=False)
    first, second = torch.tensor([[5, 6, 7], [8, 9, 5]]), torch.tensor([[10, 11], [12, 10]])
    state = model.start(2, 5)
    before = model(first, None, state)
    held = tensors_in(state)
    assert held
    assert not any(part.requires_grad for part in held)
    after = model(second, None, state)
    assert_same(after, model(torch.cat((first, second), dim=1))[:, 3:])
    weighted(after).backward()
    table = model.embed.tokens.weight
    assert reached(table.grad) == {10, 11, 12}
    table.grad = None
    weighted(before).backward()  # its graph is whole still
    assert reached(table.grad) == {5, 6, 7, 8, 9}


@pytest.mark.parametrize("name", [name for name in LOOKING if has(name, "tied")])
def test_a_source_learns_from_every_call_but_a_prefix_only_from_its_own(name: str):
    model = fresh(name, tied=False, source_vocabulary=WORDS)
    state, source = model.start(2, 4), source_of(model, 2)
    model(torch.tensor([[5, 6], [7, 8]]), model.encode(source), state)
    weighted(model(torch.tensor([[9], [9]]), None, state)).backward()
    assert reached(model.embed.tokens.weight.grad) == {9}
    assert reached(model.source_embed.tokens.weight.grad) == {*source.flatten().tolist()}


# --- vocabularies, dropout -------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [name for name in ONE_OF_EACH if name in LEARNING and has(name, "tied")]
)
@torch.no_grad()
def test_a_tied_output_matrix_is_the_embedding(name: str):
    """Logits are its products with hidden vectors, and a bias; else it is a matrix of its own."""
    tied, own = tiny(name, tied=True), tiny(name, tied=False)
    matrices = [
        {part for part, weight in model.named_parameters() if len(weight) == VOCABULARY}
        - {"head.bias"}
        for model in (tied, own)
    ]
    (found,) = matrices[1] - matrices[0]
    for model, part in ((tied, "embed.tokens.weight"), (own, found)):
        hidden = model.hidden(ids(2, 3), memory_of(model, 2))  # (rows, positions, width)
        assert_same(model(ids(2, 3), memory_of(model, 2)), model.logits(hidden))
        bias = model.logits(torch.zeros_like(hidden))
        assert_same(model.logits(hidden) - bias, hidden @ model.get_parameter(part).T)


@pytest.mark.parametrize(
    "name", [name for name in ONE_OF_EACH if name in READERS and has(name, "source_vocabulary")]
)
@torch.no_grad()
def test_a_source_may_have_words_of_its_own(name: str):
    model, tokens = tiny(name, source_vocabulary=WORDS), ids(2, 3)
    source = torch.tensor([[WORDS - 1, 7, VOCABULARY], [8, WORDS - 2, 9]])
    assert model(tokens, model.encode(source)).shape == (2, 3, VOCABULARY)
    assert refusal(lambda: model.encode(source + 1))
    if has(name, "tied"):
        apart = fresh(name, source_vocabulary=WORDS).eval()
        apart.embed.tokens.weight.zero_()
        assert torch.equal(apart.encode(source).values, model.encode(source).values)
        assert refusal(lambda: model(torch.tensor([[VOCABULARY]] * 2), model.encode(source)))
        assert tiny(name, source_vocabulary=0).source_embed is None


FALLING = [name for name in LEARNING if has(name, "dropout") and EVERY[name].layers > 1]


@pytest.mark.parametrize("name", FALLING)
@torch.no_grad()
def test_in_use_nothing_falls(name: str):
    model, tokens = fresh(name, dropout=0.5), ids(2, 5)
    memory = memory_of(model.eval(), 2)
    plain = tiny(name, dropout=0.0)
    assert torch.equal(model(tokens, memory), plain(tokens, memory_of(plain, 2)))
    model.train()
    found = [model(tokens, memory_of(model, 2)) for _ in range(2)]
    assert (found[0] - found[1]).abs().max() > 0.01


# --- what it costs ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in ONE_OF_EACH if name in LEARNING])
@torch.no_grad()
def test_a_price_counts_the_parameters_and_the_state_that_are_there(name: str):
    model = build(EVERY[name]).eval()
    shape = Shape(2, 12, POSITIONS)
    counted = jobs.step(EVERY[name], shape)
    assert counted.parameters == sum(weight.numel() for weight in model.parameters())
    state = model.start(2, 13)
    model(ids(2, 12), memory_of(model, 2), state, last=True)
    model(ids(2, 1), None, state, last=True)
    held = {part.untyped_storage().data_ptr(): part for part in tensors_in(state)}
    assert counted.state == sum(part.untyped_storage().nbytes() for part in held.values())


# --- what is given wrongly -------------------------------------------------------------------


@one_of_each
def test_ids_that_do_not_exist_are_refused(name: str):
    model = tiny(name)
    memory = memory_of(model, 1)
    calls = [partial(model, memory=memory)] if name in WRITERS else []  # a label follows no token
    calls += [model.encode] if model.config.reads_text else []
    for call in calls:
        assert "from 0 to" in (said := refusal(partial(call, torch.tensor([[1, 99]])))) or (
            "token id 99 is out of range" in said or "source id 99 is out of range" in said
        )
        refusal(partial(call, torch.tensor([[-1, 2]])))
        assert "not torch.float32" in refusal(partial(call, torch.zeros(1, 2)))
        assert "of shape (3,)" in refusal(partial(call, ids(3)))


@one_of_each
def test_lengths_that_do_not_fit_are_refused(name: str):
    model = tiny(name)
    for lengths in ([1], [3, 4], [-1, 2], [1.5, 2]):
        for last, begun in product((True, False), repeat=2):
            state = model.start(2, 3) if begun else None
            memory = memory_of(model, 2)
            refusal(partial(model, ids(2, 3), memory, state, lengths=lengths, last=last))
            if state is not None:  # nothing was taken in
                fit = model(ids(2, 3), memory, state, lengths=[3, 3])
                assert_same(fit, model(ids(2, 3), memory))
        if model.config.reads_text:
            refusal(partial(model.encode, source_of(model, 2)[:, :3], lengths))


@pytest.mark.parametrize("name", [name for name in ONE_OF_EACH if name not in READERS])
def test_what_reads_no_source_is_given_none(name: str):
    model, memory = tiny(name), Memory(torch.zeros(2, 3, 6))
    refusal(lambda: model(ids(2, 3), memory))
    assert "reads no source" in refusal(lambda: model.encode(ids(2, 3)))


@pytest.mark.parametrize("name", [name for name in ONE_OF_EACH if name in READERS])
@torch.no_grad()
def test_a_source_that_does_not_fit_is_refused(name: str):
    model, tokens = tiny(name), ids(2, 3)
    memory = memory_of(model, 2)
    assert "give `memory=model.encode(source)`" in refusal(lambda: model(tokens))
    refusal(lambda: model(tokens, memory_of(model, 3)))  # of so many rows
    refusal(lambda: model(tokens, Memory(memory.values[..., :-1])))  # of another width
    state = model.start(2, 6)
    model(tokens, memory, state)
    said = refusal(lambda: model(tokens, memory_of(model, 2), state))
    assert said == "the state was begun with another source; start a new one"
    after = model(tokens, memory, state)  # it stayed as it was
    assert_same(after, model(torch.cat((tokens, tokens), dim=1), memory)[:, 3:])


@one_of_each
@torch.no_grad()
def test_a_state_that_does_not_fit_is_refused(name: str):
    """That was freed, of other rows, of another family, or none at all."""
    model, tokens = tiny(name), ids(2, 3)
    memory = memory_of(model, 2)
    freed = model.start(2, 3)
    model(tokens, memory, freed)
    freed.free()
    for call in (lambda: model(tokens, memory, freed), lambda: freed.reorder([0])):
        refusal(call)
    three = model.start(3, 3)
    assert refusal(lambda: model(tokens, memory, three)).startswith("the state has 3 rows")
    others = {type(tiny(other).start(2, 3)): other for other in SEQUENCES}
    for kind, other in others.items():
        if kind is not type(three):
            refusal(partial(model, tokens, memory, tiny(other).start(2, 3)))
    refusal(lambda: model(tokens, memory, object()))


@pytest.mark.parametrize(
    "name", [name for name in ONE_OF_EACH if name in LEARNING and name in WRITERS]
)
@torch.no_grad()
def test_a_model_that_has_become_another_type_refuses_what_it_began(name: str):
    model = fresh(name).eval()
    state = model.start(2, 6)
    model(ids(2, 3), memory_of(model, 2), state)
    model.float()
    said = refusal(lambda: model(ids(2, 3), None, state))
    assert "torch.float32" in said
    assert "torch.float64" in said


@one_of_each
def test_a_state_of_nothing_is_refused(name: str):
    for rows, room in ((0, 3), (2, 0), (-1, 3), (2.0, 3), (2, None)):
        said = refusal(partial(tiny(name).start, rows, room))
        assert f"{rows} rows × {room} tokens" in said


@one_of_each
@torch.no_grad()
def test_rows_that_are_not_there_and_what_was_never_read_leave_all_as_it_is(name: str):
    model, more, memory = tiny(name), ids(2, 1, seed=4), memory_of(tiny(name), 2)
    one, other = model.start(2, 8), model.start(2, 8)
    for state in (one, other):
        model(ids(2, 3), memory, state, lengths=[3, 2])
    for rows in ([2], [0, 3], [-1], [], [0.5], "a"):
        refusal(partial(one.reorder, rows))
    for counts in ([1], [1, 1, 1], [-1, 0], [4, 0], [0, 3], [0.5, 0], [[1], [1]], "ab"):
        refusal(partial(one.rollback, counts))
    assert torch.equal(model(more, None, one), model(more, None, other))

"""Rows that join and leave a state while others go on are what each would have been alone."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import pytest
import test_bag
import test_convolution
import test_ngram
import tiny_models
import tiny_recurrent
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_captioner import captioner
from tiny_models import assert_same, ids
from torch import Tensor
from torch.nn import functional as F

from regard.decoding.search.ensemble import Ensemble
from regard.errors import RegardError
from regard.models.network import SequenceModule
from regard.models.protocol import Memory, SequenceModel, State

CAPACITY = 40
LENGTHS = (5, 2, 3, 4, 1)  # of the sources
pytestmark = pytest.mark.usefixtures("poisoned")


@dataclass(frozen=True)
class Case:
    """A model, what it reads, and how nearly rows are what they are alone."""

    model: Callable[[], SequenceModule]
    reads: str = ""  # nothing, words or pictures
    vocabulary: int = 256
    words: int = 256  # of sources
    begin: dict[str, bool] = field(default_factory=dict)  # what `start` is told
    tolerance: float = 1e-9

    def memory(self, sources: list[int], model: SequenceModule) -> Memory | None:
        """The sources of some rows, read together: padding behind them is garbage."""
        if not self.reads:
            return None
        if self.reads == "pictures":
            drawn = torch.Generator().manual_seed(1)
            shape = (len(LENGTHS), 3, 32, 32)
            every = torch.randint(0, 256, shape, generator=drawn, dtype=torch.uint8)
            return model.encode(every[sources])
        lengths = [LENGTHS[source] for source in sources]
        read = ids(len(LENGTHS), 5, seed=7)[sources, : max(lengths)] % self.words
        return model.encode(read, lengths)


def bag() -> SequenceModule:
    torch.manual_seed(0)
    return test_bag.bag().double()


def writer(case: str) -> Callable[[], SequenceModule]:
    return lambda: tiny_models.tiny(case)


def cell(case: str) -> Callable[[], SequenceModule]:
    return lambda: tiny_recurrent.tiny(case)


def window(case: str) -> Callable[[], SequenceModule]:
    return lambda: test_convolution.tiny(case)


FIXED = {"fixed": True}
CASES = {
    "gpt2": Case(writer("gpt2-tiny")),
    "llama": Case(writer("llama-tiny")),
    "alibi": Case(writer("gpt2-tiny alibi")),
    "t5": Case(writer("t5-tiny"), "words"),
    "marian": Case(writer("marian-tiny"), "words"),
    "gpt2, fixed": Case(writer("gpt2-tiny"), begin=FIXED),
    "llama, fixed": Case(writer("llama-tiny"), begin=FIXED),
    "t5, fixed": Case(writer("t5-tiny"), "words", begin=FIXED),
    "gru": Case(cell("gru 2")),
    "lstm": Case(cell("lstm 3 wide")),
    "gru, no attention": Case(cell("gru none both 1"), "words"),
    "lstm, one vector fed": Case(cell("lstm none fed ahead 2"), "words"),
    "gru, additive": Case(cell("gru additive both 1"), "words"),
    "lstm, general fed": Case(cell("lstm general fed both 2"), "words"),
    "gru, dot": Case(cell("gru dot fed ahead 1"), "words"),
    "convolution": Case(window("text even")),
    "convolution, pairs": Case(window("pairs grown"), "words"),
    "captioner, lstm": Case(lambda: captioner("cnn", "lstm"), "pictures", 30),
    "captioner, transformer": Case(lambda: captioner("patches", "transformer"), "pictures", 30),
    "n-gram": Case(lambda: test_ngram.model(3), "", 9, tolerance=0.0),
    "bag": Case(bag, "words", 9, 17),
    "ensemble": Case(lambda: Ensemble([tiny_models.tiny("t5-tiny"), marian()]), "words"),
}
each = pytest.mark.parametrize("name", CASES)


def marian() -> SequenceModule:
    return tiny_models.tiny("marian-tiny")


@cache
def built(name: str) -> SequenceModule:
    return CASES[name].model()


@dataclass
class Row:
    """What a row of a state should hold."""

    source: int
    text: list[int] = field(default_factory=list)
    newest: int = 0  # tokens of its last call


class Together:
    """A state, and beside it what each of its rows should hold."""

    def __init__(self, name: str, sources: list[int], seed: int = 0) -> None:
        self.case, self.model = CASES[name], built(name)
        self.rows = [Row(source) for source in sources]
        self.drawn = torch.Generator().manual_seed(seed)
        self.memory = self.case.memory(sources, self.model)
        self.state: State = self.model.start(
            batch_size=len(sources), capacity=CAPACITY, **self.case.begin
        )

    def step(self, counts: list[int]) -> None:
        """Each row takes in so many tokens, and its logits are what they are alone."""
        high = min(self.case.vocabulary, 8)
        new = torch.randint(3, high, (len(counts), max(1, *counts)), generator=self.drawn)
        logits = self.model(new, self.memory, self.state, lengths=counts)
        self.memory = None
        for number, (row, count) in enumerate(zip(self.rows, counts, strict=True)):
            row.text += new[number, :count].tolist()
            row.newest = count
            if count:
                assert_same(logits[number, :count], self.alone(row, count), self.case.tolerance)

    def alone(self, row: Row, count: int) -> Tensor:
        """The last logits of a row by itself, without a state."""
        memory = self.case.memory([row.source], self.model)
        return self.model(torch.tensor([row.text]), memory)[0, -count:]

    def admit(self, other: "Together") -> None:
        self.state.admit(other.state)
        self.rows += other.rows
        assert self.state.rows == len(self.rows)

    def release(self, rows: list[int]) -> None:
        kept = self.state.release(rows)
        assert sorted(kept) == [row for row in range(len(self.rows)) if row not in rows]
        assert all(row == place for place, row in enumerate(kept) if row < len(kept))
        self.choose(kept)

    def choose(self, rows: list[int]) -> None:
        found = [self.rows[row] for row in rows]
        self.rows = [Row(row.source, list(row.text), row.newest) for row in found]

    def rollback(self, counts: list[int]) -> None:
        self.state.rollback(counts)
        for row, count in zip(self.rows, counts, strict=True):
            del row.text[len(row.text) - count :]
            row.newest -= count


def counts(data: st.DataObject, rows: int, least: int = 0) -> list[int]:
    return data.draw(st.lists(st.integers(least, 3), min_size=rows, max_size=rows))


def begun(name: str, data: st.DataObject, most: int = 3) -> Together:
    """A state whose rows have read their prompts."""
    sources = data.draw(st.lists(st.integers(0, len(LENGTHS) - 1), min_size=1, max_size=most))
    made = Together(name, sources, data.draw(st.integers(0, 99)))
    made.step(counts(data, len(sources), least=1))
    return made


@each
@settings(max_examples=6, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
@torch.no_grad()
def test_after_anything_that_may_happen_a_row_goes_on_as_alone(name: str, data: st.DataObject):
    served = begun(name, data)
    for _ in range(data.draw(st.integers(2, 6))):
        there = len(served.rows)
        happens = data.draw(st.sampled_from(["admit", "release", "reorder", "rollback", "step"]))
        if happens == "admit" or not there:
            served.admit(begun(name, data))
        elif happens == "release":
            served.release(data.draw(st.lists(st.integers(0, there - 1), unique=True)))
        elif happens == "reorder":
            rows = data.draw(st.lists(st.integers(0, there - 1), min_size=1, max_size=5))
            served.state.reorder(rows)
            served.choose(rows)
        elif happens == "rollback":
            most = [min(row.newest, len(row.text) - 1) for row in served.rows]
            served.rollback([data.draw(st.integers(0, count)) for count in most])
        else:
            served.step(counts(data, there))
    if served.rows:
        served.step([1] * len(served.rows))


@each
@torch.no_grad()
def test_one_leaves_and_one_joins_at_each_step(name: str):
    """As in a server: the batch never stands still, and is never read again."""
    served = Together(name, [0, 1, 2])
    served.step([3, 1, 2])
    for turn in range(4):
        served.release([turn % len(served.rows)])
        joining = Together(name, [(turn + 3) % len(LENGTHS)], seed=turn)
        joining.step([1 + turn])
        served.admit(joining)
        served.step([1] * 3)
        assert joining.state.rows == 0  # its memory was given back
    served.release([0, 1, 2])
    assert served.state.rows == 0
    joining = Together(name, [4, 1])
    joining.step([1, 2])
    served.admit(joining)
    served.step([1, 3])


@each
@torch.no_grad()
def test_rows_take_back_what_they_read_before_they_joined(name: str):
    served, joining = Together(name, [0, 1]), Together(name, [2, 3, 0], seed=1)
    served.step([3, 2])
    joining.step([2, 3, 3])
    served.admit(joining)
    served.rollback([1, 0, 1, 2, 0])
    served.step([1, 2, 0, 2, 1])
    joining = Together(name, [4], seed=2)
    joining.step([3])
    served.admit(joining)
    served.release([1])
    served.rollback([1, 1, 0, 2, 0])  # the one that joined is in the place of the one that left
    served.step([1] * 5)


@each
@torch.no_grad()
def test_rows_of_another_model_or_that_read_nothing_are_refused(name: str):
    served = Together(name, [0])
    served.step([1])
    other = "gru" if name != "gru" else "lstm"
    refused = [served.state, Together(other, [0]).state]
    if CASES[name].reads:
        refused.append(Together(name, [1]).state)
    for state in refused:
        with pytest.raises(RegardError):
            served.state.admit(state)
    with pytest.raises(RegardError, match="rows 0 to 0"):
        served.state.release([1])
    served.step([1])


@each
def test_every_state_has_the_calls_of_the_protocol(name: str):
    assert isinstance(built(name), SequenceModel)
    state = built(name).start(batch_size=2, capacity=3)
    assert all(hasattr(state, call) for call in ("admit", "release", "reorder", "rollback", "free"))


# --- the key/value cache ---------------------------------------------------------------------


@torch.no_grad()
def test_who_takes_a_free_place_copies_nobody_else_and_growth_is_amortised():
    served = Together("llama", [0, 0])
    served.step([3, 2])
    state = served.state
    places, grown = set(), 0
    for turn in range(40):
        joining = Together("llama", [0], seed=turn)
        joining.step([2])
        before = state.layers[0].keys.data_ptr()
        served.admit(joining)
        grown += state.layers[0].keys.data_ptr() != before
        served.step([1] * len(served.rows)) if turn % 9 == 0 else None
    assert len(served.rows) == 42
    assert grown == 5  # 2, 4, 8, 16, 32, 64
    for turn in range(20):
        served.release([turn % 7, 11])
        for seed in range(2):
            joining = Together("llama", [0], seed=seed)
            joining.step([1])
            served.admit(joining)
        places.add(state.layers[0].keys.data_ptr())
    assert len(places) == 1
    served.step([1] * len(served.rows))


@pytest.mark.parametrize("name", ["gpt2", "gpt2, fixed"])
@torch.no_grad()
def test_a_copy_in_a_place_that_was_free_holds_numbers_wherever_others_do(name: str):
    served = Together(name, [0, 0, 0])
    served.step([2, 2, 2])
    served.release([1, 2])
    served.step([3])
    joining = Together(name, [0], seed=1)
    joining.step([1])
    served.admit(joining)
    served.state.reorder([0, 1, 1])  # the last place has nothing at the first row's newest tokens
    served.choose([0, 1, 1])
    served.step([1, 1, 1])


def test_a_row_longer_than_the_capacity_is_refused():
    small = built("gpt2").start(batch_size=1, capacity=4)
    served = Together("gpt2", [0])
    with torch.no_grad():
        served.step([5])
    with pytest.raises(RegardError, match="room for 4 tokens a row, 5 are needed"):
        small.admit(served.state)


@pytest.mark.parametrize("name", ["gpt2, fixed", "llama, fixed", "t5, fixed"])
@torch.no_grad()
def test_what_the_kernel_is_given_keeps_its_shape_and_place(name, monkeypatch):
    """So that a step can be recorded once and played again, as CUDA graphs want it."""
    given: list[tuple[object, ...]] = []
    kernel = F.scaled_dot_product_attention

    def listening(queries, keys, values, attn_mask=None, **more):
        shapes = [queries.shape, keys.shape, values.shape, more.pop("is_causal")]
        shapes.append(None if attn_mask is None else attn_mask.shape)
        given.append((*shapes, keys.data_ptr(), values.data_ptr()))
        return kernel(queries, keys, values, attn_mask, is_causal=shapes[3], **more)

    served = Together(name, [0, 1])
    served.step([4, 2])
    monkeypatch.setattr(F, "scaled_dot_product_attention", listening)
    steps = []
    for _ in range(6):
        given.clear()
        lengths = served.state.starts.data_ptr()
        new = torch.tensor([[3], [4]])
        served.model(new, None, served.state)
        steps.append([*given, lengths])
    assert all(step == steps[0] for step in steps)
    assert served.state.starts.tolist() == served.state.lengths == [10, 8]

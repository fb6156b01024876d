"""In every family each part can be read and changed; who only reads changes nothing."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from regard.errors import RegardError
from regard.inspection.tape import change, record
from regard.models.bag.config import BagConfig
from regard.models.captioner.config import CaptionConfig
from regard.models.construction import build
from regard.models.convolution.config import ConvolutionConfig
from regard.models.counting.estimate import estimate
from regard.models.counting.model import NGram
from regard.models.recurrent.config import RecurrentConfig
from regard.models.transformer.presets import preset
from regard.models.word_vectors.config import Word2VecConfig

VOCABULARY = 30
TEXT = RecurrentConfig(vocabulary=VOCABULARY, width=8, layers=2, cell="lstm")
PAIR = replace(TEXT, kind="encoder-decoder", hidden=8, bidirectional=True)
WINDOW = ConvolutionConfig(vocabulary=VOCABULARY, width=8, layers=2)
SIGHT = CaptionConfig(vocabulary=VOCABULARY, picture=32, patch=8, width=32, heads=2)
CONFIGS = {
    "gpt2": replace(preset("gpt2-tiny"), vocabulary=VOCABULARY),
    "bert": replace(preset("bert-tiny"), vocabulary=VOCABULARY),
    "llama": replace(preset("llama-tiny"), vocabulary=VOCABULARY),
    "t5": replace(preset("t5-tiny"), vocabulary=VOCABULARY),
    "elman": replace(TEXT, cell="elman"),
    "gru": replace(TEXT, cell="gru"),
    "lstm": TEXT,
    "cho": replace(PAIR, cell="gru", attention="none", input_feeding=True),
    "bahdanau": replace(PAIR, cell="gru", attention="additive"),
    "luong": replace(PAIR, attention="general", input_feeding=True),
    "dot": replace(PAIR, attention="dot"),
    "convolution": WINDOW,
    "convolution, pairs": replace(WINDOW, kind="encoder-decoder"),
    "captioner": SIGHT,
    "captioner, lstm": replace(SIGHT, encoder="patches", decoder="lstm"),
    "bag": BagConfig(VOCABULARY, VOCABULARY, width=6, layers=1),
    "vectors": Word2VecConfig(vocabulary=VOCABULARY, width=6),
}
EVERY = pytest.mark.parametrize("name", CONFIGS)


@dataclass(frozen=True)
class Noise:
    """Adds the same random numbers to whatever it is given, or nothing at all."""

    size: float

    def __call__(self, made: Any) -> Any:
        if isinstance(made, tuple):
            return tuple(self(each) for each in made)
        if not (isinstance(made, Tensor) and made.is_floating_point()):
            return made
        drawn = torch.Generator().manual_seed(5)
        return made + self.size * torch.randn(made.shape, generator=drawn, dtype=made.dtype)


@cache
def tiny(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = build(CONFIGS[name]).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.3 * torch.randn_like(weight)
    return model


def ids(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(3, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def read(model: nn.Module) -> Tensor:
    """One pass of two rows, from a source where there is one."""
    kind = model.config.kind
    if kind == "vectors":
        return model(ids(2, 4))
    if kind == "captioner":
        drawn = torch.Generator().manual_seed(1)
        shape = (2, 3, 32, 32)
        source = torch.randint(0, 256, shape, generator=drawn, dtype=torch.uint8)
        return model(ids(2, 4), model.encode(source))
    if kind in ("encoder-decoder", "classifier"):
        return model(ids(2, 4), model.encode(ids(2, 5, seed=1), [5, 3]))
    return model(ids(2, 4))


def inside(name: str) -> list[str]:
    """All parts that run when the whole does."""
    with torch.no_grad(), record(tiny(name), "*") as tape:
        read(tiny(name))
    return list(tape.parts)


@EVERY
@torch.no_grad()
def test_who_records_every_part_changes_nothing(name: str):
    model = tiny(name)
    without = read(model)
    with record(model, "*") as tape:
        under = read(model)
    torch.testing.assert_close(under, without, rtol=1e-11, atol=1e-11)
    assert not any(part._forward_hooks for part in model.modules())
    assert torch.equal(read(model), without)
    whole = type(model).__name__.lower()
    assert torch.equal(tape.activations(whole)[0].made[0], under)
    # Of all that has weights something is kept, by its own name or by that of a part of it.
    for place, part in model.named_modules():
        if any(True for _ in part.parameters(recurse=False)) and place:
            kept = any(f"{each}.".startswith(f"{place}.") for each in tape.parts)
            assert kept or place == "pooler", place  # which only `pooled` asks


@EVERY
@torch.no_grad()
def test_what_every_part_makes_can_be_changed_and_changes_the_answer(name: str):
    model = tiny(name)
    without = read(model)
    for part in inside(name):
        with change(model, {part: Noise(0.0)}):
            torch.testing.assert_close(read(model), without, rtol=1e-11, atol=1e-11)
        with change(model, {part: Noise(0.5)}):
            assert not torch.allclose(read(model), without, rtol=1e-6, atol=1e-6), part
    assert torch.equal(read(model), without)


@pytest.mark.parametrize("name", ["gpt2", "convolution", "luong"])
def test_training_under_a_change_that_changes_nothing_has_the_same_gradients(name: str):
    model = deepcopy(tiny(name))

    def gradients() -> list[Tensor]:
        model.zero_grad()
        read(model).square().mean().backward()
        return [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]

    without = gradients()
    with change(model, {"*": lambda made: made}), record(model, "*"):
        under = gradients()
    torch.testing.assert_close(under, without, rtol=1e-9, atol=1e-12)


# --- attention -------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["attend", "attend.probabilities"])
@pytest.mark.parametrize("head", [0, 3])
@torch.no_grad()
def test_a_head_whose_output_is_zero_is_as_good_as_removed(part: str, head: int):
    model = tiny("gpt2")

    def silenced(made: Tensor) -> Tensor:  # (rows, heads, queries, any)
        made = made.clone()
        made[:, head] = 0.0
        return made

    with change(model, {f"decoder.blocks.1.attention.{part}": silenced}):
        found = read(model)
    removed = deepcopy(model)
    attention = removed.decoder.blocks[1].attention
    width = attention.head_width
    attention.output.weight[:, head * width : (head + 1) * width] = 0.0
    torch.testing.assert_close(found, read(removed), rtol=1e-11, atol=1e-11)
    assert not torch.allclose(found, read(model))


@torch.no_grad()
def test_what_one_text_made_can_be_put_into_the_pass_of_another():
    """Patching: all that comes behind the last block's output is then the other's."""
    model = tiny("gpt2")
    one, other = ids(1, 5, seed=1), ids(1, 5, seed=2)
    with record(model, "decoder.blocks.1") as tape:
        wanted = model(one)
    (made,) = tape.activations("decoder.blocks.1")[0].made
    with change(model, {"decoder.blocks.1": lambda _: made}):
        torch.testing.assert_close(model(other), wanted)


# --- recurrence ------------------------------------------------------------------------------


@pytest.mark.parametrize("stepwise", [False, True])
@torch.no_grad()
def test_gates_and_states_over_time_are_those_of_the_equations(stepwise: bool):
    model, tokens = tiny("lstm"), ids(2, 6)
    with record(model, ["decoder.cells.*", "embed"]) as tape:
        if stepwise:
            state = model.start(batch_size=2, capacity=6)
            for token in tokens.split(1, dim=1):
                model(token, state=state)
        else:
            model(tokens)
    x = torch.cat([call.made[0] for call in tape.activations("embed")], dim=1)
    for layer, cell in enumerate(model.decoder.cells):
        i, f, g, o = tape.over_time(f"decoder.cells.{layer}.gates")
        h, c = tape.over_time(f"decoder.cells.{layer}.state")
        assert i.shape == h.shape == (2, 6, 8)
        h_before, c_before = (torch.cat([p[:, :1] * 0, p[:, :-1]], dim=1) for p in (h, c))
        sums = x @ cell.input.mT + cell.input_bias + h_before @ cell.recurrent.mT
        wanted = (sums + cell.recurrent_bias).chunk(4, -1)
        torch.testing.assert_close(i, wanted[0].sigmoid())
        torch.testing.assert_close(f, wanted[1].sigmoid())
        torch.testing.assert_close(g, wanted[2].tanh())
        torch.testing.assert_close(o, wanted[3].sigmoid())
        torch.testing.assert_close(c, f * c_before + i * g)
        torch.testing.assert_close(h, o * c.tanh())
        x = h


@pytest.mark.parametrize("name", ["elman", "gru", "lstm", "luong", "captioner, lstm"])
@torch.no_grad()
def test_rows_of_different_lengths_go_on_from_a_state_as_without_a_tape(name: str):
    model = tiny(name)

    def continued() -> Tensor:
        drawn = torch.Generator().manual_seed(1)
        memory = None
        if model.config.kind == "captioner":
            shape = (3, 3, 32, 32)
            memory = model.encode(torch.randint(0, 256, shape, generator=drawn).to(torch.uint8))
        elif model.config.kind == "encoder-decoder":
            memory = model.encode(ids(3, 5))
        state = model.start(batch_size=3, capacity=9)
        model(ids(3, 4), memory, state, lengths=[4, 0, 2])
        return model(ids(3, 2, seed=3), None, state)

    without = continued()
    with record(model, "*"):
        under = continued()
    torch.testing.assert_close(under, without, rtol=1e-11, atol=1e-11)


def test_without_a_tape_the_fused_kernel_runs(monkeypatch: pytest.MonkeyPatch):
    from regard.models.recurrent import cells

    calls, kernel = [], cells.many_steps
    monkeypatch.setattr(cells, "many_steps", lambda *a: (calls.append(a), kernel(*a))[1])
    model = tiny("lstm")
    read(model)
    with record(model, "decoder.cells.0.gates"):
        read(model)
    assert len(calls) == 3  # the second layer's too, of whose inside nobody asked


# --- n-grams ---------------------------------------------------------------------------------


@cache
def ngram(order: int) -> NGram:
    rng = np.random.default_rng(0)
    texts = [(3 + rng.zipf(1.5, rng.integers(1, 8)) % 5).tolist() for _ in range(60)]
    tokens = np.array([token for words in texts for token in (1, *words, 2)])
    return NGram.of(estimate(tokens, order, 9, 1))


@pytest.mark.parametrize("order", [1, 2, 4])
@settings(max_examples=30)
@given(st.lists(st.integers(3, 8), min_size=1, max_size=6))
def test_an_ngrams_way_back_ends_with_what_answered(order: int, text: list[int]):
    model = ngram(order)
    tokens = torch.tensor([[1, *text]])
    with record(model) as tape:
        logprobs = model(tokens)[0]
    (row,) = tape["ngram"]
    exact, lengths = model.table.logprobs(tokens[0].numpy())
    for place, (token, way) in enumerate(zip(text, row[1:], strict=True), 1):
        *shortened, answered = way
        assert answered.known
        assert not any(tried.known for tried in shortened)
        assert len(answered.tokens) == lengths[place]
        assert answered.tokens == (1, *text)[place + 1 - lengths[place] : place + 1]
        total = sum(tried.logprob for tried in way)
        assert total == pytest.approx(exact[place])
        assert total == pytest.approx(float(logprobs[place - 1, token]), abs=1e-4)


def test_step_by_step_an_ngram_goes_the_same_ways():
    model = ngram(3)
    tokens, state = torch.tensor([[1, 4, 5, 6], [1, 7, 3, 3]]), ngram(3).start(2, 9)
    with record(model) as whole:
        model(tokens)
    with record(model) as steps:
        model(tokens[:, :3], state=state, lengths=[3, 1])
        model(torch.tensor([[6, 0, 0], [7, 3, 3]]), state=state, lengths=[1, 3])
    joined = [a + b for a, b in zip(*steps.calls("ngram"), strict=True)]
    assert joined == whole["ngram"]


# --- mistakes --------------------------------------------------------------------------------


@pytest.mark.parametrize("user", [record, lambda model, part: change(model, {part: Noise(1)})])
def test_a_part_that_is_not_there_is_answered_with_the_nearest(user: Callable[..., Any]):
    near = r"did you mean 'decoder\.cells\.1\.gates'"
    with pytest.raises(RegardError, match=near), user(tiny("lstm"), "decoder.cell.1.gates"):
        pass
    assert not any(part._forward_hooks for part in tiny("lstm").modules())


def test_a_part_that_was_not_recorded_is_answered_with_the_nearest():
    with torch.no_grad(), record(tiny("lstm"), "decoder.cells.*") as tape:
        read(tiny("lstm"))
    with pytest.raises(RegardError, match=r"did you mean 'decoder\.cells\.1\.gates'"):
        tape.activations("decoder.cell.1.gates")

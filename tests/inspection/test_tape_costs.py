"""A tape costs nothing when off, and goes with compiled models."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"


import pytest
import torch
from recorded_texts import TINY, Text, hooks, recorded, tiny
from torch.utils._python_dispatch import TorchDispatchMode

from regard import RegardError, record
from regard.models.transformer.attention import Attend
from regard.models.transformer.model import Transformer


class Operations(TorchDispatchMode):
    """The names of all operations that ran, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket._qualified_op_name)
        return func(*args, **(kwargs or {}))


def operations(model: Transformer, text: Text) -> list[str]:
    with torch.no_grad(), Operations() as seen:
        text.read_by(model)
    return seen.names


@pytest.mark.parametrize("name", TINY)
def test_without_a_tape_the_kernel_runs_alone_before_and_after_one(name, text):
    model = tiny(name)
    before = operations(model, text)
    with record(model):
        under = operations(model, text)
    after = operations(model, text)
    assert after == before
    kernels = sum(isinstance(module, Attend) for module in model.modules())
    assert before.count("aten::_scaled_dot_product_flash_attention_for_cpu") == kernels
    assert not [operation for operation in before if "softmax" in operation]
    assert sum("softmax" in operation for operation in under) == kernels  # it can tell


@pytest.mark.parametrize("where", ["in the model", "in the block"])
def test_no_hook_is_left_even_if_the_block_raises(where, text):
    model = tiny("t5-tiny")
    before = operations(model, text)

    def interrupted() -> None:
        with record(model):
            assert len(hooks(model)) == 6
            text.read_by(model)
            if where == "in the model":
                model(text.tokens + 1000, text.memory(model))
            raise ZeroDivisionError

    with pytest.raises((RegardError, ZeroDivisionError)):
        interrupted()
    assert not hooks(model)
    assert operations(model, text) == before


# Compiled models


class Counting:
    """A compiler that runs the graph as it is and counts the runs."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, graph, example_inputs):
        def run(*args):
            self.runs += 1
            return graph.forward(*args)

        return run


@pytest.mark.parametrize("how", ["torch.compile", "in place"])
@torch.no_grad()
def test_a_compiled_model_is_recorded_uncompiled_and_compiled_again_after(how, text):
    torch.compiler.reset()
    model = tiny("gpt2-tiny")
    expected = recorded(model, text)
    backend = Counting()
    compiled = torch.compile(model, backend=backend)
    if how == "in place":
        model.compile(backend=backend)
        compiled = model
    output = compiled(text.tokens)
    runs = backend.runs
    assert runs > 0
    with record(compiled) as tape:
        under = compiled(text.tokens)
    assert backend.runs == runs
    assert torch.equal(under, output)
    assert tape.names == expected.names
    for name in tape.names:
        assert torch.equal(tape[name].probabilities, expected[name].probabilities)
    assert torch.equal(compiled(text.tokens), output)
    assert backend.runs == 2 * runs


@torch.no_grad()
def test_compiled_blocks_keep_their_places(text):
    torch.compiler.reset()
    model = tiny("gpt2-tiny")
    expected = recorded(model, text)
    for i, block in enumerate(model.decoder.blocks):
        model.decoder.blocks[i] = torch.compile(block, backend="eager")
    text.read_by(model)
    tape = recorded(model, text)
    assert tape.names == expected.names
    for name in tape.names:
        assert torch.equal(tape[name].probabilities, expected[name].probabilities)

"""Products by other kernels are the same products."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from regard.errors import RegardError
from regard.models.construction import build
from regard.models.kernels import linear
from regard.models.kernels.int8 import quantise
from regard.models.kernels.linear import Linear, product
from regard.models.kernels.packed import MKL, OneDNN, PackedLinear, packed
from regard.models.transformer.presets import preset

needs_kernel = pytest.mark.skipif(not linear.ONEDNN, reason="this torch has no oneDNN")
LAYOUTS = [OneDNN] if linear.ONEDNN else []
LAYOUTS += [MKL] if torch.backends.mkl.is_available() else []
SHAPES = st.lists(st.integers(1, 5), min_size=0, max_size=3)


@given(SHAPES, st.integers(1, 40), st.integers(1, 40), st.booleans())
def test_a_product_is_the_products_definition_whatever_the_kernel(shape, inputs, outputs, biased):
    generator = torch.Generator().manual_seed(inputs * 41 + outputs)
    weight = torch.randn(outputs, inputs, generator=generator)
    x = torch.randn(*shape, inputs, generator=generator)
    bias = torch.randn(outputs, generator=generator) if biased else None
    exact = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    with torch.inference_mode():
        packed = [PackedLinear(weight, bias, layout)(x) for layout in (None, *LAYOUTS)]
        for found in (product(x, weight, bias), *packed):
            assert found.shape == exact.shape
            torch.testing.assert_close(found.double(), exact, atol=1e-4, rtol=1e-5)


@needs_kernel
def test_the_kernel_is_used_without_gradients_and_never_with_them(monkeypatch):
    layer, x = Linear(8, 4), torch.randn(3, 8)
    asked = []
    monkeypatch.setattr(F, "linear", lambda *given: asked.append(given) or torch.zeros(3, 4))
    with torch.no_grad():
        layer(x)
    assert not asked
    layer(x)
    assert len(asked) == 1
    with torch.no_grad():
        layer.double()(x.double())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            layer.float()(x)
    assert len(asked) == 3


def test_gradients_flow_as_they_do_in_torch():
    mine, torchs = Linear(6, 5), nn.Linear(6, 5)
    torchs.load_state_dict(mine.state_dict())
    x = torch.randn(4, 6)
    for layer in (mine, torchs):
        layer(x).square().sum().backward()
    torch.testing.assert_close(mine.weight.grad, torchs.weight.grad)


@pytest.mark.parametrize("rows", [0, 1])
def test_an_empty_batch_is_empty(rows):
    with torch.inference_mode():
        assert product(torch.zeros(0, rows, 8), torch.ones(3, 8)).shape == (0, rows, 3)
        assert PackedLinear(torch.ones(3, 8))(torch.zeros(0, rows, 8)).shape == (0, rows, 3)


@needs_kernel
@pytest.mark.parametrize("name", ["gpt2-tiny", "bert-tiny", "llama-tiny", "t5-tiny", "marian-tiny"])
def test_a_packed_model_gives_the_same_logits_whole_and_step_by_step(name):
    torch.manual_seed(0)
    module = build(replace(preset(name), dropout=0.0)).eval()
    fast = packed(module)
    assert not any(isinstance(part, nn.Linear) for part in fast.modules())
    tokens = torch.randint(5, 256, (3, 7))
    both = module.config.kind == "encoder-decoder"
    with torch.inference_mode():
        memory, quick = (m.encode(tokens) if both else None for m in (module, fast))
        wanted, found = module(tokens, memory), fast(tokens, quick)
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
        if module.config.kind != "encoder":
            state = fast.start(3, 7)
            steps = [fast(tokens[:, i : i + 1], quick, state) for i in range(7)]
            torch.testing.assert_close(torch.cat(steps, 1), wanted, atol=1e-4, rtol=1e-4)


def test_what_gains_nothing_is_left_as_it_is():
    module = build(preset("gpt2-tiny")).bfloat16()
    assert packed(module) is module


@needs_kernel
def test_packed_weights_are_neither_moved_saved_nor_trained():
    fast = packed(build(preset("gpt2-tiny")))
    with pytest.raises(RegardError, match="stay where they are"):
        fast.double()
    with pytest.raises(RegardError, match="not for saving"):
        fast.state_dict()
    with pytest.raises(RegardError, match="cannot be trained"):
        fast.train()(torch.zeros(1, 3, dtype=torch.long))


@needs_kernel
def test_what_is_packed_is_not_converted_again():
    fast = packed(build(preset("gpt2-tiny")))
    assert packed(fast) is fast
    with pytest.raises(RegardError, match="convert the plain one"):
        quantise(fast)


def test_a_counter_sees_every_product():
    from torch.utils.flop_counter import FlopCounterMode

    layer = Linear(8, 4).requires_grad_(False)
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        layer(torch.zeros(3, 8))
    assert counter.get_total_flops() == 2 * 3 * 8 * 4

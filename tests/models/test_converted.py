"""Other products in place of linear layers: in a copy, or as the old weights go, one by one."""

import weakref

import pytest
import torch
from tiny_models import NAMES, assert_same, ids, memory_of, settings_of, tiny
from torch import Tensor, nn

from regard.models.construction import build
from regard.models.kernels.converted import converted
from regard.models.kernels.int8 import Int8Linear
from regard.models.transformer.model import Transformer


class Doubled(nn.Module):
    """A product whose weights are others."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.register_buffer("weight", 2 * weight.detach())
        self.register_buffer("bias", None if bias is None else 2 * bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight, self.bias) / 2


def fresh(name: str) -> Transformer:
    """A model of one's own, with the weights of the shared one."""
    model = build(settings_of(name)).double()
    model.load_state_dict(tiny(name).state_dict())
    return model.eval()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("keep", [True, False])
@torch.no_grad()
def test_a_converted_model_computes_with_the_other_products(name: str, keep: bool):
    model, tokens = fresh(name), ids(2, 6)
    expected = model(tokens, memory_of(model, 2))
    made = converted(model, Doubled, keep=keep)
    assert not any(isinstance(part, nn.Linear) for part in made.modules())
    assert_same(made(tokens, memory_of(made, 2)), expected)
    assert (made is model) is not keep


def test_the_original_of_a_copy_is_as_it_was():
    model = fresh("marian-tiny").train()
    before = {name: (weight, weight.clone()) for name, weight in model.named_parameters()}
    made = converted(model, Doubled)
    for name, weight in model.named_parameters():
        same, numbers = before[name]
        assert weight is same
        assert weight.requires_grad
        assert torch.equal(weight, numbers)
    assert model.training
    assert not made.training
    assert not any(weight.requires_grad for weight in made.parameters())
    with torch.no_grad():
        made.embed.tokens.weight.zero_()
    assert bool(model.embed.tokens.weight.any())


@pytest.mark.parametrize("name", ["gpt2-tiny", "marian-tiny"])
def test_old_weights_go_one_by_one_as_the_new_ones_come(name: str):
    model = fresh(name)
    old = [weakref.ref(p.weight) for p in model.modules() if isinstance(p, nn.Linear)]
    held = []

    def layer(weight: Tensor, bias: Tensor | None) -> nn.Module:
        held.append(sum(one() is not None for one in old))
        return Doubled(weight, bias)

    converted(model, layer, keep=False)
    # Those that stand beside it in the same part may still be there, which are three at most.
    assert all(there <= len(old) - done + 3 for done, there in enumerate(held[: len(old)]))
    assert held[0] == len(old) > 6
    assert held[-1] <= 3
    assert not any(one() is not None for one in old)


def test_a_layer_by_itself_becomes_another():
    linear = nn.Linear(8, 4)
    made = converted(linear, Int8Linear)
    assert isinstance(made, Int8Linear)
    assert_same(made(torch.eye(8)), linear(torch.eye(8)), 0.02)

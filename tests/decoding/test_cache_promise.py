"""The cache's promise, counted (M22): a step costs a line in the prefix, without it a parabola.

Operations are counted from the products that run, on the CPU's plain attention.
"""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from regard.decoding import prefix
from regard.decoding.settings import Sampling
from regard.decoding.writing import Writing
from regard.models.transformer import build

SIZES = (5, 9, 17, 33)


@pytest.fixture(autouse=True)
def plain_attention(monkeypatch):
    """Attention as two products, which the counter knows."""
    monkeypatch.setattr(prefix, "any_shape", lambda: sdpa_kernel(SDPBackend.MATH))


def counted(step: object) -> int:
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()


@pytest.mark.parametrize("name", ["gpt2-tiny", "llama-tiny"])
def test_a_step_with_the_cache_costs_two_products_more_for_each_token_before_it(name):
    module = build(name).eval().requires_grad_(False)
    config = module.config
    costs = []
    for size in SIZES:
        asked = [Sampling(limit=9, temperature=0.0, banned=(2,))]
        writing = Writing.begin(module, [[5] * size], asked, context=64)
        writing.step()
        costs.append(counted(writing.step))
    each = 4 * config.heads * config.head_width * config.layers
    for size, cost in zip(SIZES, costs, strict=True):
        assert cost - costs[0] == (size - SIZES[0]) * each


def test_without_the_cache_every_step_pays_for_the_whole_prefix():
    module = build("gpt2-tiny").eval().requires_grad_(False)
    d, layers = module.config.width, module.config.layers

    def step(size: int) -> int:
        tokens = torch.full((1, size), 5)
        with sdpa_kernel(SDPBackend.MATH):
            return counted(lambda: module(tokens, last=True))

    linear = sum(p.numel() for n, p in module.named_parameters() if "blocks" in n and p.dim() == 2)
    head = 2 * d * module.config.vocabulary
    for size in SIZES:
        assert step(size) == size * 2 * linear + 4 * size**2 * d * layers + head

"""The cache's promise, counted (M22): a step costs a line in the prefix, without it a parabola.

Operations are counted from the products that run, on the CPU's plain attention.
"""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from regard.decoding import session
from regard.decoding.decode_batch import DecodeBatch
from regard.decoding.search.beam import search
from regard.decoding.settings import Beam, Sampling
from regard.models.construction import build
from regard.models.transformer.presets import preset

SIZES = (5, 9, 17, 33)


@pytest.fixture(autouse=True)
def plain_attention(monkeypatch):
    """Attention as two products, which the counter knows."""
    monkeypatch.setattr(session, "any_shape", lambda: sdpa_kernel(SDPBackend.MATH))


def counted(step: object) -> int:
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()


@pytest.mark.parametrize("name", ["gpt2-tiny", "llama-tiny"])
def test_a_step_with_the_cache_costs_two_products_more_for_each_token_before_it(name):
    module = build(preset(name)).eval().requires_grad_(False)
    config = module.config
    costs = []
    for size in SIZES:
        asked = [Sampling(limit=9, temperature=0.0, banned=(2,))]
        writing = DecodeBatch.begin(module, [[5] * size], asked, context=64)
        writing.step()
        costs.append(counted(writing.step))
    each = 4 * config.heads * config.head_width * config.layers
    for size, cost in zip(SIZES, costs, strict=True):
        assert cost - costs[0] == (size - SIZES[0]) * each


def third_step(name: str, size: int, beams: int, source: int = 4) -> int:
    """What a search pays to go from two tokens behind a prompt of such a size to three."""
    module = build(preset(name)).eval().requires_grad_(False)
    memory = None
    if module.config.kind == "encoder-decoder":
        with torch.no_grad():
            memory = module.encode(torch.full((1, source), 5))

    def whole(limit: int) -> int:
        beam = Beam(beams, banned=(2,))
        return counted(lambda: search(module, [[5] * size], [limit], beam, memory=memory))

    return whole(4) - whole(3)  # the last token of each is not read


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("name", ["gpt2-tiny", "llama-tiny", "marian-tiny", "t5-tiny"])
def test_a_step_of_a_beam_search_pays_the_same_for_each_token_before_a_beam(name, beams):
    config = preset(name).resolved()
    costs = [third_step(name, size, beams) for size in SIZES]
    each = 4 * config.heads * config.head_width * config.layers
    for size, cost in zip(SIZES, costs, strict=True):
        assert cost - costs[0] == (size - SIZES[0]) * each * beams
    if name in ("marian-tiny", "t5-tiny"):  # and for each of the source, which was read before
        assert third_step(name, 5, beams, source=9) - costs[0] == (9 - 4) * each * beams


def test_without_the_cache_every_step_pays_for_the_whole_prefix():
    module = build(preset("gpt2-tiny")).eval().requires_grad_(False)
    d, layers = module.config.width, module.config.layers

    def step(size: int) -> int:
        tokens = torch.full((1, size), 5)
        with sdpa_kernel(SDPBackend.MATH):
            return counted(lambda: module(tokens, last=True))

    linear = sum(p.numel() for n, p in module.named_parameters() if "blocks" in n and p.dim() == 2)
    head = 2 * d * module.config.vocabulary
    for size in SIZES:
        assert step(size) == size * 2 * linear + 4 * size**2 * d * layers + head

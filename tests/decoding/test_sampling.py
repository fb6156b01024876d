"""Continuing a text, against loops that recompute everything and the probabilities themselves."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.decoding.sampling import NEVER, choose, continued
from regard.errors import RegardError
from regard.models.presets import preset
from regard.models.transformer import Transformer, build
from regard.text.specials import BOS, EOS

VOCABULARY, CONTEXT = 20, 24


def model(seed: int = 0, name: str = "gpt2-tiny", **changes: object) -> Transformer:
    """Weights drawn wide, so that no two answers are nearly alike; in float64."""
    config = replace(preset(name), vocabulary=VOCABULARY, context=CONTEXT, layers=1, **changes)
    module = build(config).double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in module.parameters():
            if weight.dim() == 2:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.3)
    return module


def biased(module: Transformer, token: int, size: float) -> Transformer:
    with torch.no_grad():
        module.head.bias[token] = size
    return module


@torch.no_grad()
def naive(module: Transformer, prompt: list[int], limit: int) -> list[int]:
    """The most probable token each time, everything computed anew."""
    ids, written = [BOS, *prompt], []
    while len(written) < limit and len(ids) <= module.config.context:
        answer = module(torch.tensor([ids]))[0, -1]
        answer[list(NEVER)] = -torch.inf
        token = int(answer.argmax())
        if token == EOS:
            break
        ids.append(token)
        written.append(token)
    return written


@pytest.mark.parametrize("name", ["gpt2-tiny", "llama-tiny"])
@pytest.mark.parametrize("seed", range(5))
def test_at_temperature_0_it_is_the_most_probable_token_each_time(name, seed):
    module = model(seed, name)
    for prompt in ([], [7], [5, 9, 6, 12]):
        assert list(continued(module, prompt, 12, temperature=0)) == naive(module, prompt, 12)


def test_seeds_reproduce_and_differ():
    module = biased(model(head_bias=True), EOS, -1e4)
    found = [list(continued(module, [6, 7], 15, seed=seed)) for seed in (1, 1, 2)]
    assert found[0] == found[1] != found[2]
    torch.manual_seed(5)
    before = torch.rand(1)
    torch.manual_seed(5)
    list(continued(module, [6], 5, seed=3))
    assert torch.equal(torch.rand(1), before)  # nobody else's draws are disturbed


@pytest.mark.parametrize("temperature", [0, 1e-300, 0.5, 1.0, 1e300])
def test_specials_are_never_written_however_probable(temperature):
    module = model(1, head_bias=True)
    for token in NEVER:
        biased(module, token, 1e3)
    biased(module, EOS, -1e3)
    for seed in range(5):
        found = list(continued(module, [8], 15, temperature=temperature, seed=seed))
        assert len(found) == 15 or temperature > 1  # then </s> is as likely as any other
        assert not {*found} & {*NEVER, EOS}


def test_it_ends_with_the_text():
    assert list(continued(biased(model(head_bias=True), EOS, 1e4), [6], 10)) == []
    module = biased(model(head_bias=True), EOS, 2.0)
    lengths = {len(list(continued(module, [6], 20, seed=seed))) for seed in range(20)}
    assert len(lengths) > 3


@given(st.integers(0, 60), st.integers(0, 60))
def test_it_writes_up_to_the_limit_or_the_end_of_the_context(size, limit):
    module = biased(model(head_bias=True), EOS, -1e4)
    prompt = [5 + i % 15 for i in range(size)]
    found = list(continued(module, prompt, limit, temperature=0))
    kept = min(size + 1, max(CONTEXT - limit, CONTEXT // 2, 1))
    assert len(found) == min(limit, CONTEXT - kept + 1)
    if limit <= CONTEXT // 2:
        assert len(found) == limit


@pytest.mark.parametrize("limit", [1, 4, 12, 50])
def test_a_long_prompt_is_cut_at_its_beginning(limit):
    module = biased(model(head_bias=True), EOS, -1e4)
    prompt = [5 + (i * i) % 15 for i in range(100)]
    kept = max(CONTEXT - limit, CONTEXT // 2)
    found = list(continued(module, prompt, limit, temperature=0))
    ids, wanted = prompt[-kept:], []
    while len(wanted) < min(limit, CONTEXT - kept + 1):
        answer = module(torch.tensor([ids]))[0, -1].detach()
        answer[list(NEVER)] = -torch.inf
        ids, wanted = [*ids, int(answer.argmax())], [*wanted, int(answer.argmax())]
    assert found == wanted


logits = st.lists(st.floats(-20, 20), min_size=6, max_size=30)


@given(logits, st.integers(1, 40), st.floats(0.01, 10), st.integers(0, 99))
def test_a_draw_is_among_the_top(values, top, temperature, seed):
    generator = torch.Generator().manual_seed(seed)
    token = choose(torch.tensor(values), temperature, top, generator)
    assert token not in NEVER
    ordinary = [v for i, v in enumerate(torch.tensor(values).tolist()) if i not in NEVER]
    better = sum(value > torch.tensor(values)[token].item() for value in ordinary)
    assert better < top


def test_among_equals_it_draws_from_exactly_so_many():
    found = {
        choose(torch.zeros(50), 1.0, 3, torch.Generator().manual_seed(seed)) for seed in range(200)
    }
    assert len(found) == 3


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("top", [0, 3])
def test_draws_are_as_frequent_as_the_softmax_at_that_temperature_says(temperature, top):
    values = torch.tensor([9.0, 9.0, 0.5, 9.0, 9.0, 1.0, -0.5, 2.0])
    generator = torch.Generator().manual_seed(0)
    count = 4000
    draws = [choose(values.clone(), temperature, top, generator) for _ in range(count)]
    allowed = [7, 5, 2] if top else [2, 5, 6, 7]
    weights = {token: math.exp(values[token].item() / temperature) for token in allowed}
    for token in range(8):
        share = weights.get(token, 0.0) / sum(weights.values())
        spread = 5 * math.sqrt(share * (1 - share) / count)
        assert abs(draws.count(token) / count - share) <= spread


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": -1}, {"temperature": math.nan}, {"temperature": math.inf}, {"top": -1}],
)
def test_impossible_wishes_are_one_sentence(wrong):
    with pytest.raises(RegardError, match="must not be negative, nor without end"):
        list(continued(model(), [6], 3, **wrong))
    with pytest.raises(RegardError, match="must not be negative"):
        list(continued(model(), [6], -1))


def test_it_leaves_gradients_on_between_tokens():
    for _ in continued(model(), [6], 3):
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()

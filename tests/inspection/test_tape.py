"""The tape: it records what attention really did, and changes nothing."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

from dataclasses import replace

import pytest
import torch
from recorded_texts import TINY, WRITERS, hooks, recorded, tiny
from torch import Tensor, nn
from torch.nn import functional as F

from regard import RegardError, record
from regard.models.masks import Window
from regard.models.transformer.attention import Attend, Attention


@pytest.mark.parametrize("name", TINY)
def test_the_output_is_the_same_to_the_bit(name, text):
    model = tiny(name)
    without = text.read_by(model)
    with record(model):
        under = text.read_by(model)
    assert torch.equal(under, without)
    assert torch.equal(text.read_by(model), without)


@pytest.mark.parametrize("name", ["gpt2-tiny", "t5-tiny"])
def test_training_goes_on_to_the_bit_while_recorded(name, text):
    """The same dropout is drawn and the same gradients come, and the tape keeps no graph."""
    model = tiny(name).train()
    assert model.config.attention_dropout > 0

    def gradients() -> list[Tensor]:
        torch.manual_seed(3)
        model.zero_grad()
        text.read_by(model).square().mean().backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    without = gradients()
    with record(model) as tape:
        under = gradients()
    assert all(torch.equal(a, b) for a, b in zip(under, without, strict=True))
    kept = [vars(look).values() for name in tape.names for look in tape.calls(name)]
    assert not any(t.requires_grad for look in kept for t in look if t is not None)


# It tells the truth


@pytest.mark.parametrize("name", TINY)
def test_probabilities_times_values_is_what_the_kernel_returned(name, text):
    model, returned = tiny(name), {}
    for place, module in model.named_modules():
        if isinstance(module, Attend):
            key = place.removesuffix(".attend")
            module.register_forward_hook(lambda _m, _i, out, key=key: returned.update({key: out}))
    tape = recorded(model, text)
    assert set(tape.names) == returned.keys()
    for place, output in returned.items():
        look = tape[place]
        groups = look.queries.shape[1] // look.values.shape[1]
        values = look.values.repeat_interleave(groups, dim=1)
        torch.testing.assert_close(look.probabilities @ values, output, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("name", TINY)
def test_probabilities_follow_from_the_scores_bias_and_mask_beside_them(name, text):
    model = tiny(name)
    tape = recorded(model, text)
    config = model.config
    for place in tape.names:
        look = tape[place]
        groups = config.heads // config.kv_heads
        assert look.keys.shape[1] == config.kv_heads
        raw = torch.einsum(
            "rhqw,rhkw->rhqk", look.queries, look.keys.repeat_interleave(groups, dim=1)
        )
        scale = config.head_width**-0.5 if config.scale_scores else 1.0
        torch.testing.assert_close(look.scores, raw * scale, atol=1e-5, rtol=1e-5)
        relative = config.positions == "relative" and place.endswith("attention")
        assert (look.bias is not None) == relative
        biased = look.scores if look.bias is None else look.scores + look.bias
        expected = biased.masked_fill(~look.allowed, -torch.inf).softmax(-1)
        torch.testing.assert_close(look.probabilities, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", TINY)
def test_rows_sum_to_one_over_what_is_allowed_and_are_zero_elsewhere(name, text):
    tape = recorded(tiny(name), text)
    triangle = torch.ones(9, 9).tril().bool()
    for place in tape.names:
        look = tape[place]
        if place.endswith("cross"):
            allowed = text.source_real[:, None].expand(-1, 9, -1)
        elif place.startswith("decoder"):
            allowed = triangle.expand(3, -1, -1)
        else:
            real = text.real if name == "bert-tiny" else text.source_real
            allowed = real[:, None].expand(-1, real.shape[1], -1)
        allowed = allowed[:, None].expand_as(look.probabilities)  # (rows, heads, queries, keys)
        assert torch.equal(look.allowed, allowed)
        assert (look.probabilities[~allowed] == 0).all()
        assert (look.probabilities[allowed] > 0).all()
        sums = look.probabilities.sum(-1)
        torch.testing.assert_close(sums, torch.ones_like(sums))


def test_a_source_of_no_tokens_is_looked_at_by_nobody(text):
    model = tiny("marian-tiny")
    tape = recorded(model, replace(text, source_lengths=(0, 7, 1)))
    probabilities = tape["decoder.blocks.1.cross"].probabilities
    assert (probabilities[0] == 0).all()
    torch.testing.assert_close(probabilities[1:].sum(-1), torch.ones(2, 4, 9))


def test_a_mask_of_ones_own_is_recorded(text):
    model = tiny("llama-tiny")
    with torch.no_grad(), record(model) as tape:
        model(text.tokens, mask=Window(3))
    seen = tape["decoder.blocks.1.attention"].probabilities > 0
    band = torch.ones(9, 9).tril() - torch.ones(9, 9).tril(-3)
    assert torch.equal(seen, band.bool().expand_as(seen))


# Places and calls


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("gpt2-tiny", ["decoder.blocks.0.attention", "decoder.blocks.1.attention"]),
        ("bert-tiny", ["encoder.blocks.0.attention", "encoder.blocks.1.attention"]),
        (
            "t5-tiny",
            [
                "encoder.blocks.0.attention",
                "encoder.blocks.1.attention",
                "decoder.blocks.0.attention",
                "decoder.blocks.0.cross",
                "decoder.blocks.1.attention",
                "decoder.blocks.1.cross",
            ],
        ),
    ],
)
def test_names_are_places_in_the_order_of_the_model(name, places, text):
    assert recorded(tiny(name), text).names == places


def test_attention_without_a_model_around_it_is_recorded_too():
    x = torch.randn(2, 5, 16)
    bare, heads = Attend(), Attention(16, 2)
    with record(bare) as tape:
        bare(x, x, x)
    (place,) = tape.names
    assert tape[place].probabilities.shape == (2, 5, 5)
    with record(heads) as tape:
        heads(x)
    (place,) = tape.names
    assert tape[place].probabilities.shape == (2, 2, 5, 5)


def test_two_tapes_run_at_once_each_with_the_names_of_its_own_part(text):
    model = tiny("marian-tiny")
    with torch.no_grad(), record(model) as whole, record(model.decoder) as part:
        text.read_by(model)
    assert part.names == [
        name.removeprefix("decoder.") for name in whole.names if name.startswith("decoder.")
    ]
    one, other = whole["decoder.blocks.0.cross"], part["blocks.0.cross"]
    assert torch.equal(one.probabilities, other.probabilities)
    assert not hooks(model)


def test_a_name_never_recorded_is_answered_with_the_nearest(text):
    model = tiny("t5-tiny")
    tape = recorded(model, text)
    for ask in (tape.calls, tape.probabilities, lambda name: tape[name]):
        with pytest.raises(RegardError, match=r"did you mean 'decoder\.blocks\.1\.cross'"):
            ask("decoder.block.1.cros")
    memory = text.memory(model)
    with record(model) as tape:
        model(text.tokens, memory)
    assert all(name.startswith("decoder.") for name in tape.names)
    with pytest.raises(RegardError, match=r"'encoder\.blocks\.0\.attention' was recorded"):
        tape["encoder.blocks.0.attention"]


def test_a_tape_on_which_nothing_ran_says_so(text):
    with record(tiny("gpt2-tiny")) as tape:
        pass
    assert tape.names == []
    with pytest.raises(RegardError) as caught:
        tape["decoder.blocks.0.attention"]
    assert not str(caught.value).rstrip().endswith("known:")  # a list of nothing helps nobody


@pytest.mark.parametrize("model", [nn.Linear(2, 2), nn.Sequential()])
def test_a_model_without_attention_is_refused(model):
    with pytest.raises(RegardError, match="no attention"), record(model):
        pass


@pytest.mark.parametrize("name", WRITERS)
@torch.no_grad()
def test_steps_joined_are_the_probabilities_of_one_full_pass(name, text):
    model = tiny(name)
    memory = text.memory(model)
    with record(model) as full:
        model(text.tokens, memory)
    state = model.start(3, 16)
    parts = [text.tokens[:, :4], *text.tokens[:, 4:].split(1, dim=1)]  # 4 tokens, then 5 steps
    with record(model) as steps:
        for part in parts:
            model(part, memory, state)
    assert steps.names == full.names
    for place in full.names:
        assert len(steps.calls(place)) == 6
        assert steps[place] is steps.calls(place)[-1]
        torch.testing.assert_close(
            steps.probabilities(place), full[place].probabilities, atol=2e-6, rtol=1e-5
        )
        assert torch.equal(full.probabilities(place), full[place].probabilities)


@torch.no_grad()
def test_what_was_recorded_does_not_change_with_the_cache(text):
    model = tiny("llama-tiny")
    state = model.start(3, 16)
    with record(model) as tape:
        model(text.tokens[:, :4], state=state)
    look = tape["decoder.blocks.0.attention"]
    before = [t.clone() for t in (look.queries, look.keys, look.values)]
    for layer in state.layers:
        for held in layer:
            held.fill_(7.0)
    after = (look.queries, look.keys, look.values)
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


# It costs nothing when off


def test_tape_works_on_a_batch_of_one_position():
    """Where a query has one key, all of its attention goes there."""
    model = tiny("gpt2-tiny")
    with record(model) as tape:
        model(torch.tensor([[5]]))
    for name in tape.names:
        assert torch.equal(tape[name].probabilities, torch.ones(1, 4, 1, 1))


def test_bfloat16_rows_sum_to_one_as_nearly_as_the_type_allows(text):
    model = tiny("llama-tiny").to(torch.bfloat16)
    for name in (tape := recorded(model, text)).names:
        look = tape[name]
        sums = look.probabilities.float().sum(-1)
        torch.testing.assert_close(sums, torch.ones_like(sums), atol=2**-7, rtol=0)
        one = F.softmax(look.scores.float().masked_fill(~look.allowed, -torch.inf), -1)
        torch.testing.assert_close(look.probabilities.float(), one, atol=2**-8, rtol=2**-6)

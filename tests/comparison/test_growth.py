"""What lengths cost: counts against sums by hand, states against the numbers they hold."""

from dataclasses import replace

import pytest
import torch

from regard.comparison import growth as cost
from regard.comparison.growth import Reading, growth, held_bytes, shadow_of, slope
from regard.comparison.pace import kept_bytes
from regard.models.construction import build
from regard.models.counting.model import LastTokens
from regard.models.registry import named

TEXT = {
    "elman": {"width": 16},
    "lstm": {"width": 16},
    "conv": {"width": 16, "layers": 2},
    "regard-2": {"width": 16, "heads": 2, "hidden": 32},
}
PAIRS = {
    "rnn": {"width": 16, "hidden": 32},
    "rnn+attention": {"width": 16, "hidden": 32},
    "conv-pairs": {"width": 16, "layers": 2},
    "transformer-tiny": {"width": 16, "heads": 2, "hidden": 32, "layers": 2},
}


def config_of(name):
    changes = {**TEXT, **PAIRS}[name]
    return replace(named(name), vocabulary=50, **changes)


@pytest.mark.parametrize("name", [*TEXT, *PAIRS])
def test_counts_are_the_same_on_every_device(name):
    config = config_of(name)
    shadow, real = shadow_of(config), build(config, "meta").eval()
    for length in (4, 7):
        one, other = Reading.of(shadow, length), Reading.of(real, length)
        assert one.flops() == other.flops() > 0
        assert one.step_flops() == other.step_flops() > 0


def test_an_elman_network_costs_what_its_matrices_do(monkeypatch):
    monkeypatch.setattr(cost, "ENOUGH", 0.0)
    found = growth(build(config_of("elman")).eval(), [8, 16, 32])
    each = 2 * (2 * 2 * 16 * 16 + 50 * 16)  # two layers of W and U, and the output matrix
    assert found.flops == [n * each for n in (8, 16, 32)]
    assert found.step_flops == [each] * 3
    assert slope(found.lengths, found.flops) == pytest.approx(1.0)


def test_attention_grows_with_the_square_and_a_step_with_the_length():
    module = shadow_of(config_of("regard-2"))
    short, long = Reading.of(module, 64), Reading.of(module, 128)
    per_pair = 2 * 2 * 16  # scores and sums, of one layer
    linear = [one.flops() - 2 * per_pair * one.tokens.shape[1] ** 2 for one in (short, long)]
    assert linear[1] == 2 * linear[0]
    assert long.step_flops() - short.step_flops() == 2 * per_pair * 64


@pytest.mark.parametrize("name", [*TEXT, *PAIRS])
def test_the_state_has_the_bytes_of_what_it_keeps(name):
    module = build(config_of(name)).eval()
    first, second, third = (Reading.of(module, n).state_bytes() for n in (8, 16, 32))
    if name in ("elman", "lstm", "rnn", "conv"):
        assert first == second == third
    else:  # a little for what does not grow, the rest as the length does
        assert third - second == 2 * (second - first) > 0
    expected = {
        "elman": 4 * 2 * 16,  # h of two layers
        "lstm": 4 * 2 * 2 * 16,  # and c
        "conv": 4 * 16 * (2 + 4),  # two inputs, then two that are two apart
        "regard-2": 4 * 2 * 2 * 16 * 8,  # keys and values of two layers, eight tokens
        "transformer-tiny": 2 * 4 * 2 * 2 * 16 * 8,  # and of the source
        "rnn": 4 * (32 + 32),  # h, and the one vector
    }
    if name in expected:
        assert first == expected[name]


def test_an_n_gram_keeps_its_last_tokens():
    state = LastTokens(2, 4)
    state.take(0, [1, 2, 3, 4, 5, 6])
    state.take(1, [1])
    assert held_bytes(state) == 8 * (4 + 1)
    assert shadow_of(named("ngram")) is None


def test_lengths_that_a_model_has_no_room_for_have_no_cost():
    config = replace(named("gpt2-tiny"), context=16)
    found = growth(build(config).eval(), [8, 32])
    assert found.flops[0] is not None
    assert found.flops[1] is found.seconds[1] is found.step_seconds[1] is None


@pytest.mark.parametrize("power", [0.0, 1.0, 1.5, 2.0])
def test_the_slope_is_the_power_of_growth(power):
    x = [64, 128, 256, 512, 1024]
    assert slope(x, [3 * n**power for n in x]) == pytest.approx(power, abs=1e-9)
    assert slope(x, [None, None, None, 1.0, 2.0**power]) == pytest.approx(power, abs=1e-9)
    assert slope(x, [None] * 5) is None


def test_what_is_kept_for_backward_is_counted_once_and_without_weights():
    linear = torch.nn.Linear(10, 10, bias=False)
    x = torch.randn(4, 10, requires_grad=True)

    def run():
        y = linear(x)  # keeps x
        (y.tanh() + y.tanh()).sum().backward()  # keep the two outputs

    assert kept_bytes(run, linear) == 3 * 4 * 10 * 4
    assert torch.isfinite(linear.weight.grad).all()

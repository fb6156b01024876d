"""What lengths cost: counts against sums by hand, states against the numbers they hold."""

import json
from dataclasses import replace

import pytest
from rich.console import Console

from regard.commands.cost import Cost
from regard.comparison import growth as cost
from regard.comparison.growth import Reading, flops, growth, held_bytes, slope
from regard.comparison.pace import memory_of_training
from regard.costs import jobs
from regard.costs.jobs import Shape
from regard.families.settings import Settings
from regard.models.construction import build
from regard.models.counting.model import LastTokens
from regard.models.registry import named
from regard.runs.plan import plan

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


@pytest.mark.parametrize(
    "name", ["gpt2-tiny", "regard-2", "lstm", "conv", "transformer-tiny", "rnn"]
)
def test_compare_and_cost_count_the_same_operations(capsys, name):
    length = 6

    def shown(new=None):
        Cost(name, tokens=length, generate=new, json=True).run(Console(quiet=True))
        return json.loads(capsys.readouterr().out)["products"]

    read = shown()
    assert flops(jobs.read, named(name), length) == read > 0
    # Of two new tokens the first comes with the prompt.
    assert flops(jobs.step, named(name), length) == shown(2) - read > 0


def test_gpt2_reads_a_thousand_tokens_in_the_operations_of_its_matrices_and_visible_pairs():
    tokens, width, layers = 1024, 768, 12
    matrices = 2 * 12 * width * width * layers * tokens  # 4 of attention, 8 of feed-forward
    pairs = 4 * width * layers * tokens * (tokens + 1) // 2  # scores and sums
    head = 2 * 50257 * width  # of the last position alone
    assert flops(jobs.read, named("gpt2"), tokens) == matrices + pairs + head


@pytest.mark.parametrize("name", [*TEXT, *PAIRS])
def test_counts_are_the_same_on_every_device(name):
    config = config_of(name)
    for job in (jobs.read, jobs.step):
        for length in (4, 7):
            assert flops(job, config, length, "cpu") == flops(job, config, length, "cuda") > 0


def test_an_elman_network_costs_what_its_matrices_do(monkeypatch):
    monkeypatch.setattr(cost, "ENOUGH", 0.0)
    found = growth(build(config_of("elman")).eval(), [8, 16, 32])
    each = 2 * (2 * 2 * 16 * 16 + 50 * 16)  # two layers of W and U, and the output matrix
    head = 2 * 50 * 16  # of the last position alone
    assert found.flops == [n * (each - head) + head for n in (8, 16, 32)]
    assert found.step_flops == [each] * 3
    assert slope(found.lengths, found.flops) == pytest.approx(1.0, abs=0.1)


def test_attention_grows_with_the_pairs_that_see_each_other_and_a_step_with_the_length():
    config = config_of("regard-2")
    per_pair, head = 2 * 2 * 16, 2 * 50 * 16  # scores and sums, of one layer
    linear = []
    for length in (64, 128):
        pairs = 2 * per_pair * length * (length + 1) // 2
        linear.append(flops(jobs.read, config, length, "cpu") - pairs - head)
    assert linear[1] == 2 * linear[0]
    short, long = (flops(jobs.step, config, length, "cpu") for length in (64, 128))
    assert long - short == 2 * per_pair * 64


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
    assert flops(jobs.read, named("ngram"), 8, "cpu") is None


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


def test_the_memory_of_a_step_is_what_cost_counts(tmp_path):
    (tmp_path / "a.txt").write_text("the cat sat on a mat\n" * 300)
    tables = {
        "data": {"train": [str(tmp_path / "a.txt")]},
        "model": {"preset": "regard-2", "width": 16, "heads": 2, "hidden": 32},
        "training": {"context": 16, "tokens_per_step": 64, "micro_batch_size": 2},
    }
    made = plan(Settings().changed(tables, "test"))
    found = memory_of_training(made)
    counted = jobs.train_step(made.config, Shape(2, 16))
    assert found["activations"] == counted.kept > 0
    assert found["rows"] == 2
    assert found["weights"] == 4 * counted.parameters
    moments = found["optimizer"] - 4 * counted.parameters
    assert moments == counted.memory["optimizer"] >= 8 * counted.parameters  # AdamW's two

"""Jobs: steps of training, prompts, single steps, whole generations."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from small_models import small

from regard.costs import jobs
from regard.costs.generation import generation
from regard.costs.jobs import Shape
from regard.errors import RegardError
from regard.models.construction import build
from regard.models.registry import named
from regard.models.word_vectors.model import Word2VecConfig
from regard.training.settings import OptimizerSettings

WRITERS = ("gpt2", "llama-3-8b", "t5-small", "transformer-base", "lstm", "bahdanau", "conv")


@pytest.mark.parametrize("name", WRITERS)
def test_a_generation_is_the_sum_of_its_steps(name):
    config = small(name)
    found = generation(config, Shape(2, 3, 4), 6)
    totals = [jobs.write(config, Shape(2, prefix, 4), 1, room=9).total for prefix in range(3, 8)]
    for key in ("products", "others", "read", "written"):
        assert getattr(found.steps, key) == sum(getattr(t, key) for t in totals)
    prompt = jobs.write(config, Shape(2, 3, 4), 0, room=9).total
    assert found.total.products == prompt.products + found.steps.products


@pytest.mark.parametrize("precision", ["float32", "bf16-weights"])
@pytest.mark.parametrize("name", ["gpt2", "lstm", "conv", "t5-small"])
def test_jobs_on_one_module_count_as_much_as_each_on_its_own(name, precision):
    def facts(counted):
        return counted.total, counted.memory, counted.kept, counted.weights, len(counted.records)

    config, shape = small(name), Shape(2, 6, 4)
    module = jobs.module_of(config)
    for again in (True, False):
        for job in (partial(jobs.train_step, checkpointed=again), jobs.read, jobs.step):
            ours, fresh = (job(model, shape, "cuda", precision) for model in (module, config))
            assert facts(ours) == facts(fresh)
    assert all(w.dtype == torch.float32 and w.grad is None for w in module.parameters())


def test_a_long_generation_is_counted_from_a_few_steps():
    config = small("gpt2")
    found = generation(replace(config, positions="none"), Shape(1, 10), 400)
    assert len(found.probes) == 3
    assert found.new == 399
    each = 2 * (2 * 32 * 32 * 4 + 4 * 32 * 32) + 2 * 32 * 64  # per token: products of two layers
    assert found.steps.products > 399 * each
    smooth = found.summed(lambda counted: counted.total.products)
    assert smooth == pytest.approx(found.steps.products)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_with_the_cache_a_step_costs_a_share_of_reading_all_again(kind):
    config = small("gpt2")
    again = jobs.read(config, Shape(1, 33), kind).total.products
    step = jobs.step(config, Shape(1, 32), kind).total.products
    assert 20 * step < again


def test_products_do_not_depend_on_the_device_or_the_kernel():
    for name in ("gpt2", "t5-small", "gru"):
        found = {
            jobs.train_step(small(name), Shape(2, 4, 3), kind, precision).total.products
            for kind, precision in (("cpu", "float32"), ("cuda", "bf16"), ("cuda", "bf16-weights"))
        }
        low, high = min(found), max(found)
        assert high - low <= low / 100, name  # of what a fused recurrence does for its first state


def test_mixed_precision_multiplies_in_half_and_normalises_in_full():
    counted = jobs.train_step(small("gpt2"), Shape(2, 6), "cuda", "bf16")
    kinds = {
        name: {r.dtype for r in counted.records if r.name == f"aten::{name}"}
        for name in ("addmm", "mm", "native_layer_norm", "_fused_adamw_")
    }
    assert kinds["addmm"] == kinds["mm"] == {torch.bfloat16}
    assert kinds["native_layer_norm"] == kinds["_fused_adamw_"] == {torch.float32}


def test_a_gpu_keeps_of_an_rms_norm_what_was_normed_and_a_number_for_each_vector():
    llama = replace(small("llama-3-8b"), norm="rms")
    kept = {
        layers: jobs.train_step(
            replace(llama, layers=layers, attention_bias=False),
            Shape(4, 16),
            "cuda",
            "bf16-weights",
        )
        for layers in (1, 2)
    }
    norms = {n: [r for r in found.records if "rms_norm" in r.name] for n, found in kept.items()}
    assert len(norms[2]) - len(norms[1]) == 4  # two norms a layer, there and back
    vectors, width = 4 * 16, llama.width
    for record in norms[1]:
        there = not record.name.endswith("_backward")
        # There x and the weight come and y goes, back also the number of each vector.
        whole, once = (2 * vectors, 1) if there else (3 * vectors, 2)
        assert record.read + record.written == (whole + once) * width * 2 + vectors * 4
        assert record.dtype == torch.bfloat16


def test_mixed_precision_casts_the_weights_for_each_token_that_is_written():
    one, three = (
        jobs.write(small("gpt2"), Shape(1, 4), new, "cuda", "bf16", room=7) for new in (1, 3)
    )
    casts = [
        sum(r.read for r in found.records if r.name == "aten::_to_copy") for found in (one, three)
    ]
    weights = build(small("gpt2"), "meta").named_parameters()
    multiplied = sum(w.nbytes for name, w in weights if w.dim() == 2 and "blocks" in name)
    assert casts[0] > multiplied
    assert casts[1] > 3 * multiplied


def test_lists_of_numbers_are_not_searched_for_tensors():
    class Rows(list):
        def __iter__(self):
            raise AssertionError("one for each row")

    held = torch.zeros(2)
    assert jobs.tensors_in([Rows([1, 2]), (held, "x")]) == [held]


def numbers(config):
    return sum(weight.numel() for weight in build(config, "meta").parameters())


def test_adamw_moves_seven_numbers_for_each_weight():
    config = small("gpt2")
    counted = jobs.train_step(config, Shape(1, 4))
    updates = [r for r in counted.of("optimizer") if r.name == "aten::_fused_adamw_"]
    read = sum(r.read for r in updates) / 4
    written = sum(r.written for r in updates) / 4
    # Weight, gradient and two moments in; the gradient is not changed.
    assert read == pytest.approx(4 * numbers(config), rel=0.01)
    assert written == pytest.approx(4 * numbers(config), rel=0.01)


def test_optimizers_remember_what_they_remember():
    config = small("gpt2")
    held = {
        kind: jobs.train_step(
            config, Shape(1, 4), optimizer=OptimizerSettings(kind=kind, learning_rate=0.1)
        ).memory["optimizer"]
        for kind in ("sgd", "muon", "adamw")
    }
    assert held["sgd"] == 0
    assert held["sgd"] < held["muon"] < held["adamw"]
    assert held["adamw"] == pytest.approx(8 * numbers(config), rel=0.3)  # rounded up to blocks


def test_muon_multiplies_matrices_in_its_update():
    config = small("gpt2")
    settings = OptimizerSettings(kind="muon", learning_rate=0.1)
    counted = jobs.train_step(config, Shape(1, 4), optimizer=settings)
    assert sum(r.products for r in counted.of("optimizer")) > 0


@pytest.mark.parametrize("precision", ["float32", "bf16", "bf16-weights"])
@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize("name", ["gpt2", "llama-3-8b", "t5-small"])
def test_computing_blocks_again_keeps_less_and_multiplies_more(name, kind, precision):
    config = replace(small(name), layers=4)
    plain = jobs.train_step(config, Shape(4, 32), kind, precision)
    again = jobs.train_step(config, Shape(4, 32), kind, precision, checkpointed=True)
    forward = sum(r.products for r in plain.of("forward") if "blocks" in r.place)
    more = again.total.products - plain.total.products
    # It stops at what is needed: here nobody keeps what the last product of a block gives.
    last = 4 * 2 * 4 * 32 * config.hidden * config.width if name == "llama-3-8b" else 0
    assert more == forward - last
    assert again.peak < plain.peak


def test_parts_of_a_step_cost_as_much_as_all_at_once_and_hold_less():
    config = small("gpt2")
    whole, parts = (
        jobs.train_step(config, Shape(rows, 32), parts=parts) for rows, parts in ((8, 1), (2, 4))
    )
    assert parts.total.products == whole.total.products
    assert parts.peak < whole.peak


def test_eight_billion_parameters_are_counted_without_them():
    config = named("llama-3-8b")
    counted = jobs.step(config, Shape(1, 8191), "cuda", "bf16-weights")
    assert counted.parameters == 8_030_261_248
    assert counted.state == 2 * 8192 * 1024 * 32 * 2  # 8 of 32 heads, in two bytes
    assert counted.memory["weights"] == 2 * counted.parameters


def test_what_cannot_be_counted_is_said():
    for refused, word in (
        (lambda: Shape(0, 5), "nothing to count"),
        (lambda: Shape(1, 0), "nothing to count"),
        (lambda: generation(small("gpt2"), Shape(), 0), "at least 1"),
        (lambda: jobs.read(small("gpt2"), Shape(10**8, 8)), "100,000,000 are too many"),
        (lambda: jobs.train_step(named("ngram"), Shape()), "trained run"),
        (lambda: jobs.step(Word2VecConfig(), Shape()), "looked up"),
    ):
        with pytest.raises(RegardError, match=word):
            refused()

"""In which numbers a model is trained: masters stay exact, the module computes with roundings."""

import pytest
import torch
from tiny_jobs import Made, job_of, model_of, trained

from regard.errors import RegardError
from regard.training.loop import Loop
from regard.training.optimization.precision import Weights, choose, computing

CPU = torch.device("cpu")


def test_auto_is_float32_on_a_cpu_and_what_is_asked_for_is_taken():
    assert choose("auto", CPU) == "float32"
    assert choose("bf16-weights", CPU) == "bf16-weights"
    with pytest.raises(RegardError, match="precision cannot be 'bf61'; did you mean 'bf16'"):
        choose("bf61", CPU)


def test_products_are_in_bfloat16_where_asked_and_nowhere_else():
    found = {}
    for precision in ("float32", "bf16", "bf16-weights"):
        with computing(precision, CPU):
            found[precision] = (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
    assert found == {
        "float32": torch.float32,
        "bf16": torch.bfloat16,
        "bf16-weights": torch.float32,  # its weights are halves already
    }
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_float32_weights_are_their_own_masters(precision):
    module = model_of("causal")
    weights = Weights(module, precision)
    assert all(weights.masters[name] is w for name, w in module.named_parameters())


def test_masters_take_gradients_over_in_float32_and_the_module_is_their_rounding():
    module = model_of("causal")
    before = {name: w.detach().clone() for name, w in module.named_parameters()}
    weights = Weights(module, "bf16-weights")
    for name, own in module.named_parameters():
        assert own.dtype == torch.bfloat16
        assert torch.equal(weights.masters[name], before[name])  # nothing is lost by rounding
        own.grad = torch.full_like(own, 0.5)
    left_out = "embed.tokens.weight"
    dict(module.named_parameters())[left_out].grad = None
    weights.gather()
    for name, master in weights.masters.items():
        if name == left_out:
            assert master.grad is None
        else:
            assert torch.equal(master.grad, torch.full_like(before[name], 0.5))
        master += 1e-3
    assert all(own.grad is None for own in module.parameters())
    weights.publish()
    for name, own in module.named_parameters():
        assert torch.equal(own, (before[name] + 1e-3).bfloat16())


def test_after_each_step_the_module_holds_the_rounded_masters(tmp_path):
    job = job_of(tmp_path, precision="bf16-weights", ema=0.5)
    loop, seen = Loop(job), []
    step = loop._step

    def watched(*given):
        found = step(*given)
        for name, own in job.module.named_parameters():
            assert torch.equal(own, loop.weights.masters[name].bfloat16())
        seen.append(torch.cat([master.flatten() for master in loop.weights.masters.values()]))
        return found

    loop._step = watched
    loop.run()
    assert len(seen) == 6
    assert not torch.equal(seen[0], seen[1])
    assert (seen[0] != seen[0].bfloat16()).any()  # masters hold more than the module can


@pytest.mark.parametrize("kind", ["causal", "masked", "pairs"])
@pytest.mark.parametrize("precision", ["bf16", "bf16-weights"])
def test_training_in_bfloat16_on_a_cpu_learns(tmp_path, kind, precision):
    feed = Made(kind, rows=8)
    job = job_of(tmp_path, kind, feed=feed, precision=precision, steps=25, validate_every=5)
    loop, outcome = trained(job)
    losses = [event["loss"] for event in job.sink.of("validation")]
    assert min(losses) < losses[0] < 3.6  # log 32 is 3.47
    assert outcome.best_loss < losses[0] - 0.1
    kind = torch.bfloat16 if precision == "bf16-weights" else torch.float32
    assert {weight.dtype for weight in loop.job.module.parameters()} == {kind}


def test_loading_keeps_masters_exact_and_rounds_the_module():
    module = model_of("causal")
    weights = Weights(module, "bf16-weights")
    values = {name: torch.randn_like(master) for name, master in weights.masters.items()}
    weights.load(values)
    for name, own in module.named_parameters():
        assert torch.equal(weights.masters[name], values[name])
        assert torch.equal(own, values[name].bfloat16())

"""Means of weights against the definition."""

import torch
from tiny_jobs import model_of

from regard.training.optimization.averaging import RunningMean, mean
from regard.training.optimization.precision import Weights


def test_the_running_mean_is_the_weighted_sum_of_all_that_was():
    module = model_of("causal")
    weights = Weights(module, "float32")
    running = RunningMean(weights, 0.3)
    history = [{n: w.detach().double() for n, w in module.named_parameters()}]
    for step in range(7):
        with torch.no_grad():
            for weight in module.parameters():
                weight += torch.randn_like(weight)
        running.update(step)
        history.append({n: w.detach().double() for n, w in module.named_parameters()})
    decays = [min(0.3, (1 + step) / (10 + step)) for step in range(7)]
    assert decays[0] == 0.1
    assert decays[-1] == 0.3
    # What entered at time t was then multiplied by every later decay.
    shares = [1.0, *(1 - decay for decay in decays)]
    for time in range(8):
        for decay in decays[time:]:
            shares[time] *= decay
    assert abs(sum(shares) - 1) < 1e-12
    for name, found in running.means.items():
        wanted = sum(share * then[name] for share, then in zip(shares, history, strict=True))
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-6)


def test_the_mean_stands_in_for_a_while_and_the_weights_come_back_to_the_bit():
    for precision in ("float32", "bf16-weights"):
        module = model_of("causal")
        weights = Weights(module, precision)
        running = RunningMean(weights, 0.9)
        with torch.no_grad():
            for master in weights.masters.values():
                master += torch.randn_like(master)
        weights.publish()
        running.update(5)
        masters = {name: w.detach().clone() for name, w in weights.masters.items()}
        own = {name: w.detach().clone() for name, w in module.named_parameters()}
        try:
            with running.in_place():
                for name, weight in module.named_parameters():
                    assert torch.equal(weight, running.means[name].to(weight.dtype))
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            pass
        assert all(torch.equal(w, masters[n]) for n, w in weights.masters.items())
        assert all(torch.equal(w, own[n]) for n, w in module.named_parameters())


def test_the_mean_of_checkpoints_is_their_mean():
    states = [{"a": torch.randn(3, 2), "b": torch.randn(4).bfloat16()} for _ in range(5)]
    kept = [{name: tensor.clone() for name, tensor in state.items()} for state in states]
    found = mean(states)
    for name in ("a", "b"):
        wanted = torch.stack([state[name].double() for state in states]).mean(0)
        torch.testing.assert_close(found[name].double(), wanted, rtol=1e-6, atol=1e-6)
        assert found[name].dtype == torch.float32
    assert all(torch.equal(a[n], b[n]) for a, b in zip(states, kept, strict=True) for n in a)

"""Optimizers against torch's own, step by step, and every parameter in exactly one group."""

from dataclasses import replace

import pytest
import torch
from tiny_jobs import batch_of, config_of, model_of
from torch import nn

from regard.models.config import TransformerConfig
from regard.models.presets import PRESETS, preset
from regard.models.transformer import build
from regard.training.objectives import loss, objective_for
from regard.training.optimizers import Muon, Optimizers, orthogonal, peak_for, roles
from regard.training.settings import OptimizerSettings

SHAPES = [(4, 4), (3, 8), (8, 3), (16, 4), (1, 5), (5, 1)]


def drawn(shapes: list[tuple[int, int]], seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def parameters(shapes: list[tuple[int, int]]) -> list[nn.Parameter]:
    return [nn.Parameter(tensor) for tensor in drawn(shapes, 0)]


class Reference(torch.optim.Muon):
    """torch's Muon with its Newton-Schulz steps in float32 instead of bfloat16."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                mean = state.setdefault("mean", torch.zeros_like(p))
                mean.lerp_(p.grad, 1 - group["momentum"])
                x = p.grad.lerp(mean, group["momentum"])
                x = x.T if p.shape[0] > p.shape[1] else x
                x = x / x.norm().clamp(min=group["eps"])
                a, b, c = group["ns_coefficients"]
                for _ in range(group["ns_steps"]):
                    gram = x @ x.T
                    x = a * x + (b * gram + c * gram @ gram) @ x
                x = x.T if p.shape[0] > p.shape[1] else x
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(x, alpha=-group["lr"] * max(1, p.shape[0] / p.shape[1]) ** 0.5)


# torch's runs in bfloat16, whose rounding (2**-8) five quintic steps make larger.
@pytest.mark.parametrize(("other", "tolerance"), [(torch.optim.Muon, 0.1), (Reference, 1e-5)])
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_muon_is_torchs_muon_on_matrices_of_all_shapes(other, tolerance, weight_decay):
    shapes = [*SHAPES, (3, 8), (8, 3)]  # some twice: ours does those in one product
    mine, theirs = parameters(shapes), parameters(shapes)
    rate = 0.1
    ours = Muon(mine, rate, 0.9, weight_decay)
    reference = other(theirs, lr=rate, momentum=0.9, weight_decay=weight_decay)
    for step in range(4):
        before = [weight.detach().clone() for weight in theirs]
        for weights in (mine, theirs):
            for weight, gradient in zip(weights, drawn(shapes, 1 + step), strict=True):
                weight.grad = gradient
        ours.step()
        reference.step()
        for one, two, was in zip(mine, theirs, before, strict=True):
            moved = rate * max(1, one.shape[0] / one.shape[1]) ** 0.5  # the size of one step
            assert (one - two).abs().max() < tolerance * moved
            with torch.no_grad():
                assert (two - was).abs().max() > 0.2 * moved  # so that the bound says something
                one.copy_(two)  # each step is judged by itself


@pytest.mark.parametrize("shape", SHAPES)
def test_orthogonal_brings_singular_values_near_one_and_keeps_directions(shape):
    matrix = drawn([shape], 7)[0]
    u, before, v = torch.linalg.svd(matrix, full_matrices=False)
    found = orthogonal(matrix)
    inside = u.T @ found @ v.T  # diagonal if the directions were kept
    assert torch.allclose(inside, torch.diag(inside.diagonal()), atol=1e-4)
    assert ((inside.diagonal() > 0.3) & (inside.diagonal() < 1.3))[before > 0.1].all()
    assert torch.equal(orthogonal(torch.zeros(shape)), torch.zeros(shape))


CONFIGS = {
    **{name: preset(name) for name in (*PRESETS, "regard-2", "regard-2-encoder-decoder")},
    "untied": config_of("pairs", tied=False),
    "separate vocabularies": config_of("pairs", source_vocabulary=20),
    "tied biased head": config_of("causal", head_bias=True),
    "no head": config_of("masked", head="none"),
    "query-key norm": config_of("causal", query_key_norm=True),
}


def shrunk(config: TransformerConfig) -> TransformerConfig:
    changes = {"layers": 1, "width": 16, "heads": 4, "hidden": 8, "context": 8, "vocabulary": 32}
    few = {"kv_heads": 2} if config.kv_heads else {}
    return replace(config, **changes, **few, head_width=0, encoder_layers=0)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_every_parameter_is_in_exactly_one_group_and_only_matrices_decay(name, kind):
    module = build(shrunk(CONFIGS[name]))
    named = dict(module.named_parameters())
    settings = OptimizerSettings(kind=kind, peak=1e-3, weight_decay=0.1)
    groups = [g for part in Optimizers(module, named, settings).parts for g in part.param_groups]
    grouped = [id(weight) for group in groups for weight in group["params"]]
    assert sorted(grouped) == sorted(id(weight) for weight in named.values())
    decayed = {id(w) for group in groups if group["weight_decay"] for w in group["params"]}
    linear = {
        id(part.weight)
        for path, part in module.named_modules()
        if isinstance(part, nn.Linear) and path != "head.project"
    }
    assert decayed == linear
    by_muon = {id(w) for group in groups if "momentum" in group for w in group["params"]}
    assert by_muon == (linear if kind == "muon" else set())


def test_a_parameter_without_a_group_or_a_stranger_in_one_is_noticed():
    module = model_of("causal")
    named = dict(module.named_parameters())
    missing = {name: weight for name, weight in named.items() if name != "embed.tokens.weight"}
    more = {**named, "another": nn.Parameter(torch.zeros(2))}
    for wrong in (missing, more):
        with pytest.raises(AssertionError, match="exactly one group"):
            Optimizers(module, wrong, OptimizerSettings(peak=1e-3))


def test_roles_tell_tables_from_matrices_by_what_they_are():
    module = build(shrunk(replace(preset("bert-tiny"), tied=False)))
    found = roles(module)
    assert set(found["table"]) == {
        "embed.tokens.weight",
        "embed.segments.weight",
        "encoder.positions.table.weight",
        "head.project.weight",
    }
    assert {"pooler.weight", "head.transform.weight"} <= set(found["matrix"])
    assert all("norm" in name or name.endswith("bias") for name in found["vector"])


def given_gradients(module: nn.Module, seed: int, size: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for weight in module.parameters():
        weight.grad = size * torch.randn(weight.shape, generator=generator)


def test_adamw_with_clipping_and_a_schedule_is_torchs():
    mine, theirs = model_of("pairs"), model_of("pairs")
    settings = OptimizerSettings(peak=1e-2, beta1=0.8, beta2=0.9, weight_decay=0.5, clip=0.7)
    ours = Optimizers(mine, dict(mine.named_parameters()), settings)
    named = dict(theirs.named_parameters())
    matrices = [named[name] for name in roles(theirs)["matrix"]]
    chosen = {id(weight) for weight in matrices}
    others = [weight for weight in named.values() if id(weight) not in chosen]
    groups = [{"params": matrices, "weight_decay": 0.5}, {"params": others, "weight_decay": 0.0}]
    reference = torch.optim.AdamW(groups, lr=1e-2, betas=(0.8, 0.9), eps=1e-8)
    for step, (share, size) in enumerate([(0.1, 1.0), (1.0, 1e-3), (0.5, 30.0), (0.0, 1.0)]):
        given_gradients(mine, step, size)
        given_gradients(theirs, step, size)
        norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.7)
        for group in reference.param_groups:
            group["lr"] = 1e-2 * share
        reference.step()
        assert ours.step(share).item() == pytest.approx(norm.item(), rel=1e-5)
        assert ours.rate() == 1e-2 * share
        for one, two in zip(mine.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-7)
            assert one.grad is None


def test_without_clipping_the_gradient_is_taken_as_it_is():
    stepped = []
    for clip in (0.0, 1e12):
        module = model_of("causal")
        settings = OptimizerSettings(kind="muon", peak=1e-2, clip=clip)
        ours = Optimizers(module, dict(module.named_parameters()), settings)
        given_gradients(module, 0, 50.0)
        assert ours.step(1.0) > 50
        stepped.append(torch.cat([weight.flatten() for weight in module.parameters()]))
    assert torch.equal(*stepped)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_what_gets_no_gradient_stays_and_nothing_is_remembered_of_it(kind):
    module = model_of("masked")  # BERT: its pooler takes no part in filling gaps
    before = module.pooler.weight.detach().clone()
    settings = OptimizerSettings(kind=kind, peak=1e-2)
    ours = Optimizers(module, dict(module.named_parameters()), settings)
    batch = batch_of("masked")
    answer = objective_for(module.config, pairs=False).logits(module, batch)
    loss(answer, batch.targets).backward()
    ours.step(1.0)
    assert torch.equal(module.pooler.weight, before)
    remembered = {name.split("/")[0] for name in ours.tensors()}
    assert remembered == {n for n, _ in module.named_parameters() if not n.startswith("pooler")}


def test_a_step_without_any_gradient_changes_nothing():
    module = model_of("causal")
    before = [weight.detach().clone() for weight in module.parameters()]
    ours = Optimizers(module, dict(module.named_parameters()), OptimizerSettings(peak=1.0))
    assert ours.step(1.0) == 0
    assert all(map(torch.equal, before, module.parameters()))


def test_what_is_remembered_has_a_name_for_each_parameter_and_kind():
    module = model_of("causal")
    settings = OptimizerSettings(kind="muon", peak=1e-2)
    ours = Optimizers(module, dict(module.named_parameters()), settings)
    given_gradients(module, 0)
    ours.step(1.0)
    found, by_role = ours.tensors(), roles(module)
    wanted = {f"{name}/momentum" for name in by_role["matrix"]}
    for name in (*by_role["table"], *by_role["vector"]):
        wanted |= {f"{name}/{key}" for key in ("step", "exp_avg", "exp_avg_sq")}
    assert set(found) == wanted
    for name in by_role["matrix"]:  # the first mean is (1 - momentum) of the clipped gradient
        assert found[f"{name}/momentum"].shape == dict(module.named_parameters())[name].shape


def test_the_usual_peak_is_gpt2s_at_its_width_and_falls_with_it():
    assert peak_for(768) == pytest.approx(6e-4)
    assert peak_for(1536) == pytest.approx(3e-4)
    assert peak_for(16) == 3e-3

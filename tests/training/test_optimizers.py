"""Optimizers against torch's own, step by step, and every parameter in exactly one group.

Run as a program, this file is one of two processes that share the weights (see the last test).
"""

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_jobs import batch_of, config_of, model_of
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from regard.errors import RegardError
from regard.models.construction import build
from regard.models.transformer.config import TransformerConfig
from regard.models.transformer.presets import SIZES, preset
from regard.training.objectives import loss, objective_for
from regard.training.optimization.faults import Guard
from regard.training.optimization.optimizers import (
    AdamW,
    Muon,
    Optimizers,
    learning_rate_for,
    orthogonal,
    roles,
)
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
    **{name: preset(name) for name in (*SIZES, "regard-2", "regard-2-encoder-decoder")},
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
    settings = OptimizerSettings(kind=kind, learning_rate=1e-3, weight_decay=0.1)
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
            Optimizers(module, wrong, OptimizerSettings(learning_rate=1e-3))


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


def stepped(
    ours: Optimizers, factor: float = 1.0, allowed: torch.Tensor | None = None
) -> torch.Tensor:
    """One step as the loop makes it, and the norm it was clipped by."""
    norm = ours.norm()
    ours.step(factor, norm, allowed)
    return norm


def test_adamw_with_clipping_and_a_schedule_is_torchs():
    mine, theirs = model_of("pairs"), model_of("pairs")
    settings = OptimizerSettings(
        learning_rate=1e-2, beta1=0.8, beta2=0.9, weight_decay=0.5, clip=0.7
    )
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
        assert stepped(ours, share).item() == pytest.approx(norm.item(), rel=1e-5)
        assert ours.rate() == 1e-2 * share
        for one, two in zip(mine.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-7)
            assert one.grad is None


@pytest.mark.parametrize("l2", [0.0, 0.02])
def test_sgd_is_torchs(l2):
    mine, theirs = model_of("causal"), model_of("causal")
    # The usual decay is not for it.
    settings = OptimizerSettings(kind="sgd", learning_rate=0.5, clip=0.0, l2=l2)
    ours = Optimizers(mine, dict(mine.named_parameters()), settings)
    for step, share in enumerate([0.1, 1.0, 0.5]):
        given_gradients(mine, step)
        given_gradients(theirs, step)
        torch.optim.SGD(theirs.parameters(), lr=0.5 * share, weight_decay=l2).step()
        stepped(ours, share)
        assert ours.rate() == 0.5 * share
        for one, two in zip(mine.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7)
    assert ours.tensors() == {}


def test_without_clipping_the_gradient_is_taken_as_it_is():
    found = []
    for clip in (0.0, 1e12):
        module = model_of("causal")
        settings = OptimizerSettings(kind="muon", learning_rate=1e-2, clip=clip)
        ours = Optimizers(module, dict(module.named_parameters()), settings)
        given_gradients(module, 0, 50.0)
        assert stepped(ours) > 50
        found.append(torch.cat([weight.flatten() for weight in module.parameters()]))
    assert torch.equal(*found)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_what_gets_no_gradient_stays_and_nothing_is_remembered_of_it(kind):
    module = model_of("masked")  # BERT: its pooler takes no part in filling gaps
    before = module.pooler.weight.detach().clone()
    settings = OptimizerSettings(kind=kind, learning_rate=1e-2)
    ours = Optimizers(module, dict(module.named_parameters()), settings)
    batch = batch_of("masked")
    answer = objective_for(module.config, "text").logits(module, batch)
    loss(answer, batch.targets).backward()
    stepped(ours)
    assert torch.equal(module.pooler.weight, before)
    remembered = {name.split("/")[0] for name in ours.tensors()}
    assert remembered == {n for n, _ in module.named_parameters() if not n.startswith("pooler")}


def test_a_step_without_any_gradient_changes_nothing():
    module = model_of("causal")
    before = [weight.detach().clone() for weight in module.parameters()]
    ours = Optimizers(module, dict(module.named_parameters()), OptimizerSettings(learning_rate=1.0))
    assert stepped(ours, allowed=torch.tensor(True)) == 0
    assert all(map(torch.equal, before, module.parameters()))


def test_what_is_remembered_has_a_name_for_each_parameter_and_kind():
    module = model_of("causal")
    settings = OptimizerSettings(kind="muon", learning_rate=1e-2)
    ours = Optimizers(module, dict(module.named_parameters()), settings)
    given_gradients(module, 0)
    stepped(ours)
    found, by_role = ours.tensors(), roles(module)
    wanted = {f"{name}/momentum" for name in by_role["matrix"]}
    for name in (*by_role["table"], *by_role["vector"]):
        wanted |= {f"{name}/{key}" for key in ("step", "exp_avg", "exp_avg_sq")}
    assert set(found) == wanted
    for name in by_role["matrix"]:  # the first mean is (1 - momentum) of the clipped gradient
        assert found[f"{name}/momentum"].shape == dict(module.named_parameters())[name].shape


def test_the_usual_peak_is_gpt2s_at_its_width_and_falls_with_it():
    assert learning_rate_for(768) == pytest.approx(6e-4)
    assert learning_rate_for(1536) == pytest.approx(3e-4)
    assert learning_rate_for(16) == 3e-3


def made(kind: str, module: nn.Module, fused: bool = True, **changes: object) -> Optimizers:
    """Optimizers that do all they can: clip, decay, remember."""
    settings = OptimizerSettings(kind=kind, learning_rate=1e-2, clip=0.5, weight_decay=0.3)
    ours = Optimizers(module, dict(module.named_parameters()), replace(settings, **changes))
    for part in ours.parts:
        if isinstance(part, AdamW) and not fused:  # as on devices that have no fused kernel
            for holder in (part.defaults, *part.param_groups):
                holder["fused"] = False
    return ours


def bits(module: nn.Module, ours: Optimizers) -> dict[str, torch.Tensor]:
    """All numbers of a model and its optimizers as integers, in which -0 and NaN are themselves."""
    tensors = {**dict(module.named_parameters()), **ours.tensors()}
    return {name: t.detach().clone().view(torch.int32) for name, t in tensors.items()}


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


KINDS = pytest.mark.parametrize(
    ("kind", "fused"),
    [("adamw", True), ("adamw", False), ("muon", True), ("muon", False), ("sgd", False)],
)


@KINDS
def test_a_step_that_is_allowed_is_the_step_that_nobody_asked_about(kind, fused):
    found = []
    for allowed in (None, torch.tensor(True)):
        module = model_of("pairs")
        ours = made(kind, module, fused)
        for step in range(4):
            given_gradients(module, step, 10.0**step)
            stepped(ours, 0.3 * step, allowed)
        found.append(bits(module, ours))
    assert same(*found)


@KINDS
@pytest.mark.parametrize("clip", [0.0, 0.5])
@pytest.mark.parametrize("wrong", [1.0, math.nan, math.inf, -math.inf])
def test_a_refused_step_changes_no_bit_whatever_the_gradients_are(kind, fused, clip, wrong):
    module = model_of("causal")
    ours = made(kind, module, fused, clip=clip)
    given_gradients(module, 0)
    stepped(ours)
    for tensor in (*module.parameters(), *ours.tensors().values()):
        if tensor.dim():  # a count is never -0
            tensor.detach()[-1] = -0.0  # a zero has a sign to lose
    before = bits(module, ours)
    for spoilt in (list(module.parameters())[:1], list(module.parameters())):
        given_gradients(module, 1, 100.0)
        for weight in spoilt:
            weight.grad[0] *= wrong
        norm = stepped(ours, 1.0, torch.tensor(False))
        assert norm.isfinite() == math.isfinite(wrong)
        assert same(bits(module, ours), before)
        assert all(weight.grad is None for weight in module.parameters())


@KINDS
def test_after_refused_steps_all_goes_on_as_if_they_had_not_been(kind, fused):
    found = []
    for refused in ((), (0, 2, 3)):  # the first too, when nothing is remembered yet
        module = model_of("causal")
        ours, seed = made(kind, module, fused), 0
        for step in range(4 + len(refused)):
            wrong = step in refused
            given_gradients(module, 99 if wrong else seed, math.nan if wrong else 1.0)
            stepped(ours, 0.5, torch.tensor(not wrong))
            seed += not wrong
        found.append(bits(module, ours))
    assert same(*found)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_neither_the_norm_nor_a_step_asks_the_device(kind):
    with FakeTensorMode():  # there are no numbers here to ask for
        module = model_of("causal")
        ours, guard = made(kind, module), Guard("cpu", 5.0, sticky=True)
        for weight in module.parameters():
            weight.grad = torch.ones_like(weight)
        norm = ours.norm()
        ours.step(1.0, norm, guard.judge(0, norm, norm))
        assert len(ours.tensors()) >= len(ours.weights)
        with pytest.raises(DataDependentOutputException):
            norm.item()


@KINDS
def test_optimizers_go_on_from_what_was_remembered_as_if_never_stopped(kind, fused):
    module = model_of("pairs")
    ours = made(kind, module, fused)
    for step in range(3):
        given_gradients(module, step)
        stepped(ours)
    again = model_of("pairs", seed=1)
    again.load_state_dict(module.state_dict())
    theirs = made(kind, again, fused)
    for part in theirs.parts:
        assert not part.state
    saved = {name: tensor.clone() for name, tensor in ours.tensors().items()}
    room = theirs.prepare(saved)
    assert room.keys() == saved.keys()
    for name, tensor in room.items():
        assert not tensor.any()
        assert tensor.device == saved[name].device
        assert tensor.dtype == saved[name].dtype
        tensor.copy_(saved[name])
    for step in range(3, 6):
        for one, optimizers in ((module, ours), (again, theirs)):
            given_gradients(one, step)
            stepped(optimizers, 0.7, torch.tensor(True))
        assert same(bits(module, ours), bits(again, theirs))


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_going_back_in_the_same_optimizers_forgets_what_came_after(kind):
    module = model_of("masked")
    ours = made(kind, module)
    for name, weight in module.named_parameters():
        if not name.startswith("pooler"):
            weight.grad = torch.ones_like(weight)
    stepped(ours)
    then = list(ours.tensors())
    given_gradients(module, 0)
    stepped(ours)
    assert len(ours.tensors()) > len(then)
    kept = {name: ours.tensors()[name] for name in then}
    room = ours.prepare(then)
    assert list(room) == then
    assert all(room[name] is kept[name] for name in then)
    assert ours.prepare([]) == {}


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        ("adamw", {"embed.tokens.weight/momentum"}, "not known"),
        ("adamw", {"nobody/exp_avg"}, "not known"),
        ("muon", {"head.norm.weight"}, "not known"),
        ("muon", {"encoder.blocks.0/exp_avg", "another/exp_avg"}, "(and 1 more)"),
        ("adamw", {"embed.tokens.weight/step"}, "missing"),
    ],
)
def test_what_another_optimizer_remembered_is_refused_in_a_sentence(kind, change, said):
    module = model_of("causal")
    ours = made(kind, module)
    given_gradients(module, 0)
    stepped(ours)
    before = bits(module, ours)
    with pytest.raises(RegardError) as caught:
        ours.prepare(set(ours.tensors()) ^ change)
    assert said in str(caught.value)
    assert sorted(change)[0] in str(caught.value)
    assert same(bits(module, ours), before)  # and nothing is forgotten for it


class Uneven(nn.Module):
    """Weights of which two processes have unlike shares, and one of them sometimes none."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.table = nn.Embedding(7, 6)
        self.parts = nn.ModuleList([nn.Linear(6, 5), nn.Linear(5, 6), nn.Linear(6, 5)])
        self.norm = nn.LayerNorm(5)
        self.last = nn.Linear(5, 1)


def whole(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    full = {n: t.full_tensor() if hasattr(t, "full_tensor") else t for n, t in tensors.items()}
    return {name: tensor.detach().clone() for name, tensor in full.items()}


def shared_steps(kind: str, module: nn.Module, share) -> Iterator[tuple[str, torch.Tensor]]:
    """Six steps, two of them refused, through new optimizers in the middle; all that comes out."""
    named = dict(module.named_parameters())
    ours = made(kind, module)
    for step in range(6):
        drawn = {name: torch.empty(weight.shape) for name, weight in named.items()}
        generator = torch.Generator().manual_seed(step)
        for name, gradient in drawn.items():
            gradient.normal_(generator=generator)
            if step in (0, 4):
                gradient[0] = math.nan  # in rows of the first process only
            named[name].grad = share(gradient)
        norm = ours.norm()
        ours.step(0.5, norm, norm.isfinite())
        yield f"{step}/norm", norm
        if step == 2:
            saved = {name: tensor.clone() for name, tensor in ours.tensors().items()}
            ours = made(kind, module)
            for name, tensor in ours.prepare(saved).items():
                tensor.copy_(saved[name])
        yield from whole({f"{step}/{name}": weight for name, weight in named.items()}).items()
    yield from whole(ours.tensors()).items()


def one_of_two(rank: int, folder: Path) -> None:
    """What one process does: its share of each weight, and what comes of it to a file."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", f"file://{folder}/meeting", timedelta(seconds=60), world_size=2, rank=rank
    )
    mesh = init_device_mesh("cpu", (2,))
    for kind in ("adamw", "muon"):
        module = fully_shard(Uneven(), mesh=mesh)
        share = lambda gradient: distribute_tensor(gradient, mesh, [Shard(0)])  # noqa: E731
        save_file(dict(shared_steps(kind, module, share)), folder / f"{kind}-{rank}.safetensors")
    dist.barrier()  # else one ends while the other still speaks to it, and is aborted now and then
    dist.destroy_process_group()


def ended(job: subprocess.Popen) -> int | None:
    try:
        return job.wait(timeout=60)
    except subprocess.TimeoutExpired:
        return None


def test_two_processes_that_share_the_weights_do_what_one_does(tmp_path):
    environment, jobs = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}, []
    for rank in range(2):
        command = [sys.executable, __file__, str(rank), str(tmp_path)]
        with open(tmp_path / f"{rank}.txt", "w") as said:
            jobs.append(subprocess.Popen(command, env=environment, stderr=said))
    try:
        codes = [ended(job) for job in jobs]
    finally:
        for job in jobs:
            job.kill()
    assert codes == [0, 0], [(tmp_path / f"{rank}.txt").read_text() for rank in range(2)]
    for kind in ("adamw", "muon"):
        alone = dict(shared_steps(kind, Uneven(), lambda gradient: gradient))
        assert alone["0/norm"].isnan()
        assert alone["1/norm"] > 1
        assert not torch.equal(alone["1/parts.0.weight"], alone["2/parts.0.weight"])
        for rank in range(2):
            together = load_file(tmp_path / f"{kind}-{rank}.safetensors")
            assert together.keys() == alone.keys()
            for name, tensor in together.items():
                torch.testing.assert_close(
                    tensor, alone[name], rtol=1e-6, atol=1e-6, equal_nan=True, msg=name
                )
            for name in dict(Uneven().named_parameters()):  # the fifth step was refused
                assert torch.equal(together[f"4/{name}"], together[f"3/{name}"])


if __name__ == "__main__":
    one_of_two(int(sys.argv[1]), Path(sys.argv[2]))

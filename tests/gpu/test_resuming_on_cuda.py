"""On a GPU a run goes on to the bit too, where its kernels are deterministic."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from rich.console import Console
from test_training_on_cuda import settings
from torch.nn.attention import SDPBackend, sdpa_kernel

from regard.commands.train import train
from regard.runs.plan import plan
from regard.storage.event_log import read
from regard.training.checkpoints.reading import stored_steps
from regard.training.optimization.faults import Guard
from regard.training.optimization.optimizers import Optimizers

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


@pytest.fixture
def deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    with sdpa_kernel(SDPBackend.MATH):
        yield
    torch.use_deterministic_algorithms(False)


def left(run: Path) -> dict[str, object]:
    last = run / "checkpoints" / str(stored_steps(run)[-1])
    files = {
        name: (last / name).read_bytes() for name in ("model.safetensors", "optimizer.safetensors")
    }
    steps = {e["step"]: (e["loss"], e["order"]) for e in read(run) if e["event"] == "step"}
    return {**files, "steps": steps}


@pytest.mark.parametrize("precision", ["float32", "bf16", "bf16-weights"])
def test_a_run_goes_on_to_the_bit(tmp_path, monkeypatch, deterministic, precision):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    values = {"precision": precision, "compile": "no", "ema": 0.9, "keep": 9, "log_every": 1}
    made = plan(settings(tmp_path, checkpoint_every=20, rows=8, **values))
    for name in ("whole", "again", "broken"):
        train(made, tmp_path / name, Console(quiet=True))
    assert left(tmp_path / "whole") == left(tmp_path / "again")  # else this test says nothing
    for step in (40, 60):  # as if it had been killed between 20 and 40
        shutil.rmtree(tmp_path / "broken" / "checkpoints" / str(step))
    train(made, tmp_path / "broken", Console(quiet=True))
    assert any(event["event"] == "resume" for event in read(tmp_path / "broken"))
    assert left(tmp_path / "broken") == left(tmp_path / "whole")


def test_a_fault_is_judged_and_refused_without_waiting_for_the_device():
    weight = torch.nn.Linear(8, 8, device="cuda")
    from regard.training.settings import OptimizerSettings

    optimizers = Optimizers(
        weight, dict(weight.named_parameters()), OptimizerSettings(learning_rate=1e-3)
    )
    guard = Guard("cuda", spike=6.0, sticky=False)
    for step in range(3):
        broken = float("nan") if step == 2 else 1.0
        before = [w.detach().clone() for w in weight.parameters()]
        loss = (weight(torch.ones(4, 8, device="cuda")) ** 2).mean() * broken
        loss.backward()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            norm = optimizers.norm()
            good = guard.judge(step, loss.detach(), norm)
            optimizers.step(1.0, norm, good)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        changed = not all(map(torch.equal, before, weight.parameters()))
        assert changed == (step < 2)
    assert guard.look().not_finite == 1

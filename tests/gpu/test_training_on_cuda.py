"""The loop on a GPU: precision, compiling, checkpoints, and the batch that fits."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from regard.commands.train import train
from regard.data.feeds.masking import IGNORE
from regard.families.settings import Settings
from regard.runs import recipes
from regard.runs.plan import plan
from regard.runs.stored_run import open_run
from regard.storage.event_log import read
from regard.training.memory.micro_batch import rows_that_fit
from regard.training.r_drop import r_drop_loss

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")

TEXT = "the quick brown fox jumps over the lazy dog, and then it sleeps in the sun. " * 400


def settings(folder: Path, **training: object) -> Settings:
    (folder / "text.txt").write_text(TEXT)
    changes = ["model.preset=llama-tiny", "tokenizer.kind=char", "optimizer.learning_rate=0.003"]
    made = recipes.override(Settings(), changes)
    values = {
        "steps": 60,
        "tokens_per_step": 2048,
        "validate_every": 20,
        "device": "cuda",
        **training,
    }
    return replace(
        made.changed({"training": values}, "test"),
        data=replace(made.data, train=(str(folder / "text.txt"),)),
    )


@pytest.mark.parametrize(
    ("precision", "compiled"),
    [("float32", "no"), ("bf16", "no"), ("bf16", "yes"), ("bf16-weights", "yes")],
)
def test_every_precision_learns_and_the_run_can_be_opened(
    tmp_path, monkeypatch, precision, compiled
):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    made = plan(settings(tmp_path, precision=precision, compile=compiled))
    train(made, tmp_path / "run", Console(quiet=True))
    losses = [event["loss"] for event in read(tmp_path / "run") if event["event"] == "step"]
    assert losses[-1] < 0.7 * losses[0]
    assert open_run(tmp_path / "run", "cuda").module(torch.tensor([[1, 7]]).cuda()).isfinite().all()


def test_checkpoints_on_disk_are_the_weights_on_the_device(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    made = plan(settings(tmp_path, keep=9, checkpoint_every=10))
    train(made, tmp_path / "run", Console(quiet=True))
    saved = sorted(int(folder.name) for folder in (tmp_path / "run" / "checkpoints").iterdir())
    assert saved == [10, 20, 30, 40, 50, 60]
    best = max(
        (event for event in read(tmp_path / "run") if event.get("best")), key=lambda e: e["step"]
    )
    from regard.storage.tensors import TensorFolder

    kept = TensorFolder(tmp_path / "run" / "checkpoints" / str(best["step"]))
    final = TensorFolder(tmp_path / "run")
    assert all(torch.equal(kept[name], final[name]) for name in final)


def test_parts_of_a_step_give_the_losses_of_the_whole(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    curves = []
    for rows in (32, 5):
        made = plan(settings(tmp_path, rows=rows, precision="float32", steps=20))
        train(made, tmp_path / f"run-{rows}", Console(quiet=True))
        events = read(tmp_path / f"run-{rows}")
        curves.append([event["loss"] for event in events if event["event"] == "step"])
    assert all(math.isclose(a, b, rel_tol=2e-3) for a, b in zip(*curves, strict=True))


def test_the_largest_batch_is_near_what_memory_holds():
    device = torch.device("cuda")
    row = 64 << 20  # bytes

    def attempt(rows: int) -> None:
        torch.empty(rows * row, dtype=torch.uint8, device=device).fill_(1)

    free, _ = torch.cuda.mem_get_info()
    found = rows_that_fit(attempt, 1 << 20, device)
    assert 0.6 * free < found * row < free
    assert rows_that_fit(attempt, 3, device) == 3


def test_rows_read_twice_have_the_loss_and_gradient_that_they_have_on_a_cpu():
    torch.manual_seed(0)
    logits = torch.randn(12, 5, 300)
    targets = torch.randint(300, (6, 5))
    targets[0, 3:] = IGNORE
    found = []
    for device in ("cpu", "cuda"):
        there = logits.detach().to(device).requires_grad_()
        value = r_drop_loss(there, targets.to(device), 0.1, 5.0)
        value.backward()
        found.append((value.detach().cpu(), there.grad.cpu()))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)

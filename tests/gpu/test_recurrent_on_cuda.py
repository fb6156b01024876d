"""Recurrent models on a GPU: cuDNN's kernels do what the cells do, and a run goes on to the bit."""

import shutil

import pytest
import torch
from rich.console import Console
from test_resuming_on_cuda import deterministic, left  # noqa: F401 - a fixture
from test_training_on_cuda import settings

from regard.commands.train import train
from regard.families.settings import ModelSettings
from regard.models.construction import build
from regard.models.recurrent.config import RecurrentConfig
from regard.runs.plan import plan
from regard.storage.event_log import read

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
SMALL = {"vocabulary": 60, "width": 32, "hidden": 48, "layers": 2}


@pytest.fixture(autouse=True)
def exact(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.mark.parametrize("cell", ["elman", "gru", "lstm"])
def test_cudnn_and_the_cells_agree(cell):
    torch.manual_seed(0)
    here = build(RecurrentConfig(cell=cell, **SMALL)).eval()
    there = build(RecurrentConfig(cell=cell, **SMALL), "cuda").eval()
    there.load_state_dict(here.state_dict())
    tokens = torch.randint(0, 60, (5, 12))
    wanted = here(tokens)
    assert (there(tokens.cuda()).cpu() - wanted).abs().max() < 1e-5
    state = there.start(5, 12)
    steps = [there(tokens[:, i : i + 1].cuda(), state=state) for i in range(12)]
    assert (torch.cat(steps, 1).cpu() - wanted).abs().max() < 1e-5
    ragged = there.start(5, 12)
    there(tokens.cuda(), state=ragged, lengths=[12, 3, 1, 7, 0])
    alone = here.start(1, 12)
    here(tokens[1:2, :3], state=alone)
    for mine, theirs in zip(ragged.tensors(), alone.tensors(), strict=True):
        assert (mine[1].cpu() - theirs[0]).abs().max() < 1e-5


@pytest.mark.parametrize("attention", ["none", "additive", "dot", "general"])
@pytest.mark.parametrize("input_feeding", [False, True])
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_gradients_of_pairs_are_the_cpus(attention, input_feeding, cell):
    torch.manual_seed(0)
    config = RecurrentConfig(
        kind="encoder-decoder", cell=cell, attention=attention, input_feeding=input_feeding, **SMALL
    )
    here, there = build(config), build(config, "cuda")
    there.load_state_dict(here.state_dict())
    source, target = torch.randint(0, 60, (4, 9)), torch.randint(0, 60, (4, 7))
    for module, device in ((here, "cpu"), (there, "cuda")):
        memory = module.encode(source.to(device), torch.tensor([9, 4, 6, 1]).to(device))
        module(target.to(device), memory).square().mean().backward()
    for (name, mine), theirs in zip(here.named_parameters(), there.parameters(), strict=True):
        assert (theirs.grad.cpu() - mine.grad).abs().max() < 1e-5 * (1 + mine.grad.abs().max()), (
            name
        )


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_run_goes_on_to_the_bit(tmp_path, monkeypatch, deterministic, precision):  # noqa: F811
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    values = {"precision": precision, "keep": 9, "log_every": 1, "context": 32}
    asked = settings(tmp_path, checkpoint_every=20, **values)
    model = ModelSettings("lstm", {"width": 64, "weight_dropout": 0.2, "variational": True})
    made = plan(type(asked)(**{**vars(asked), "model": model}))
    for name in ("whole", "again", "broken"):
        train(made, tmp_path / name, Console(quiet=True))
    assert left(tmp_path / "whole") == left(tmp_path / "again")  # else this test says nothing
    for step in (40, 60):  # as if it had been killed between 20 and 40
        shutil.rmtree(tmp_path / "broken" / "checkpoints" / str(step))
    train(made, tmp_path / "broken", Console(quiet=True))
    assert any(event["event"] == "resume" for event in read(tmp_path / "broken"))
    assert left(tmp_path / "broken") == left(tmp_path / "whole")

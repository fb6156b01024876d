"""A model that there is no memory for is refused before any of it is taken."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from regard.costs import jobs
from regard.errors import RegardError
from regard.families import resolve
from regard.families.plan import PreparedData
from regard.families.settings import Settings
from regard.models.construction import build
from regard.models.registry import named
from regard.runs.plan import plan
from regard.runs.train_run import train_run
from regard.training.memory import check
from regard.training.memory.check import bytes_of_each, enough, unfit
from regard.training.memory.out_of_memory import is_full

CPU = torch.device("cpu")
TINY = {"data": {"train": ["notes.txt"]}, "model": {"preset": "llama-tiny"}}
SMALL = {"tokens_per_step": 64, "context": 16, "steps": 2}


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("the cat sat on the mat\n" * 100)
    return Settings().changed({**TINY, "training": SMALL}, "test")


def test_a_model_is_too_large_from_the_first_byte_that_is_not_there(settings, monkeypatch):
    config = named("llama-tiny")
    count = sum(weight.numel() for weight in build(config).parameters())
    needed = 16 * count  # four bytes each: weights, gradients, two moments
    monkeypatch.setattr(check, "free_memory", lambda: needed)
    assert unfit("llama-tiny", count, settings, CPU, "float32") == ""
    monkeypatch.setattr(check, "free_memory", lambda: needed - 1)
    assert f"at most {count - 1:,} parameters" in unfit(
        "llama-tiny", count, settings, CPU, "float32"
    )


def test_what_a_parameter_takes_is_what_training_holds_of_it(settings):
    changed = lambda **tables: settings.changed(tables, "test")  # noqa: E731
    assert bytes_of_each(settings, "bf16-weights") == 2 + 2 + 4 + 4 + 8
    assert bytes_of_each(changed(optimizer={"kind": "sgd"}), "float32") == 4 + 4
    assert bytes_of_each(changed(training={"ema": 0.9}), "float32") == 16 + 4


def test_what_is_too_large_is_planned_and_described_but_never_built(settings, monkeypatch):
    devices = []
    whole = jobs.build
    monkeypatch.setattr(jobs, "build", lambda c, d: devices.append(d) or whole(c, d))
    monkeypatch.setattr(resolve, "Prebuilt", lambda c, d, seed: devices.append(d))
    monkeypatch.setattr(check, "free_memory", lambda: 1000)
    made = plan(settings)
    assert set(devices) <= {"meta"}
    assert made.settings.training.micro_batch_size == 1
    with pytest.raises(RegardError, match=r"llama-tiny .* needs .* GB"):
        train_run(made, Path("run"), console=None)
    assert not Path("run").exists()


def test_memory_that_runs_out_is_one_sentence_and_other_errors_stay(settings):
    with pytest.raises(RegardError, match="memory of cpu is full"), enough(CPU):
        torch.empty(1 << 60)
    with pytest.raises(RegardError, match="full"), enough(CPU):
        raise torch.OutOfMemoryError("CUDA out of memory")
    with pytest.raises(RuntimeError, match="shapes"), enough(CPU):
        raise RuntimeError("shapes do not fit")


def test_a_plan_that_cannot_be_tried_says_so(settings, monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(resolve, "Prebuilt", full)
    monkeypatch.setattr(check.torch.cuda, "mem_get_info", lambda device: (1 << 40, 1 << 40))
    made = PreparedData(settings, named("llama-tiny"), lambda tokens: None, (), {}, (), 1, 1)
    with pytest.raises(RegardError, match=r"lower training\.micro_batch_size"):
        resolve.resolve(made, torch.device("cuda"), lambda *_: 1.0, lambda _: False)
    assert not plan(
        replace(settings, training=replace(settings.training, micro_batch_size=1))
    ).unfit


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("CUDA error: out of memory"), False),
    ],
)
def test_full_memory_is_told_from_other_trouble(error, full):
    assert is_full(error) == full

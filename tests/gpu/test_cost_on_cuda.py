"""What a step is predicted to hold on a GPU, against what it does hold."""

import gc
from dataclasses import replace

import pytest
import torch

from regard.costs import jobs, measured
from regard.costs.jobs import Shape
from regard.models.registry import named

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")

LONG = {"vocabulary": 16384, "layers": 4}
MODELS = {
    "decoder": (replace(named("regard-4"), **LONG, width=512, heads=8, hidden=1408), Shape(8, 512)),
    "lstm": (replace(named("lstm"), **LONG, width=512, hidden=512, dropout=0.0), Shape(16, 256)),
    "conv": (replace(named("conv"), **LONG, width=512, dropout=0.0), Shape(16, 256)),
    "pairs": (replace(named("transformer-base"), **LONG, dropout=0.0), Shape(16, 128, 128)),
}


@pytest.mark.parametrize("precision", ["float32", "bf16", "bf16-weights"])
@pytest.mark.parametrize("model", MODELS)
def test_the_peak_of_a_training_step_is_the_predicted_one(model, precision):
    config, shape = MODELS[model]
    device = torch.device("cuda")
    torch.zeros(64, 64, device=device) @ torch.zeros(64, 64, device=device)
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()  # what libraries hold
    run = measured.training(config, shape, device, precision)
    run()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    run()
    held = torch.cuda.max_memory_allocated() - before
    counted = jobs.train_step(config, shape, "cuda", precision)
    assert counted.peak == pytest.approx(held, rel=0.05)

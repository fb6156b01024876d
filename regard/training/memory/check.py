"""Whether there is memory for a model, told before any of it is taken."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from regard.errors import RegardError
from regard.training.memory.micro_batch import free_memory
from regard.training.memory.out_of_memory import is_full
from regard.training.optimization.precision import Precision
from regard.training.settings import RunSettings

MOMENTS = {"adamw": 2, "muon": 1, "sgd": 0}  # numbers remembered of each weight, at least


def unfit(
    name: str,
    parameters: int,
    settings: RunSettings,
    device: torch.device,
    precision: Precision,
) -> str:
    """Why a model cannot be trained here; nothing if it may be. Activations are not counted."""
    each, free = bytes_of_each(settings, precision), free_bytes(device)
    needed = parameters * each
    if needed <= free:
        return ""
    return (
        f"{name} has {parameters:,} parameters and needs {needed / 1e9:,.3g} GB "
        f"for weights, gradients and moments, but {device} has {free / 1e9:,.3g} GB free; "
        f"choose a model of at most {free // each:,} parameters"
    )


def bytes_of_each(settings: RunSettings, precision: Precision) -> int:
    """Bytes that a parameter takes in training: itself, its gradient, its moments, its mean."""
    training = settings.training
    if training.distribution == "fsdp":  # all but the weights is shared out from the start
        return 4
    masters = 4 if precision == "bf16-weights" else 0  # two of 2 bytes, and two of 4
    return 8 + masters + 4 * MOMENTS[settings.optimizer.kind] + 4 * bool(training.ema)


def free_bytes(device: torch.device) -> int:
    """Bytes that can still be had there."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_memory()


@contextmanager
def enough(device: torch.device) -> Iterator[None]:
    """Say in one sentence that memory has run out."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_full(error):
            raise
        raise RegardError(
            f"the memory of {device} is full; lower training.micro_batch_size or training.context, "
            "set training.recompute=true, or choose a smaller model"
        ) from None

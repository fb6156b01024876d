"""What a run leaves on disk as it goes: folders `checkpoints/STEP`, there whole or not at all.

Each holds the weights, what the optimizers remember, and where the run stood. Tensors are copied
off the device at once and written by a thread, so that training goes on meanwhile.
"""

import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.storage import TensorFolder, building, write_json, write_safetensors

OPTIMIZER, PLACE = "optimizer.safetensors", "place.json"


class Checkpoints:
    """The checkpoints of one run; the last `keep` stay, and the best."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder / "checkpoints"
        self.keep = max(keep, 1)
        self.steps: list[int] = []
        self.best: int | None = None
        self._writer = ThreadPoolExecutor(1)
        self._pending: Future[None] | None = None
        self._pinned: dict[str, Tensor] = {}

    def save(
        self,
        step: int,
        weights: Mapping[str, Tensor],
        optimizer: Mapping[str, Tensor],
        place: Mapping[str, Any],
        best: bool,
    ) -> Path:
        """Write a checkpoint in the background; an earlier one is waited for first."""
        self.wait()
        if best:
            self.best = step
        own, other = self._copied(weights, "weights"), self._copied(optimizer, "optimizer")
        self._pending = self._writer.submit(self._write, step, own, other, dict(place))
        return self.path(step)

    def _copied(self, tensors: Mapping[str, Tensor], use: str) -> dict[str, Tensor]:
        """Copies in main memory that training will not change.

        From a GPU they go to pinned memory, which is kept for the next time: pinning takes longer
        than copying.
        """
        copies = {}
        for name, tensor in tensors.items():
            if tensor.is_cuda:
                key = f"{use}/{name}"
                if key not in self._pinned:
                    self._pinned[key] = torch.empty_like(tensor, device="cpu", pin_memory=True)
                copies[name] = self._pinned[key].copy_(tensor.detach(), non_blocking=True)
            else:
                copies[name] = tensor.detach().clone(memory_format=torch.contiguous_format)
        if self._pinned:
            torch.cuda.synchronize()
        return copies

    def path(self, step: int) -> Path:
        return self.folder / str(step)

    def wait(self) -> None:
        """Until everything is on disk; what went wrong there is raised here."""
        if self._pending is not None:
            try:
                self._pending.result()
            except OSError as error:
                raise RegardError(f"cannot write checkpoints to {self.folder}: {error}") from None
            finally:
                self._pending = None

    def close(self) -> None:
        try:
            self.wait()
        finally:
            self._writer.shutdown()

    def _write(
        self, step: int, weights: dict[str, Tensor], other: dict[str, Tensor], place: dict[str, Any]
    ) -> None:
        with building(self.path(step)) as partial:
            write_safetensors(weights, partial / "model.safetensors")
            write_safetensors(other, partial / OPTIMIZER)
            write_json(place, partial / PLACE)
        if step not in self.steps:
            self.steps.append(step)
        for old in self.steps[: -self.keep]:
            if old != self.best:
                shutil.rmtree(self.path(old), ignore_errors=True)
                self.steps.remove(old)

    def weights(self, step: int) -> TensorFolder:
        """The weights of a checkpoint, read when asked for."""
        self.wait()
        return TensorFolder(self.path(step))

    def last(self, count: int) -> Sequence[int]:
        """The last `count` steps that were kept, the oldest first."""
        self.wait()
        return sorted(self.steps)[-count:]

"""Predicted against measured: steps of training and of writing, on this machine's device.

python bench/cost.py [--device cpu|cuda] [--calibration FILE] [--json FILE] [--quick]

Without a calibration the one that `regard cost` would take is taken. None of the models here is
used to calibrate. The bar: median error of time at most 10 %, worst at most 25 %, memory 5 %.
"""

import argparse
import gc
import json
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from measure import machine

from regard.costs import jobs, measured
from regard.costs.device.ceilings import Device, device_named
from regard.costs.jobs import Shape
from regard.costs.predict import predicted
from regard.models.config import ModelConfig
from regard.models.construction import usable
from regard.models.recurrent.config import RecurrentConfig
from regard.models.registry import named
from regard.training.optimization.precision import Precision

# Short steps of one model take 1.1 or 1.8 ms by where its weights happen to lie: it is built anew.
BUILT = 3


@dataclass(frozen=True)
class Case:
    """A model and how much it reads or writes."""

    name: str
    config: ModelConfig
    shape: Shape


def decoder(depth: int, width: int, context: int = 4096) -> ModelConfig:
    heads = max(1, width // 64)
    return replace(
        named("regard-4"),
        layers=depth,
        width=width,
        heads=heads,
        hidden=width * 8 // 3 // 64 * 64,
        vocabulary=8192,
        context=context,
    )


def pairs(depth: int, width: int) -> ModelConfig:
    return replace(
        named("transformer-base"),
        layers=depth,
        encoder_layers=depth,
        width=width,
        heads=width // 64,
        hidden=4 * width,
        vocabulary=8192,
        dropout=0.0,
    )


def lstm(layers: int, width: int) -> RecurrentConfig:
    return RecurrentConfig(vocabulary=8192, layers=layers, width=width, hidden=width)


def convolution(layers: int, width: int) -> ModelConfig:
    return replace(named("conv"), vocabulary=8192, layers=layers, width=width, dropout=0.0)


def cases(gpu: bool) -> list[Case]:
    """Three sizes, short and long, of four architectures; larger ones on a GPU."""
    widths = (512, 1024, 2048) if gpu else (128, 256, 512)
    short, long, rows = (256, 2048, 8) if gpu else (64, 512, 4)
    found = []
    for width, depth in zip(widths, (4, 8, 12) if gpu else (2, 4, 6), strict=True):
        for tokens in (short, long):
            shape = Shape(rows, tokens)
            found.append(Case(f"decoder {width} × {depth}", decoder(depth, width), shape))
    for width in widths[:2]:
        found.append(Case(f"encoder–decoder {width}", pairs(3, width), Shape(rows, short, short)))
        found.append(Case(f"LSTM {width}", lstm(2, width), Shape(rows, short)))
        found.append(Case(f"convolution {width}", convolution(4, width), Shape(rows, short)))
    found.append(Case(f"encoder–decoder {widths[0]}", pairs(3, widths[0]), Shape(rows, 480, 480)))
    found.append(Case(f"LSTM {widths[0]}", lstm(2, widths[0]), Shape(rows, long)))
    return found


@dataclass(frozen=True)
class Judged:
    """One case, predicted and measured."""

    job: str
    name: str
    rows: int
    tokens: int
    predicted: float
    measured: float
    predicted_bytes: int
    measured_bytes: int

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1

    @property
    def memory_error(self) -> float | None:
        return self.predicted_bytes / self.measured_bytes - 1 if self.measured_bytes else None


def judge(
    case: Case, job: str, device: torch.device, priced: Device, precision: Precision, budget: float
) -> Judged:
    """Count and predict a case, then run it for real."""
    train = job == "train"
    count = jobs.train_step if train else jobs.step
    counted = count(case.config, case.shape, priced.kind, precision)
    seconds = predicted(counted, priced, "train" if train else "write").seconds
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    job_of = measured.training if train else measured.writing
    found = []
    for _ in range(1 if train else BUILT):
        run = job_of(case.config, case.shape, device, precision)
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        found.append(measured.seconds(run, device, budget))
    taken = median(found)
    held = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    return Judged(
        job,
        case.name,
        case.shape.rows,
        case.shape.tokens,
        seconds,
        taken,
        counted.peak + priced.fixed,
        held,
    )


def tiny() -> list[Case]:
    """One of each architecture, as small as can be."""
    sizes = {"vocabulary": 64}
    return [
        Case("decoder", replace(decoder(1, 64, 64), **sizes), Shape(2, 8)),
        Case("encoder–decoder", replace(pairs(1, 64), **sizes), Shape(2, 8, 8)),
        Case("LSTM", replace(lstm(1, 16), **sizes), Shape(2, 8)),
        Case("convolution", replace(convolution(1, 16), **sizes), Shape(2, 8)),
    ]


def show(found: list[Judged]) -> dict[str, Any]:
    """A line for each case, and what they come to."""
    for one in found:
        memory = "" if one.memory_error is None else f"{one.memory_error:+8.1%}"
        print(
            f"{one.job:6} {one.name:24} {one.rows:3} × {one.tokens:5} "
            f"{one.predicted * 1e3:10.3f} ms {one.measured * 1e3:10.3f} ms "
            f"{one.error:+8.1%} {memory}"
        )
    summary: dict[str, Any] = {}
    for job in ("train", "write"):
        errors = [abs(one.error) for one in found if one.job == job]
        held = [abs(one.memory_error) for one in found if one.job == job and one.memory_error]
        summary[job] = {
            "cases": len(errors),
            "median": median(errors),
            "worst": max(errors),
            "worst_memory": max(held) if held else None,
        }
        print(
            f"{job}: {len(errors)} cases, median {median(errors):.1%}, worst {max(errors):.1%}"
            + (f", memory at worst {max(held):.1%}" if held else "")
        )
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--calibration", default="", help="a file that `regard calibrate` wrote")
    parser.add_argument("--precision", default="", choices=["", "float32", "bf16", "bf16-weights"])
    parser.add_argument("--json", default="")
    parser.add_argument("--quick", action="store_true", help="a look at all, measured briefly")
    parser.add_argument("--tiny", action="store_true", help="small models, to see that all runs")
    given = parser.parse_args()
    device = usable(given.device)
    priced = device_named(given.calibration or device.type)
    precision: Precision = given.precision or ("bf16" if device.type == "cuda" else "float32")
    print(f"{machine()}, {precision}; {priced.name}: {priced.source}")
    budget = 0.0 if given.tiny else 0.05 if given.quick else 2.0
    listed = tiny() if given.tiny else cases(device.type == "cuda")
    found = [
        judge(case, job, device, priced, precision, budget)
        for job in ("write", "train")  # writing first: training leaves its heap behind
        for case in listed
    ]
    summary = show(found)
    if given.json:
        content = {"machine": machine(), "summary": summary, "cases": [vars(one) for one in found]}
        Path(given.json).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Int8 weights on a GPU: products and whole steps, beside bfloat16 weights.

    python bench/int8.py [--models gpt2 llama-2-7b] [--rows 1 8 64]

`fused` reads the int8 weights in the product (`models/kernels/int8_cuda.py`), `written out` makes
bfloat16 weights of them first, which is what a GPU without Triton does. Times of products are
those of the kernels alone, replayed from a CUDA graph; times of steps contain the host's work. All
are medians.
"""

import argparse
import gc
import json
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from unittest.mock import patch

import torch
from measure import machine, race
from torch import nn
from torch.nn import functional as F

from regard.decoding.decode_batch import DecodeBatch
from regard.decoding.settings import Sampling
from regard.models.construction import build
from regard.models.kernels import int8
from regard.models.kernels.int8 import Int8Linear, quantise
from regard.models.transformer.presets import preset

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = ((768, 768), (768, 3072), (3072, 768), (768, 50257), (4096, 4096), (4096, 11008))
COPIES = 128 << 20  # bytes of weights that a graph goes through, so that no cache holds them
PROMPT, STEPS = 64, 40


def kernels(run: Callable[[], object], times: int) -> float:
    """Seconds of the kernels of one of `times` runs that a call makes."""
    if DEVICE == "cpu":  # it has no kernels apart
        return race({"": run}, 1)[""].seconds / times
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    found = []
    for _ in range(20):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        graph.replay()
        last.record()
        torch.cuda.synchronize()
        found.append(first.elapsed_time(last) / 1e3 / times)
    return median(found)


@torch.inference_mode()
def products(inputs: int, outputs: int, rows: int, copies: int) -> dict[str, float]:
    """Microseconds of one product."""
    times = max(2, copies // (inputs * outputs))
    weights = torch.randn(times, outputs, inputs, device=DEVICE, dtype=torch.bfloat16)
    small = [Int8Linear(weight).to(DEVICE) for weight in weights]
    x = torch.randn(rows, inputs, device=DEVICE, dtype=torch.bfloat16)

    def eight() -> None:
        for layer in small:
            layer(x)

    found = {"bfloat16": kernels(lambda: [F.linear(x, weight) for weight in weights], times)}
    found["fused"] = kernels(eight, times)
    with patch.object(int8, "fused", return_value=None):
        found["written out"] = kernels(eight, times)
    return {name: 1e6 * seconds for name, seconds in found.items()}


def step(module: nn.Module, rows: int) -> float:
    """Milliseconds of a step of so many rows behind a short prompt."""
    asked = [Sampling(limit=PROMPT + STEPS, temperature=0.0, banned=(2,))] * rows
    context = module.config.context  # type: ignore[union-attr]
    writing = DecodeBatch.begin(
        module, [[5] * PROMPT] * rows, asked, context=context, device=DEVICE
    )  # type: ignore[arg-type]
    for _ in range(3):
        writing.step()
    found = []
    for _ in range(STEPS - 3):
        begin = time.perf_counter()
        writing.step()  # its tokens come to the host: nothing is left to wait for
        found.append(time.perf_counter() - begin)
    return 1e3 * median(found)


def mib(module: nn.Module) -> float:
    """What a model's weights take."""
    return sum(tensor.nbytes for tensor in module.state_dict().values()) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=["gpt2", "llama-2-7b"])
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 8, 64])
    parser.add_argument("--tiny", action="store_true", help="a small model, on a CPU too")
    asked = parser.parse_args()
    if DEVICE == "cpu" and not asked.tiny:
        parser.error("this needs CUDA; a CPU's int8 is in bench/translation.py")
    shapes, copies = ((32, 64),) if asked.tiny else SHAPES, 0 if asked.tiny else COPIES
    if asked.tiny:
        asked.models, asked.rows = ["llama-tiny"], [2]
    results: dict[str, dict[str, float]] = {}

    def told(name: str, found: dict[str, float]) -> None:
        results[name] = {key: round(value, 2) for key, value in found.items()}
        print(f"{name:36}" + "".join(f"{key} {value:9.2f}   " for key, value in found.items()))

    print(machine())
    for inputs, outputs in shapes:
        for rows in asked.rows:
            told(f"{rows} × {inputs} → {outputs}, µs", products(inputs, outputs, rows, copies))
    for name in asked.models:
        module = build(replace(preset(name), dropout=0.0, attention_dropout=0.0), DEVICE)
        module = module.to(torch.bfloat16).eval().requires_grad_(False)
        small = quantise(module)
        sizes = {"bfloat16": mib(module), "int8": mib(small)}
        told(f"{name}, MiB", sizes)
        for rows in asked.rows:
            found = {"bfloat16": step(module, rows), "fused": step(small, rows)}
            with patch.object(int8, "fused", return_value=None):
                found["written out"] = step(small, rows)
            told(f"{name}, {rows} rows, ms", found)
        del module, small
        gc.collect()
        torch.cuda.empty_cache()
    print(json.dumps({"machine": machine(), **results}))


if __name__ == "__main__":
    main()

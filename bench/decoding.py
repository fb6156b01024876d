"""What the key/value cache saves (M22): time and operations of each step, with it and without.

    python bench/decoding.py [--model gpt2] [--tokens 512] [--out cache.png]

With the cache a step takes in one token and looks back at n: O(d² + nd), a line in n. Without it
every step computes all n tokens anew: O(nd² + n²d), and a text costs the sum of that. Operations
are counted by torch from the products that really run, times are medians of rounds; both are drawn.
"""

import argparse
import json
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch
from matplotlib.figure import Figure
from measure import machine
from torch.utils.flop_counter import FlopCounterMode

from regard.decoding.decode_batch import DecodeBatch
from regard.decoding.settings import Sampling
from regard.models.construction import build
from regard.models.registry import named
from regard.models.transformer.model import Transformer

PLACES = 9  # prefixes that are measured


def written(module: Transformer, prompt: list[int], device: str) -> DecodeBatch:
    """A row at its prompt's end, with all of the context for room."""
    asked = [Sampling(limit=module.config.context, temperature=0.0, banned=(2,))]
    return DecodeBatch.begin(module, [prompt], asked, context=module.config.context, device=device)


@torch.inference_mode()
def cached(module: Transformer, size: int, device: str, rounds: int) -> tuple[float, float]:
    """Seconds and operations of the step behind `size` tokens."""
    writing = written(module, [5] * size, device)
    writing.step()  # the prompt's own
    with counting() as counter:
        writing.step()
    times = []
    for _ in range(rounds):
        times.append(seconds(writing.step))
        writing.prefix.state.rollback([1])  # so that each round stands at the same place
        writing.rows[0].written -= 1
    return median(times), counter.get_total_flops()


@torch.inference_mode()
def uncached(module: Transformer, size: int, device: str, rounds: int) -> tuple[float, float]:
    """The same when everything is computed anew."""
    tokens = torch.full((1, size + 1), 5, device=device)

    def step() -> None:
        int(module(tokens, last=True)[0, -1].argmax())

    with counting() as counter:
        step()
    return median([seconds(step) for _ in range(rounds)]), counter.get_total_flops()


def counting() -> FlopCounterMode:
    """torch's counter, which does not know the CPU's attention; hidden pairs are not counted."""
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return FlopCounterMode(display=False, custom_mapping={kernel: attended})


def attended(
    queries: tuple[int, ...],
    keys: tuple[int, ...],
    values: tuple[int, ...],
    dropout: float = 0.0,
    causal: bool = False,
    **_: object,
) -> int:
    """Operations of QKᵀ and AV over the pairs that see each other."""
    rows, heads, count, width = queries
    pairs = count * (count + 1) // 2 if causal else count * keys[-2]
    return rows * heads * pairs * 2 * (width + values[-1])


def seconds(step: object) -> float:
    _wait()
    begin = time.perf_counter()
    step()  # type: ignore[operator]
    _wait()
    return time.perf_counter() - begin


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def fitted(sizes: np.ndarray, values: np.ndarray, degree: int) -> tuple[np.ndarray, float]:
    """The polynomial nearest to the values, and the largest deviation as a share of them."""
    found = np.polyfit(sizes, values, degree)
    return found, float(np.max(np.abs(np.polyval(found, sizes) / values - 1)))


def draw(path: Path, sizes: np.ndarray, found: dict[str, np.ndarray], title: str) -> None:
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    labels = ("milliseconds a step", "10⁹ operations a step", "milliseconds for a text so long")
    for place, label in enumerate(labels):
        axes = figure.add_subplot(1, 3, place + 1)
        for name, colour in (("with the cache", "tab:blue"), ("without", "tab:red")):
            values = found[name]
            drawn = {
                0: values[:, 0] * 1e3,
                1: values[:, 1] / 1e9,
                2: total(sizes, values[:, 0]) * 1e3,
            }[place]
            axes.plot(sizes, drawn, "o-", color=colour, label=name, markersize=3)
        axes.set_xlabel("tokens before")
        axes.set_title(label, fontsize=10)
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=130)


def total(sizes: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Of all steps up to each size, by the trapezoids between the measured ones."""
    widths = np.diff(sizes, prepend=0)
    means = (values + np.concatenate((values[:1], values[:-1]))) / 2
    return np.cumsum(widths * means)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="gpt2")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path("cache.png"))
    parser.add_argument("--tiny", action="store_true", help="a small model, to see that all runs")
    arguments = parser.parse_args()
    if arguments.tiny:
        arguments.model, arguments.tokens, arguments.rounds = "gpt2-tiny", 36, 1
    module = build(named(arguments.model)).eval().requires_grad_(False).to(arguments.device)
    sizes = np.unique(np.linspace(arguments.tokens // PLACES, arguments.tokens, PLACES).astype(int))
    found = {
        name: np.array([way(module, int(n), arguments.device, arguments.rounds) for n in sizes])
        for name, way in (("with the cache", cached), ("without", uncached))
    }
    print(
        f"{'tokens':>7} {'cached ms':>10} {'10⁹ ops':>9} {'uncached ms':>12} {'10⁹ ops':>9} ratio"
    )
    for n, one, other in zip(sizes, *found.values(), strict=True):
        print(
            f"{n:7} {one[0] * 1e3:10.2f} {one[1] / 1e9:9.3f} {other[0] * 1e3:12.2f} "
            f"{other[1] / 1e9:9.2f} {other[0] / one[0]:5.1f}"
        )
    d, layers = module.config.width, module.config.layers
    line, off = fitted(sizes, found["with the cache"][:, 1], 1)
    print(f"operations with the cache: {line[0]:,.0f} more for each token before, off by {off:.1e}")
    print(f"  (two products of 2·d a layer: {4 * d * layers:,})")
    curve, off = fitted(sizes, found["without"][:, 1], 2)
    print(f"operations without: {curve[0]:,.0f} · n² + {curve[1]:,.0f} · n, off by {off:.1e}")
    line, off = fitted(sizes, found["with the cache"][:, 0], 1)
    print(f"time with it: {line[1] * 1e3:.2f} ms + {line[0] * 1e6:.2f} µs · n, off by {off:.0%}")
    whole = {name: float(total(sizes, values[:, 0])[-1]) for name, values in found.items()}
    saved = whole["without"] / whole["with the cache"]
    print(f"a text of {sizes[-1]} tokens: {saved:.1f} times the time without the cache")
    draw(arguments.out, sizes, found, f"{arguments.model}, one row, {machine()}")
    print(json.dumps({"model": arguments.model, "saved": round(saved, 2), "machine": machine()}))


if __name__ == "__main__":
    main()

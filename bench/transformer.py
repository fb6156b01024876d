"""Our Transformer against its peers, in one run, as ratios.

On a CPU: GPT-2 small, forward and forward + backward, against `transformers`.
With CUDA: a training step of the 124M shape, against nanoGPT (give its folder with --nanogpt).
With --tiny: both, of a model of two small layers, on whatever there is, nothing compiled.
"""

import argparse
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from measure import Timing, machine, race
from torch import Tensor, nn
from torch.nn import functional as F

import regard
from regard.models.transformer.presets import GPT2
from regard.training.optimization.optimizers import Optimizers
from regard.training.optimization.precision import Weights
from regard.training.settings import OptimizerSettings

H200_PEAK = 989e12  # dense bf16 by the datasheet; the same peak nanoGPT's share is quoted against
SHAPE = replace(GPT2, vocabulary=50304, dropout=0.0, attention_dropout=0.0)
TINY = {"vocabulary": 96, "layers": 2, "width": 48, "heads": 6, "hidden": 96, "context": 16}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def against_transformers(
    config: regard.TransformerConfig, rows: int, length: int, rounds: int
) -> None:
    """GPT-2 with the same weights in both; tokens (rows, length)."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import GPT2LMHeadModel

    ours = regard.build(config).eval()
    with tempfile.TemporaryDirectory() as folder:
        regard.save(ours, folder)
        theirs = GPT2LMHeadModel.from_pretrained(folder, use_cache=False).eval()
    tokens = torch.randint(0, config.vocabulary, (rows, length))
    forwards: dict[str, Callable[[], Tensor]] = {
        "regard": lambda: ours(tokens),
        "transformers": lambda: theirs(tokens).logits,
    }
    with torch.inference_mode():
        gap = (forwards["regard"]() - forwards["transformers"]()).abs().max()
        timings = race(forwards, rounds)
    print(f"largest difference of logits {gap:.1e}")
    report(f"GPT-2 forward, {rows} × {length} tokens", timings, rows * length)

    def backwards(forward: Callable[[], Tensor]) -> Callable[[], None]:
        def run() -> None:
            logits = forward()[:, :-1].flatten(0, 1)
            F.cross_entropy(logits, tokens[:, 1:].flatten()).backward()

        return run

    timings = race({name: backwards(forward) for name, forward in forwards.items()}, rounds)
    report(f"GPT-2 forward + backward, {rows} × {length} tokens", timings, rows * length)


def adamw(parameters: list[Tensor]) -> torch.optim.Optimizer:
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), fused=True)


Step = Callable[[Tensor, Tensor], Tensor]


def fast(loss: Step) -> Step:
    """Compiled on a GPU; on a CPU, where only the way through is tried, as it is."""
    return torch.compile(loss) if DEVICE == "cuda" else loss


def autocast_step(module: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]) -> Step:
    """Float32 weights, bf16 products: forward, backward, clip, fused AdamW."""
    parameters = list(module.parameters())
    optimizer = adamw(parameters)
    compiled = fast(loss)

    def step(tokens: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            value = compiled(tokens, targets)
        value.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return value

    return step


def ours(config: regard.TransformerConfig, half: bool) -> Step:
    """Our module's training step, with float32 weights, or bf16 weights and float32 masters."""
    module = regard.build(config, DEVICE)

    def loss(tokens: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(module(tokens).flatten(0, 1).float(), targets.flatten())

    if not half:
        return autocast_step(module, loss)
    weights = Weights(module, "bf16-weights")
    optimizers = Optimizers(module, weights.masters, OptimizerSettings(learning_rate=6e-4))
    compiled = fast(loss)

    def step(tokens: Tensor, targets: Tensor) -> Tensor:
        value = compiled(tokens, targets)
        value.backward()
        weights.gather()
        optimizers.step(1.0, optimizers.norm())
        weights.publish()
        return value

    return step


def nanogpt(folder: Path, bias: bool) -> Step:
    """nanoGPT's model in the same step; `bias` False is its own training default."""
    spec = importlib.util.spec_from_file_location("nanogpt", folder / "model.py")
    assert spec
    assert spec.loader
    peer: Any = importlib.util.module_from_spec(spec)
    sys.modules["nanogpt"] = peer
    spec.loader.exec_module(peer)
    module = peer.GPT(peer.GPTConfig(vocab_size=SHAPE.vocabulary, bias=bias)).to("cuda")
    return autocast_step(module, lambda tokens, targets: module(tokens, targets)[1])


def training_steps(
    config: regard.TransformerConfig, folder: Path | None, rows: int, rounds: int
) -> None:
    """A full bf16 training step, clipping included; nanoGPT's too if its folder is given."""
    torch.set_float32_matmul_precision("high")
    length = config.context
    batch = torch.randint(0, config.vocabulary, (rows, length + 1), device=DEVICE)
    tokens, targets = batch[:, :-1].contiguous(), batch[:, 1:].contiguous()
    makers: dict[str, Callable[[], Step]] = {
        "regard, autocast": lambda: ours(config, half=False),
        "regard, bf16 weights": lambda: ours(config, half=True),
        "regard, bf16, half the heads": lambda: ours(
            replace(config, heads=config.heads // 2), half=True
        ),
    }
    if folder:
        makers = {
            "nanoGPT, no biases": lambda: nanogpt(folder, bias=False),
            "nanoGPT, biases": lambda: nanogpt(folder, bias=True),
        } | makers
    steps = {name: make() for name, make in makers.items()}
    # Five steps between looks at the clock, as a loop would run them.
    timings = race(
        {
            name: lambda s=step: [s(tokens, targets) for _ in range(5)]
            for name, step in steps.items()
        },
        rounds,
    )
    timings = {name: Timing(t.seconds / 5, t.spread) for name, t in timings.items()}
    where_time_goes(lambda: steps["regard, bf16 weights"](tokens, targets))
    count = sum(p.numel() for p in regard.build(config, "meta").parameters())
    per_token = 6 * (count - length * config.width) + 12 * config.layers * config.width * length
    ceiling = matrix_ceiling(config.width if DEVICE == "cpu" else 8192)
    print(f"matrix products reach {ceiling / 1e12:.0f} TFLOP/s here; 6N + 12Ldn per token")
    title = f"{count / 1e6:.0f}M training step, {rows} × {length} tokens"
    report(title, timings, rows * length, per_token, ceiling)


def where_time_goes(run: Callable[[], object]) -> None:
    """Device time of one step by what the kernels do."""
    from torch.profiler import ProfilerActivity, profile

    gpu = DEVICE == "cuda"
    activity = ProfilerActivity.CUDA if gpu else ProfilerActivity.CPU
    with profile(activities=[activity]) as found:
        run()
        if gpu:
            torch.cuda.synchronize()
    spent_by = "device_time_total" if gpu else "self_cpu_time_total"
    kinds = {
        "matrix products": ("gemm", "nvjet", "cutlass", "xmma"),
        "attention": ("flash", "fmha", "sdpa", "cudnn_generated"),
        "fused elementwise and norms": ("triton",),
        "optimizer": ("multi_tensor", "foreach", "adam"),
    }
    spent: dict[str, float] = {}
    events = sorted(found.key_averages(), key=lambda event: -getattr(event, spent_by))
    for event in events:
        name = event.key.lower()
        kind = next((k for k, words in kinds.items() if any(w in name for w in words)), "other")
        spent[kind] = spent.get(kind, 0.0) + getattr(event, spent_by) / 1e3
    total = sum(spent.values())
    print("one step with bf16 weights, by kernel:")
    for kind, milliseconds in sorted(spent.items(), key=lambda item: -item[1]):
        print(f"  {kind:<30}{milliseconds:8.2f} ms {milliseconds / total:6.1%}")
    print("the longest kernels:")
    for event in events[:12]:
        spent_here = getattr(event, spent_by) / 1e3
        print(f"  {event.key[:70]:<72}{event.count:4} × {spent_here:8.2f} ms")


def matrix_ceiling(size: int) -> float:
    """FLOP/s of a large bf16 matrix product on random data."""
    a, b = (torch.randn(size, size, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    return 2 * size**3 / race({"product": lambda: a @ b}, rounds=20, warmup=5)["product"].seconds


def report(
    title: str,
    timings: dict[str, Timing],
    tokens: int,
    per_token: float = 0.0,
    ceiling: float = 0.0,
) -> None:
    """A table: seconds, tokens/s, ratio to the first contestant that is not ours."""
    peer = next((name for name in timings if not name.startswith("regard")), None)
    print(f"\n{title}  [{machine()}]")
    for name, timing in timings.items():
        rate = tokens / timing.seconds
        line = (
            f"  {name:<30}{timing.seconds * 1e3:10.1f} ms ±{timing.spread:5.1%}{rate:12,.0f} tok/s"
        )
        if peer:
            line += f"{timings[peer].seconds / timing.seconds:8.3f}× {peer}"
        if per_token:
            share, reach = rate * per_token / H200_PEAK, rate * per_token / ceiling
            line += f"{share:8.1%} of 989 TFLOP/s, {reach:.1%} of the ceiling"
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nanogpt", type=Path, help="a checkout of nanoGPT to measure beside ours")
    parser.add_argument("--rows", type=int, default=0, help="rows a batch (CPU 2, CUDA 64)")
    parser.add_argument("--length", type=int, default=512, help="tokens a row on the CPU")
    parser.add_argument("--rounds", type=int, default=0, help="timed rounds (CPU 10, CUDA 10)")
    parser.add_argument("--tiny", action="store_true", help="a small model, to see that all runs")
    options = parser.parse_args()
    torch.manual_seed(0)
    if options.tiny:
        read, trained = replace(GPT2, **TINY), replace(SHAPE, **TINY)
        against_transformers(read, 2, TINY["context"], 1)
        training_steps(trained, options.nanogpt, 2, 1)
        return
    against_transformers(GPT2, options.rows or 2, options.length, options.rounds or 10)
    if DEVICE == "cuda":
        training_steps(SHAPE, options.nanogpt, options.rows or 64, options.rounds or 10)


if __name__ == "__main__":
    main()

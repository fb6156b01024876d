"""The whole training loop against its bare step: what data, logging and checkpoints cost.

    python bench/loop.py books/train.txt.gz     (with CUDA; GPT-2 124M, bf16, compiled)
    python bench/loop.py text.txt --tiny        (a model of two small layers, on a CPU too)

The bare step is forward, backward, clipping and fused AdamW on one batch that never changes. The
loop's rate is taken from its log, from the first checkpoint after compiling to the last, with
everything in between: reading rows, copying them, logging, and writing checkpoints.
"""

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from measure import machine, wait
from rich.console import Console
from transformer import autocast_step

from regard.commands.train import train
from regard.data.progress import Progress
from regard.models.construction import build
from regard.runs import recipes
from regard.runs.plan import Plan, plan
from regard.storage.event_log import read
from regard.training.objectives import loss

TINY = (
    *("model.layers=2", "model.width=16", "model.heads=2", "training.context=16"),
    *("tokenizer.vocabulary=300", "training.compile=no", "training.log_every=1"),
)


def bare_rate(made: Plan, steps: int) -> float:
    """Tokens per second of the step alone, on the loop's own first batch."""
    torch.manual_seed(0)
    module = build(made.config, made.device)
    batch = made.feed.step(0).parts(made.settings.training.micro_batch_size)[0].to(made.device)
    step = autocast_step(
        module, lambda tokens, targets: loss(module(tokens), targets) / batch.valid
    )
    for _ in range(10):
        step(batch.tokens, batch.targets)
    wait()
    begin = time.perf_counter()
    for _ in range(steps):
        step(batch.tokens, batch.targets)
    wait()
    return steps * batch.tokens.numel() / (time.perf_counter() - begin)


class Rates(NamedTuple):
    """Tokens per second of the loop."""

    first: float  # from the step of the first checkpoint on: it also pins the memory it copies to
    later: float  # from the first line after that checkpoint on
    median: float  # of the logged lines
    checkpoints: int  # in the later part
    stalled: float  # seconds that training stood still for a checkpoint, the longest


def loop_rates(made: Plan, folder: Path) -> Rates:
    """Train, and read the rates from the run's own log."""
    train(made, folder, Console(quiet=True))
    events = read(folder)
    saved = [event["step"] for event in events if event["event"] == "checkpoint"]
    steps = [event for event in events if event["event"] == "step"]
    last = max((e for e in steps if e["step"] <= saved[-1]), key=lambda e: e["step"])

    def since(first: dict[str, Any]) -> float:
        return (last["tokens"] - first["tokens"]) / (last["time"] - first["time"])

    begin = next(e for e in steps if e["step"] >= saved[0])
    after = next(e for e in steps if e["step"] > saved[0])
    rates = sorted(e["tokens_per_second"] for e in steps if e["step"] > saved[0])
    stalled = max(event.get("stalled", 0.0) for event in steps)
    return Rates(since(begin), since(after), rates[len(rates) // 2], len(saved) - 2, stalled)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", nargs="+")
    parser.add_argument("--rows", type=int, default=64, help="rows of 1,024 tokens in a step")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--checkpoint-every", type=int, default=100)
    parser.add_argument("--set", nargs="*", default=[], help="other settings, table.key=value")
    parser.add_argument("--tiny", action="store_true", help="a small model, to see that all runs")
    asked = parser.parse_args()
    tokens, bare_steps = (16, 2) if asked.tiny else (1024, 60)
    if asked.tiny:
        asked.rows, asked.steps, asked.checkpoint_every = 2, 12, 3
        asked.set = [*TINY, *asked.set]
    torch.set_float32_matmul_precision("high")
    settings = recipes.override(
        recipes.load("gpt2-124m"),
        [
            f"training.micro_batch_size={asked.rows}",
            f"training.tokens_per_step={asked.rows * tokens}",
            f"training.steps={asked.steps}",
            f"training.checkpoint_every={asked.checkpoint_every}",
            f"training.validate_every={asked.steps}",
            "training.sample_every=-1",
            *asked.set,
        ],
    )
    settings = replace(settings, data=replace(settings.data, train=tuple(asked.text)))
    begin = time.perf_counter()
    made = plan(settings, Progress(Console()))
    print(f"prepared in {time.perf_counter() - begin:.1f} s: {dict(made.data)}")
    before = bare_rate(made, bare_steps)
    with tempfile.TemporaryDirectory() as folder:
        rates = loop_rates(made, Path(folder) / "run")
    after = bare_rate(made, bare_steps)
    bare = (before + after) / 2
    print(f"\nGPT-2 124M, {asked.rows} × {tokens:,} tokens a step  [{machine()}]")
    print(f"  bare step            {before:12,.0f} and {after:,.0f} tok/s (before and after)")
    print(f"  loop                 {rates.later:12,.0f} tok/s: {rates.later / bare:.3f}")
    print(f"    ({rates.checkpoints} checkpoints, one every {asked.checkpoint_every} steps)")
    print(f"  with the first one   {rates.first:12,.0f} tok/s: {rates.first / bare:.3f}")
    print(f"  median line          {rates.median:12,.0f} tok/s: {rates.median / bare:.3f}")
    print(
        f"  saving costs {1 - rates.later / rates.median:.2%} of the rate between checkpoints, "
        f"{1 - rates.first / rates.median:.2%} with the first; longest stall {rates.stalled:.3f} s"
    )


if __name__ == "__main__":
    main()

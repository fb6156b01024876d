"""Training recurrent models: the whole loop against a bare loop around torch's own `nn.LSTM`.

    python bench/recurrent.py wikitext-2/train.txt      (with CUDA; two layers of 650, tied)

The bare loop is what a short script does: embedding, `nn.LSTM` with its dropout, the tied output
matrix, cross-entropy, backward, clipping and fused AdamW, the hidden vectors carried on, over one
batch that never changes; once with the LSTM in float32 and the output in bfloat16, as ours is, once
with all in bfloat16. The loop's rate is taken from its log, everything in it: reading rows,
dropout, carrying, guarding, logging.
"""

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch
from measure import machine
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F

from regard.commands.train import train
from regard.data.progress import Progress
from regard.runs import recipes
from regard.runs.plan import Plan, plan
from regard.storage.event_log import read

Held = tuple[Tensor, Tensor]


class Bare(nn.Module):
    """A language model as a script has it."""

    def __init__(self, vocabulary: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, layers, dropout=dropout, batch_first=True)
        self.drop = nn.Dropout(dropout)
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, tokens: Tensor, held: Held, mixed: bool) -> tuple[Tensor, Held]:
        x = self.drop(self.embed(tokens))
        if mixed:
            y, held = self.lstm(x, held)
        else:
            with torch.autocast(x.device.type, enabled=False):
                y, held = self.lstm(x, held)
        return F.linear(self.drop(y), self.embed.weight, self.bias), held


def bare_rate(made: Plan, steps: int, mixed: bool) -> float:
    """Tokens per second of the bare loop, on the real loop's first batch."""
    torch.manual_seed(0)
    config, device = made.config, made.device
    module = Bare(config.vocabulary, config.width, config.layers, config.dropout).to(device)
    fused = device.type == "cuda"
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, fused=fused)
    batch = made.feed.step(0).to(device)
    zeros = torch.zeros(config.layers, batch.rows, config.width, device=device)
    held = zeros, zeros

    def step(held: Held) -> Held:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=made.precision == "bf16"):
            logits, held = module(batch.tokens, held, mixed)
            wrong = F.cross_entropy(logits.flatten(0, 1).float(), batch.targets.flatten())
        wrong.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 0.25)
        optimizer.step()
        return held[0].detach(), held[1].detach()

    for _ in range(10):
        held = step(held)
    _wait(device)
    begin = time.perf_counter()
    for _ in range(steps):
        held = step(held)
    _wait(device)
    return steps * batch.tokens.numel() / (time.perf_counter() - begin)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def loop_rate(made: Plan, folder: Path) -> float:
    """Train, and read the median rate from the run's own log, its first tenth left out."""
    train(made, folder, Console(quiet=True))
    steps = [event for event in read(folder) if event["event"] == "step"]
    return median(event["tokens_per_second"] for event in steps[len(steps) // 10 :])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--set", nargs="*", default=[], help="other settings, table.key=value")
    parser.add_argument("--tiny", action="store_true", help="a small model, to see that all runs")
    asked = parser.parse_args()
    if asked.tiny:
        asked.steps, asked.rounds = 4, 1
        asked.set = ["model.width=16", "training.tokens_per_step=64", "training.context=8"]
    torch.set_float32_matmul_precision("high")
    every = asked.steps
    wanted = [f"training.steps={every}", "training.epochs=0", f"training.validate_every={every}"]
    wanted += ["training.sample_every=-1", f"training.log_every={max(1, every // 20)}", *asked.set]
    settings = recipes.override(recipes.load("wikitext2-lstm"), wanted)
    settings = replace(settings, data=replace(settings.data, train=(asked.text,)))
    made = plan(settings, Progress(Console()))
    print(f"\n{dict(made.data)}  [{machine()}]")
    for _ in range(asked.rounds):
        plain, mixed = (bare_rate(made, asked.steps // 2, mixed) for mixed in (False, True))
        with tempfile.TemporaryDirectory() as folder:
            ours = loop_rate(made, Path(folder) / "run")
        print(
            f"bare {plain:10,.0f} tok/s, all in bf16 {mixed:10,.0f}; the whole loop {ours:10,.0f}: "
            f"{ours / plain:.3f} and {ours / mixed:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()

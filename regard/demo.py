"""`make demo`: a small Transformer learns to write words backwards, and shows how it looks.

Nothing is prepared: the words are random, so each one in the test is new to the model. Nobody
tells it where to look; that the last letter comes first is found by its cross-attention.
"""

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text
from torch import Tensor
from torch.nn import functional as F

import regard
from regard.inspection.anatomy import parameters
from regard.inspection.pictures import heat_text, heatmap
from regard.models.transformer import Transformer

LETTERS = "abcdefghijklmnopqrstuvwxyz"
START, STOP, PAD = 26, 27, 28
LONGEST, STEPS, ROWS = 12, 600, 64

CONFIG = replace(
    regard.preset("transformer-tiny"),
    vocabulary=29,
    layers=2,
    width=64,
    hidden=128,
    norm_place="pre",
    dropout=0.0,
)


def batch(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Random words (rows, 12), their lengths (rows,), and them reversed (rows, 14) in markers."""
    lengths = torch.randint(3, LONGEST + 1, (rows,), generator=generator)
    words = torch.randint(0, 26, (rows, LONGEST), generator=generator)
    backwards = torch.full((rows, LONGEST + 2), PAD)
    backwards[:, 0] = START
    for row, length in enumerate(lengths.tolist()):
        backwards[row, 1 : length + 1] = words[row, :length].flip(0)
        backwards[row, length + 1] = STOP
    return words, lengths, backwards


def train(model: Transformer, console: Console) -> float:
    """Teach the model by showing it words; the seconds it took."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=STEPS)
    generator = torch.Generator().manual_seed(1)
    begin = time.perf_counter()
    columns = (
        TextColumn("learning"),
        BarColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("learning", total=STEPS, loss=float("nan"))
        for _ in range(STEPS):
            words, lengths, backwards = batch(ROWS, generator)
            logits = model(backwards[:, :-1], model.encode(words, lengths))
            loss = F.cross_entropy(
                logits.flatten(0, 1), backwards[:, 1:].flatten(), ignore_index=PAD
            )
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            progress.update(task, advance=1, loss=loss.item())
    return time.perf_counter() - begin


@torch.inference_mode()
def reverse(model: Transformer, words: Tensor, lengths: Tensor) -> Tensor:
    """Write each word backwards, one letter at a time, never computing a prefix twice."""
    memory = model.encode(words, lengths)
    state = model.start(len(words), room=LONGEST + 2)
    written = torch.full((len(words), 1), START)
    for _ in range(LONGEST + 1):
        logits = model(written[:, -1:], memory, state)
        written = torch.cat((written, logits.argmax(-1)), dim=1)
    return written


def exact(written: Tensor, gold: Tensor) -> float:
    """The share of rows that are right up to and including the stop marker."""
    return ((written == gold) | (gold == PAD)).all(dim=1).float().mean().item()


def main() -> None:
    console = Console()
    torch.manual_seed(0)
    model = regard.build(CONFIG)
    console.print(
        f"An encoder–decoder Transformer ({CONFIG.layers} + {CONFIG.layers} layers, "
        f"{parameters(model):,} parameters) learns to write words backwards.",
        highlight=False,
    )
    seconds = train(model, console)
    words, lengths, gold = batch(1000, torch.Generator().manual_seed(2))
    share = exact(reverse(model.eval(), words, lengths), gold)
    console.print(f"After {seconds:.0f} s it reverses {share:.1%} of 1,000 new random words.\n")
    show_attention(model, "attention", console)
    command = os.path.relpath(Path(sys.executable).with_name("regard"))
    console.print(f"\nNext: [cyan]{command} models[/] lists what can be built,")
    console.print(f"      [cyan]{command} describe gpt2[/] shows the parts of one,")
    console.print("      docs/guide.md tells how to use them from Python.")


def show_attention(model: Transformer, word: str, console: Console) -> None:
    """Reverse one word under a recording tape and draw where each letter looked."""
    source = torch.tensor([[LETTERS.index(letter) for letter in word]])
    with regard.record(model) as tape:
        written = reverse(model, source, torch.tensor([len(word)]))[0, 1:]
    count = len(word) + 1
    marks = [*LETTERS, "<s>", "</s>", "?"]
    wrote = [marks[token] for token in written[:count].tolist()]
    name = tape.names[-1]
    weights = tape.probabilities(name)[0].mean(0)[:count]  # (written, read), the heads averaged
    console.print(f"Where it looked while writing “{''.join(wrote[:-1])}” ({name}):")
    console.print(heat_text(weights, rows=wrote, columns=list(word)))
    picture = Path("demo") / "reverse.png"
    heatmap(weights, picture, rows=wrote, columns=list(word), title="reading →", side="← writing")
    console.print(Text(f"The same as a picture: {picture}"))


if __name__ == "__main__":
    main()

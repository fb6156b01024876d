"""`regard classify`: the labels that a run gives texts."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro
from rich.console import Console

from regard.commands.printing import note, put
from regard.commands.texts import check_texts, given_texts, one_line
from regard.decoding.sampling import check_numbers
from regard.decoding.text_model import TextModel
from regard.errors import RegardError
from regard.loading import text_model_of
from regard.models.config import Ability
from regard.runs.plan import device_for
from regard.runs.stored_run import open_run
from regard.text.invalid_utf8 import replace_invalid_utf8
from regard.text.specials import SPECIALS

ROWS = 256  # texts that are read at once


@dataclass(frozen=True)
class Classify:
    """Label texts: label, probability and text, a line for each.

    $ regard train --pairs reviews.tsv --model bag-linear   lines: text, tab, label
    $ regard classify runs/reviews "what a film" "what a bore"
    $ regard classify runs/reviews --file reviews.txt --top 3 --json
    """

    path: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """The folder of a run that was trained to label texts."""
    texts: Annotated[
        tyro.conf.Positional[tuple[str, ...]],
        tyro.conf.arg(metavar="TEXT…", help_behavior_hint="(default: the lines of standard input)"),
    ] = ()
    """The texts."""
    file: Annotated[str, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = ""
    """A file with a text in each line."""
    top: Annotated[int, tyro.conf.arg(metavar="N")] = 1
    """So many of the most probable labels of each text."""
    device: Annotated[str, tyro.conf.arg(metavar="NAME")] = "auto"
    """cpu, cuda, or what there is."""
    json: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """Print a JSON object for each text."""

    def run(self, console: Console) -> None:
        check_texts(self.texts, self.file)
        if self.top < 1:
            raise RegardError(f"--top must be at least 1, not {self.top}")
        run = open_run(Path(self.path), device_for(self.device))
        if Ability.CLASSIFY not in run.config.abilities:
            raise RegardError(
                f"{self.path} does not label texts; `regard train --pairs FILE --model bag-linear` "
                "makes a run that does"
            )
        speaks, texts = text_model_of(run), given_texts(self.texts, self.file)
        strange = 0
        for first in range(0, len(texts), ROWS):
            some = texts[first : first + ROWS]
            rows = [[*speaks.ids(text, source=True), speaks.signs.ends[0]] for text in some]
            strange += sum(max(ids) < len(SPECIALS) for ids in rows)
            for text, found in zip(some, labelled(speaks, rows), strict=True):
                self._print(text, found[: self.top])
        if strange:
            note(f"{strange:,} of {len(texts):,} texts have no word that this run knows")

    def _print(self, text: str, found: list[tuple[str, float]]) -> None:
        shown = replace_invalid_utf8(text)
        if self.json:
            labels = [{"label": label, "probability": share} for label, share in found]
            put(json.dumps({"text": shown, "labels": labels}, allow_nan=False) + "\n")
            return
        for label, share in found:
            put(f"{label}\t{share:.4f}\t{one_line(shown)}\n")


def labelled(speaks: TextModel, rows: list[list[int]]) -> list[list[tuple[str, float]]]:
    """For each text's ids all labels with their probabilities, the most probable first."""
    assert speaks.tokenizer is not None
    logits = speaks.encode(rows).values[:, 0, len(SPECIALS) :]  # (texts, labels)
    check_numbers(logits.amax(-1))
    shares = logits.double().softmax(-1).cpu()
    names = [speaks.tokenizer.decode([i]) for i in range(len(SPECIALS), len(speaks.tokenizer))]
    values, order = torch.sort(shares, dim=-1, descending=True, stable=True)
    return [
        [(names[place], value) for place, value in zip(places, some, strict=True)]
        for places, some in zip(order.tolist(), values.tolist(), strict=True)
    ]

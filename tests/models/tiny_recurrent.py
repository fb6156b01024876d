"""Small recurrent models to test with, like `tiny_models`: every weight is drawn wide."""

from dataclasses import replace
from functools import cache
from itertools import product

import torch
from tiny_models import VOCABULARY, draw, ids
from torch import Tensor

from regard.models.construction import build
from regard.models.protocol import Memory
from regard.models.recurrent.config import RecurrentConfig
from regard.models.recurrent.model import Recurrent

TEXT = RecurrentConfig(vocabulary=VOCABULARY, width=6, layers=1)
PAIR = replace(TEXT, kind="encoder-decoder", hidden=8)
LOOKS = [
    ("none", False),
    ("none", True),
    ("additive", False),
    ("dot", False),
    ("dot", True),
    ("general", False),
    ("general", True),
    ("additive", True),
]
TEXTS = {
    "elman": replace(TEXT, cell="elman"),
    "gru 2": replace(TEXT, cell="gru", layers=2, tied=False, hidden=5),
    "lstm": replace(TEXT, cell="lstm"),
    "lstm 3 wide": replace(TEXT, cell="lstm", layers=3, hidden=7),  # the last has the width
}
PAIRS = {
    f"{cell} {attention}{' fed' * feeding} {'both' if both else 'ahead'} {layers}": replace(
        PAIR,
        cell=cell,
        attention=attention,
        input_feeding=feeding,
        bidirectional=both,
        layers=layers,
    )
    for cell, (attention, feeding), both, layers in product(
        ("elman", "gru", "lstm"), LOOKS, (True, False), (1, 2)
    )
}
PAIRS["gru additive odd"] = replace(
    PAIR, cell="gru", attention="additive", source_vocabulary=300, encoder_layers=3, tied=False
)
EVERY = {**TEXTS, **PAIRS}
# Every kind of cell, of looking and of reading, and every two of them that meet in the code.
LOOKING = [
    "gru additive both 1",
    "lstm additive ahead 2",
    "elman dot both 2",
    "lstm general fed both 2",
    "gru dot fed ahead 1",
    "lstm general both 1",
    "lstm additive fed ahead 2",
    "gru additive odd",
]
SOME = ["gru 2", "lstm 3 wide", "gru none both 1", "lstm none fed ahead 2", *LOOKING]


@cache
def tiny(case: str, **changes: object) -> Recurrent:
    """A model in evaluation mode and float64, shared between tests: do not change it."""
    return fresh(case, **changes).eval()


def fresh(case: str, **changes: object) -> Recurrent:
    """The same in training mode, for one test alone."""
    model: Recurrent = build(replace(EVERY[case], **changes))
    draw(model)
    with torch.no_grad():
        for weight in model.parameters():  # a few places only: attention needs larger numbers
            weight *= 3
    return model.double()


def memory_of(model: Recurrent, rows: int, lengths: list[int] | None = None) -> Memory | None:
    """A source for a model that reads one, else nothing; padding beyond `lengths` is garbage."""
    if model.config.kind == "decoder":
        return None
    return model.encode(ids(rows, 5, seed=7), lengths)


def memory_of_row(model: Recurrent, rows: int, row: int, length: int = 5) -> Memory | None:
    """What `memory_of` gives one row, read by itself and without padding."""
    if model.config.kind == "decoder":
        return None
    return model.encode(ids(rows, 5, seed=7)[row : row + 1, :length])


def alone(model: Recurrent, rows: int, row: int, text: Tensor, length: int = 5) -> Tensor:
    """The logits of one row's text (positions,) by itself: no padding, no state, own source."""
    return model(text[None], memory_of_row(model, rows, row, length))[0]


def weighted(logits: Tensor) -> Tensor:
    """A loss to which every logit matters."""
    generator = torch.Generator().manual_seed(3)
    return (logits * torch.randn(logits.shape, generator=generator, dtype=logits.dtype)).sum()

"""Small models of every family, for what holds of all of them.

A family has a line in `FAMILY`: its small settings, or options of which any two meet in some model.
Tests ask the settings what a model reads and can do, and never which family it is of.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from pairwise import pairwise
from torch import Tensor

from regard.models.bag.config import BagConfig
from regard.models.captioner.config import CaptionConfig
from regard.models.config import ModelConfig
from regard.models.construction import build
from regard.models.convolution.config import ConvolutionConfig
from regard.models.counting.config import SMOOTHINGS, NGramConfig
from regard.models.counting.estimate import estimate
from regard.models.counting.model import NGram
from regard.models.linear_recurrence.config import LinearRecurrenceConfig
from regard.models.network import SequenceModule
from regard.models.protocol import Memory
from regard.models.recurrent.config import RecurrentConfig
from regard.models.transformer.config import TransformerConfig
from regard.models.transformer.positions import SCHEMES
from regard.models.word_vectors.config import Word2VecConfig
from regard.text.specials import BOS, EOS

VOCABULARY, WORDS, POSITIONS = 40, 50, 5  # tokens; of a source of its own; of a source
BOTH = [False, True]


def settings(base: ModelConfig, **options: Sequence[Any]) -> dict[str, ModelConfig]:
    """Models in which any two values of two options meet."""
    kind = base.kind if base.kind != base.family else ""
    return listed(
        f"{base.family} {kind}".strip(), *(replace(base, **row) for row in pairwise(options))
    )


def listed(name: str, *models: ModelConfig) -> dict[str, ModelConfig]:
    """A few models of one family."""
    return {f"{name} {number}": model for number, model in enumerate(models)}


TRANSFORMER = TransformerConfig(
    vocabulary=VOCABULARY, context=64, layers=2, width=16, heads=4, hidden=24, relative_buckets=8
)
PARTS: dict[str, Sequence[Any]] = {
    "positions": [*SCHEMES],
    "norm": ["layer", "rms"],
    "norm_place": ["pre", "post"],
    "kv_heads": [4, 2],
    "gated": BOTH,
    "query_key_norm": BOTH,
    "attention_bias": [True, False],
    "scale_embeddings": BOTH,
    "scale_scores": [True, False],
    "tied": [True, False],
    "head_bias": BOTH,
}
RECURRENT = RecurrentConfig(vocabulary=VOCABULARY, width=6, layers=1)
CONVOLUTION = ConvolutionConfig(vocabulary=VOCABULARY, width=6, layers=2)
BAG = BagConfig(vocabulary=VOCABULARY, width=6)
SIZES = {"vocabulary": VOCABULARY, "picture": 16, "patch": 4, "width": 16, "heads": 2}
FAMILY: dict[str, dict[str, ModelConfig]] = {
    "transformer": {
        **settings(TRANSFORMER, **PARTS),
        **settings(
            replace(TRANSFORMER, kind="encoder-decoder"),
            **{**PARTS, "positions": ["sinusoidal", "none", "rotary", "relative"]},
            encoder_layers=[2, 1],
            source_vocabulary=[0, WORDS],
        ),
    },
    "recurrent": {
        **settings(
            RECURRENT,
            cell=["elman", "gru", "lstm"],
            layers=[1, 3],
            hidden=[0, 7],
            tied=[True, False],
        ),
        **settings(
            replace(RECURRENT, kind="encoder-decoder"),
            attention=["additive", "none", "dot", "general"],
            cell=["elman", "gru", "lstm"],
            input_feeding=BOTH,
            bidirectional=[True, False],
            layers=[1, 2],
            hidden=[8, 0],
            encoder_layers=[0, 3],
            source_vocabulary=[0, WORDS],
            tied=[True, False],
        ),
    },
    "convolution": {
        **settings(
            CONVOLUTION,
            kernel=[3, 2, 1],
            dilation_growth=[1, 3],
            dilation_cycle=[0, 2],
            layers=[2, 3],
            tied=[True, False],
        ),
        **settings(
            replace(CONVOLUTION, kind="encoder-decoder"),
            kernel=[3, 1],
            dilation_growth=[1, 2],
            layers=[2, 1, 3],
            encoder_layers=[0, 2],
            heads=[1, 2],
            source_vocabulary=[0, WORDS],
            tied=[True, False],
        ),
    },
    "linear_recurrence": settings(
        LinearRecurrenceConfig(vocabulary=VOCABULARY, width=6, layers=2),
        layers=[2, 1],
        hidden=[0, 9],
        kernel=[4, 1, 2],
        feedforward=[0, 5],
    ),
    "counting": listed(
        "counting",
        *(
            NGramConfig(vocabulary=VOCABULARY, order=order, smoothing=smoothing)
            for order, smoothing in zip((3, 1, 2, 5, 4), (*SMOOTHINGS, "kneser-ney"), strict=True)
        ),
    ),
    "word_vectors": listed("word_vectors", Word2VecConfig(vocabulary=VOCABULARY, width=6)),
    "bag": listed(
        "bag",
        BAG,
        replace(BAG, layers=1, source_vocabulary=WORDS),
        replace(BAG, layers=2),
    ),
    "captioner": settings(
        CaptionConfig(**SIZES, layers=2, encoder_layers=1, dropout=0.0),
        encoder=["cnn", "patches"],
        decoder=["transformer", "lstm"],
    ),
}
EVERY = {name: config for family in FAMILY.values() for name, config in family.items()}
SEQUENCES = [name for name, config in EVERY.items() if config.task != "neighbours"]
READERS = [name for name in SEQUENCES if EVERY[name].reads]
WRITERS = [name for name in SEQUENCES if EVERY[name].task != "labels"]  # a label follows no token
LOOKING = [  # those that attend to their source
    name
    for name in READERS
    if EVERY[name].task != "labels" and getattr(EVERY[name], "attention", "") != "none"
]
ONE_OF_EACH = [  # of a family and kind, and with attention or without
    name
    for names in [[*models] for models in FAMILY.values()]
    for number, name in enumerate(names)
    if name in SEQUENCES
    and (EVERY[name].kind, name in LOOKING)
    not in [(EVERY[other].kind, other in LOOKING) for other in names[:number]]
]
LEARNING = [name for name in SEQUENCES if EVERY[name].family != "counting"]  # by gradients

# Parts of which a gradient need not reach every number, and the share that it does reach.
PARTLY = {
    "positions.table": 0.0,  # for distances and places that a short text does not have
    "key_value.bias": 0.5,  # what all keys share moves no share of attention
    "eye.": 0.9,  # rectified
    "words": 0.0,
    "layers.": 0.0,
    "bias": 0.3,
}


def has(name: str, setting: str) -> bool:
    """Whether a model has such a setting."""
    return setting in {f.name for f in fields(EVERY[name])}


# --- models ----------------------------------------------------------------------------------


@cache
def tiny(name: str, **changes: Any) -> Any:
    """A model in evaluation mode and float64, shared between tests: do not change it."""
    return fresh(name, **changes).eval()


def fresh(name: str, seed: int = 0, **changes: Any) -> Any:
    """The same in training mode, for one test alone."""
    module = build(replace(EVERY[name], **changes)).double()
    if not [*module.parameters()]:
        return counted(module.config, seed)
    draw(module, seed)
    return module


def draw(module: torch.nn.Module, seed: int = 0) -> None:
    """Every weight anew and wide, so that no part of a pass is negligible: norms around 1.

    Freshly initialised, attention would be nearly uniform and a mistake in it nearly invisible.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in module.named_parameters():
            centre = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            noise = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
            weight.copy_(centre + 0.6 * noise)


def counted(config: NGramConfig, seed: int = 0) -> NGram:
    """The n-grams of a text in which every word follows every two others."""
    rng = np.random.default_rng(seed)
    texts = rng.integers(5, config.vocabulary, (1000, 98))
    begins, ends = np.full((1000, 1), BOS), np.full((1000, 1), EOS)
    flat = np.concatenate([begins, texts, ends], axis=1).flatten()
    return NGram(config, estimate(flat, config.order, config.vocabulary, BOS, config.rule))


# --- what they are given ---------------------------------------------------------------------


def ids(*shape: int, seed: int = 0, vocabulary: int = VOCABULARY) -> Tensor:
    """Random token ids, the same for the same shape and seed."""
    return torch.randint(vocabulary, shape, generator=torch.Generator().manual_seed(seed))


def source_of(module: SequenceModule, rows: int) -> Tensor:
    """Something to read for so many rows: tokens (rows, positions), or pictures."""
    config = module.config
    if config.form == "images":
        made = torch.Generator().manual_seed(7)
        sides = config.picture, config.picture
        return torch.randint(0, 256, (rows, 3, *sides), generator=made, dtype=torch.uint8)
    words = config.source_vocabulary or config.vocabulary
    return 5 + ids(rows, POSITIONS, seed=7, vocabulary=words - 5)  # a bag leaves out the first


def memory_of(
    module: SequenceModule, rows: int, lengths: Sequence[int] | None = None
) -> Memory | None:
    """What was read, by a model that reads; beyond `lengths` texts are padded with garbage."""
    if not module.config.reads:
        return None
    of_text = module.config.reads_text
    return module.encode(source_of(module, rows), *([lengths] if of_text and lengths else []))


def memory_of_row(
    module: SequenceModule, rows: int, row: int, length: int = POSITIONS
) -> Memory | None:
    """What `memory_of` gives one row, read by itself and without padding."""
    if not module.config.reads:
        return None
    source = source_of(module, rows)[row : row + 1]
    return module.encode(source[:, :length] if module.config.reads_text else source)


def alone(
    module: SequenceModule, rows: int, row: int, text: Tensor, length: int = POSITIONS
) -> Tensor:
    """The logits of one row's text (positions,) by itself: no padding, no state, own source."""
    return module(text[None], memory_of_row(module, rows, row, length))[0]


def feed(module: SequenceModule, state: Any, pieces: list[Tensor], memory: Any = None) -> list:
    """Each row takes in its own piece, padded with garbage; the logits of the real tokens."""
    counts = [len(piece) for piece in pieces]
    batch = ids(len(pieces), max(1, *counts), seed=99)
    for row, piece in enumerate(pieces):
        batch[row, : len(piece)] = piece
    logits = module(batch, memory, state, lengths=counts)
    return [logits[row, :count] for row, count in enumerate(counts)]


def assert_same(one: Tensor, other: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def weighted(logits: Tensor) -> Tensor:
    """A loss to which every logit matters."""
    generator = torch.Generator().manual_seed(3)
    return (logits * torch.randn(logits.shape, generator=generator, dtype=logits.dtype)).sum()


def reached(gradient: Tensor) -> set[int]:
    """The words whose embeddings learn something."""
    return {*gradient.abs().sum(-1).nonzero().flatten().tolist()}

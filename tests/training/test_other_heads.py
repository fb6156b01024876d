"""A network with another head learns tags and labels in the same loop, whatever its family."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_jobs import VOCABULARY, Around, Made, job_of, model_of, trained

from regard.data.batch import Batch
from regard.data.feeds.masking import IGNORE
from regard.models.construction import build
from regard.models.convolution.config import ConvolutionConfig
from regard.models.heads import Tagger
from regard.models.kernels.int8 import quantise
from regard.models.network import Network
from regard.models.recurrent.config import RecurrentConfig
from regard.training.objectives import Classifying, Tagging

RARE = 9  # what a row may hold, or not


def transformer() -> Network:
    return model_of("causal")


def lstm() -> Network:
    torch.manual_seed(0)
    return build(RecurrentConfig(vocabulary=VOCABULARY, width=16, dropout=0.0))


def convolution() -> Network:
    torch.manual_seed(0)
    return build(ConvolutionConfig(vocabulary=VOCABULARY, width=16, layers=2, dropout=0.0))


BODIES = {"transformer": transformer, "lstm": lstm, "convolution": convolution}
every = pytest.mark.parametrize("body", BODIES)


@dataclass(frozen=True)
class Tagged(Around):
    """Each token's tag: whether it is larger than the one before, or as large."""

    def told(self, batch: Batch) -> Batch:
        change = batch.tokens.diff(dim=1, prepend=batch.tokens[:, :1]).sign() + 1
        return replace(batch, targets=torch.where(batch.targets == IGNORE, IGNORE, change))

    def step(self, step: int) -> Batch:
        return self.told(super().step(step))

    def held_out(self, rows: int):
        yield from map(self.told, super().held_out(rows))


@dataclass(frozen=True)
class Labelled(Tagged):
    """Each row's label: whether a rare token is somewhere in it."""

    def told(self, batch: Batch) -> Batch:
        found = (batch.tokens == RARE).any(1, keepdim=True)
        return replace(batch, targets=found.long(), valid=batch.rows)


def taught(body: str, folder: Path, objective, feed, tags: int) -> Network:
    """The network after the loop, with a head of its own."""
    network = BODIES[body]()
    network.head = Tagger(16, tags)
    how = {"steps": 250, "rows": 32, "validate_every": 125, "checkpoint_every": 250}
    job = job_of(folder, feed=feed, module=network, optimizer={"peak": 1e-2}, **how)
    trained(replace(job, objective=objective))
    return network.eval()


@torch.no_grad()
def right(network: Network, objective, feed) -> float:
    """The share of held-out targets that are told."""
    (batch,) = feed.held_out(1000)
    found = objective.logits(network, batch).argmax(-1)
    assert found.shape == batch.targets.shape
    asked = batch.targets != IGNORE
    return float((found == batch.targets)[asked].float().mean())


@every
def test_a_tagger_learns_what_follows_from_two_tokens(body: str, tmp_path: Path):
    feed = Tagged(Made("causal", rows=32, held=200))
    network = taught(body, tmp_path, Tagging(), feed, 3)
    assert right(network, Tagging(), feed) > 0.95
    assert sum(1 for name, _ in network.named_parameters() if name.startswith("head.")) == 2


@every
def test_a_classifier_learns_what_stands_anywhere_in_a_row(body: str, tmp_path: Path):
    feed = Labelled(Made("causal", rows=32, held=200))
    network = taught(body, tmp_path, Classifying(), feed, 2)
    assert right(network, Classifying(), feed) > 0.95


@every
@torch.no_grad()
def test_padding_has_no_part_in_a_rows_label(body: str):
    network = BODIES[body]().eval()
    network.head = Tagger(16, 4)
    (batch,) = Labelled(Made("causal", held=9)).held_out(100)
    together = Classifying().logits(network, batch)
    for row, length in enumerate(batch.lengths.tolist()):
        alone = replace(batch, tokens=batch.tokens[row : row + 1, :length], lengths=None)
        torch.testing.assert_close(Classifying().logits(network, alone)[0], together[row])


@torch.no_grad()
def test_another_head_is_int8_with_the_rest():
    network = transformer().eval()
    network.head = Tagger(16, 4)
    tokens = torch.from_numpy(np.arange(5, 15)[None])
    exact, coarse = network(tokens), quantise(network)(tokens)
    assert 0 < float((exact - coarse).abs().max()) < 0.1

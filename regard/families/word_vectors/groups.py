"""What the words of a step learn from one another (M2): groups of places, and their changes.

All pairs of a block are scored by matrix products. The drawn words are shared by the places of a
block, each weighted so that what is expected is what word2vec does with its own draws for every
prediction; so each word is read and written once for its place, not once for each pair that it is
in. In skip-gram the pairs outside of the windows are computed for nothing, which is several times
cheaper than to pick the others out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from regard.models.word_vectors.model import Word2VecConfig, huffman

REGISTERS = 32  # numbers in two vector registers, which torch fills at a time, at most


@dataclass(frozen=True)
class Cut:
    """How a piece is cut up."""

    places: int  # in a block
    shared: int  # drawn words that the places of a block share
    blocks: int  # in a group, at most; a group learns from the vectors as they were before it


class Drawn(NamedTuple):
    """All that is random in a step; at the end it is padded with places whose windows are empty."""

    words: np.ndarray  # (window + groups · blocks · places + window,) what is left of the text
    left: np.ndarray  # (groups, blocks, places) how far the window of each reaches back
    right: np.ndarray  # (groups, blocks, places) and on
    noise: np.ndarray  # (groups, turns, blocks, shared) the drawn words


# The output layer: hidden vectors are compared with its rows, alike for both methods.


class Targets(NamedTuple):
    """What hidden vectors are compared with, and whether they should agree.

    There may be some kinds of targets, each with its parts, that is, blocks or single places. The
    numbers of a kind are (parts, places, targets); all kinds are one behind the other.
    """

    rows: list[Tensor]  # for each kind (parts, targets): rows of the output layer
    weights: Tensor  # (numbers,) how often each is a target of each place
    right: Tensor  # (numbers,) and how often of these they should agree


def products(hidden: Tensor, rows: Tensor, room: Tensor | None = None) -> Tensor:
    """How hidden vectors (blocks, places, columns) agree with rows (blocks, targets, columns).

    (blocks, places, targets), written to `room` if there is one.
    """
    if hidden.shape[1] == rows.shape[1] == 1:  # then a product of matrices takes twice as long
        return torch.sum(hidden * rows, -1, keepdim=True, out=room)
    return torch.bmm(hidden, rows.mT, out=room)


def pulled(
    pull: Tensor, hidden: Tensor, rows: Tensor, change: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """How both change where each place and target pull at each other (blocks, places, targets).

    If there is a change of the hidden vectors already, theirs is added to it, in place.
    """
    if hidden.shape[1] == rows.shape[1] == 1:
        mine = pull * rows if change is None else change.view_as(hidden).addcmul_(pull, rows)
        return mine, pull * hidden
    mine = torch.bmm(pull, rows)
    return mine if change is None else change.view_as(hidden).add_(mine), torch.bmm(pull.mT, hidden)


class Columns(Protocol):
    """The columns of both layers that are at hand; what concerns all of them is agreed upon."""

    def scores(self, hidden: Sequence[Tensor], rows: Sequence[Tensor]) -> Tensor:
        """The products of each kind, over all columns of the layers, as one row of numbers."""
        ...

    def mine(self, numbers: int) -> Sequence[slice]:
        """The parts of a row of numbers whose loss is to be summed up here."""
        ...


def halves(numbers: int) -> tuple[slice, slice]:
    """A row of numbers in two, cut where torch begins to fill vector registers.

    What is left at the end of a row it takes in another way, and the bits may differ.
    """
    middle = numbers // 2 // REGISTERS * REGISTERS
    return slice(0, middle), slice(middle, numbers)


class Halves:
    """All columns are here. Scores are sums of halves, as when two processes have one each.

    That takes a tenth longer than at once. On a GPU there is nobody to agree with: one part is all.
    """

    def __init__(self, width: int, parts: int = 2) -> None:
        self.cuts = [width * part // parts for part in range(parts + 1)]

    def scores(self, hidden: Sequence[Tensor], rows: Sequence[Tensor]) -> Tensor:
        found = [self._sum(*each).flatten() for each in zip(hidden, rows, strict=True)]
        return torch.cat(found) if len(found) > 1 else found[0]

    def _sum(self, hidden: Tensor, rows: Tensor) -> Tensor:
        total = products(hidden[..., : self.cuts[1]], rows[..., : self.cuts[1]])
        for first, last in pairwise(self.cuts[1:]):
            total.add_(products(hidden[..., first:last], rows[..., first:last]))
        return total

    def mine(self, numbers: int) -> Sequence[slice]:
        return halves(numbers) if len(self.cuts) > 2 else [slice(0, numbers)]


def add(matrix: Tensor, rows: Tensor, change: Tensor) -> None:
    """matrix[rows] += change, where rows may repeat; to the bit the same each time."""
    flat, rows = change.reshape(-1, change.shape[-1]), rows.flatten()
    if matrix.is_cuda:  # where scatter_add_ adds in any order
        matrix.index_put_((rows,), flat, accumulate=True)
    else:  # 38 µs for 1,024 rows of 100 numbers, where index_add_ takes 51, with a factor 87
        matrix.scatter_add_(0, rows[:, None].expand_as(flat), flat)


class Group(Protocol):
    """Blocks that learn together: which input rows make hidden vectors, and what those predict."""

    def read(self, table: Tensor) -> Tensor:
        """The hidden vectors (places, width), from the input rows (vocabulary, width)."""
        ...

    def write(self, table: Tensor, change: Tensor) -> None:
        """Change the input rows as the hidden vectors should change (places, width)."""
        ...

    def predicted(self) -> tuple[Tensor, Tensor]:
        """Words (parts, words), and how often places predict them (parts, places, words)."""
        ...

    def compared(self) -> Targets:
        """The predicted words, and the drawn ones for whatever else is predicted."""
        ...


class Layers(NamedTuple):
    """Both layers of word vectors, or some columns of both."""

    input: Tensor  # (vocabulary, columns)
    output: Tensor  # (vocabulary or nodes, columns)


def learn(
    layers: Layers, group: Group, loss: "Loss", rate: float, columns: Columns
) -> list[Tensor]:
    """Change the layers in place; return losses, whose sum is that of the group.

    A score x that should agree `right` of `weight` times has the loss weight · log(1 + exp x) -
    right · x. The changes are minus its gradients, times the rate.
    """
    hidden = group.read(layers.input)
    targets = loss.targets(group)
    blocked = [hidden.view(len(rows), -1, hidden.shape[-1]) for rows in targets.rows]
    compared = [
        layers.output.index_select(0, rows.flatten()).view(*rows.shape, -1) for rows in targets.rows
    ]
    scores = columns.scores(blocked, compared)
    pull = torch.addcmul(targets.right, targets.weights, torch.sigmoid(scores), value=-1).mul_(rate)
    change: Tensor | None = None
    place = 0
    for rows, some, others in zip(targets.rows, blocked, compared, strict=True):
        shape = (len(rows), some.shape[1], rows.shape[1])
        numbers = pull.narrow(0, place, math.prod(shape)).view(shape)
        change, moved = pulled(numbers, some, others, change)
        add(layers.output, rows, moved)
        place += numbers.numel()
    assert change is not None
    group.write(layers.input, change.view_as(hidden))
    return [_loss(*(each[mine] for each in (scores, *targets[1:]))) for mine in columns.mine(place)]


def _loss(scores: Tensor, weights: Tensor, right: Tensor) -> Tensor:
    each = torch.nn.functional.softplus(scores).mul_(weights)
    return each.addcmul_(right, scores, value=-1).sum()


class Loss(Protocol):
    """What stands in for a softmax over the whole vocabulary."""

    def targets(self, group: Group) -> Targets: ...


class Negative:
    """The right words should agree, the drawn ones should not, unless they are the right ones."""

    def __init__(self, config: Word2VecConfig, counts: np.ndarray, device: torch.device) -> None:
        pass

    def targets(self, group: Group) -> Targets:
        return group.compared()


class Hierarchical:
    """Every node on the way to the right word should agree with the turn to be taken there."""

    def __init__(self, config: Word2VecConfig, counts: np.ndarray, device: torch.device) -> None:
        tree = huffman(counts)
        self.nodes = torch.from_numpy(tree.nodes).to(device)
        self.turns = torch.from_numpy(tree.turns).float().to(device)

    def targets(self, group: Group) -> Targets:
        words, weights = group.predicted()
        nodes, turns = self.nodes[words], self.turns[words]  # (parts, words, depth)
        each = weights[..., None] * turns.abs()[:, None]  # (parts, places, words, depth)
        right = weights[..., None] * turns.clamp(min=0)[:, None]
        return Targets([nodes.flatten(1)], each.flatten(), right.flatten())


LOSSES: dict[str, type[Negative] | type[Hierarchical]] = {
    "negative": Negative,
    "hierarchical": Hierarchical,
}

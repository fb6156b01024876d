"""What the words of a step learn from one another (M2): groups of places, and their changes.

All pairs of a block are scored by matrix products. The drawn words are shared by the places of a
block, each weighted so that what is expected is what word2vec does with its own draws for every
prediction; so each word is read and written once for its place, not once for each pair that it is
in. In skip-gram the pairs outside of the windows are computed for nothing, which is several times
cheaper than to pick the others out.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided, sliding_window_view
from torch import Tensor

from regard.models.word2vec import Word2VecConfig, huffman

REGISTERS = 32  # numbers in two vector registers, which torch fills at a time, at most
SMALLEST = 1e-37  # a probability whose logarithm is finite


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
    """Which rows of the output layer a block's hidden vectors should agree with, or should not."""

    rows: Tensor  # (blocks, targets)
    weights: Tensor  # (blocks, places, targets) how often each is a target of each place
    signs: Tensor | float  # (blocks, 1, targets) or for all: +1 should agree, -1 should not


def products(hidden: Tensor, rows: Tensor, room: Tensor | None = None) -> Tensor:
    """How hidden vectors (blocks, places, columns) agree with rows (blocks, targets, columns).

    (blocks, places, targets), written to `room` if there is one.
    """
    if hidden.shape[1] == rows.shape[1] == 1:  # then a product of matrices takes twice as long
        return torch.sum(hidden * rows, -1, keepdim=True, out=room)
    return torch.bmm(hidden, rows.mT, out=room)


def pulled(pull: Tensor, hidden: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """How both change where each place and target pull at each other (blocks, places, targets)."""
    if hidden.shape[1] == rows.shape[1] == 1:
        return pull * rows, pull * hidden
    return torch.bmm(pull, rows), torch.bmm(pull.mT, hidden)


class Columns(Protocol):
    """The columns of both layers that are at hand; what concerns all of them is agreed upon."""

    def scores(self, hidden: Sequence[Tensor], rows: Sequence[Tensor]) -> list[Tensor]:
        """For each kind of targets (blocks, places, targets), over all columns of the layers."""
        ...

    def mine(self, parts: int) -> slice:
        """Of so many parts of a group those whose loss is to be computed here."""
        ...


class Halves:
    """All columns are here. Scores are sums of halves, as when two processes have one each.

    It takes a tenth longer than at once. On a GPU there is nobody to agree with: one part is all.
    """

    def __init__(self, width: int, parts: int = 2) -> None:
        self.cuts = [width * part // parts for part in range(parts + 1)]

    def scores(self, hidden: Sequence[Tensor], rows: Sequence[Tensor]) -> list[Tensor]:
        return [self._sum(*each) for each in zip(hidden, rows, strict=True)]

    def _sum(self, hidden: Tensor, rows: Tensor) -> Tensor:
        total = products(hidden[..., : self.cuts[1]], rows[..., : self.cuts[1]])
        for first, last in pairwise(self.cuts[1:]):
            total.add_(products(hidden[..., first:last], rows[..., first:last]))
        return total

    def mine(self, parts: int) -> slice:
        return slice(0, parts)


def add(matrix: Tensor, rows: Tensor, change: Tensor) -> None:
    """matrix[rows] += change, where rows may repeat; to the bit the same each time."""
    flat, rows = change.reshape(-1, change.shape[-1]), rows.flatten()
    if matrix.is_cuda:  # where scatter_add_ adds in any order
        matrix.index_put_((rows,), flat, accumulate=True)
    else:  # 38 µs for 1,024 rows of 100 numbers, where index_add_ takes 51, with a factor 87
        matrix.scatter_add_(0, rows[:, None].expand_as(flat), flat)


class Group(Protocol):
    """Blocks that learn together: which input rows make hidden vectors, and what those predict."""

    @property
    def noise(self) -> Tensor:
        """The drawn words, (blocks, shared)."""
        ...

    def read(self, table: Tensor) -> Tensor:
        """The hidden vectors (places, width), from the input rows (vocabulary, width)."""
        ...

    def write(self, table: Tensor, change: Tensor) -> None:
        """Change the input rows as the hidden vectors should change (places, width)."""
        ...

    def predicted(self) -> tuple[Tensor, Tensor]:
        """Words (parts, words), and how often places predict them (parts, places, words)."""
        ...

    def others(self) -> Tensor:
        """How often a place predicts anything but a drawn word, (blocks, places, shared)."""
        ...


class Layers(NamedTuple):
    """Both layers of word vectors, or some columns of both."""

    input: Tensor  # (vocabulary, columns)
    output: Tensor  # (vocabulary or nodes, columns)


def learn(
    layers: Layers, group: Group, loss: "Loss", rate: float, columns: Columns
) -> list[Tensor]:
    """Change the layers in place; return the losses for each kind of targets (parts,).

    The changes are minus the gradients of -Σ weight · log σ(sign · hidden · row), times the rate.
    """
    hidden = group.read(layers.input)
    kinds = loss.targets(group)
    blocked = [hidden.view(len(each.rows), -1, hidden.shape[-1]) for each in kinds]
    gathered = [layers.output.index_select(0, each.rows.flatten()) for each in kinds]
    rows = [r.view(*each.rows.shape, -1) for r, each in zip(gathered, kinds, strict=True)]
    losses: list[Tensor] = []
    total: Tensor | None = None
    for scores, targets, some, near in zip(
        columns.scores(blocked, rows), kinds, blocked, rows, strict=True
    ):
        agree = scores.mul_(targets.signs).sigmoid_()  # (blocks, places, targets)
        weights = targets.weights.to(agree.dtype)
        pull = torch.addcmul(weights, weights, agree, value=-1).mul_(targets.signs).mul_(rate)
        mine = columns.mine(len(weights))
        logs = agree[mine].clamp_min_(SMALLEST).log_()
        losses.append(logs.mul_(weights[mine]).flatten(1).sum(1).neg_())
        change, moved = pulled(pull, some, near)
        total = change.view_as(hidden) if total is None else total.add_(change.view_as(hidden))
        add(layers.output, targets.rows, moved)
    assert total is not None
    group.write(layers.input, total)
    return losses


class Loss(Protocol):
    """What stands in for a softmax over the whole vocabulary."""

    def targets(self, group: Group) -> list[Targets]: ...


class Negative:
    """The right words should agree, the drawn ones should not, unless they are the right ones."""

    def __init__(self, config: Word2VecConfig, counts: np.ndarray, device: torch.device) -> None:
        self.negatives = config.negatives

    def targets(self, group: Group) -> list[Targets]:
        wrong = group.others().mul_(self.negatives / group.noise.shape[1])
        return [Targets(*group.predicted(), 1.0), Targets(group.noise, wrong, -1.0)]


class Hierarchical:
    """Every node on the way to the right word should agree with the turn to be taken there."""

    def __init__(self, config: Word2VecConfig, counts: np.ndarray, device: torch.device) -> None:
        tree = huffman(counts)
        self.nodes = torch.from_numpy(tree.nodes).to(device)
        self.turns = torch.from_numpy(tree.turns).float().to(device)

    def targets(self, group: Group) -> list[Targets]:
        words, weights = group.predicted()
        nodes, turns = self.nodes[words], self.turns[words]  # (parts, words, depth)
        each = weights[..., None] * turns.abs()[:, None]  # (parts, places, words, depth)
        return [Targets(nodes.flatten(1), each.flatten(2), turns.flatten(1)[:, None])]


# The input layer: what the two methods read and predict.


class Method(Protocol):
    """Makes groups of what was drawn."""

    @property
    def turns(self) -> int:
        """In how many turns the places of a group learn."""
        ...

    def groups(self, drawn: Drawn) -> Iterator[Group]: ...

    def predictions(self, drawn: Drawn) -> int: ...


class Pairs(NamedTuple):
    """Places of skip-gram: each word predicts the words in half of its window, one by one."""

    noise: Tensor  # (blocks, shared)
    centres: Tensor  # (blocks, places) the words
    contexts: Tensor  # (blocks, around) the words of the block and to one side of it
    near: Tensor  # (blocks, places, around) 1 where a context is predicted by a place, else 0

    def read(self, table: Tensor) -> Tensor:
        return table.index_select(0, self.centres.flatten())

    def write(self, table: Tensor, change: Tensor) -> None:
        add(table, self.centres, change)

    def predicted(self) -> tuple[Tensor, Tensor]:
        return self.contexts, self.near

    def others(self) -> Tensor:
        same = (self.contexts[:, :, None] == self.noise[:, None]).to(self.near.dtype)
        return torch.baddbmm(self.near.sum(-1, keepdim=True), self.near, same, alpha=-1)


class SkipGram:
    """Makes groups of pairs. Each learns in two turns: what stands before, and what behind.

    All at once is a third faster, but a place then takes six pairs and thirty drawn words from
    where it was before any of them: on books the first epoch's loss was 2.61 instead of 2.54.
    """

    turns = 2

    def __init__(self, config: Word2VecConfig, cut: Cut, device: torch.device) -> None:
        self.window, self.device = config.window, device
        # A block's numbers fill whole pairs of vector registers. Of what is left at the end of a
        # tensor, torch takes logarithms in another way: the loss by halves would differ in bits.
        whole = REGISTERS // math.gcd(cut.places, REGISTERS)
        self.around = -(-(cut.places + self.window) // whole) * whole
        offset = torch.arange(self.around) - torch.arange(cut.places)[:, None]
        reach = torch.arange(self.window + 1)[:, None, None]
        # (reaches · places, around): half a window, by how far it reaches and by its place
        before, behind = (offset < self.window) & (offset >= self.window - reach), offset > 0
        self.before = before.float().flatten(0, 1).to(device)
        self.behind = (behind & (offset <= reach)).float().flatten(0, 1).to(device)

    def groups(self, drawn: Drawn) -> Iterator[Pairs]:
        words, left, right, noise = (torch.from_numpy(each).to(self.device) for each in drawn)
        words = torch.nn.functional.pad(words, (0, self.around))
        centres = words[self.window :][: left.numel()].view(left.shape)
        halves = (
            self._half(self.before, left, words),
            self._half(self.behind, right, words[self.window :]),
        )
        for group in range(len(left)):
            for turn, (contexts, near) in enumerate(halves):
                yield Pairs(noise[group, turn], centres[group], contexts[group], near[group])

    def _half(self, table: Tensor, reach: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        """The contexts (groups, blocks, around) of half the windows, and where they are near."""
        places = reach.shape[-1]
        at = torch.arange(places, device=self.device)
        near = table.index_select(0, (reach * places + at).flatten())
        contexts = words.unfold(0, self.around, places)[: reach.shape[:2].numel()].contiguous()
        return contexts.view(*reach.shape[:2], -1), near.view(*reach.shape, -1)

    def predictions(self, drawn: Drawn) -> int:
        return int(drawn.left.sum() + drawn.right.sum())


class Bags(NamedTuple):
    """Places of continuous bag of words: the mean of a window predicts the word in the middle.

    As in word2vec, each word of a window takes the whole change of the mean, not its share.
    """

    noise: Tensor  # (blocks, shared)
    centres: Tensor  # (blocks, places) the words in the middle
    counts: Tensor  # (blocks, places) how many are in each window, as float
    words: Tensor  # (pairs,) those, window after window
    starts: Tensor  # (places,) where each window begins in them
    around: Tensor  # (around,) the words of the group and of a window to each side
    sources: Tensor  # (pairs,) the places in whose windows each of these is, word after word
    firsts: Tensor  # (around,) where those of each begin

    def read(self, table: Tensor) -> Tensor:
        sums = torch.embedding_bag(table, self.words, self.starts)[0]
        return sums.div_(self.counts.clamp(min=1).view(-1, 1))

    def write(self, table: Tensor, change: Tensor) -> None:
        add(table, self.around, torch.embedding_bag(change, self.sources, self.firsts)[0])

    def predicted(self) -> tuple[Tensor, Tensor]:
        return self.centres.view(-1, 1), self.counts.clamp(max=1).view(-1, 1, 1)

    def others(self) -> Tensor:
        others = (self.centres[:, :, None] != self.noise[:, None]).to(self.counts.dtype)
        return others.mul_(self.counts.clamp(max=1)[:, :, None])


class BagOfWords:
    """Makes groups of bags."""

    turns = 1

    def __init__(self, config: Word2VecConfig, cut: Cut, device: torch.device) -> None:
        self.window, self.device = config.window, device
        reach, offset = np.arange(self.window + 1), np.arange(-self.window, self.window + 1)
        back = (offset < 0) & (offset >= -reach[:, None])
        on = (offset > 0) & (offset <= reach[:, None])
        self.masks = (back[:, None] | on).reshape(-1, len(offset))  # (left · right, offsets)

    def groups(self, drawn: Drawn) -> Iterator[Bags]:
        window, (groups, blocks, places) = self.window, drawn.left.shape
        size, offsets = blocks * places, np.arange(2 * window + 1)
        near = self.masks[drawn.left * (window + 1) + drawn.right].reshape(groups, size, -1)
        # In whose window is a word? Place p has p + o in its own, in column o: those of one word
        # are on a slant through `near`, which is a view with other strides.
        wide = np.zeros((groups, size + 4 * window, len(offsets)), bool)
        wide[:, 2 * window : -2 * window] = near
        group, row, column = wide.strides
        shape = (groups, size + 2 * window, len(offsets))
        seen = as_strided(wide[:, 2 * window :], shape, (group, row, column - row))
        parts = zip(
            drawn.noise[:, 0],
            drawn.words[window:-window].reshape(groups, blocks, places),
            (drawn.left + drawn.right).astype(np.float32),
            _bags(near, drawn.words.take(np.arange(groups * size)[:, None] + offsets)),
            sliding_window_view(drawn.words, shape[1])[::size].copy(),
            _bags(seen, np.broadcast_to(np.arange(shape[1])[:, None] - offsets, shape)),
            strict=True,
        )
        for noise, centres, counts, read, around, written in parts:
            arrays = (noise, centres, counts, *read, around, *written)
            yield Bags(*(torch.from_numpy(each).to(self.device) for each in arrays))

    def predictions(self, drawn: Drawn) -> int:
        return int(np.count_nonzero(drawn.left + drawn.right))


def _bags(mask: np.ndarray, values: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each group the values where the mask (groups, rows, columns) holds, row after row.

    And where each row's begin.
    """
    mask = np.ascontiguousarray(mask)
    chosen = values.ravel().take(np.flatnonzero(mask))
    counts = np.einsum("grc->gr", mask.view(np.int8), dtype=np.int64)
    ends = np.cumsum(counts).reshape(counts.shape)
    for starts, last in zip(ends - counts, ends[:, -1], strict=True):
        yield chosen[starts[0] : last], starts - starts[0]


# Larger groups are faster and learn less: of 64 blocks of 32 places, skip-gram's vectors blew up.
CUTS = {
    ("skip-gram", "negative"): Cut(16, 32, 64),
    ("cbow", "negative"): Cut(32, 16, 128),
    ("skip-gram", "hierarchical"): Cut(32, 0, 1),
    ("cbow", "hierarchical"): Cut(32, 0, 1),
}
METHODS: dict[str, type[SkipGram] | type[BagOfWords]] = {"skip-gram": SkipGram, "cbow": BagOfWords}
LOSSES: dict[str, type[Negative] | type[Hierarchical]] = {
    "negative": Negative,
    "hierarchical": Hierarchical,
}

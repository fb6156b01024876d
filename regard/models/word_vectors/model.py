"""Word vectors (M2): words that stand in the same company get vectors that point the same way.

word2vec (Mikolov et al. 2013) is a network of two linear layers without anything between them.
Skip-gram reads one word and predicts each word near it; continuous bag of words reads the mean of
the words near a place and predicts the one in the middle. A softmax over the whole vocabulary
would cost more than all else, so it is replaced: by telling the right word from a few drawn ones
(`negative`), or by a path of yes-or-no questions down a Huffman tree (`hierarchical`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from regard.errors import RegardError, nearest
from regard.models.network import BaseModel
from regard.models.word_vectors.config import Word2VecConfig

NOTHING = 1e-6  # of all second moments of a layer
ROWS = 1 << 16  # that are made float64 at a time


class WordVectors(BaseModel):
    """The two layers: `input` (vocabulary, width) is read, `output` is compared with.

    With the loss `negative`, `output` has a row for each word; with `hierarchical`, one for each
    inner node of the Huffman tree.
    """

    def __init__(self, config: Word2VecConfig) -> None:
        super().__init__()
        self.config = config
        rows = config.vocabulary - (config.loss == "hierarchical")
        self.input = nn.Parameter(torch.empty(config.vocabulary, config.width))
        self.output = nn.Parameter(torch.empty(rows, config.width))
        nn.init.uniform_(self.input, -0.5 / config.width, 0.5 / config.width)
        nn.init.zeros_(self.output)

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.input.device

    def word_rows(self, first: int) -> tuple[list[int], np.ndarray] | None:
        """The words that were learned; not those that only ever stood in phrases."""
        vectors = self.vectors().cpu()
        learned = torch.ones(len(vectors), dtype=torch.bool)
        if self.config.loss == "negative":  # then who was never seen was never drawn either
            learned = self.output.detach().cpu().any(1)
        learned[:first] = False
        return learned.nonzero()[:, 0].tolist(), vectors[learned].numpy()

    def forward(self, words: Tensor) -> Tensor:
        """words (rows, any) -> how well each row of `output` goes with their mean, (rows, rows of
        `output`): before any softmax, which training replaces."""
        return self.input[words].mean(1) @ self.output.mT

    def vectors(self, layer: Literal["input", "output"] = "input") -> Tensor:
        """A vector for each word (vocabulary, width): the embedding matrix E, transposed.

        By default the first layer's, for both methods, as word2vec and gensim have it. The lectures
        take the first layer for skip-gram but the second for continuous bag of words, where it is
        the one that each word is predicted with: that is `layer="output"`. With the hierarchical
        loss the second layer belongs to the nodes of a tree, and words have none.

        Both layers are balanced (`balance`), which no prediction depends on.
        """
        if layer not in ("input", "output"):
            raise RegardError(f"there is no layer {layer!r}; {nearest(layer, ('input', 'output'))}")
        if layer == "output" and self.config.loss == "hierarchical":
            raise RegardError(
                "with the hierarchical loss the output layer has no vectors of words; "
                "take the input layer, or train with the loss 'negative'"
            )
        first, second = self.input.detach(), self.output.detach()
        change = balance(first, second)
        if layer == "input":
            return first @ change.to(first.dtype)
        return second @ torch.linalg.inv(change).to(second.dtype)


def balance(first: Tensor, second: Tensor) -> Tensor:
    """A symmetric A (width, width) in float64, so that first A and second A⁻¹ have equal moments.

    first and second (rows, width) are two linear layers. All that they predict are products of a
    row of the one with a row of the other, which A leaves as they are. So the text does not say how
    a product is to be shared out, and steps of learning say it by their sizes: where a drawn word
    takes one step for many places, its layer grows, mostly along what all words have in common. Had
    skip-gram's steps been infinitely small, the moments FᵀF and SᵀS would have stayed equal, but
    for where they began. For continuous bags, whose words each take the whole change of their mean,
    that is a choice, and the same one is made.
    """
    moments = [_moments(layer) for layer in (first, second)]
    sizes = [moment.diagonal().sum() for moment in moments]
    if not all(0 < size < math.inf for size in sizes):  # nothing is learnt yet, or it blew up
        return torch.eye(first.shape[1]).to(moments[0])
    # Where there is nothing, a little of every direction.
    f, s = (
        moment + torch.eye(len(moment)).to(moment) * (size * NOTHING)
        for moment, size in zip(moments, sizes, strict=True)
    )
    root, inverse = _power(f, 0.5), _power(f, -0.5)
    squared = inverse @ _power(root @ s @ root, 0.5) @ inverse  # A² F A² = S
    return _power(squared, 0.5)


def _moments(layer: Tensor) -> Tensor:
    """Σ xᵀx over the rows of a layer (rows, width): (width, width) in float64."""
    total = torch.zeros(layer.shape[1], layer.shape[1]).to(layer.device, torch.float64)
    for rows in layer.split(ROWS):
        exact = rows.double()
        total += exact.mT @ exact
    return total


def _power(matrix: Tensor, power: float) -> Tensor:
    """A power of a symmetric matrix whose eigenvalues are positive."""
    values, vectors = torch.linalg.eigh((matrix + matrix.mT) / 2)
    return vectors * values.clamp(min=0) ** power @ vectors.mT


@dataclass(frozen=True)
class Tree:
    """The way between each word and the root: frequent words are near it."""

    nodes: np.ndarray  # (vocabulary, depth) the inner nodes on it, the root last; 0 beyond its end
    turns: np.ndarray  # (vocabulary, depth) +1 or -1 for each; 0 beyond its end


def huffman(counts: np.ndarray | Sequence[int]) -> Tree:
    """The tree in which Σ count · (nodes on the way) is least; counts (vocabulary,).

    Words that are never counted are left out: there is no way to them.
    """
    counts = np.asarray(counts)
    words = np.flatnonzero(counts > 0)
    if len(words) < 2:
        raise RegardError(f"a tree needs at least 2 words that occur, not {len(words)}")
    words = words[np.argsort(counts[words], kind="stable")]  # rarest first
    leaves, inner = len(words), len(words) - 1
    weight = [*counts[words].tolist(), *[math.inf] * inner]
    above = np.zeros(leaves + inner, np.int64)
    turn = np.zeros(leaves + inner, np.int8)
    # Nodes are made in the order of their weights, so the two lightest without a parent are at the
    # front of two queues: of the leaves, and of the inner nodes.
    leaf, node = 0, leaves
    for made in range(leaves, leaves + inner):
        total = 0
        for side in (1, -1):
            if leaf < leaves and weight[leaf] <= weight[node]:
                light, leaf = leaf, leaf + 1
            else:
                light, node = node, node + 1
            total += weight[light]
            above[light], turn[light] = made, side
        weight[made] = total
    return _ways(words, above, turn, len(counts))


def _ways(words: np.ndarray, above: np.ndarray, turn: np.ndarray, vocabulary: int) -> Tree:
    """All ways at once, one step up at a time; the root is node 0."""
    root = len(above) - 1
    at = np.arange(len(words))
    nodes, turns = [], []
    while (at != root).any():
        inside = at != root
        nodes.append(np.where(inside, root - above[at], 0))
        turns.append(np.where(inside, turn[at], 0))
        at = np.where(inside, above[at], root)
    depth = len(nodes)
    tree = Tree(np.zeros((vocabulary, depth), np.int64), np.zeros((vocabulary, depth), np.int8))
    tree.nodes[words] = np.stack(nodes, axis=1)
    tree.turns[words] = np.stack(turns, axis=1)
    return tree

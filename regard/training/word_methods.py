"""The input layer of word vectors (M2): what the two methods read and predict, group by group."""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided, sliding_window_view
from torch import Tensor

from regard.models.word2vec import Word2VecConfig
from regard.training.word_groups import Cut, Drawn, Group, Targets, add


class Method(Protocol):
    """Makes groups of what was drawn."""

    @property
    def turns(self) -> int:
        """In how many turns the places of a group learn."""
        ...

    def groups(self, drawn: Drawn) -> Iterator[Group]: ...

    def predictions(self, drawn: Drawn) -> int: ...


class Window(NamedTuple):
    """Half a window by how far it reaches and by its place in the block, (reaches · places, …)."""

    near: Tensor  # (…, around + shared) 1 where a context is predicted, else 0; 0 for drawn words
    weights: Tensor  # (…, around + shared) the same, and what each drawn word counts for


class Pairs(NamedTuple):
    """Places of skip-gram: each word predicts the words in half of its window, one by one."""

    centres: Tensor  # (blocks, places) the words
    rows: Tensor  # (blocks, around + shared) the words of the block and to one side; drawn ones
    around: int
    window: Window
    at: Tensor  # (blocks · places,) which rows of it
    same: Tensor  # (3, hits) where a drawn word is a context: block, context, drawn word
    share: float  # what a drawn word counts for each prediction

    def read(self, table: Tensor) -> Tensor:
        return table.index_select(0, self.centres.flatten())

    def write(self, table: Tensor, change: Tensor) -> None:
        add(table, self.centres, change)

    def predicted(self) -> tuple[Tensor, Tensor]:
        near = self.window.near.index_select(0, self.at).view(*self.centres.shape, -1)
        return self.rows[:, : self.around], near[..., : self.around]

    def compared(self) -> Targets:
        weights = self.window.weights.index_select(0, self.at)
        near = self.window.near.index_select(0, self.at)
        by_block = [each.view(*self.centres.shape, -1).mT for each in (near, weights)]
        block, context, drawn = self.same
        less = by_block[0][block, context].mul_(-self.share)  # (hits, places)
        by_block[1].index_put_((block, self.around + drawn), less, accumulate=True)
        return Targets([self.rows], weights.flatten(), near.flatten())


class SkipGram:
    """Makes groups of pairs. Each learns in two turns: what stands before, and what behind.

    All at once is a third faster, but a place then takes six pairs and thirty drawn words from
    where it was before any of them: on books the first epoch's loss was 2.61 instead of 2.54.
    """

    turns = 2

    def __init__(self, config: Word2VecConfig, cut: Cut, device: torch.device) -> None:
        self.window, self.device = config.window, device
        self.around, self.share = cut.places + config.window, config.negatives / max(cut.shared, 1)
        offset = torch.arange(self.around) - torch.arange(cut.places)[:, None]
        reach = torch.arange(self.window + 1)[:, None, None]
        before, behind = (offset < self.window) & (offset >= self.window - reach), offset > 0
        self.before = self._window(before, cut.shared)
        self.behind = self._window(behind & (offset <= reach), cut.shared)

    def _window(self, near: Tensor, shared: int) -> Window:
        """near (reaches, places, around)."""
        near = near.float().flatten(0, 1)
        drawn = near.sum(1, keepdim=True).mul(self.share).expand(-1, shared)
        wide = torch.nn.functional.pad(near, (0, shared))
        return Window(wide.to(self.device), torch.cat((near, drawn), 1).to(self.device))

    def groups(self, drawn: Drawn) -> Iterator[Pairs]:
        words, size = drawn.words, drawn.left.size
        places = drawn.left.shape
        centres = self._there(words[self.window :][:size].reshape(places))
        halves = (
            self._half(drawn.left, words, drawn.noise[:, 0]),
            self._half(drawn.right, words[self.window :], drawn.noise[:, 1]),
        )
        for group in range(len(centres)):
            for window, half in zip((self.before, self.behind), halves, strict=True):
                rows, at, same = (each[group] for each in half)
                yield Pairs(centres[group], rows, self.around, window, at, same, self.share)

    def _half(
        self, reach: np.ndarray, words: np.ndarray, noise: np.ndarray
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Rows (groups, blocks, around + shared), where in a window, and hits, of each group."""
        groups, blocks, places = reach.shape
        contexts = sliding_window_view(words, self.around)[::places][: groups * blocks]
        contexts = contexts.reshape(groups, blocks, -1)
        rows = self._there(np.concatenate((contexts, noise), 2))
        at = self._there((reach * places + np.arange(places)).reshape(groups, -1))
        return rows, at, [self._there(each) for each in _hits(contexts, noise)]

    def _there(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def predictions(self, drawn: Drawn) -> int:
        return int(drawn.left.sum() + drawn.right.sum())


class Bags(NamedTuple):
    """Places of continuous bag of words: the mean of a window predicts the word in the middle.

    As in word2vec, each word of a window takes the whole change of the mean, not its share.
    """

    noise: Tensor  # (blocks, shared) drawn words
    centres: Tensor  # (blocks, places) the words in the middle
    counts: Tensor  # (blocks, places) how many are in each window, as float
    weights: Tensor  # (numbers,) how much drawn words count, then those in the middle
    right: Tensor  # (numbers,) of these what should agree
    words: Tensor  # (pairs,) those in the windows, window after window
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

    def compared(self) -> Targets:
        return Targets([self.noise, self.centres.view(-1, 1)], self.weights, self.right)


class BagOfWords:
    """Makes groups of bags."""

    turns = 1

    def __init__(self, config: Word2VecConfig, cut: Cut, device: torch.device) -> None:
        self.window, self.device = config.window, device
        self.share = config.negatives / max(cut.shared, 1)
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
        centres = drawn.words[window:-window].reshape(groups, blocks, places)
        counts = (drawn.left + drawn.right).astype(np.float32)
        parts = zip(
            drawn.noise[:, 0],
            centres,
            counts,
            *self._compared(centres, counts > 0, drawn.noise[:, 0]),
            _bags(near, drawn.words.take(np.arange(groups * size)[:, None] + offsets)),
            sliding_window_view(drawn.words, shape[1])[::size].copy(),
            _bags(seen, np.broadcast_to(np.arange(shape[1])[:, None] - offsets, shape)),
            strict=True,
        )
        for *simple, read, around, written in parts:
            arrays = (*simple, *read, around, *written)
            yield Bags(*(torch.from_numpy(each).to(self.device) for each in arrays))

    def _compared(
        self, centres: np.ndarray, valid: np.ndarray, noise: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Weights of drawn words and of those in the middle, and what is right; of each group."""
        groups, drawn = len(centres), valid[..., None] & (centres[..., None] != noise[:, :, None])
        many = drawn[0].size
        weights = np.empty((groups, many + valid[0].size), np.float32)
        np.multiply(drawn.reshape(groups, -1), np.float32(self.share), out=weights[:, :many])
        weights[:, many:] = valid.reshape(groups, -1)
        right = weights.copy()
        right[:, :many] = 0
        return weights, right

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


def _hits(contexts: np.ndarray, noise: np.ndarray) -> Iterator[np.ndarray]:
    """For each group (3, hits): the block, the context and the drawn word where those are equal."""
    (groups, blocks, around), shared = contexts.shape, noise.shape[2]
    left, right = (torch.from_numpy(each.astype(np.int32)) for each in (contexts, noise))
    found = np.flatnonzero((left[..., None] == right[:, :, None]).numpy())
    size = blocks * around * shared
    ends = np.searchsorted(found, np.arange(groups + 1) * size)
    hits = np.stack(np.unravel_index(found % size if size else found, (blocks, around, shared)))
    for first, last in pairwise(ends):
        yield hits[:, first:last]


# Larger groups are faster and learn less: of 64 blocks of 32 places, skip-gram's vectors blew up.
CUTS = {
    ("skip-gram", "negative"): Cut(16, 32, 64),
    ("cbow", "negative"): Cut(32, 16, 128),
    ("skip-gram", "hierarchical"): Cut(32, 0, 1),
    ("cbow", "hierarchical"): Cut(32, 0, 1),
}
METHODS: dict[str, type[SkipGram] | type[BagOfWords]] = {"skip-gram": SkipGram, "cbow": BagOfWords}

"""The input layer of word vectors (M2): what the two methods read and predict, group by group."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided, sliding_window_view
from torch import Tensor

from regard.families.word_vectors.groups import Cut, Drawn, Group, Targets, add
from regard.models.word_vectors.model import Word2VecConfig


class Method(Protocol):
    """Makes groups of what was drawn, by way of a few arrays that another process may have made."""

    @property
    def turns(self) -> int:
        """In how many turns the places of a group learn."""
        ...

    def arranged(self, drawn: Drawn) -> list[np.ndarray]:
        """All that the groups of a step are made of."""
        ...

    def groups(self, arrays: Sequence[np.ndarray]) -> Iterator[Group]: ...

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

    def arranged(self, drawn: Drawn) -> list[np.ndarray]:
        words, places = drawn.words, drawn.left.shape
        centres = words[self.window :][: drawn.left.size].reshape(places)
        before = self._side(drawn.left, words, drawn.noise[:, 0])
        behind = self._side(drawn.right, words[self.window :], drawn.noise[:, 1])
        return [centres, *before, *behind]

    def _side(self, reach: np.ndarray, words: np.ndarray, noise: np.ndarray) -> "Side":
        groups, blocks, places = reach.shape
        contexts = sliding_window_view(words, self.around)[::places][: groups * blocks]
        contexts = contexts.reshape(groups, blocks, -1)
        at = (reach * places + np.arange(places)).reshape(groups, -1)
        return Side(np.concatenate((contexts, noise), 2), at, *_hits(contexts, noise))

    def groups(self, arrays: Sequence[np.ndarray]) -> Iterator[Pairs]:
        centres, *halves = (torch.from_numpy(each).to(self.device) for each in arrays)
        both = (self.before, halves[:4], arrays[4]), (self.behind, halves[4:], arrays[8])
        for group in range(len(centres)):
            for window, (rows, at, same, _), ends in both:
                hits = same[:, ends[group] : ends[group + 1]]
                parts = rows[group], self.around, window, at[group], hits, self.share
                yield Pairs(centres[group], *parts)

    def predictions(self, drawn: Drawn) -> int:
        return int(drawn.left.sum() + drawn.right.sum())


class Side(NamedTuple):
    """One side of the windows of all groups of skip-gram: before the words, or behind them."""

    rows: np.ndarray  # (groups, blocks, around + shared) words to be compared with
    at: np.ndarray  # (groups, blocks · places) rows of a `Window`
    same: np.ndarray  # (3, hits) where a drawn word is a context: block, context, drawn word
    ends: np.ndarray  # (groups + 1,) which of these are whose: from each up to the next


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
        self.tables: dict[tuple[int, int], Tables] = {}

    def arranged(self, drawn: Drawn) -> list[np.ndarray]:
        window, (groups, blocks, places) = self.window, drawn.left.shape
        size, wide = blocks * places, 2 * window
        near = self.masks.take((drawn.left * (window + 1) + drawn.right).ravel(), 0)
        # In whose window is a word? Place p has p + o in its own, in column o: those of one word
        # are on a slant through `near`, which is a view with other strides.
        padded = np.zeros((groups, size + 2 * wide, wide + 1), bool)
        padded[:, wide:-wide] = near.reshape(groups, size, -1)
        group, row, column = padded.strides
        shape, strides = (groups, size + wide, wide + 1), (group, row, column - row)
        seen = np.ascontiguousarray(as_strided(padded[:, wide:], shape, strides))
        tables = self._tables(groups, size)
        words = drawn.words.take(tables.words.take(np.flatnonzero(near)))
        sources = tables.sources.take(np.flatnonzero(seen))
        counts = drawn.left + drawn.right
        times = np.einsum("grc->gr", seen.view(np.int8), dtype=np.int64)  # windows it is in
        centres = drawn.words[window:-window].reshape(groups, blocks, places)
        return [
            drawn.noise[:, 0],
            centres,
            counts.astype(np.float32),
            *self._compared(centres, counts > 0, drawn.noise[:, 0]),
            *_bags(words, counts.reshape(groups, size)),
            sliding_window_view(drawn.words, size + wide)[::size].copy(),
            *_bags(sources, times),
        ]

    def _tables(self, groups: int, size: int) -> "Tables":
        """Those for so many groups of so many places; the last are kept for the next step."""
        if (groups, size) not in self.tables:
            offsets = np.arange(2 * self.window + 1)
            words = np.arange(groups * size)[:, None] + offsets
            sources = np.arange(size + 2 * self.window)[:, None] - offsets
            made = Tables(words.ravel(), np.tile(sources.ravel(), groups))
            self.tables = {(groups, size): made}
        return self.tables[groups, size]

    def _compared(
        self, centres: np.ndarray, valid: np.ndarray, noise: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Weights of drawn words and of those in the middle, and what is right; of each group."""
        (groups, blocks, places), shared = centres.shape, noise.shape[2]
        many = blocks * places * shared
        right = np.zeros((groups, many + blocks * places), np.float32)
        right[:, many:] = valid.reshape(groups, -1)
        weights = right.copy()
        weights[:, :many] = self.share
        left, drawn = centres.astype(np.int32), noise.astype(np.int32)
        hits = np.flatnonzero(left[..., None] == drawn[:, :, None])
        weights[hits // max(many, 1), hits % max(many, 1)] = 0
        group, place = np.nonzero(~valid.reshape(groups, -1))
        weights[group[:, None], place[:, None] * shared + np.arange(shared)] = 0
        return weights, right

    def groups(self, arrays: Sequence[np.ndarray]) -> Iterator[Bags]:
        there = [torch.from_numpy(each).to(self.device) for each in arrays]
        compared, (words, starts, _, around, sources, firsts, _) = there[:5], there[5:]
        ends, lasts = arrays[7], arrays[11]
        for group in range(len(starts)):
            noise, centres, counts, weights, right = (each[group] for each in compared)
            read = words[ends[group] : ends[group + 1]], starts[group]
            written = sources[lasts[group] : lasts[group + 1]], firsts[group]
            yield Bags(noise, centres, counts, weights, right, *read, around[group], *written)

    def predictions(self, drawn: Drawn) -> int:
        return int(np.count_nonzero(drawn.left + drawn.right))


class Tables(NamedTuple):
    """What is wanted where a mask holds: for places, and for the words around, by offsets."""

    words: np.ndarray  # (groups · places · offsets,) which word of the text that is
    sources: np.ndarray  # (groups · around · offsets,) which place of the group


def _bags(values: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values of bags that hold so many each, counts (groups, bags).

    And where each begins among those of its group, and where those of the groups end (groups + 1,).
    """
    firsts = (np.cumsum(counts) - counts.ravel()).reshape(counts.shape)
    return values, firsts - firsts[:, :1], np.append(firsts[:, 0], len(values))


def _hits(contexts: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where contexts and drawn words are equal (3, hits): the block, the context, the drawn word.

    And which of them are whose (groups + 1,): those of a group from its end up to the next.
    """
    (groups, blocks, around), shared = contexts.shape, noise.shape[2]
    left, right = (torch.from_numpy(each.astype(np.int32)) for each in (contexts, noise))
    found = np.flatnonzero((left[..., None] == right[:, :, None]).numpy())
    size = blocks * around * shared
    ends = np.searchsorted(found, np.arange(groups + 1) * size)
    hits = np.stack(np.unravel_index(found % size if size else found, (blocks, around, shared)))
    return hits, ends


# Larger groups are faster and learn less: of 64 blocks of 32 places, skip-gram's vectors blew up.
CUTS = {
    ("skip-gram", "negative"): Cut(16, 32, 64),
    ("cbow", "negative"): Cut(32, 16, 128),
    ("skip-gram", "hierarchical"): Cut(32, 0, 1),
    ("cbow", "hierarchical"): Cut(32, 0, 1),
}
METHODS: dict[str, type[SkipGram] | type[BagOfWords]] = {"skip-gram": SkipGram, "cbow": BagOfWords}

"""How word vectors learn (M2): a step is a pure function of its number, and all of it is products.

A step reads a fixed piece of the text, drops what is not a word and thins the frequent ones. What
is left is cut into blocks of consecutive places, and some blocks at a time are a group that learns
together (`groups.py`).
"""

import math
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.data.feeds.order import generator, shuffled
from regard.data.feeds.phrases import Ids
from regard.errors import Problems, RegardError
from regard.families.word_vectors.groups import (
    LOSSES,
    Columns,
    Cut,
    Drawn,
    Group,
    Halves,
    Layers,
    Loss,
    learn,
)
from regard.families.word_vectors.methods import CUTS, METHODS, Method
from regard.models.kernels.linear import quick_products
from regard.models.kernels.threads import one_thread
from regard.models.word_vectors.model import Word2VecConfig, WordVectors
from regard.text.specials import BOS, EOS, SPECIALS

PIECE = 1 << 15  # tokens that a step reads; windows do not reach out of it
# Learning rates at first, which are word2vec's own.
RATES = {"skip-gram": 0.025, "cbow": 0.025}
# Whether pieces come in another order in each epoch, or as they stand in the text. On books the
# text's order gave skip-gram 1.3 points of SimLex (three seeds; and took 1.5 of WS-353), and took
# 1.1 and 1.4 of cbow's analogies (two seeds). See docs/measurements.md.
SHUFFLED = {"skip-gram": False, "cbow": True}
# Whose products oneDNN makes: a step takes 25.6 ms instead of 27.7, of cbow 10.8 instead of 10.3.
QUICK = {("skip-gram", "negative")}
# How often a word is expected in a group, at most: the most frequent one, and that of a place in
# the mean of all. With 16 in the mean cbow blew up on 64 words in a fixed order, with 32 in any.
REPEATS, MEAN_REPEATS = 32, 8
USUAL = 36  # words that a place is compared with, of a window of 5 with 5 drawn words for each


class Learned(NamedTuple):
    """What a step says of itself."""

    loss: float  # the sum over all predictions
    predictions: int  # pairs of words for skip-gram, places for continuous bag of words


def told(losses: Tensor, predictions: int) -> Learned:
    """What a step says of itself, by the losses of its groups."""
    return Learned(float(losses.double().cpu().numpy().sum()), predictions)


class Ready(NamedTuple):
    """A step before it is taken."""

    groups: Sequence[Group]
    predictions: int


class VectorSteps:
    """The steps that make word vectors from a text: `advance` with 0, 1, … up to the length."""

    def __init__(
        self,
        config: Word2VecConfig,
        tokens: Ids,
        counts: np.ndarray,
        *,
        epochs: int = 5,
        seed: int = 0,
        rate: float = 0.0,
        last_rate: float = 1e-4,
        device: torch.device | str = "cpu",
        cut: Cut | None = None,
        piece: int = PIECE,
    ) -> None:
        """counts (vocabulary,) say how often each id is in the text; a special's is not used.

        The rate falls linearly; 0 is the usual one of the method.
        """
        words = _counted(config, counts)
        self.config, self.tokens, self.seed, self.epochs = config, tokens, seed, epochs
        self.counts = words
        self.first_rate, self.last_rate = rate or RATES[config.method], last_rate
        self.piece = piece
        self.pieces = -(-len(tokens) // piece)
        self._orders: dict[int, np.ndarray] = {}
        self.kept = _kept(words, config.subsample)
        self.noise = Heap(words, config.power)
        most = min(_most(words * self.kept), _most(words**config.power * (words > 0)))
        compared = (config.window + 1) * (config.negatives + 1)
        most *= min(1.0, USUAL / compared)
        self.cut = cut or _fitting(CUTS[config.method, config.loss], most)
        self.loss: Loss = LOSSES[config.loss](config, words, torch.device(device))
        self.method: Method = METHODS[config.method](config, self.cut, torch.device(device))
        self._check()

    def _check(self) -> None:
        problems = Problems("word vectors")
        problems.require(len(self.tokens) > 0, "there is no text to learn from")
        problems.require(self.epochs >= 1, f"epochs must be at least 1, not {self.epochs}")
        good = 0 < self.first_rate < math.inf and 0 <= self.last_rate <= self.first_rate
        told = f"{self.first_rate} to {self.last_rate}"
        problems.require(good, f"the learning rate must fall from above 0 to no less, not {told}")
        problems.report()

    def __len__(self) -> int:
        return self.epochs * self.pieces

    def rate(self, step: int) -> float:
        """The learning rate of a step, which falls linearly."""
        return self.first_rate + (self.last_rate - self.first_rate) * step / len(self)

    def read(self, step: int) -> np.ndarray:
        """The ids that a step reads (tokens,)."""
        epoch, turn = divmod(step, self.pieces)
        start = int(self._order(epoch)[turn]) * self.piece
        return self.tokens.read(start, start + self.piece)

    def before(self, step: int) -> int:
        """How many tokens the steps before one read; the last piece of a text may be short."""
        epoch, turn = divmod(step, self.pieces)
        short = self.pieces * self.piece - len(self.tokens)
        last = turn > 0 and bool((self._order(epoch)[:turn] == self.pieces - 1).any())
        return epoch * len(self.tokens) + turn * self.piece - last * short

    def _order(self, epoch: int) -> np.ndarray:
        """Which piece comes when in an epoch (pieces,); of two epochs it is kept."""
        found = self._orders.get(epoch)
        if found is None:
            found = np.arange(self.pieces)
            if SHUFFLED[self.config.method]:
                found = shuffled(found, self.pieces, self.seed, epoch)
            kept = {other: order for other, order in self._orders.items() if other == epoch - 1}
            self._orders = {**kept, epoch: found}
        return found

    def draw(self, step: int, ids: np.ndarray | None = None) -> Drawn:
        """What a step learns from; `ids` (tokens,) if they have been read."""
        ids = self.read(step) if ids is None else ids
        draws = generator(self.seed, *divmod(step, self.pieces))
        kept = np.flatnonzero(draws.random(len(ids), np.float32) < self.kept[ids])
        before, behind = _neighbours(np.cumsum((ids == BOS) | (ids == EOS))[kept])
        cut, window = self.cut, self.config.window
        reach = draws.integers(1, window + 1, len(kept))
        blocks = max(-(-len(kept) // cut.places), 1)
        groups = -(-blocks // cut.blocks)
        if groups > 1:
            blocks = cut.blocks  # of few shapes, for which oneDNN has programs
        words = np.zeros(groups * blocks * cut.places + 2 * window, np.int64)
        words[window : window + len(kept)] = ids[kept]
        places = (groups, blocks, cut.places)
        numbers = draws.random((groups, self.method.turns, blocks, cut.shared))
        noise = self.noise.of(numbers)
        left, right = np.minimum(reach, before), np.minimum(reach, behind)
        return Drawn(words, _padded(left, places), _padded(right, places), noise)

    def advance(self, vectors: WordVectors, step: int) -> Learned:
        """Take a step: change the vectors in place."""
        with one_thread():
            return self._take(vectors, step, self.prepared(step))

    def walk(self, vectors: WordVectors, first: int, last: int) -> Generator[Learned, None, None]:
        """Take all steps from `first` up to `last`; the next one is prepared on another thread."""
        with ThreadPoolExecutor(1) as ahead:
            coming = ahead.submit(self.prepared, first)
            for step in range(first, last):
                ready = coming.result()
                if step + 1 < last:
                    coming = ahead.submit(self.prepared, step + 1)
                yield self._take(vectors, step, ready)

    def prepared(self, step: int, ids: np.ndarray | None = None) -> Ready:
        """All that a step can do without the vectors; `ids` if they have been read."""
        if not 0 <= step < len(self):
            raise RegardError(f"there are {len(self)} steps, numbered from 0; {step} is none")
        return self.ready(self.arranged(step, ids))

    def arranged(self, step: int, ids: np.ndarray | None = None) -> list[np.ndarray]:
        """What the groups of a step are made of, and last (1,) how many predictions they are."""
        drawn = self.draw(step, ids)
        return [*self.method.arranged(drawn), np.array([self.method.predictions(drawn)])]

    def ready(self, arrays: Sequence[np.ndarray]) -> Ready:
        """A step of what was arranged here or elsewhere."""
        *parts, predictions = arrays
        return Ready(list(self.method.groups(parts)), int(predictions[0]))

    def _take(self, vectors: WordVectors, step: int, ready: Ready) -> Learned:
        layers = Layers(vectors.input.data, vectors.output.data)
        width, parts = self.config.width, 1 if vectors.input.is_cuda else 2
        losses = self.taken(layers, step, ready, Halves(width, parts))
        return told(torch.stack(losses), ready.predictions)

    @torch.no_grad()
    def taken(self, layers: Layers, step: int, ready: Ready, columns: Columns) -> list[Tensor]:
        """Take a step with some columns of the layers; return its losses, group by group."""
        rate, losses = self.rate(step), []
        with self.multiplying():
            for group in ready.groups:
                losses += learn(layers, group, self.loss, rate, columns)
        return losses

    def multiplying(self) -> AbstractContextManager[None]:
        """Where products of a step are made."""
        quick = (self.config.method, self.config.loss) in QUICK
        return quick_products() if quick else nullcontext()


def _counted(config: Word2VecConfig, counts: np.ndarray) -> np.ndarray:
    """How often each word is there (vocabulary,); 0 for specials."""
    found = np.array(counts, np.float64)
    if found.shape != (config.vocabulary,):
        raise RegardError(
            f"{config.vocabulary} counts are needed, one for each id of the vocabulary"
        )
    found[: len(SPECIALS)] = 0
    if np.count_nonzero(found) < 2:
        raise RegardError(
            "word vectors need at least 2 different words; give more text, or lower "
            "tokenizer.min_frequency"
        )
    return found


def _kept(words: np.ndarray, subsample: float) -> np.ndarray:
    """The share of each word's occurrences that is kept (vocabulary,); none of what is no word."""
    ratio = subsample * words.sum() / np.maximum(words, 1)
    kept = np.sqrt(ratio) + ratio if subsample else np.ones(len(words))
    return np.where(words > 0, kept, 0).astype(np.float32)


class Heap:
    """Words by their shares of [0, 1): a number chooses the one in whose share it lies."""

    def __init__(self, words: np.ndarray, power: float) -> None:
        """words (vocabulary,) say how often each occurs."""
        shares = np.power(words, power, where=words > 0, out=np.zeros(len(words)))
        ends = np.cumsum(shares)
        self.ends = ends / ends[-1]
        # A number's bin says where to begin to look. They are a power of two, so that no bin is
        # missed by rounding. 0.2 ms for 55,000 numbers, where a search takes 4.0.
        bins = 1 << (2 * len(words)).bit_length()
        self.firsts = np.searchsorted(self.ends, np.arange(bins) / bins, "right")

    def of(self, numbers: np.ndarray) -> np.ndarray:
        """The words that the numbers choose, in the same shape."""
        flat = numbers.ravel()
        chosen = self.firsts[(flat * len(self.firsts)).astype(np.int64)]
        early = np.flatnonzero(self.ends[chosen] <= flat)
        while len(early):
            chosen[early] += 1
            early = early[self.ends[chosen[early]] <= flat[early]]
        return chosen.reshape(numbers.shape)


def _most(weights: np.ndarray) -> float:
    """How many words may be together where they are drawn by their weights (vocabulary,).

    A word's changes in a group are added up though each was made for the vectors before it; too
    many of them overshoot, and the numbers grow without end.
    """
    shares = weights / weights.sum() if weights.any() else np.ones(1)
    return float(min(REPEATS / shares.max(), MEAN_REPEATS / (shares**2).sum()))


def _fitting(cut: Cut, most: float) -> Cut:
    """The cut with fewer blocks in a group, where few words are very frequent."""
    return replace(cut, blocks=max(1, min(cut.blocks, int(most / cut.places))))


def _neighbours(sequence: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many places of its own sequence are before and behind each; sequence (places,) rises."""
    starts = np.flatnonzero(np.diff(sequence, prepend=-1))
    lengths = np.diff(starts, append=len(sequence))
    before = np.arange(len(sequence)) - np.repeat(starts, lengths)
    return before, np.repeat(lengths, lengths) - before - 1


def _padded(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    filled = np.zeros(shape, np.int64)
    filled.reshape(-1)[: len(values)] = values
    return filled

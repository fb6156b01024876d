"""Randomness as a pure function of where we are: a shuffled order, and a stream for each place.

A run that stops and resumes must see what it would have seen. Nothing is replayed for that: the
example at step s of epoch e, and the draws made there, follow from (seed, e, s) alone.
"""

import numpy as np
from numpy.typing import NDArray

from regard.errors import RegardError

LARGEST = 2**62  # examples; positions then fit in int64 with room for sums
# Fewer rounds show in tiny sets. Chi-square of the 120 orders of 5 things over 24,000 seeds (119 is
# right, give or take 15): 6006 with 4 rounds, 514 with 8, 280 with 10, 137 with 16.
ROUNDS = 16


def generator(seed: int, *place: int) -> np.random.Generator:
    """An independent stream of random numbers for each (seed, place...).

    `generator(seed, epoch, step)` is the same stream whenever it is made, and shares nothing with
    that of any other place, or of the same numbers with one more or one fewer.
    """
    return np.random.Generator(np.random.PCG64(_sequence("draws", seed, place)))


def turned_seed(seed: int, turn: int) -> int:
    """The seed of another order, for each turn above 0 another one."""
    return int(generator(seed, 7, turn).integers(1 << 62)) if turn else seed


def shuffled(
    index: NDArray[np.integer] | int, count: int, seed: int, epoch: int
) -> NDArray[np.int64]:
    """Where each index of [0, count) lies in the shuffled order of this epoch; same shape.

    One to one onto [0, count), and different for each seed and epoch. No permutation is stored:
    memory is proportional to `index`, whatever the count.
    """
    if not 1 <= count <= LARGEST:
        raise RegardError(f"shuffling needs between 1 and 2**62 examples, not {count}")
    asked = np.asarray(index)
    if asked.size and not (asked.min() >= 0 and asked.max() < count):
        raise RegardError(
            f"there are {count} examples to shuffle, numbered from 0; "
            f"indices {asked.min()} to {asked.max()} were asked for"
        )
    words = _sequence("order", seed, (epoch,)).generate_state(ROUNDS, np.uint64)
    keys = words.astype(np.uint64)  # which they are; numpy's type does not say so
    bits = (int(count) - 1).bit_length()
    places = _scrambled(asked.ravel().astype(np.uint64), bits, keys)
    # Cycle walking: scramble again what fell outside. The cycle through an index returns to it, so
    # every walk ends; 2**bits < 2 count, so it takes less than two steps on average.
    outside = np.flatnonzero(places >= count)
    while outside.size:
        walked = _scrambled(places[outside], bits, keys)
        places[outside] = walked
        outside = outside[walked >= count]
    return places.astype(np.int64).reshape(asked.shape)


def _scrambled(x: NDArray[np.uint64], bits: int, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A permutation of [0, 2**bits): a Feistel network, whose halves take turns to mask the other.

    Each round can be undone (the half that was hashed is still there), so it is one to one.
    """
    low = np.uint64(bits // 2)
    low_mask, high_mask = np.uint64(2 ** (bits // 2) - 1), np.uint64(2 ** (bits - bits // 2) - 1)
    left, right = x >> low, x & low_mask
    for even, odd in keys.reshape(-1, 2):
        left ^= _mixed(right + even) & high_mask
        right ^= _mixed(left + odd) & low_mask
    return (left << low) | right


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014), in place; arithmetic is mod 2**64."""
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def _sequence(purpose: str, seed: int, place: tuple[int, ...]) -> np.random.SeedSequence:
    for number in (seed, *place):
        if not 0 <= number < 2**64:
            raise RegardError(f"seeds and places are numbers from 0 to 2**64 - 1, not {number}")
    # `SeedSequence([seed, *place])` will not do: it fills up with zeros, so that [7] and [7, 0] are
    # the same stream, and cuts numbers into words of 32 bits, so that [2**32] and [0, 1] are.
    words = [word for number in place for word in (number % 2**32, number >> 32)]
    return np.random.SeedSequence(seed, spawn_key=(*purpose.encode(), *words))

"""Which bytes are held when: the memory of a job, replayed as it allocates and frees.

A storage lives as long as a tensor uses it, on the meta device as on any other. What a caching
allocator hands out is rounded up to blocks, and so it is here.
"""

import weakref
from collections.abc import Iterable
from typing import Literal, NamedTuple

from torch import Tensor

Use = Literal["weights", "gradients", "optimizer", "cache", "activations"]
USES: tuple[Use, ...] = ("weights", "gradients", "optimizer", "cache", "activations")
BLOCK = 512  # bytes that CUDA's allocator rounds up to


class Place(NamedTuple):
    """A part of a storage that some tensor shows."""

    storage: int
    view: tuple[int, tuple[int, ...], tuple[int, ...]]  # offset, sizes, strides
    bytes: int


class Memory:
    """All storages that were seen, which of them live, and how much that was at most."""

    def __init__(self, block: int = BLOCK) -> None:
        self.block = block
        self.sizes: dict[int, int] = {}  # by the number of a storage
        self.alive: dict[int, Use] = {}
        self.held: dict[Use, int] = dict.fromkeys(USES, 0)
        self.at_peak: dict[Use, int] = dict(self.held)
        self._numbers: dict[int, int] = {}  # by the address of a living storage

    @property
    def peak(self) -> int:
        """The most bytes that were held at once."""
        return sum(self.at_peak.values())

    def number(self, tensor: Tensor, use: Use = "activations") -> int:
        """The number of a tensor's storage; a new one is counted from now on."""
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address in self._numbers:
            return self._numbers[address]
        number = self._numbers[address] = len(self.sizes)
        self.sizes[number] = storage.nbytes()
        self.alive[number] = use
        self._hold(use, self._rounded(number))
        weakref.finalize(storage, self._gone, address, number).atexit = False
        return number

    def place(self, tensor: Tensor, bytes_: int) -> Place:
        """What a tensor shows of its storage."""
        view = int(tensor.storage_offset()), tuple(tensor.shape), tuple(tensor.stride())
        return Place(self.number(tensor), view, bytes_)

    def use(self, tensors: Iterable[Tensor], use: Use) -> None:
        """From now on these are held for another reason."""
        for tensor in tensors:
            number = self.number(tensor, use)
            before = self.alive[number]
            if before != use:
                self.alive[number] = use
                self.held[before] -= self._rounded(number)
                self._hold(use, self._rounded(number))

    def forget_peak(self) -> None:
        """The most is counted from now on."""
        self.at_peak = dict(self.held)

    def _hold(self, use: Use, size: int) -> None:
        self.held[use] += size
        if sum(self.held.values()) > self.peak:
            self.at_peak = dict(self.held)

    def _gone(self, address: int, number: int) -> None:
        self._numbers.pop(address, None)
        use = self.alive.pop(number)
        self.held[use] -= self._rounded(number)

    def _rounded(self, number: int) -> int:
        return -(-self.sizes[number] // self.block) * self.block


class Kept:
    """What autograd keeps for the way back; weights apart, which are there anyway."""

    def __init__(self, weights: Iterable[Tensor]) -> None:
        self._weights = {weight.untyped_storage()._cdata for weight in weights}
        self._seen: dict[int, weakref.ref[object]] = {}
        self.bytes = 0  # of different storages, each whole

    def pack(self, tensor: Tensor) -> Tensor:
        """Count a tensor that is kept."""
        storage = tensor.untyped_storage()
        address = storage._cdata
        there = self._seen.get(address)
        if address not in self._weights and (there is None or there() is None):
            self._seen[address] = weakref.ref(storage)
            self.bytes += storage.nbytes()
        return tensor

    def unpack(self, tensor: Tensor) -> Tensor:
        """Give it back."""
        return tensor

"""Who takes the steps of word vectors (M2): this process alone, or two where that is faster.

Another process takes seconds to start; and where other programs need the cores, two that wait for
each other are slower than one. So this one begins alone, and the faster way is kept. What is
learnt is the same to the bit.
"""

import time
from collections.abc import Generator
from contextlib import closing, suppress

import torch

from regard.families.word_vectors.groups import Halves, products, pulled
from regard.families.word_vectors.processes import Helper
from regard.families.word_vectors.steps import Learned, VectorSteps
from regard.models.word_vectors.model import WordVectors

FEW = 1 << 23  # tokens to be read: a process for fewer would hardly be there in time
LEAST = 16  # blocks in a group: with fewer, most of the time would go into meeting
TRIAL = 16  # steps that show how fast a way is
LONG = 512  # steps in the faster way, before the other is tried again


@torch.no_grad()
def halves_are_alike(steps: VectorSteps, step: int) -> bool:
    """Whether products of half the columns are, to the bit, what they are among all columns.

    A library may sum in another order where matrices are narrow: MKL does, below 12 columns.
    """
    group, width = steps.prepared(step).groups[0], steps.config.width
    sizes = [width // 2, width - width // 2]
    places = group.read(torch.zeros(steps.config.vocabulary, 1)).numel()
    draws = torch.Generator().manual_seed(0)
    for targets in steps.loss.targets(group).rows:
        blocks, count = targets.shape
        hidden = torch.randn(blocks, places // blocks, width, generator=draws)
        rows = torch.randn(blocks, count, width, generator=draws)
        pull = torch.randn(blocks, places // blocks, count, generator=draws)
        change = torch.randn(blocks, places // blocks, width, generator=draws)
        parts = [
            tuple(half.contiguous() for half in halves)
            for halves in zip(*(t.split(sizes, -1) for t in (hidden, rows, change)), strict=True)
        ]
        with steps.multiplying():
            scores = torch.stack([products(*part[:2]).flatten() for part in parts]).sum(0)
            moved = list(zip(*(pulled(pull, *part) for part in parts), strict=True))
            whole = [Halves(width).scores([hidden], [rows]), *pulled(pull, hidden, rows, change)]
        found = [scores, *(torch.cat(each, -1) for each in moved)]
        if not all(torch.equal(one, other) for one, other in zip(whole, found, strict=True)):
            return False
    return True


class Walk:
    """The steps from `first` up to `last`, one by one; `settle` before the vectors are read."""

    def __init__(
        self, steps: VectorSteps, vectors: WordVectors, first: int, last: int, threads: int = 1
    ) -> None:
        """With more than one thread another process may help."""
        self.steps, self.vectors, self.first, self.last = steps, vectors, first, last
        much = (last - first) * steps.piece >= FEW and steps.cut.blocks >= LEAST
        here = vectors.device.type == "cpu" and steps.config.width > 1
        two = threads > 1 and much and here and halves_are_alike(steps, first)
        self.helper: Helper | None = None
        if two:
            with suppress(OSError):  # a system that has no room for it: alone it goes as well
                self.helper = Helper(steps, vectors, first)

    def __iter__(self) -> Generator[Learned, None, None]:
        if self.helper is None:
            yield from self.steps.walk(self.vectors, self.first, self.last)
            return
        step, length, together, there = self.first, TRIAL, False, False
        seconds: dict[bool, float] = {}  # for a step: together, alone
        while step < self.last:
            stop, spent = min(step + length, self.last), 0.0
            begin = time.perf_counter()
            with closing(self._stretch(self.helper, together, step, stop)) as stretch:
                for learned in stretch:
                    spent += time.perf_counter() - begin
                    yield learned
                    begin = time.perf_counter()
            if there:  # before, it was starting, and took time from this one
                seconds[together] = spent / (stop - step)
            step, there = stop, self.helper.ready()
            if self.helper.gone:
                self.helper.leave()
                yield from self.steps.walk(self.vectors, step, self.last)
                return
            if len(seconds) < 2:
                together, length = bool(seconds), TRIAL
            elif length == TRIAL:
                together, length = seconds[True] <= seconds[False], LONG
            else:
                together, length = not together, TRIAL
        self.helper.leave()

    def _stretch(
        self, helper: Helper, together: bool, first: int, last: int
    ) -> Generator[Learned, None, None]:
        if together:
            return helper.walk(first, last)
        helper.leave()
        return self.steps.walk(self.vectors, first, last)

    def settle(self) -> None:
        """See to it that the vectors are what has been learnt so far."""
        if self.helper:
            self.helper.settle()

    def close(self) -> None:
        """Let the other process end; the vectors are settled."""
        if self.helper:
            self.helper.leave()
            self.helper.close()

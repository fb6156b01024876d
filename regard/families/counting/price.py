"""What n-gram models cost, which look up and do not multiply.

An n-gram model is no network. Its table is searched with numpy, so the real search is run on arrays
that tell what is read of them. What a search costs depends on what is found; the text here is the
one that the model itself finds most probable, whose n-grams are all there.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from regard.costs.jobs import Counted, Shape
from regard.costs.report import LOOKUP
from regard.costs.trace.memory import USES, Place, Use
from regard.costs.trace.tracer import Record
from regard.models.counting.model import NGram
from regard.models.counting.table import Level, Table


@dataclass
class Tally:
    """What was done with some arrays."""

    operations: int = 0  # comparisons of a search, sums
    read: int = 0  # bytes
    written: int = 0
    calls: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, operations: int, read: int, written: int) -> None:
        self.operations += operations
        self.read += read
        self.written += written
        self.calls[name] = self.calls.get(name, 0) + 1


class Watched(np.ndarray):
    """An array that writes down what is read of it."""

    tally: Tally | None

    @classmethod
    def of(cls, values: np.ndarray, tally: Tally | None) -> "Watched":
        watched = np.asarray(values).view(cls)
        watched.tally = tally
        return watched

    def __array_finalize__(self, other: Any) -> None:
        self.tally = getattr(other, "tally", None)

    def __getitem__(self, key: Any) -> Any:
        found = np.asarray(self)[key]
        seen = isinstance(found, np.ndarray) and found.base is not None
        if self.tally is not None and not seen:  # a slice only looks
            self.tally.add("read", 0, found.nbytes, 0)
        return Watched.of(found, self.tally) if isinstance(found, np.ndarray) else found

    def __setitem__(self, key: Any, value: Any) -> None:
        if self.tally is not None:
            size = np.asarray(value).nbytes
            self.tally.add("write", 0, size, size)
        np.asarray(self)[key] = np.asarray(value)

    def astype(self, *args: Any, **kwargs: Any) -> Any:
        """A copy in another type; all of it is read and written."""
        found = np.asarray(self).astype(*args, **kwargs)
        if self.tally is not None:
            self.tally.add("copy", found.size, self.nbytes, found.nbytes)
        return Watched.of(found, self.tally) if self.tally else found

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        plain = [np.asarray(a) if isinstance(a, Watched) else a for a in args]
        if func is np.searchsorted and self.tally is not None:
            steps = math.ceil(math.log2(len(plain[0]) + 1)) * np.size(plain[1])
            self.tally.add("search", steps, steps * plain[0].itemsize, 0)
        return func(*plain, **kwargs)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        plain = [np.asarray(a) if isinstance(a, Watched) else a for a in inputs]
        out = tuple(np.asarray(a) for a in kwargs.pop("out", ()))
        more = {"out": out} if out else {}
        found = getattr(ufunc, method)(*plain, **more, **kwargs)
        if self.tally is not None:
            read = sum(a.nbytes for a in plain if isinstance(a, np.ndarray))
            self.tally.add(ufunc.__name__, np.size(found), read, np.asarray(found).nbytes)
        return Watched.of(found, self.tally) if self.tally and np.ndim(found) else found


def watched(table: Table, tally: Tally) -> Table:
    """A table whose arrays write down what is read of them."""

    def level(one: Level) -> Level:
        arrays = (one.keys, one.logprobs, one.backoffs)
        keys, logprobs, backoffs = (Watched.of(each, tally) for each in arrays)
        return replace(one, keys=keys, logprobs=logprobs, backoffs=backoffs)

    return replace(table, levels=tuple(level(one) for one in table.levels))


@contextmanager
def _watching(model: NGram) -> Iterator[Tally]:
    table, tally = model.table, Tally()
    model.counted = watched(table, tally)
    try:
        yield tally
    finally:
        model.counted = table


def ngram_text(model: NGram, tokens: int) -> list[int]:
    """The tokens that the model finds most probable, one after another."""
    text = [model.table.begin]
    while len(text) < tokens:
        text.append(int(np.argmax(model.table.following(text))))
    return text


def ngram(model: NGram, shape: Shape, new: int = 0) -> Counted:
    """Read a text, and with `new` write so many tokens behind it; what that reads.

    The first of them comes with the text's last logits, so new − 1 steps follow.
    """
    text = ngram_text(model, shape.tokens + max(new - 1, 0))
    rows = torch.tensor([text] * shape.rows)
    state = model.start(batch_size=shape.rows, capacity=shape.tokens + new)
    steps = [rows[:, i : i + 1] for i in range(shape.tokens, len(text))]
    with _watching(model) as tally:
        for part in (rows[:, : shape.tokens], *steps):
            logits = model(part, state=state, last=bool(new))
            tally.written += logits.nbytes
    arrays = [array for one in model.table.levels for array in (one.logprobs, one.backoffs)]
    keys = sum(one.keys.nbytes for one in model.table.levels[1:])  # of single tokens: none
    weights = sum(array.nbytes for array in arrays) + keys
    record = Record(
        LOOKUP,
        "table",
        "forward",
        0,
        0,
        tally.operations,
        (Place(0, (0, (), ()), tally.read),),
        (Place(1, (0, (), ()), tally.written),),
        (),
        torch.float32,
    )
    held = 8 * shape.rows * (model.table.order - 1)
    memory: dict[Use, int] = {"weights": weights, "cache": held}
    memory["activations"] = int(logits.nbytes)
    return Counted(
        [record],
        {**dict.fromkeys(USES, 0), **memory},
        frozenset({1}),
        state=held,
        parameters=sum(array.size for array in arrays),
        weights=weights,
    )

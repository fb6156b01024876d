"""Batches come in the order of their steps, a few of them made before they are asked for."""

import threading
import time
from dataclasses import dataclass, field

import pytest
import torch
from tiny_jobs import KINDS, Around, Made

from regard.data.batch import Batch
from regard.training.distributed.processes import ALONE, Processes
from regard.training.prefetch import AHEAD, prefetched

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Watched(Around):
    """A feed that remembers which steps it was asked for, and by whom."""

    asked: list[int] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)
    broken: int = -1

    def step(self, step: int) -> Batch:
        self.asked.append(step)
        self.threads.add(threading.get_ident())
        if step == self.broken:
            raise LookupError(f"step {step}")
        return super().step(step)


def watched(**more) -> Watched:
    return Watched(Made("causal"), **more)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 4, 100])
def test_each_step_comes_once_in_order_whole_and_in_parts(kind, rows):
    feed = Made(kind)
    with prefetched(feed, range(3, 12), rows, CPU, ALONE) as batches:
        found = list(batches)
    assert [number for number, _ in found] == list(range(3, 12))
    for number, ready in found:
        expected = feed.step(number)
        assert torch.equal(ready.whole.tokens, expected.tokens)
        assert ready.whole.examples.tolist() == expected.examples.tolist()
        parts = expected.parts(rows)
        assert [part.rows for part in ready.parts] == [part.rows for part in parts]
        assert [(m.number, m.counts) for m in ready.mine] == [(n, True) for n in range(len(parts))]
        for mine, part in zip(ready.mine, parts, strict=True):
            assert torch.equal(mine.item.targets, part.targets)


def test_some_steps_are_made_ahead_by_another_thread_and_no_more_than_that():
    feed = watched()
    with prefetched(feed, range(100), 4, CPU, ALONE) as batches:
        for number, _ in batches:
            assert max(feed.asked) < number + AHEAD
            if number == 20:
                break
        while max(feed.asked) < 20 + AHEAD - 1:  # the other thread comes to it when it can
            time.sleep(0.001)
    assert feed.asked == sorted(set(feed.asked))
    assert max(feed.asked) == 20 + AHEAD - 1
    assert len(feed.threads) == 1
    assert threading.get_ident() not in feed.threads


def test_nothing_behind_the_last_step_is_asked_for():
    feed = watched()
    with prefetched(feed, range(5, 7), 4, CPU, ALONE) as batches:
        assert [number for number, _ in batches] == [5, 6]
    assert feed.asked == [5, 6]
    with prefetched(feed, range(7, 7), 4, CPU, ALONE) as batches:
        assert list(batches) == []


def test_an_error_comes_with_its_step_and_the_ones_before_are_given():
    with prefetched(watched(broken=3), range(9), 4, CPU, ALONE) as batches:
        assert [next(batches)[0] for _ in range(3)] == [0, 1, 2]
        with pytest.raises(LookupError, match="step 3"):
            next(batches)


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("rows", [1, 4, 100])
def test_processes_share_the_parts_of_a_step_and_each_has_as_many(count, rows):
    feed = Made("causal")  # six rows
    dealt = []
    for rank in range(count):
        with prefetched(feed, range(2), rows, CPU, Processes(rank, count)) as batches:
            dealt.append([ready for _, ready in batches])
    for step in range(2):
        here = [ready[step] for ready in dealt]
        assert len({len(ready.mine) for ready in here}) == 1
        counted = sorted((m.number, m.item) for r in here for m in r.mine if m.counts)
        assert [number for number, _ in counted] == list(range(len(here[0].parts)))
        rows_seen = [e for _, part in counted for e in part.examples.tolist()]
        assert rows_seen == feed.step(step).examples.tolist()
        assert max(part.rows for _, part in counted) <= min(rows, -(-6 // count))

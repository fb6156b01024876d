"""Corpora larger than memory: counted in chunks, on disk, to the same bit."""

import errno
import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.errors import RegardError
from regard.models.counting.estimate import estimate, smoothing
from regard.models.counting.scratch import Room, gather, tally

BEGIN, VOCABULARY = 1, 12
IDS = st.lists(st.sampled_from([1, 2, *range(2, 9)]), min_size=1, max_size=80).map(np.array)
KINDS = st.sampled_from(["kneser-ney", "add-k", "stupid-backoff", "maximum-likelihood"])


class Watched:
    """A source that looks into a folder whenever it is read, and may fail at last."""

    def __init__(self, folder: Path, fails: bool = False):
        self.ids = np.random.default_rng(0).integers(1, VOCABULARY, 4000)
        self.folder, self.fails = folder, fails
        self.named, self.nameless, self.reads = set(), 0, 0

    def __len__(self):
        return len(self.ids)

    def read(self, start, stop):
        self.reads += 1
        self.named |= set(os.listdir(self.folder))
        maps = Path("/proc/self/maps").read_text().splitlines()
        self.nameless = max(self.nameless, sum(str(self.folder) in line for line in maps))
        if self.fails and self.reads == 20:
            raise OSError("the disk is gone")
        return self.ids[start:stop]


def same(one, other):
    assert one.order == other.order
    for a, b in zip(one.levels, other.levels, strict=True):
        for name in ("keys", "logprobs", "backoffs"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
            assert getattr(a, name).dtype == getattr(b, name).dtype
        assert (a.discounts, a.fallback) == (b.discounts, b.fallback)


@settings(max_examples=60, deadline=None)
@given(IDS, st.integers(1, 4), st.integers(1, 40), KINDS, st.integers(0, 2))
def test_chunks_of_any_size_make_the_same_table_to_the_bit(ids, order, chunk, kind, least):
    asked = {"kind": smoothing(kind, k=0.3)}
    if kind in ("kneser-ney", "stupid-backoff") and order > 1:
        asked["prune"] = [0, least]
    whole = estimate(ids, order, VOCABULARY, BEGIN, **asked)
    same(estimate(ids, order, VOCABULARY, BEGIN, chunk=chunk, **asked), whole)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.lists(st.integers(0, 30), max_size=40).map(lambda v: np.array(v, int)))
def test_gathering_and_tallying_piece_by_piece_is_indexing_and_counting(size, places):
    values = np.arange(31) * 0.5
    np.testing.assert_array_equal(gather(values, places, Room(), size), values[places])
    np.testing.assert_array_equal(
        tally(places, 31, Room(), size), np.bincount(places, minlength=31)
    )


def test_files_have_no_name_so_that_nothing_can_be_left_behind(tmp_path):
    source = Watched(tmp_path)
    table = estimate(source, 3, VOCABULARY, BEGIN, folder=tmp_path, chunk=500)
    assert source.nameless > 3  # they are there
    assert source.named == set()  # whoever is killed now leaves nothing
    same(table, estimate(source.ids, 3, VOCABULARY, BEGIN))


def test_an_error_on_the_way_leaves_nothing_mapped(tmp_path):
    with pytest.raises(OSError, match="the disk is gone"):
        estimate(Watched(tmp_path, fails=True), 3, VOCABULARY, BEGIN, folder=tmp_path, chunk=500)
    gc.collect()  # what the traceback held
    assert os.listdir(tmp_path) == []
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def test_a_full_disk_is_one_sentence(tmp_path, monkeypatch):
    def full(descriptor, start, size):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(RegardError, match=r"cannot keep .* MB of counts in .*: No space left"):
        estimate(Watched(tmp_path), 3, VOCABULARY, BEGIN, folder=tmp_path, chunk=500)


def test_a_source_that_ends_too_early_is_one_sentence(tmp_path):
    source = Watched(tmp_path)
    whole, source.ids = source.ids, source.ids[:-1]
    source.__class__ = type("Short", (Watched,), {"__len__": lambda self: len(whole)})
    with pytest.raises(RegardError, match="fewer tokens than the 4,000"):
        estimate(source, 2, VOCABULARY, BEGIN)


LIMITED = """
import resource, sys
from pathlib import Path
import numpy as np
from regard.models.counting.estimate import estimate

class Source:
    def __len__(self):
        return 600_000
    def read(self, start, stop):
        places = np.arange(start, min(stop, len(self)), dtype=np.uint64)
        return (places * places * np.uint64(2654435761) >> np.uint64(33)).astype(int) % 500 + 1

estimate(np.arange(100), 3, 600, 1, chunk=10)  # everything is loaded now
status = Path("/proc/self/status").read_text()
now = int(status.split("VmData:")[1].split()[0]) << 10
resource.setrlimit(resource.RLIMIT_DATA, (now + (16 << 20),) * 2)  # 28 bytes for each token
table = estimate(Source(), 3, 600, 1, chunk=20_000)
print(table.order, len(table.levels[2].keys) > 200_000)
try:
    estimate(Source(), 3, 600, 1)
except (MemoryError, RuntimeError):
    print("too large at once")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA bounds what is not mapped there")
def test_memory_is_bounded_by_the_chunk_not_by_the_corpus():
    asked = subprocess.run(
        [sys.executable, "-c", LIMITED],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"},
    )
    assert asked.stdout.splitlines() == ["3 True", "too large at once"], asked.stderr

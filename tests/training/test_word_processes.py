"""Word vectors by two processes: the same bits as by one, and an end to every process."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing

import numpy as np
import pytest
import torch

from regard.errors import RegardError
from regard.families.word_vectors import processes
from regard.families.word_vectors import walk as walking
from regard.families.word_vectors.processes import Helper, Shelf
from regard.families.word_vectors.steps import Cut, VectorSteps
from regard.families.word_vectors.walk import Walk, halves_are_alike
from regard.models.word_vectors.model import Word2VecConfig, WordVectors
from regard.text.specials import BOS, EOS, SPECIALS

WORDS = 600
PATIENCE = 60  # seconds, after which something hangs


class Text:
    def __init__(self, tokens=30_000):
        draws = np.random.default_rng(0)
        shares = 1 / np.arange(3, WORDS - len(SPECIALS) + 3)
        words = draws.choice(np.arange(len(SPECIALS), WORDS), tokens, p=shares / shares.sum())
        words[draws.random(tokens) < 0.1] = EOS
        words[1:][words[:-1] == EOS] = BOS
        self.ids = words

    def __len__(self):
        return len(self.ids)

    def read(self, start, stop):
        return self.ids[start:stop]


def made(method="skip-gram", loss="negative", width=30, cut=None, piece=4096):
    """Steps, and vectors as they begin."""
    text = Text()
    config = Word2VecConfig(WORDS, width=width, method=method, loss=loss, subsample=1e-2)
    counts = np.bincount(text.ids, minlength=WORDS)
    steps = VectorSteps(config, text, counts, epochs=2, piece=piece, cut=cut)
    torch.manual_seed(0)
    return steps, WordVectors(config)


def start(steps, vectors) -> Helper:
    """A helper that is there."""
    helper = Helper(steps, vectors, 0)
    end = time.monotonic() + PATIENCE
    while not helper.ready():
        assert time.monotonic() < end
        time.sleep(0.01)
    return helper


@pytest.mark.parametrize(
    ("method", "loss", "width", "cut"),
    [
        ("skip-gram", "negative", 30, Cut(16, 32, 20)),
        ("skip-gram", "negative", 101, Cut(8, 12, 5)),
        ("cbow", "negative", 30, Cut(32, 16, 20)),
        ("cbow", "negative", 101, Cut(32, 16, 3)),
        ("skip-gram", "hierarchical", 30, Cut(32, 0, 2)),
        ("cbow", "hierarchical", 30, Cut(32, 0, 2)),
    ],
)
def test_two_processes_give_the_bits_of_one(method, loss, width, cut):
    steps, alone = made(method, loss, width, cut)
    wanted = [steps.advance(alone, step) for step in range(len(steps))]
    steps, both = made(method, loss, width, cut)
    found = []
    with closing(start(steps, both)) as helper:
        found += helper.walk(0, 5)
        helper.settle()
        middle = both.input.detach().clone()
        found += helper.walk(5, 7)
        helper.leave()  # this one alone, for a while
        found += [steps.advance(both, step) for step in range(7, 10)]
        found += helper.walk(10, len(steps))
        helper.leave()
    assert helper.process.returncode == 0
    assert found == wanted
    assert torch.equal(both.input, alone.input)
    assert torch.equal(both.output, alone.output)
    assert not torch.equal(both.input, middle)


def test_a_step_too_large_for_the_shelf_is_arranged_by_both(monkeypatch):
    monkeypatch.setattr(processes, "SHELF", 0.01)  # of what a step takes
    steps, alone = made("cbow", cut=Cut(32, 16, 20))
    wanted = [steps.advance(alone, step) for step in range(len(steps))]
    steps, both = made("cbow", cut=Cut(32, 16, 20))
    with closing(start(steps, both)) as helper:
        assert list(helper.walk(0, len(steps))) == wanted
        helper.leave()
    assert torch.equal(both.input, alone.input)


def test_a_shelf_gives_what_was_put_there():
    shelf = Shelf(np.zeros(1024, np.uint8), np.zeros((3, 6), np.int64))
    arrays = [np.arange(24).reshape(2, 3, 4), np.float32([1.5]), np.zeros((0, 7), np.int64)]
    shelf.put(arrays)
    for found, wanted in zip(shelf.get(), arrays, strict=True):
        assert found.dtype == wanted.dtype
        assert np.array_equal(found, wanted)
    shelf.put(arrays[:1])
    assert len(shelf.get()) == 1
    shelf.put([np.zeros(129, np.int64)])  # 1,032 bytes
    assert shelf.get() == []


@pytest.mark.parametrize("faster", [True, False])
def test_a_walk_may_go_to_and_fro_between_one_and_two(monkeypatch, faster):
    """Whichever way seems faster, what is learnt is the same."""
    steps, alone = made(piece=1024)
    wanted = [steps.advance(alone, step) for step in range(len(steps))]
    monkeypatch.setattr(walking, "FEW", 0)
    monkeypatch.setattr(walking, "LEAST", 1)
    monkeypatch.setattr(walking, "TRIAL", 3)
    monkeypatch.setattr(walking, "LONG", 6)
    ways = []
    walk_of = {Helper: Helper.walk, VectorSteps: VectorSteps.walk}
    steps, vectors = made(piece=1024)
    with closing(Walk(steps, vectors, 0, len(steps), threads=2)) as walk:
        assert walk.helper
        while not walk.helper.ready():
            time.sleep(0.01)

        def noted(self, *rest):
            ways.append("two" if isinstance(self, Helper) else "one")
            for learned in walk_of[type(self)](self, *rest):
                if (ways[-1] == "two") != faster:
                    time.sleep(0.05)
                yield learned

        monkeypatch.setattr(Helper, "walk", noted)
        monkeypatch.setattr(VectorSteps, "walk", noted)
        found = list(walk)
    one, two = ("one", "two") if faster else ("two", "one")
    assert ways[:3] == ["one", "one", "two"]  # while it starts, and each way for a trial
    assert ways[3:6] == [two, one, two]  # the faster one for long, and the other again
    assert found == wanted
    assert torch.equal(vectors.input, alone.input)
    assert torch.equal(vectors.output, alone.output)


def test_short_texts_and_single_threads_start_no_process(monkeypatch):
    steps, vectors = made()
    assert Walk(steps, vectors, 0, len(steps), threads=2).helper is None
    monkeypatch.setattr(walking, "FEW", 0)
    monkeypatch.setattr(walking, "LEAST", 1)
    assert Walk(steps, vectors, 0, len(steps), threads=1).helper is None
    with closing(Walk(steps, vectors, 0, len(steps), threads=2)) as walk:
        assert walk.helper is not None


def test_no_process_helps_where_halves_would_give_other_bits(monkeypatch):
    monkeypatch.setattr(walking, "FEW", 0)
    monkeypatch.setattr(walking, "LEAST", 1)
    steps, _ = made()
    assert halves_are_alike(steps, 0)
    exactly = walking.pulled

    def narrow(pull, hidden, rows, change):
        """As if a library had another order of sums for narrow matrices."""
        change, moved = exactly(pull, hidden, rows, change)
        return change, moved if hidden.shape[-1] == 30 else torch.nextafter(
            moved, change.new_ones(1)
        )

    monkeypatch.setattr(walking, "pulled", narrow)
    assert not halves_are_alike(steps, 0)
    steps, vectors = made()
    assert Walk(steps, vectors, 0, len(steps), threads=2).helper is None


def test_vectors_are_settled_when_somebody_stops_in_between():
    steps, alone = made()
    for step in range(4):
        steps.advance(alone, step)
    steps, both = made()
    with closing(start(steps, both)) as helper:
        walk = helper.walk(0, len(steps))
        for _ in range(4):
            next(walk)
        walk.close()
        helper.leave()
    assert helper.process.returncode == 0
    assert torch.equal(both.input, alone.input)
    assert torch.equal(both.output, alone.output)


def test_a_helper_that_dies_is_told_in_a_sentence():
    steps, vectors = made()
    with closing(start(steps, vectors)) as helper:
        walk = helper.walk(0, len(steps))
        next(walk)
        helper.process.kill()
        with pytest.raises(RegardError, match=r"helped to make word vectors ended with status -9"):
            list(walk)


@pytest.mark.parametrize("how", ["it ends at once", "it cannot be started"])
def test_without_a_helper_one_process_does_it_all(monkeypatch, how):
    steps, alone = made()
    wanted = [steps.advance(alone, step) for step in range(len(steps))]
    monkeypatch.setattr(walking, "FEW", 0)
    monkeypatch.setattr(walking, "LEAST", 1)
    monkeypatch.setattr(walking, "TRIAL", 3)
    if how == "it ends at once":
        monkeypatch.setattr("regard.families.word_vectors.processes.SERVE", "raise SystemExit(3)")
    else:

        def full(*given, **more):
            raise BlockingIOError("no more processes")

        monkeypatch.setattr(subprocess, "Popen", full)
    steps, vectors = made()
    with closing(Walk(steps, vectors, 0, len(steps), threads=2)) as walk:
        assert (walk.helper is None) == (how == "it cannot be started")
        if walk.helper:
            walk.helper.process.wait(PATIENCE)
        found = list(walk)
    assert found == wanted
    assert torch.equal(vectors.input, alone.input)


def test_what_libraries_print_and_a_signal_to_all_change_nothing(monkeypatch):
    steps, alone = made()
    wanted = [steps.advance(alone, step) for step in range(len(steps))]
    monkeypatch.setenv("MKL_VERBOSE", "1")
    monkeypatch.setenv("ONEDNN_VERBOSE", "1")
    steps, vectors = made()
    with closing(start(steps, vectors)) as helper:
        found = [*helper.walk(0, 3)]
        for number in (signal.SIGTERM, signal.SIGINT):
            helper.process.send_signal(number)
        found += helper.walk(3, len(steps))
        helper.leave()
    assert helper.process.returncode == 0
    assert found == wanted
    assert torch.equal(vectors.input, alone.input)


PARENT = """
import json, sys, time
sys.path.insert(0, {tests!r})
from test_word_processes import made, start
steps, vectors = made()
helper = start(steps, vectors)
walk = helper.walk(0, len(steps))
next(walk)
print(json.dumps(helper.process.pid), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_helper_ends_with_its_parent(number):
    code = PARENT.format(tests=os.path.dirname(__file__))
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL)  # fmt: skip
    assert parent.stdout
    helper = json.loads(parent.stdout.readline())
    os.kill(helper, 0)  # it is there
    parent.send_signal(number)
    parent.wait(PATIENCE)
    end = time.monotonic() + PATIENCE
    while _alive(helper):
        assert time.monotonic() < end
        time.sleep(0.01)


def _alive(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False

"""Several batches at once on a CPU: the same answers, and nothing left behind."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Barrier, Event, Thread, current_thread, main_thread

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.profiler import profile
from twins import read, sources, writer

import regard
from regard.decoding.parallel_batches import GivenUp, side_by_side
from regard.decoding.search.beam import search
from regard.decoding.search.ensemble import Ensemble
from regard.decoding.settings import TARGET, Beam
from regard.decoding.text_model import TextModel, batches
from regard.decoding.translation import translated
from regard.errors import RegardError
from regard.models.construction import build
from regard.models.kernels.int8 import quantise
from regard.models.kernels.packed import packed
from regard.models.network import SequenceModule
from regard.models.recurrent.config import RecurrentConfig

PATIENCE = 30.0  # seconds until a test that waits in vain fails


@pytest.fixture(params=[2, 4])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(1)


def recurrent() -> SequenceModule:
    config = RecurrentConfig(
        vocabulary=24, width=16, kind="encoder-decoder", cell="gru", attention="additive"
    )
    return build(config).eval()


MODELS = {
    "marian": lambda: writer("marian-tiny", 1, ends=1.0),
    "t5": lambda: writer("t5-tiny", 2, ends=1.0),
    "recurrent": recurrent,
    "ensemble": lambda: Ensemble([writer("marian-tiny"), writer("t5-tiny")]),
    "packed": lambda: packed(writer("marian-tiny", 1, ends=1.0)),
    "int8": lambda: quantise(writer("marian-tiny", 1, ends=1.0)),
}


@pytest.mark.parametrize("name", MODELS)
def test_translations_are_those_that_one_thread_finds_in_their_order(name, threads):
    speaker = TextModel(MODELS[name](), TARGET)
    lines = [source[:-1] for source in sources(23, 5)]
    lines[7] = []
    beam = Beam(3, n_best=2, attention=True)
    told: list[int] = []
    among = list(translated(speaker, lines, beam, rows=3, told=lambda best: told.append(len(best))))
    assert torch.get_num_threads() == threads
    torch.set_num_threads(1)
    alone = list(translated(speaker, lines, beam, rows=3))
    assert sum(told) == 22
    assert len(among) == len(alone) == 23
    for some, others in zip(among, alone, strict=True):
        assert [one.ids for one in some] == [one.ids for one in others]
        for one, other in zip(some, others, strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-4)
            if other.attention is not None:
                torch.testing.assert_close(one.attention, other.attention, atol=1e-4, rtol=0)


def test_parts_share_the_threads_and_the_last_ones_have_them_all(threads):
    module, crew = writer("marian-tiny"), threads
    meeting = Barrier(crew)  # which only parts that are worked on at once pass

    def work(part: int, over: Event) -> tuple[bool, int]:
        if part < crew * 2:
            meeting.wait(PATIENCE)
        return current_thread() is main_thread(), torch.get_num_threads()

    found = dict(side_by_side(work, range(crew * 2 + 1), module))
    assert [found[part] for part in range(crew * 2)] == [(False, 1)] * crew * 2
    assert found[crew * 2] == (True, threads)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    ("threads", "parts", "shares"),
    [(4, 2, [2, 2]), (3, 2, [1, 2]), (3, 9, [1, 1, 1]), (5, 4, [1, 1, 1, 2]), (7, 4, [1, 2, 2, 2])],
    indirect=["threads"],
)
def test_no_thread_is_left_out(threads, parts, shares):
    meeting = Barrier(min(parts, len(shares)))

    def work(part: int, over: Event) -> int:
        if part < len(shares):
            meeting.wait(PATIENCE)
        return torch.get_num_threads()

    found = dict(side_by_side(work, range(parts), writer("marian-tiny")))
    assert sorted(found[part] for part in range(len(shares))) == shares
    assert sum(shares) == threads


def threads_of_a_new_one() -> int:
    """What torch would share a product among in a thread that begins now."""
    counts: list[int] = []
    one = Thread(target=lambda: counts.append(torch.get_num_threads()))
    one.start()
    one.join(PATIENCE)
    return counts[0]


def test_who_comes_while_others_work_side_by_side_has_a_thread_of_its_own(threads):
    module = writer("marian-tiny")
    first = side_by_side(lambda part, over: part, range(threads * 2), module)
    next(first)
    found: list[set[Thread]] = []

    def another() -> None:
        work = side_by_side(lambda part, over: current_thread(), range(threads * 2), module)
        found.append({torch.get_num_threads(), *(thread for _, thread in work)})

    other = Thread(target=another)
    other.start()
    other.join(PATIENCE)
    assert found == [{threads, other}]
    assert len(list(first)) == threads * 2 - 1
    assert threads_of_a_new_one() == threads
    together = side_by_side(lambda part, over: current_thread(), range(threads * 2), module)
    assert main_thread() not in {thread for _, thread in together}  # the crew is free again


def test_a_crew_that_cannot_begin_leaves_nothing_behind(monkeypatch):
    torch.set_num_threads(3)
    module, begin, share = writer("marian-tiny"), Thread.start, torch.set_num_threads
    begun: list[Thread] = []
    given_up = Event()

    def share_late(number: int) -> None:  # a thread that begins when all is over
        if current_thread() is main_thread():
            given_up.set()
        assert given_up.wait(PATIENCE)
        share(number)

    def start(thread: Thread) -> None:
        if len(begun) == 2:
            raise RuntimeError("can't start new thread")
        begun.append(thread)
        begin(thread)

    try:
        with monkeypatch.context() as patched:
            patched.setattr(Thread, "start", start)
            patched.setattr(torch, "set_num_threads", share_late)
            with pytest.raises(RuntimeError, match="can't start"):
                list(side_by_side(lambda part, over: part, range(6), module))
        assert not any(thread.is_alive() for thread in begun)
        assert torch.get_num_threads() == threads_of_a_new_one() == 3
        found = list(side_by_side(lambda part, over: current_thread(), range(3), module))
        assert main_thread() not in {thread for _, thread in found}
    finally:
        torch.set_num_threads(1)


def test_a_mistake_in_one_part_is_told_and_ends_the_others(threads):
    gave_up: list[int] = []

    def work(part: int, over: Event) -> int:
        if part == 0:
            raise RegardError("no")
        if not over.wait(PATIENCE):
            return part
        gave_up.append(part)
        raise GivenUp

    with pytest.raises(RegardError, match="no"):
        list(side_by_side(work, range(12), writer("marian-tiny")))
    assert gave_up  # what was being worked on; the rest was never begun
    assert len(gave_up) < threads * 2
    assert torch.get_num_threads() == threads


def test_who_stops_listening_ends_the_work(threads):
    begun = Barrier(threads)

    def work(part: int, over: Event) -> int:
        if part < threads:
            begun.wait(PATIENCE)
        if part == 0:
            return part
        assert over.wait(PATIENCE)
        raise GivenUp

    coming = side_by_side(work, range(threads * 3), writer("marian-tiny"))
    assert next(coming) == (0, 0)
    coming.close()  # which waits until the last one has given up
    assert torch.get_num_threads() == threads


def test_a_search_gives_up_between_two_steps():
    module, over = writer("marian-tiny"), Event()
    over.set()
    with pytest.raises(GivenUp):
        search(module, [[1]], [5], Beam(2), memory=read(module, sources(1, 1)), over=over)


@given(st.lists(st.integers(1, 50), max_size=80), st.integers(1, 20))
def test_batches_are_few_even_and_begin_with_the_longest(lengths, rows):
    found = batches(lengths, rows)
    assert len(found) == -(-len(lengths) // rows)
    sizes = {len(some) for some in found}
    assert max(sizes, default=0) <= rows
    assert max(sizes, default=0) - min(sizes, default=0) <= 1
    together = [index for some in found for index in some]
    assert sorted(together) == list(range(len(lengths)))
    assert [lengths[index] for index in together] == sorted(lengths, reverse=True)


class Looking(TorchFunctionMode):
    """Sees every call."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


@contextmanager
def hooked() -> Iterator[None]:
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    yield
    handle.remove()


@pytest.mark.parametrize(
    "why",
    ["autocast", "recorded", "counted", "profiled", "overridden", "hooked", "one thread"],
)
def test_work_that_somebody_looks_at_stays_in_one_thread(why):
    from torch.utils.flop_counter import FlopCounterMode

    module = writer("marian-tiny")
    looking = {
        "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
        "recorded": lambda: regard.record(module),
        "counted": lambda: FlopCounterMode(display=False),
        "profiled": profile,
        "overridden": Looking,
        "hooked": hooked,
        "one thread": torch.inference_mode,
    }
    torch.set_num_threads(1 if why == "one thread" else 2)
    try:
        with looking[why]():
            work = side_by_side(lambda part, over: current_thread(), range(6), module)
            assert {thread for _, thread in work} == {main_thread()}
    finally:
        torch.set_num_threads(1)

"""Several batches at once on a CPU: the same answers, and nothing left behind."""

from collections.abc import Iterator
from threading import Barrier, Event, current_thread, main_thread

import pytest
import torch
from twins import read, sources, writer

import regard
from regard.decoding.beam import search
from regard.decoding.ensemble import Ensemble
from regard.decoding.settings import TARGET, Beam
from regard.decoding.side_by_side import GivenUp, side_by_side
from regard.decoding.speaker import Speaker
from regard.decoding.translating import translated
from regard.errors import RegardError
from regard.models import families
from regard.models.families import Writer
from regard.models.recurrent_config import RecurrentConfig

PATIENCE = 30.0  # seconds until a test that waits in vain fails


@pytest.fixture(params=[2, 4])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(1)


def recurrent() -> Writer:
    config = RecurrentConfig(
        vocabulary=24, width=16, kind="encoder-decoder", cell="gru", attention="additive"
    )
    return families.build(config).eval()


MODELS = {
    "marian": lambda: writer("marian-tiny", 1, ends=1.0),
    "t5": lambda: writer("t5-tiny", 2, ends=1.0),
    "recurrent": recurrent,
    "ensemble": lambda: Ensemble([writer("marian-tiny"), writer("t5-tiny")]),
}


@pytest.mark.parametrize("name", MODELS)
def test_translations_are_those_that_one_thread_finds_in_their_order(name, threads):
    speaker = Speaker(MODELS[name](), TARGET)
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


def test_two_parts_have_half_of_the_threads_each():
    torch.set_num_threads(4)
    try:
        module = writer("marian-tiny")
        found = dict(side_by_side(lambda part, over: torch.get_num_threads(), "ab", module))
    finally:
        torch.set_num_threads(1)
    assert found == {"a": 2, "b": 2}


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


@pytest.mark.parametrize("why", ["autocast", "recorded", "counted", "one thread"])
def test_work_that_somebody_looks_at_stays_in_one_thread(why):
    from torch.utils.flop_counter import FlopCounterMode

    module = writer("marian-tiny")
    looking = {
        "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
        "recorded": lambda: regard.record(module),
        "counted": lambda: FlopCounterMode(display=False),
        "one thread": torch.inference_mode,
    }
    torch.set_num_threads(1 if why == "one thread" else 2)
    try:
        with looking[why]():
            work = side_by_side(lambda part, over: current_thread(), range(6), module)
            assert {thread for _, thread in work} == {main_thread()}
    finally:
        torch.set_num_threads(1)

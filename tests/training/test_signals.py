"""Being asked to stop: at once, when the work is whole, and twice."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from regard.training.signals import Stop, StoppedError, listening

BOTH = (signal.SIGINT, signal.SIGTERM)


def send(number: int) -> None:
    """A signal to this process, heard before this returns."""
    os.kill(os.getpid(), number)
    time.sleep(0.01)


@pytest.fixture(autouse=True)
def _usual():
    """The handlers that a fresh process has; pytest's own afterwards."""
    before = {number: signal.getsignal(number) for number in BOTH}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


# Within a process


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_work_that_can_be_left_anywhere_is_left_at_once(number, code):
    with listening() as stop:
        with pytest.raises(StoppedError) as told, stop.at_once():
            send(number)
        assert (stop.asked, stop.code, told.value.number) == (number, code, number)
        assert stop.word == {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}[number]


def test_so_is_what_nobody_said_anything_about():
    with listening(), pytest.raises(StoppedError):
        send(signal.SIGTERM)


@pytest.mark.parametrize("number", BOTH)
def test_work_that_must_be_whole_is_done_and_the_signal_noted(number):
    with listening() as stop, stop.noted():
        assert stop.asked is None
        send(number)
        assert stop.asked == number


def test_what_was_noted_is_an_exception_where_the_work_can_be_left():
    reached = []
    with listening() as stop, stop.noted():
        send(signal.SIGINT)
        with pytest.raises(StoppedError), stop.at_once():
            reached.append("within")
        send(signal.SIGTERM)  # noted, as before
    assert not reached


def test_modes_are_nested_and_end_with_their_block_also_by_an_error():
    with listening() as stop, stop.noted():
        with pytest.raises(LookupError), stop.at_once(), stop.noted():
            raise LookupError
        with stop.at_once():
            pass
        send(signal.SIGTERM)
        assert stop.asked == signal.SIGTERM
    with listening() as stop:
        with pytest.raises(LookupError), stop.noted():
            raise LookupError
        with pytest.raises(StoppedError):
            send(signal.SIGTERM)


@pytest.mark.parametrize("first", BOTH)
def test_a_second_sigterm_is_ignored_in_every_mode(first):
    with listening() as stop:
        with stop.noted():
            send(first)
            send(signal.SIGTERM)
            send(signal.SIGTERM)
        send(signal.SIGTERM)
        assert stop.asked == first


def test_a_stop_is_a_keyboard_interrupt_that_no_except_exception_swallows():
    assert issubclass(StoppedError, KeyboardInterrupt)
    assert not issubclass(StoppedError, Exception)


def test_handlers_are_as_they_were_when_listening_ends():
    with listening() as stop:
        assert signal.getsignal(signal.SIGTERM) == stop.heard
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with pytest.raises(StoppedError), listening():
        send(signal.SIGTERM)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize("number", BOTH)
@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None])
def test_what_somebody_ignores_or_hears_already_is_left_to_them(number, handler):
    signal.signal(number, handler)
    other = BOTH[number == BOTH[0]]
    with listening() as stop:
        assert signal.getsignal(number) is handler
        send(number)
        assert stop.asked is None
        assert signal.getsignal(other) == stop.heard
    assert signal.getsignal(number) is handler


def test_within_another_listening_the_outer_one_hears():
    with listening() as outer, outer.noted(), listening() as inner:
        send(signal.SIGTERM)
        assert (outer.asked, inner.asked) == (signal.SIGTERM, None)


def test_another_thread_than_the_main_one_hears_nothing():
    found = []

    def work():
        with listening() as stop:
            found.append((signal.getsignal(signal.SIGINT), stop.asked))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [(signal.default_int_handler, None)]


def test_without_a_signal_it_is_an_interruption_by_hand():
    assert (Stop().code, Stop().word) == (130, "interrupted")


# Of a process


SCRIPT = """
import signal, sys, time
from regard.training.signals import listening

def said(word):
    print(word, flush=True)

with listening() as stop, getattr(stop, sys.argv[1])():
    try:
        said("ready")
        while stop.asked is None:
            time.sleep(0.01)
    finally:
        said("saving")
        try:
            time.sleep(float(sys.argv[2]))
        finally:
            said("saved")
    sys.exit(stop.code)
"""


class Child:
    """A process that listens, is asked to stop, and then takes its time to save."""

    def __init__(self, mode: str = "noted", saves: float = 60.0, **how) -> None:
        words = [sys.executable, "-c", SCRIPT, mode, str(saves)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(words, text=True, **pipes, **how)
        self.until("ready")

    def until(self, word: str) -> None:
        assert self.process.stdout.readline().strip() == word

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def ended(self) -> tuple[int, str, str]:
        with self.process as process:
            out, err = process.stdout.read(), process.stderr.read()
        return process.returncode, out, err


@pytest.mark.parametrize("first", BOTH)
def test_a_second_sigint_leaves_at_once_whatever_is_being_done(first):
    child = Child()
    child.send(first)
    child.until("saving")
    child.send(signal.SIGINT)
    code, out, err = child.ended()
    assert (code, out) == (130, "")  # it did not wait until all was saved
    assert err == "\nleft at once; what was saved before is whole\n"


@pytest.mark.parametrize(("first", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_sigterm_again_and_again_does_not_keep_it_from_saving(first, code):
    child = Child(saves=0.5)
    child.send(first)
    child.until("saving")
    for _ in range(3):
        child.send(signal.SIGTERM)
    assert child.ended() == (code, "saved\n", "")


def test_a_sigint_that_the_shell_had_ignored_stays_ignored():
    """As for what runs behind an `&`."""
    child = Child(saves=0.0, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    for _ in range(3):
        child.send(signal.SIGINT)
    time.sleep(0.1)
    child.send(signal.SIGTERM)
    child.until("saving")
    assert child.ended() == (143, "saved\n", "")

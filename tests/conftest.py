"""Settings for all tests: one thread each (they run in parallel), a fixed seed, the usual signals
and variables, and no process that stays."""

import signal
from collections.abc import Iterator

import processes_left
import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("regard", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("regard")

TERMINAL = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
USUAL = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


@pytest.fixture(scope="session", autouse=True)
def _usual_signals() -> Iterator[None]:
    """Tests and what they start can be interrupted, also behind an `&` of a script."""
    ignored = [one for one in USUAL if signal.getsignal(one) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, USUAL[number])
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture(scope="session", autouse=True)
def _usual_variables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nobody's terminal, and nobody's own cache."""
    with pytest.MonkeyPatch.context() as patch:
        for name in TERMINAL:
            patch.delenv(name, raising=False)
        patch.setenv("TERM", "xterm")
        patch.setenv("REGARD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _orphans() -> None:
    processes_left.adopt()


@pytest.fixture(autouse=True)
def _nobody_stays() -> Iterator[None]:
    """A test, above all one that fails, leaves no process behind."""
    before = processes_left.descendants()
    yield
    found = processes_left.left(before)
    processes_left.end(found)
    processes_left.bury(before)
    assert not found, "these went on behind the test"


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)

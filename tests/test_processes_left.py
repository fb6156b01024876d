"""A test leaves no process behind: those that would stay are found and ended, orphans too."""

import subprocess
import sys

import processes_left
import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel does not tell")
ORPHAN = "sleep 600 >/dev/null 2>&1 & echo $!"


@pytest.mark.parametrize("parent", ["lives", "is gone"])
def test_a_process_that_stays_is_found_and_ended(monkeypatch, parent):
    monkeypatch.setattr(processes_left, "GRACE", 0.05)
    before, wait = processes_left.descendants(), "; read line" if parent == "lives" else ""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(["sh", "-c", ORPHAN + wait], **pipes) as shell:
        orphan = int(shell.stdout.readline())
        if not wait:
            shell.wait()
        found = processes_left.left(before)
        assert set(found) == {orphan} | ({shell.pid} if wait else set())
        processes_left.end(found)
    assert not processes_left.left(before)
    processes_left.bury(before)
    assert processes_left.descendants() == before


def test_one_that_ends_by_itself_soon_has_not_stayed():
    before = processes_left.descendants()
    process = subprocess.Popen(["sleep", "0.05"])
    assert not processes_left.left(before)
    assert process.wait() == 0

"""How a run stands is told from little of what is on disk, and damage is told, not fatal."""

import errno
import json
import math
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.runs import status as module
from regard.runs.status import ENDS, state, states
from regard.storage import event_log, status_file
from regard.storage.event_log import LOG, STATUS, Log
from regard.storage.lock import LOCK, Lock
from regard.storage.status_file import StatusFile

TOML = """
[versions]
regard = "0.1.0"
[data]
train = ["/data/notes.txt", "/data/more.txt"]
[model]
preset = "regard-4"
[training]
steps = 900
"""
START = {"event": "start", "step": 0, "time": 0.0, "model": "regard-4", "steps": 900}


def step(number):
    return {"event": "step", "step": number, "time": 1.0, "loss": 3.0}


def validation(number, loss, best=True):
    return {"event": "validation", "step": number, "time": 1.0, "loss": loss, "best": best}


def end(number, reason, best_loss=2.5, best_step=200, **more):
    best = {"best_loss": best_loss, "best_step": best_step}
    return {"event": "end", "step": number, "time": 2.0, "reason": reason, **best, **more}


def lines(*events):
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


def write(folder, *events, toml=TOML, checkpoints=()):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.toml").write_text(toml, encoding="utf-8")
    if events:
        (folder / LOG).write_bytes(lines(*events))
    for name in checkpoints:
        (folder / "checkpoints" / str(name)).mkdir(parents=True)
    return folder


SOME = (START, step(100), validation(200, 2.5), step(300), validation(300, 2.75, best=False))


# The word


@pytest.mark.parametrize(
    ("events", "word"),
    [
        ((*SOME, end(900, "finished")), "finished"),
        ((*SOME, end(400, "stopped early")), "stopped early"),
        ((*SOME, end(350, "interrupted")), "interrupted"),
        ((*SOME, end(350, "failed", message="the loss is nan")), "failed"),
        (SOME, "killed"),
        ((START,), "killed"),
        ((*SOME, end(350, "interrupted"), START), "killed"),
        ((*SOME, end(900, "finished"), step(901)), "killed"),
        ((*SOME, end(900, "somehow")), "killed"),
        ((), "not begun"),
    ],
)
def test_the_last_event_says_how_a_run_ended(tmp_path, events, word):
    found = state(write(tmp_path, *events))
    assert found.word == word
    assert found.reason == ("the loss is nan" if word == "failed" else "")


def test_a_run_is_running_as_long_as_its_lock_is_held(tmp_path):
    write(tmp_path, *SOME, end(350, "interrupted"))
    with Lock(tmp_path):
        found = state(tmp_path)
        assert (found.word, found.holder.process) == ("running", os.getpid())
        assert not found.can_go_on
    assert (state(tmp_path).word, state(tmp_path).holder) == ("interrupted", None)
    (tmp_path / LOCK).write_text("left behind")
    assert state(tmp_path).word == "interrupted"


def test_a_run_that_ends_while_it_is_looked_at_was_not_killed(tmp_path, monkeypatch):
    write(tmp_path, *SOME)

    def ending(folder):
        (tmp_path / LOG).write_bytes(lines(*SOME, end(900, "finished")))

    monkeypatch.setattr(module, "holder", ending)
    assert state(tmp_path).word == "finished"


def test_a_run_without_a_log_but_with_checkpoints_was_killed(tmp_path):
    assert state(write(tmp_path, checkpoints=[5])).word == "killed"


def test_what_was_interrupted_killed_or_failed_goes_on_from_a_checkpoint(tmp_path):
    reasons = ("finished", "stopped early", "interrupted", "failed")
    ends = {"killed": SOME, "not begun": ()} | {r: (*SOME, end(300, r)) for r in reasons}
    can = {
        word
        for word, events in ends.items()
        if state(write(tmp_path / word, *events, checkpoints=[300] if events else ())).can_go_on
    }
    assert can == {"interrupted", "killed", "failed"}
    shutil.rmtree(tmp_path / "killed" / "checkpoints")
    assert not state(tmp_path / "killed").can_go_on


# The figures


def test_settings_places_and_sizes_are_told(tmp_path):
    folder = write(tmp_path / "run", *SOME, checkpoints=[1000, 200, ".300.x", "4a", "٣", "best"])
    (folder / "checkpoints" / "7").write_text("a file")
    (folder / "checkpoints" / "200" / "model.safetensors").write_bytes(b"x" * 5000)
    (folder / "link").symlink_to("/usr")
    os.utime(folder / "run.toml", (3000, 3000))
    os.utime(folder / LOG, (5000, 5000))
    os.utime(folder / "checkpoints", (4000, 4000))
    found = state(folder)
    assert (found.model, found.data) == ("regard-4", ("/data/notes.txt", "/data/more.txt"))
    assert (found.step, found.steps) == (300, 900)
    assert (found.best_loss, found.best_step) == (2.5, 200)
    assert found.checkpoints == (200, 1000)
    assert found.updated == 5000
    files = (folder / "run.toml", folder / LOG)
    assert found.size == sum(f.stat().st_size for f in files) + 5000 + len("a file")


@pytest.mark.parametrize(
    ("events", "best"),
    [
        ([validation(10, 3.0), validation(20, 2.0), validation(30, 2.5, best=False)], (2.0, 20)),
        ([validation(10, 3.0), end(40, "finished", 1.5, 35)], (1.5, 35)),
        ([step(10), end(40, "finished", "inf", 0)], (None, None)),
        (
            [validation(20, 1.5), {"event": "end", "best_loss": 1.0, "best_step": 15}],  # no step
            (1.0, 15),
        ),
        ([validation(10, "nan"), validation(20, "inf")], (None, None)),
        ([validation(10, 3), validation(20, 10**400), validation(30, True)], (3.0, 10)),
        # What came behind the place that training went back to has not happened.
        ([validation(10, 3.0), validation(30, 2.0), {"event": "resume", "step": 20}], (3.0, 10)),
        (
            [validation(10, 3.0), end(40, "interrupted", 2.0, 30), {"event": "resume", "step": 20}],
            (3.0, 10),
        ),
        (
            [
                validation(10, 3.0),
                validation(20, 2.9),
                validation(30, 2.0),
                {"event": "back", "step": 35, "to": 20},
                step(30),
                {"event": "back", "step": 35, "to": 30},
            ],
            (2.9, 20),
        ),
        (
            [
                validation(10, 3.0),
                validation(25, 2.0),
                {"event": "back", "step": 35, "to": 30},
                {"event": "back", "step": 35, "to": 20},
            ],
            (3.0, 10),
        ),
        (
            [
                validation(10, 3.0),
                validation(30, 2.0),
                {"event": "back", "step": 35, "to": 10},
                validation(30, 2.5),
            ],
            (2.5, 30),
        ),
    ],
)
def test_the_best_is_the_last_best_that_was_not_taken_back(tmp_path, events, best):
    found = state(write(tmp_path, START, *events))
    assert (found.best_loss, found.best_step) == best


@pytest.mark.parametrize(
    ("events", "reached"),
    [
        ([step(10), {"event": "checkpoint", "step": 12}], 12),
        ([step(10), {"event": "back", "step": 10, "to": 5}], 5),
        ([step(10), {"event": "resume", "step": 5}], 5),
        ([step(10), START, {"event": "note"}], 10),  # it begins anew, and has got no further
        ([START], 0),
        ([step(10), step(-1), step(True), step("9"), step(1 << 80)], 10),
    ],
)
def test_the_step_is_where_training_stood_last(tmp_path, events, reached):
    assert state(write(tmp_path, *events)).step == reached


# Little is read


def test_a_torn_last_line_is_passed_over_wherever_it_was_torn(tmp_path):
    write(tmp_path, *SOME, end(900, "finished"))
    whole = (tmp_path / LOG).read_bytes()
    last = len(lines(end(900, "finished")))
    for cut in range(last + 1):
        (tmp_path / LOG).write_bytes(whole[: len(whole) - cut])
        found = state(tmp_path)
        assert found.word == ("finished" if cut <= 1 else "killed")  # 1: only the newline is torn
        assert found.step == (900 if cut <= 1 else 300)


def test_only_the_end_of_a_long_log_is_read(tmp_path):
    write(tmp_path)
    many = lines(*(step(300 + i) for i in range(1000)))
    (tmp_path / LOG).write_bytes(lines(validation(10, 3.0)) + many)
    assert state(tmp_path).best_loss == 3.0
    (tmp_path / LOG).write_bytes(lines(validation(10, 3.0)) + many * 100)
    assert (tmp_path / LOG).stat().st_size > status_file.TAIL
    found = state(tmp_path)
    assert (found.best_loss, found.step, found.word) == (None, 1299, "killed")
    with (tmp_path / LOG).open("ab") as file:
        file.write(lines(validation(1300, 2.5), end(1300, "finished", 2.5, 1300)))
    found = state(tmp_path)
    assert (found.best_loss, found.step, found.word) == (2.5, 1300, "finished")


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_a_line_of_any_length_at_the_border_of_what_is_read_is_passed_over(tmp_path, extra):
    write(tmp_path)
    long = b'{"event": "sample", "step": 5, "text": "' + b"x" * (status_file.TAIL // 2) + b'"}\n'
    last = lines(step(7))
    first = b" " * (status_file.TAIL - len(long) - len(last) - 1 + extra) + b"\n"
    (tmp_path / LOG).write_bytes(lines(validation(3, 2.0)) + first + long + last)
    found = state(tmp_path)
    assert (found.word, found.reason, found.step) == ("killed", "", 7)


# status.json


def logged(folder, events, every=0.0):
    """A log with its status.json, as training writes them; the content of both after each event."""
    log, seen = Log(folder), []
    kept = StatusFile(log)
    for event in events:
        log.write(event)
        kept._due = time.monotonic() + every if every else 0.0
        kept.write(event)
        status = folder / STATUS
        seen.append(((folder / LOG).read_bytes(), status.exists() and status.read_bytes()))
    log.close()
    kept.close()
    return seen


def best_of(events):
    """The last best that training did not go back behind later, looked for from the end."""
    reach = math.inf
    for event in reversed(events):
        if event["event"] in ("back", "resume"):
            reach = min(reach, event.get("to", event["step"]))
        elif event["event"] == "end" and not event["best_step"]:
            return None, None
        elif event["event"] == "end" and event["best_step"] <= reach:
            return event["best_loss"], event["best_step"]
        elif event.get("best") and event["step"] <= reach:
            return event["loss"], event["step"]
    return None, None


steps = st.integers(1, 9)
some_events = st.one_of(
    steps.map(step),
    st.builds(validation, steps, st.floats(1, 9), st.booleans()),
    steps.map(lambda to: {"event": "back", "step": 9, "to": to}),
    steps.map(lambda to: {"event": "resume", "step": to}),
    st.builds(end, steps, st.sampled_from(list(ENDS)), st.floats(1, 9), st.integers(0, 9)),
    st.just(START),
)


@given(st.lists(some_events, min_size=1, max_size=12), st.randoms(), st.booleans())
def test_a_status_file_of_any_moment_tells_what_the_whole_log_does(
    tmp_path_factory, events, rng, slow
):
    """A kill may come between a line and the file, and steps are not all written down."""
    folder = tmp_path_factory.mktemp("any") / "run"
    write(folder)
    seen = logged(folder, events, every=100.0 if slow else 0.0)
    now = rng.randrange(len(events))
    (folder / LOG).write_bytes(seen[now][0])
    status = rng.choice(seen)[1]  # a later one too: the log was cut off by a power cut
    if status:
        (folder / STATUS).write_bytes(status)
    found = state(folder)
    (folder / STATUS).unlink(missing_ok=True)
    alone = state(folder)
    assert (found.word, found.step, found.best_loss) == (alone.word, alone.step, alone.best_loss)
    last = events[now]
    assert found.word == (last["reason"] if last["event"] == "end" else "killed")
    assert (found.best_loss, found.best_step) == best_of(events[: now + 1])


def test_of_a_long_log_with_a_status_file_only_the_last_lines_are_read(tmp_path, monkeypatch):
    write(tmp_path)
    many = lines(*(step(300 + i) for i in range(1000))) * 100
    (tmp_path / LOG).write_bytes(lines(START, validation(10, 3.0)))
    kept = StatusFile(log := Log(tmp_path))
    log.close()
    (tmp_path / LOG).write_bytes(lines(START, validation(10, 3.0)) + many)
    log = kept.log = Log(tmp_path)
    for event in (step(1300), {**step(1301), "event": "checkpoint"}):
        log.write(event)
        kept.write(event)
    log.close()
    read = []
    real = status_file.parsed
    monkeypatch.setattr(status_file, "parsed", lambda line: read.append(len(line)) or real(line))
    found = state(tmp_path)
    assert (found.best_loss, found.best_step, found.step) == (3.0, 10, 1301)
    assert sum(read) < 1000


def test_a_status_file_is_plain_and_tells_people_how_a_run_stands(tmp_path):
    logged(tmp_path, (*SOME, end(350, "failed", message="the loss is \x1b\ud800 nan")))
    found = json.loads((tmp_path / STATUS).read_text("ascii"))
    assert found.pop("log") == len(lines(*SOME))
    assert found == {
        "word": "failed",
        "message": "the loss is \x1b\ud800 nan",
        "step": 350,
        "steps": 900,
        "model": "regard-4",
        "bests": [[200, 2.5, None]],
    }
    assert os.listdir(tmp_path).count(STATUS) == 1
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".partial")]


def test_a_log_that_is_cut_off_to_go_on_has_no_status_file_of_what_was_there(tmp_path):
    logged(write(tmp_path), SOME)
    Log(tmp_path, len(lines(*SOME[:2]))).close()
    assert not (tmp_path / STATUS).exists()
    assert (state(tmp_path).step, state(tmp_path).best_loss) == (100, None)


def test_another_folder_in_the_place_of_one_that_was_moved_gets_no_status_file(tmp_path):
    log = Log(tmp_path / "run")
    kept = StatusFile(log)
    (tmp_path / "run").rename(tmp_path / "moved")
    write(tmp_path / "run", *SOME)
    log.write(START)
    kept.write(START)
    log.close()
    assert sorted(os.listdir(tmp_path / "run")) == [LOG, "run.toml"]


def test_a_full_disk_leaves_the_status_file_of_before(tmp_path, monkeypatch):
    write(tmp_path)
    log = Log(tmp_path)
    kept = StatusFile(log)
    log.write(START)
    kept.write(START)
    before = (tmp_path / STATUS).read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        log.write(end(5, "finished"))
        kept.write(end(5, "finished"))
    log.close()
    assert (tmp_path / STATUS).read_bytes() == before
    assert state(tmp_path).word == "finished"
    assert sorted(os.listdir(tmp_path)) == [LOG, "run.toml", STATUS]


GOOD = {"word": "finished", "message": "", "step": 900, "steps": 900, "model": "m", "bests": []}
BEFORE = len(lines(*SOME[:4]))  # where the last line begins


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{torn",
        b"\0" * 500,
        b"\xff\xfe",
        b"[" * 50000,
        b'{"log":' * 50 + b"1" + b"}" * 50,
        b"[1]",
        b"null",
        b" " * (1 << 17),
        json.dumps({"log": BEFORE}).encode(),
        json.dumps({**GOOD, "log": BEFORE + 1}).encode(),  # of another log
        json.dumps({**GOOD, "log": 1 << 70}).encode(),
        json.dumps({**GOOD, "log": -5}).encode(),
        json.dumps({**GOOD, "log": True}).encode(),
        json.dumps({**GOOD, "log": BEFORE, "bests": 5}).encode(),
        json.dumps({**GOOD, "log": BEFORE, "bests": [5]}).encode(),
        json.dumps({**GOOD, "log": BEFORE, "bests": [[1, 2, 3, 4]]}).encode(),
        json.dumps({**GOOD, "log": BEFORE, "bests": [[[], {}, "x"], [200, 2.5, 9]]}).encode(),
        json.dumps({**GOOD, "log": BEFORE, "bests": [[200, 2.5, 9]], "step": "x"}).encode(),
        json.dumps({**GOOD, "log": BEFORE, "bests": [[200, 2.5, 9]], "model": "\x1b[2J"}).encode(),
    ],
)
def test_a_status_file_that_is_damaged_foreign_or_lies_changes_nothing(tmp_path, content):
    """Above all not the word: an unfinished run is none that has finished."""
    write(tmp_path, *SOME)
    (tmp_path / STATUS).write_bytes(content)
    found = state(tmp_path)
    assert (found.word, found.step, found.best_loss) == ("killed", 300, 2.5)
    assert (found.model, found.steps) == ("regard-4", 900)


def test_a_status_file_that_is_no_file_changes_nothing_and_waits_for_nobody(tmp_path):
    make = {
        "folder": Path.mkdir,
        "pipe": os.mkfifo,
        "nowhere": lambda path: path.symlink_to("nowhere"),
        "circle": lambda path: path.symlink_to(path),
    }
    for name, made in make.items():
        folder = write(tmp_path / name, *SOME)
        made(folder / STATUS)
        assert (state(folder).word, state(folder).best_loss) == ("killed", 2.5)
        log = Log(folder)
        StatusFile(log).write(step(301))  # which may take its place, or not
        log.close()


def test_a_log_that_begins_anew_is_not_told_by_the_status_file_of_before(tmp_path):
    logged(write(tmp_path), (*SOME, end(900, "finished")))
    status = (tmp_path / STATUS).read_bytes()
    for events in ((), (START,), (START, step(1))):
        write(tmp_path, *events)
        (tmp_path / LOG).write_bytes(lines(*events))
        (tmp_path / STATUS).write_bytes(status)
        found = state(tmp_path)
        assert found.word == ("killed" if events else "not begun")
        assert (found.best_loss, found.step) == (None, 1 if len(events) > 1 else 0)


HOSTILE = """
import os, resource, sys
from pathlib import Path
from regard.runs.status import state
kept = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = state(Path(sys.argv[1]))
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - kept  # KiB
print(found.word, found.reason, sep="|", end="|")
print(grown)
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [(LOG, "too long to be an event"), ("run.toml", "more than the 4.2 MB it may have")],
)
def test_a_line_or_a_file_without_end_is_not_loaded(tmp_path, name, words):
    write(tmp_path, *SOME)
    with (tmp_path / name).open("ab") as file:
        file.truncate(1 << 32)  # zeros, which take no room on the disk
    command = [sys.executable, "-c", HOSTILE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    word, reason, grown = done.stdout.split("|")
    assert (word, words in reason) == ("damaged", True)
    assert int(grown) < 100 * 1024


# Damage


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("[data", "run.toml is not readable TOML"),
        ("x" + ".x" * 5000 + " = 1", "run.toml is not readable TOML: it has a line with too many"),
        ("a = " + "[" * 5000, "run.toml is not readable TOML"),
        ("[training]\nsteps = 0\nstpes = 5", "2 problems; [training] has no key 'stpes'; did you"),
        ("[model]\npreset = 5", "preset must be a text"),
        ("versions = 5\ndata = 5", "data must be a table"),
    ],
)
def test_settings_that_cannot_be_read_are_told_and_the_log_says_the_rest(tmp_path, toml, words):
    found = state(write(tmp_path, *SOME, toml=toml, checkpoints=[3]))
    assert found.word == "damaged"
    assert words in found.reason
    assert "\n" not in found.reason
    assert (found.step, found.best_loss) == (300, 2.5)
    assert not found.can_go_on


def test_settings_that_are_no_text_are_told(tmp_path):
    write(tmp_path, START)
    (tmp_path / "run.toml").write_bytes(b"\xff\xfe")
    found = state(tmp_path)
    assert "run.toml is not readable TOML" in found.reason
    assert (found.model, found.steps, found.data) == ("regard-4", 900, ())  # of the log's start


@pytest.mark.parametrize("line", [b"{torn\n", b"[1]\n", b"\n", b"\x00" * 50 + b"\n{torn"])
def test_a_log_that_ends_in_no_event_is_damaged(tmp_path, line):
    write(tmp_path, *SOME)
    with (tmp_path / LOG).open("ab") as file:
        file.write(line)
    found = state(tmp_path)
    assert (found.word, found.reason) == (
        "damaged",
        f"{tmp_path / LOG} ends in a line that is no event",
    )


def test_a_broken_line_before_the_last_is_passed_over(tmp_path):
    write(tmp_path)
    (tmp_path / LOG).write_bytes(lines(validation(10, 3.0)) + b"{torn\n" + lines(step(20)))
    found = state(tmp_path)
    assert (found.word, found.step, found.best_loss) == ("killed", 20, 3.0)


def test_a_log_that_is_no_file_is_damaged_and_waits_for_nobody(tmp_path):
    os.mkfifo(write(tmp_path) / LOG)
    assert state(tmp_path).reason == f"{tmp_path / LOG} is no file"


def test_a_run_that_has_just_been_removed_is_damaged(tmp_path):
    found = state(tmp_path / "gone")
    assert found.word == "damaged"
    assert "gone/run.toml: No such file" in found.reason


def test_settings_that_have_no_name_for_a_moment_are_no_damage(tmp_path, monkeypatch):
    """On network disks a name is gone while another file takes it."""
    write(tmp_path, *SOME)
    aside = (tmp_path / "run.toml").rename(tmp_path / "run.toml.gap")
    monkeypatch.setattr(module.time, "sleep", lambda _: aside.rename(tmp_path / "run.toml"))
    assert state(tmp_path).word == "killed"


@pytest.mark.parametrize("name", ["run.toml", LOG])
@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES, errno.EMFILE])
def test_a_disk_that_does_not_answer_is_no_damage(tmp_path, monkeypatch, name, number):
    write(tmp_path, *SOME, checkpoints=[3])
    plain = os.open

    def away(path, *values, **named):
        if Path(path).name == name:
            raise OSError(number, os.strerror(number), str(path))
        return plain(path, *values, **named)

    monkeypatch.setattr(os, "open", away)
    found = state(tmp_path)
    assert (found.word, found.checkpoints) == ("unreadable", (3,))
    assert found.reason == f"cannot read {tmp_path / name}: {os.strerror(number)}"


def test_zeros_that_a_power_cut_left_in_the_last_events_are_no_damage(tmp_path):
    write(tmp_path, *SOME)
    line = json.dumps(step(700)).encode()
    with (tmp_path / LOG).open("ab") as file:
        file.write(line[:9] + bytes(len(line) - 9) + bytes(9) + line[9:] + b"\n" + bytes(20))
    found = state(tmp_path)
    assert (found.word, found.step) == ("killed", 300)
    assert event_log.read(tmp_path)[-1] == json.loads(json.dumps(SOME[-1]))


# Many


def test_runs_are_found_below_a_folder_the_last_changed_first(tmp_path):
    for i, name in enumerate(("a", "b/c", "b/d/e/f", "b/d/e/f/inside", "b/d/e/f2/deep", ".hidden")):
        os.utime(write(tmp_path / name) / "run.toml", (1000 + i, 1000 + i))
    os.utime(tmp_path / "a" / "run.toml", (9000, 9000))
    (tmp_path / "b" / "latest").symlink_to(tmp_path / "b" / "d" / "e" / "f")
    (tmp_path / "b" / "round").symlink_to(tmp_path)
    elsewhere = write(tmp_path / ".elsewhere" / "x")
    os.utime(elsewhere / "run.toml", (10, 10))
    (tmp_path / "linked").symlink_to(elsewhere)
    (tmp_path / "file").write_text("")
    found = [str(s.folder.relative_to(tmp_path)) for s in states(tmp_path)]
    assert found == ["a", "b/d/e/f", "b/c", "linked"]
    assert [s.folder for s in states(tmp_path / "a")] == [tmp_path / "a"]


def test_no_folder_has_no_runs_and_a_damaged_run_hides_no_other(tmp_path):
    assert states(tmp_path / "nowhere") == []
    write(tmp_path / "good", *SOME)
    write(tmp_path / "bad", toml="[")
    assert {s.folder.name: s.word for s in states(tmp_path)} == {"good": "killed", "bad": "damaged"}


def test_somebodys_recipe_is_no_run_and_what_stands_below_it_is_found(tmp_path):
    recipe = TOML.replace('[versions]\nregard = "0.1.0"\n', "")
    write(tmp_path / "proj", toml=recipe)
    write(tmp_path / "proj" / "runs" / "a")
    assert [s.folder.name for s in states(tmp_path)] == ["a"]
    write(tmp_path / "proj", *SOME, toml=recipe)  # but with a log it has been one
    assert [s.folder.name for s in states(tmp_path)] == ["proj"]

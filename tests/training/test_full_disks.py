"""A disk that is really full, of a megabyte and in memory: told in figures, and nothing is lost."""

import errno
import itertools
import json
import shutil
import subprocess
import sys

import pytest

from regard.errors import RegardError
from regard.storage import size
from regard.storage.event_log import Log

# Each piece of work is done with 0, 1, 2, … pages free, until it fits.
WORK = """
import json, os, sys
from dataclasses import replace
from pathlib import Path
import torch
from regard.data.readers.texts import gather
from regard.data.token_files import prepare
from regard.errors import RegardError
from regard.models.transformer.presets import preset
from regard.models.construction import build
from regard.text.learning import learn
from regard.storage.event_log import LOG, Log, read
from regard.runs import stored_run
from regard.families.settings import ModelSettings, Settings

disk, texts = Path(sys.argv[1]), Path(sys.argv[2])
tokenizers = {kind: learn(kind, [texts.read_text()]) for kind in ("char", "byte")}
tiny = ModelSettings("gpt2-tiny", {"width": 16, "heads": 2, "hidden": 32, "context": 24})
run = disk / "run"


def write(kind):
    config = stored_run.config_for(tiny, tokenizers[kind], tokenizers[kind])
    stored_run.write_run(run, replace(Settings(), model=tiny), config, [tokenizers[kind]])


def weights(number):
    config = stored_run.config_for(tiny, tokenizers["char"], tokenizers["char"])
    stored_run.write_weights(run, {n: torch.full_like(w, number)
                             for n, w in build(config).named_parameters()})


def loaded():
    return float(next(stored_run.open_run(run).module.parameters()).detach().mean())


def kind():
    return stored_run.tokenizers_of(run)[0].kind


def events():
    sink = Log(run)
    try:
        for number in range(200):
            sink.write({"event": "step", "step": number, "text": "x" * 50})
    finally:
        sink.close()


def cached():
    return len(prepare(gather([texts]), tokenizers["byte"], cache=disk / "cache")["train"])


# name: (what is there before, the work, what is there now)
STEPS = {
    "run": (lambda: write("char"), lambda: write("byte"), kind),
    "weights": (lambda: (write("char"), weights(1.0)), lambda: weights(2.0), loaded),
    "tokens": (lambda: None, cached, lambda: len(list(disk.glob("cache/*")))),
    "log": (lambda: (run / LOG).unlink(missing_ok=True), events, lambda: len(read(run))),
}
for name, (before, work, now) in STEPS.items():
    before()
    for pages in range(200):
        free = os.statvfs(disk).f_bavail - pages
        (disk / "filler").write_bytes(bytes(max(free, 0) * 4096))
        said = ""
        try:
            work()
        except RegardError as error:
            said = str(error)
        (disk / "filler").unlink()
        left = [str(path) for path in disk.rglob(".*")]
        print(json.dumps([name, pages, said, now(), left]), flush=True)
        if not said:
            break
        before()
"""


def small_disk(*command: str) -> list[str]:
    """A command that sees a disk of a megabyte, which nobody else sees, at its first argument."""
    mounting = 'mount -t tmpfs -o size=1m none "$0" && exec "$@"'
    return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mounting, *command]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> list[tuple]:
    folder = tmp_path_factory.mktemp("disk")
    (folder / "disk").mkdir()
    (folder / "text.txt").write_text("some text to learn from, and numbers 0123456789\n" * 2000)
    disk = str(folder / "disk")
    if not shutil.which("unshare"):
        pytest.skip("there is no `unshare`, so no small disk")
    if subprocess.run(small_disk(disk, "true"), capture_output=True).returncode:
        pytest.skip("this machine does not let us mount a small disk")
    command = [sys.executable, "-c", WORK, disk, str(folder / "text.txt")]
    done = subprocess.run(small_disk(disk, *command), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


BEFORE_AND_AFTER = {"run": ("char", "byte"), "weights": (1.0, 2.0), "tokens": (0, 1)}


@pytest.mark.parametrize("name", BEFORE_AND_AFTER)
def test_what_does_not_fit_is_told_and_leaves_what_was_there(outcomes, name):
    mine = [outcome for outcome in outcomes if outcome[0] == name]
    before, after = BEFORE_AND_AFTER[name]
    assert len(mine) > 3  # pages were too few
    for _, pages, said, now, left in mine[:-1]:
        assert "no space left in " in said
        assert " are needed and " in said
        assert f" {size(4096 * pages)} are free" in said
        assert now == before
        assert left == []
    assert mine[-1][2:] == ("", after, [])


def fitting(room: int) -> int:
    """How many of the events fit whole."""
    lines = (json.dumps({"event": "step", "step": n, "text": "x" * 50}) + "\n" for n in range(200))
    return sum(end <= room for end in itertools.accumulate(map(len, lines)))


def test_a_log_that_does_not_fit_keeps_the_lines_that_did(outcomes):
    mine = [outcome for outcome in outcomes if outcome[0] == "log"]
    assert len(mine) > 3
    for _, pages, said, events, _ in mine[:-1]:
        assert "log.jsonl: no space left in " in said
        assert "the last checkpoint stays good" in said
        assert events == fitting(4096 * pages)
    assert mine[-1][2:4] == ("", 200)


def test_prepared_data_says_about_how_much_it_needs_and_where_it_could_go(outcomes):
    told = [said for name, _, said, _, _ in outcomes if name == "tokens" and said]
    assert all("set REGARD_CACHE to a folder with room" in said for said in told)


class FullAfter:
    """A file on a disk with room for so many bytes."""

    def __init__(self, file, room: int) -> None:
        self.file, self.room = file, room

    def __getattr__(self, name: str):
        return getattr(self.file, name)

    def write(self, content: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self.file.write(content[: self.room])  # a part, as the system does it
        self.room -= written
        return written


@pytest.mark.parametrize("room", [0, 1, 30, 59])
def test_a_line_that_does_not_fit_is_not_left_torn(tmp_path, room):
    log = Log(tmp_path)
    log.write({"event": "step", "step": 1})
    log._file = FullAfter(log._file, room)
    with pytest.raises(
        RegardError, match=r"log\.jsonl: no space left .* last checkpoint stays good"
    ):
        log.write({"event": "step", "step": 2, "text": "x" * 50})
    log.close()  # not tried again, and no second error
    assert (tmp_path / "log.jsonl").read_text() == '{"event": "step", "step": 1}\n'

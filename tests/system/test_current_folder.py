"""Nothing in the current folder is executed or obeyed: it may be an archive just unpacked."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import regard

SOURCE = Path(regard.__file__).parent
# Who starts a process, and what for: an image decoder, and the other half of word2vec's work.
STARTERS = {"data/feeds/images.py", "families/word_vectors/processes.py"}
PROCESSES = ("subprocess", "multiprocessing", "concurrent.futures.process", "pty")
STARTS = tuple(f"os.{n}" for n in ("system", "popen", "fork", "exec", "spawn", "posix_spawn"))
# Names that Regard or what it uses imports, some of them while a command runs.
NAMES = ("tyro", "torch", "numpy", "rich", "matplotlib", "tokenizers", "PIL", "sacrebleu", "jinja2")
BUILTIN = ("json", "tomllib", "platform", "random", "logging", "sitecustomize", "regard")
RECORDER = """
import os, sys
here, out = os.getcwd(), open(os.environ["RECORD"], "a", buffering=1)
def note(event, arguments):
    if event in ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system"):
        print("started", arguments[0], file=out)
    elif event == "open" and isinstance(arguments[0], str):
        path = os.path.abspath(arguments[0])
        if os.path.dirname(path) == here:
            print("opened", os.path.basename(path), file=out)
sys.addaudithook(note)
"""
TRAINED = ("train", "text.txt", "--model", "ngram", "--order", "2", "--tokenizer", "word")


def starters() -> set[str]:
    """The files of Regard that can start a process."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                used = any(alias.name.startswith(PROCESSES) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                used = (node.module or "").startswith(PROCESSES)
            else:
                named = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
                used = named.startswith(STARTS)
            if used:
                found.add(str(path.relative_to(SOURCE)))
    return found


def test_regard_starts_only_its_own_helpers():
    assert starters() == STARTERS


@pytest.fixture
def hostile(tmp_path):
    """A folder with a text, and traps beside it that leave a file named after them."""
    folder = tmp_path / "unpacked"
    folder.mkdir()
    (folder / "text.txt").write_text("a cat sat on a mat and saw a dog on a log\n" * 50)
    trap = "open({!r}, 'w').close()\nraise SystemExit('hijacked')\n"
    for name in (*NAMES, *BUILTIN):
        (folder / f"{name}.py").write_text(trap.format(str(tmp_path / f"{name} ran")))
    (folder / "matplotlibrc").write_text("text.usetex: True\nfigure.figsize: 99, 99\n")
    git = ["git", "-C", str(folder)]
    subprocess.run([*git, "init", "--quiet"], check=True)
    watched = f"touch '{tmp_path / 'git ran'}'; false"
    subprocess.run([*git, "config", "core.fsmonitor", watched], check=True)
    return folder


def carried_out(folder, start, *arguments, path=""):
    """What a command opened of all that a folder held, and what it started."""
    before = {f"opened {path.name}" for path in folder.iterdir()}
    watch, record = folder.parent / "watch", folder.parent / "record"
    watch.mkdir(exist_ok=True)
    (watch / "sitecustomize.py").write_text(RECORDER)
    record.write_text("")
    where = {"PYTHONPATH": f"{watch}{os.pathsep}{path}" if path is not None else str(watch)}
    done = subprocess.run(
        [*start, *arguments],
        cwd=folder,
        env={**os.environ, **where, "RECORD": str(record), "REGARD_CACHE": str(watch)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    seen = set(record.read_text().splitlines())
    return {line for line in seen if line in before or line.startswith("started")}


SCRIPT = [str(Path(sys.executable).with_name("regard"))]


def test_a_run_in_a_hostile_folder_opens_its_data_alone(hostile):
    seen = carried_out(hostile, SCRIPT, *TRAINED, "--out", "run", path=None)
    small = ("--steps", "2", "--set", "model.width=8", "model.layers=1", "training.device=cpu")
    seen |= carried_out(hostile, SCRIPT, "train", "text.txt", *small, "--out", "small", path=None)
    seen |= carried_out(hostile, SCRIPT, "plot", "small", "-o", "drawn.png", path=None)
    assert not [path.name for path in hostile.parent.glob("* ran")]
    # Matplotlib lists fonts by this program when it is used for the first time.
    assert seen - {"started fc-list"} == {"opened text.txt"}


@pytest.mark.parametrize(
    ("start", "path"), [(SCRIPT, ""), ([sys.executable, "-m", "regard"], None)]
)
def test_not_even_a_path_with_the_current_folder_in_it_lets_its_code_in(hostile, start, path):
    for name in BUILTIN:  # what Python itself imports before it comes to us, nobody can keep out
        (hostile / f"{name}.py").unlink()
    assert "opened text.txt" in carried_out(hostile, start, *TRAINED, "--dry-run", path=path)
    assert not [path.name for path in hostile.parent.glob("* ran")]


def test_nothing_is_imported_before_the_current_folder_is_left(tmp_path):
    """With -S, since what else is installed may import modules as Python starts, and hide it."""
    for name in ("pathlib", *NAMES):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('hijacked')\n")
    packages = [str(SOURCE.parent), *filter(None, map(os.path.abspath, sys.path))]
    done = subprocess.run(
        [sys.executable, "-S", "-m", "regard", "--version"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(packages)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("regard "), done.stderr

"""Nothing that others wrote is obeyed by a terminal, whichever command tells of it."""

import ast
import io
import json
import re
import warnings
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.table import Table
from rich.text import Text
from safetensors.torch import save_file

import regard
from regard.cli import COMMANDS, main
from regard.commands import printing
from regard.errors import Problems, RegardError
from regard.terminal import LISTED, LONGEST, WHOLE, cut, in_one_line, literal, message

# A window's title, a colour, C1's own introducer and next line, a bidi override; then a new line,
# markup and an emoji code of the library that draws.
ESCAPES = "\x1b]0;title\x07\x1b[35mA\x9b31m\x85B\u202eC"
HOSTILE = f"{ESCAPES}\nerror: [red]D[/red] [link=http:E]F[/link] :smile:"
SPELLED = r"\x1b[35mA\x9b31m\x85B\u202eC\nerror: [red]D[/red] [link=http:E]F[/link] :smile:"
OURS = re.compile(r"\x1b\[\??[0-9;]*[mhlAK]")  # styles and the cursor
RUN = "{run}"  # a folder of this name, with nothing but a run.toml that is as hostile

CASES = {
    "train": ["train", HOSTILE],
    "evaluate": ["evaluate", RUN],
    "generate": ["generate", HOSTILE],
    "translate": ["translate", RUN],
    "caption": ["caption", "run", HOSTILE],
    "align": ["align", HOSTILE, "a", "b"],
    "score": ["score", RUN, "a"],
    "fill": ["fill", HOSTILE, "a"],
    "embed": ["embed", RUN, "a"],
    "classify": ["classify", HOSTILE, "a"],
    "words": ["words", HOSTILE, "nearest", "a"],
    "arpa": ["arpa", HOSTILE, "a.arpa"],
    "plot": ["plot", HOSTILE],
    "compare": ["compare", HOSTILE],
    "runs": ["runs", "."],
    "recipes": ["recipes", HOSTILE],
    "tokenize": ["tokenize", HOSTILE, "a"],
    "tokenizer": ["tokenizer", HOSTILE],
    "models": ["models", HOSTILE],
    "describe": ["describe", HOSTILE],
    "cost": ["cost", HOSTILE],
    "calibrate": ["calibrate", "--device", HOSTILE],
}


class Terminal(io.TextIOWrapper):
    """A stream that takes itself for a terminal, and keeps what it is sent."""

    def __init__(self):
        self.sent = io.BytesIO()
        super().__init__(self.sent, encoding="utf-8", write_through=True)

    def isatty(self):
        return True

    @property
    def text(self):
        self.flush()
        return self.sent.getvalue().decode("utf-8")


@pytest.fixture
def terminal(monkeypatch, tmp_path):
    """Where output and errors go to together, as on a person's screen."""
    screen = Terminal()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "2000")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return screen


def run(screen, *arguments):
    """A command's exit code."""
    try:
        with on(screen):
            main(list(arguments))
    except SystemExit as left:
        return left.code
    return 0


@contextmanager
def on(screen):
    with redirect_stdout(screen), redirect_stderr(screen):
        yield


def obeyed(shown):
    """What a terminal would obey, styles of ours and the cursor left out; markup that was taken."""
    rest = OURS.sub("", shown.replace("\x1b[35mA", "\x1b]"))
    signs = [c for c in rest if c not in "\r\n" and not c.isprintable()]
    return signs + [face for face in "😄" if face in rest] + re.findall(r"^error: \[", rest, re.M)


def hostile_run(folder):
    folder.mkdir()
    spelled = json.dumps(HOSTILE)
    (folder / "run.toml").write_text(f"[{spelled}]\n{spelled} = {spelled}\n", encoding="utf-8")
    (folder / "model.safetensors").write_bytes(b"")
    return str(folder)


def test_every_command_has_a_case():
    assert set(CASES) == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_what_a_command_tells_of_names_and_settings_is_spelled_out(terminal, tmp_path, command):
    folder = hostile_run(tmp_path / HOSTILE.replace("/", "|"))
    code = run(terminal, *(folder if word == RUN else word for word in CASES[command]))
    assert code in (0, 2)
    assert r"A\x9b31m\x85B\u202eC" in OURS.sub("", terminal.text)  # it is told of
    assert not obeyed(terminal.text)


@pytest.mark.parametrize("command", COMMANDS)
def test_what_was_typed_and_means_nothing_is_spelled_out(terminal, command):
    assert run(terminal, command, f"--{HOSTILE}") == 2
    assert not obeyed(terminal.text)
    assert len(terminal.text) < 8000


def test_an_argument_without_an_end_is_repeated_in_part(terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert run(terminal, "plot", "run", "--by", "x" * 20_000) == 2
    assert "invalid choice 'xxx" in OURS.sub("", terminal.text)
    assert len(terminal.text) < 4000


def test_a_training_source_in_the_hint_of_what_comes_next_is_spelled_out(terminal, tmp_path):
    pairs = tmp_path / "pairs.tsv"
    source = f"{ESCAPES} [red]D[/red] :smile: " + "w " * 300
    pairs.write_text("".join(f"{source}{i % 7}\tlabel{i % 2}\n" for i in range(60)), "utf-8")
    assert (
        run(terminal, "train", "--pairs", str(pairs), "--model", "bag-linear", "--steps", "2") == 0
    )
    (hint,) = re.findall(r"next: .*", terminal.text)
    assert r"\x1b]0;title\x07\x1b[35mA\x9b31m\x85B\u202eC [red]D[/red] :smile:" in hint
    assert len(hint) < 300
    assert not obeyed(terminal.text)


def test_the_name_of_an_image_is_spelled_out(terminal, tmp_path):
    line = json.dumps({"image": f"{ESCAPES}.png", "caption": "a"})
    (tmp_path / "captions.jsonl").write_text(line, "utf-8")
    assert run(terminal, "train", "--images", str(tmp_path), "--out", "run") == 2
    assert r"A\x9b31m\x85B\u202eC.png" in terminal.text
    assert not obeyed(terminal.text)


def test_the_name_of_a_tensor_is_spelled_out(terminal, tmp_path):
    config = replace(regard.preset("llama-tiny"), layers=1, vocabulary=9)
    regard.save(regard.build(config), tmp_path)
    save_file({HOSTILE: torch.zeros(1)}, tmp_path / "model.safetensors")
    assert run(terminal, "generate", str(tmp_path), "a") == 2
    assert r"\x9b31m" in terminal.text
    assert not obeyed(terminal.text)


def test_a_runs_last_words_are_spelled_out(terminal, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.toml").write_text("", "utf-8")
    end = {"event": "end", "step": 1, "reason": "failed", "message": HOSTILE}
    (folder / "log.jsonl").write_text(json.dumps(end) + "\n", "utf-8")
    assert run(terminal, "runs", str(folder)) == 0
    assert r"A\x9b31m\x85B\u202eC\nerror: [red]D[/red]" in terminal.text
    assert not obeyed(terminal.text)


def test_a_warning_of_a_library_is_a_note_and_spelled_out(terminal, monkeypatch):
    def warn(self, console):
        warnings.warn(HOSTILE, stacklevel=1)

    monkeypatch.setattr(COMMANDS["models"].load(), "run", warn)
    assert run(terminal, "models") == 0
    assert f"note: \\x1b]0;title\\x07{SPELLED}" in OURS.sub("", terminal.text)
    assert not obeyed(terminal.text)


def test_a_traceback_is_spelled_out(terminal):
    try:
        raise KeyError(HOSTILE) from ValueError(HOSTILE)
    except KeyError as error:
        with on(terminal):
            printing.crash(type(error), error, error.__traceback__)
    assert "ValueError: \\x1b]0;title\\x07" in terminal.text
    assert not [c for c in terminal.text if c != "\n" and not c.isprintable()]


def test_a_console_obeys_styles_of_ours_and_nothing_in_a_text(terminal):
    table = Table("[bold]head[/bold]", title=HOSTILE)
    table.add_row(HOSTILE, Text(HOSTILE, "red"))
    with on(terminal):
        console = printing.output()
        console.print(table, HOSTILE, Text(HOSTILE, "red"))
        console.out(HOSTILE)
    assert "\x1b[31m" in terminal.text  # which is the text in red
    assert "[bold]head[/bold]" in terminal.text
    assert OURS.sub("", terminal.text).count("[red]D[/red] [link=http:E]F[/link] :smile:") == 6
    assert not [c for c in obeyed(terminal.text) if c != "error: ["]


def test_an_error_behind_an_unfinished_line_begins_a_line(terminal, monkeypatch):
    def half(self, console):
        with printing.line_of_its_own():
            printing.put("Once upon")
            raise RegardError("no more")

    monkeypatch.setattr(COMMANDS["models"].load(), "run", half)
    assert run(terminal, "models") == 2
    assert OURS.sub("", terminal.text).splitlines() == ["Once upon", "error: no more"]


def test_generated_text_is_data_in_a_pipe_and_spelled_out_on_a_terminal(terminal):
    with on(terminal):
        printing.put(ESCAPES)
    assert terminal.text == literal(ESCAPES)


def test_generated_text_goes_into_a_pipe_as_it_is(capsys):
    printing.put(ESCAPES)
    assert capsys.readouterr().out == ESCAPES


def test_messages_are_spelled_out_also_where_standard_error_is_a_file(capsys):
    with pytest.raises(SystemExit):
        main(["describe", HOSTILE])
    assert SPELLED in (told := capsys.readouterr().err)
    assert told.count("\n") == 1


def test_a_message_of_many_problems_is_a_screen_and_counts_the_rest():
    problems = Problems("text")
    for i in range(432):
        problems.add(f"line {i} is bad")
    with pytest.raises(RegardError) as caught:
        problems.report()
    told = message(str(caught.value))
    assert told.count("\n") == LISTED + 1
    assert told.endswith("\n  - and 392 more")
    assert message(f"outer: {told}") == f"outer: {told}"  # a message in a message


@pytest.mark.parametrize("count", [1, 5, 30, 20_000])
def test_no_message_is_longer_than_a_person_reads(count):
    told = message("first" + "\n  - ".join(["x" * 30_000 + "\x1b" * 30_000 + "end"] * count))
    assert len(told) <= WHOLE + 200
    assert all(len(line) <= LONGEST + 10 for line in told.splitlines())
    assert told.startswith("firstxxx")
    assert told.count("\n") <= LISTED + 1


def test_the_middle_of_what_is_too_long_is_left_out():
    assert cut("a" * 90 + "b" * 90, 60) == "a" * 40 + " … " + "b" * 17
    assert cut("a" * 60, 60) == "a" * 60


def test_a_newline_in_a_message_makes_no_line_that_looks_like_one_of_ours():
    assert message("there is no a\nnext: rm x") == "there is no a\\nnext: rm x"
    assert in_one_line("a\nb") == "a\\nb"


def test_spelling_out_twice_is_spelling_out_once():
    assert literal(literal(HOSTILE)) == literal(HOSTILE)


def test_consoles_are_made_and_standard_error_is_written_in_one_place_only():
    """All else goes through it, and so is spelled out."""
    house = Path(regard.__file__).parent
    made, printed = set(), set()
    for path in house.rglob("*.py"):
        name = str(path.relative_to(house))
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Console"):
                made.add(name)
            if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("sys.stderr.wr"):
                made.add(name)
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "print":
                printed |= {(name, ast.unparse(one)) for one in (*node.args, *node.keywords)}
    assert made <= {"commands/printing.py"}
    known = r"json\.dumps\(.*\)|'[^']*'|[A-Z]+( if .* else [A-Z]+)?|markdown\(sections\(\)\)|end=''"
    ours = {("__main__.py", "file=sys.stderr"), ("cli.py", "f\"regard {version('regard')}\"")}
    rest = {(name, what) for name, what in printed - ours if not re.fullmatch(known, what)}
    assert {name for name, _ in rest} == {"commands/generate.py"}  # its own settings, as numbers

"""Standard streams: closed, of another encoding, on a terminal beside a file."""

import importlib.abc
import io
import json
import os
import pty
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from command_line import call, mistake

from regard.__main__ import main, open_streams
from regard.cli import main as run

UTF16 = "the cat sat\n".encode("utf-16")


def test_translations_go_to_their_file_while_progress_is_on_the_terminal(translator, data):
    master, terminal = pty.openpty()
    source, target = data / "source2", Path("out.txt")
    with target.open("wb") as out:
        done = subprocess.run(
            [sys.executable, "-m", "regard", "translate", str(translator), str(source)],
            stdout=out,
            stderr=terminal,
            env={**os.environ, "TERM": "xterm"},
            timeout=120,
        )
    os.close(terminal)
    shown = b""
    while True:
        try:
            shown += os.read(master, 1 << 16)
        except OSError:  # all is read, and nobody writes any more
            break
    os.close(master)
    assert done.returncode == 0
    assert b"15 lines" in shown
    said = call("translate", translator, source)
    assert target.read_text(encoding="utf-8") == said.out
    assert said.out.count("\n") == 15


@pytest.mark.parametrize(
    "command",
    ["generate {decoder} -", "score {decoder}", "embed {decoder}", "fill {encoder}"],
)
def test_what_is_piped_in_must_be_text(command, decoder, encoder):
    words = [word.format(decoder=decoder, encoder=encoder) for word in command.split()]
    said = call(*words, stdin=UTF16)
    assert "standard input looks like UTF-16; convert it with: iconv" in mistake(said)
    assert said.out == ""
    said = call(*words, stdin=b"the \0 cat\n")
    assert "standard input is not text (it has NUL bytes)" in mistake(said)


def test_lines_that_are_piped_in_for_translation_must_be_text(translator):
    assert "looks like UTF-16" in mistake(call("translate", translator, stdin=UTF16))
    assert "has NUL bytes" in mistake(call("translate", translator, stdin=b"the cat\n\0\n"))


def test_a_prompt_that_is_piped_in_has_neither_a_mark_nor_an_end_of_line(decoder):
    plain = call("generate", decoder, "-", "--json", stdin=b"the cat")
    for given in (b"the cat\n", b"the cat\r\n", b"\xef\xbb\xbfthe cat\r\n"):
        assert call("generate", decoder, "-", "--json", stdin=given) == plain


def test_broken_bytes_are_the_same_in_a_file_and_in_a_pipe(separate):
    given = b"the \xe2\x82 cat\n\xffdog\n"
    Path("in.txt").write_bytes(given)
    asked = ("translate", separate, "--json")
    assert call(*asked, "in.txt").out == call(*asked, stdin=given).out


def test_a_character_that_a_prompt_leaves_off_in_is_shown_once(decoder):
    for cut, whole in ((b"the caf\xc3", "the caf"), ("the 猫".encode()[:-1], "the ")):
        (told,) = call("generate", decoder, "--json", "--n", 1, stdin=cut).out.splitlines()
        facts = json.loads(told)
        assert facts["prompt"] == whole
        assert facts["text"]
        plain = call("generate", decoder, stdin=cut).out
        assert plain == f"{whole}{facts['text']}\n"
        searched = call("generate", decoder, "--beam", 2, stdin=cut).out
        assert searched.startswith(whole)
        assert not searched.startswith(f"{whole}\ufffd\ufffd\ufffd")


def test_files_are_written_in_utf_8_whatever_a_terminal_spells(decoder):
    out = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    with redirect_stdout(out):
        run(["generate", str(decoder), "漢 is é"])
    assert out.buffer.getvalue().decode("utf-8") == call("generate", decoder, "漢 is é").out


def test_nothing_piped_in_is_no_text(decoder):
    assert "there is no text in standard input" in mistake(call("generate", decoder))
    assert call("generate", decoder, "").code == 0  # which says that a text shall begin


def test_standard_streams_that_came_closed_are_empty_and_swallow(monkeypatch, decoder, capfd):
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    monkeypatch.setattr(sys, "argv", ["regard", "score", str(decoder), "the cat"])
    main()
    assert sys.stdin.buffer.read() == b""
    assert capfd.readouterr() == ("", "")
    monkeypatch.setattr(sys, "stdin", None)
    open_streams()
    monkeypatch.setattr(sys, "argv", ["regard", "score", str(decoder)])
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "there is no text in standard input" in sys.stderr.getvalue()


class Interrupting(importlib.abc.MetaPathFinder):
    """Somebody presses Ctrl-C while a module is loaded."""

    def __init__(self, module):
        self.module = module

    def find_spec(self, name, path, target=None):
        if name == self.module:
            raise KeyboardInterrupt


@pytest.mark.parametrize("module", ["regard.cli", "regard.commands.score"])
def test_ctrl_c_while_the_command_line_is_loaded_is_one_word(monkeypatch, capsys, module):
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupting(module), *sys.meta_path])
    monkeypatch.setattr(sys, "argv", ["regard", "score", "--help"])
    with pytest.raises(SystemExit, match="130"):
        main()
    assert capsys.readouterr() == ("", "\ninterrupted\n")


def test_torch_is_loaded_when_it_is_needed_and_not_with_the_package():
    asked = (
        "import regard, sys; assert 'torch' not in sys.modules; assert set(regard.__all__) <= "
        "set(dir(regard)); [getattr(regard, name) for name in regard.__all__]; "
        "assert 'torch' in sys.modules; regard.nothing"
    )
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, timeout=120)
    assert b"AttributeError: module 'regard' has no attribute 'nothing'" in done.stderr


def test_a_full_disk_behind_standard_output_is_one_sentence(decoder):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "regard", "generate", str(decoder), "the cat"],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=120,
        )
    assert done.returncode == 2
    assert done.stderr == b"error: cannot write to standard output: No space left on device\n"

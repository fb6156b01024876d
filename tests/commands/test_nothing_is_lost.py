"""What is written never lies over what is read, and a job that cannot end is not begun."""

import subprocess
import sys
from contextlib import redirect_stdout
from io import TextIOWrapper
from pathlib import Path

import pytest
from command_line import call, mistake

from regard.cli import main
from regard.commands.arguments import check_writable
from regard.errors import RegardError


def kept(path: Path, *arguments: object) -> str:
    """What a command says that must not touch a file."""
    before = path.read_bytes()
    said = call(*arguments)
    assert path.read_bytes() == before
    assert said.out == ""
    return mistake(said)


def test_no_output_lies_over_an_input(translator, decoder, data):
    for name in ("source2", "target2"):
        Path(name).write_bytes((data / name).read_bytes())
    texts, lost = Path("texts.jsonl"), "is read here, and would be lost; name another file"
    texts.write_text("the cat\na dog\n")
    link = Path("link")
    link.symlink_to("source2")
    source = Path("source2")
    assert lost in kept(source, "translate", translator, source, "--tree", source)
    assert lost in kept(source, "translate", translator, link, "--tree", source)
    for name in ("source2", "target2"):
        asked = ("evaluate", translator, "source2", "target2", "--written", name)
        assert lost in kept(Path(name), *asked)
    assert lost in kept(texts, "embed", decoder, "--file", texts, "-o", texts)
    assert lost in kept(texts, "tokenizer", texts, "-o", texts)


@pytest.mark.parametrize(
    "command",
    ["translate {t} both", "translate {t} -", "score {d} --file both", "embed {d} --file both"],
)
def test_nothing_is_printed_into_the_file_that_is_read(
    command, translator, decoder, data, monkeypatch, capsys
):
    both, text = Path("both"), (data / "source2").read_bytes()
    both.write_bytes(text)
    with both.open("rb") as given, both.open("a") as out, redirect_stdout(out):
        monkeypatch.setattr(sys, "stdin", TextIOWrapper(given))
        with pytest.raises(SystemExit, match="2"):
            main([word.format(t=translator, d=decoder) for word in command.split()])
    assert "is read and printed into here" in capsys.readouterr().err
    assert both.read_bytes() == text


@pytest.mark.parametrize(
    "name", ["run.toml", "model.safetensors", "tokenizer.json", "log.jsonl", ".lock"]
)
def test_no_output_lies_over_what_a_run_has_to_keep(decoder, name):
    for path in (decoder / name, Path("link") / name, Path("file")):
        Path("link").is_symlink() or Path("link").symlink_to(decoder)
        Path("file").unlink(missing_ok=True)
        Path("file").symlink_to(decoder / name)
        with pytest.raises(RegardError, match=f"is a part of the run .*{decoder.name}; name"):
            check_writable(path)
    check_writable(decoder / "else.jsonl")  # beside them there may be anything
    check_writable(Path(name))


def test_nor_over_a_checkpoint_and_commands_say_so(decoder, translator, data):
    log = decoder / "log.jsonl"
    assert "is a part of the run" in kept(log, "embed", decoder, "the", "--out", log)
    weights = translator / "model.safetensors"
    asked = ("translate", translator, data / "source2", "--tree", weights)
    assert "is a part of the run" in kept(weights, *asked)
    settings = decoder / "run.toml"
    pairs = (data / "source2", data / "target2")
    said = kept(settings, "evaluate", translator, *pairs, "--written", settings)
    assert "is a part of the run" in said
    place = next((translator / "checkpoints").glob("*/place.json"))
    assert "is a part of the run" in kept(place, *asked[:-1], place)


def test_nor_over_a_file_that_is_piped_in(monkeypatch):
    Path("in.txt").write_text("the cat\n")
    with open("in.txt") as given:
        monkeypatch.setattr(sys, "stdin", given)
        with pytest.raises(RegardError, match="is read here"):
            check_writable(Path("in.txt"), "-")
        check_writable(Path("other.txt"), "-")


def test_an_older_tree_stays_until_there_is_one_to_write(translator):
    tree = Path("tree.jsonl")
    tree.write_text("as it was\n")
    assert call("translate", translator, "--tree", tree, stdin=b"cat " * 99).code == 2
    assert tree.read_text() == "as it was\n"
    assert call("translate", translator, "--tree", tree, stdin=b"the cat\n").code == 0
    assert '"line": 1' in tree.read_text()


def test_lines_that_cannot_be_translated_are_told_before_any_is(translator):
    long = "cat " * 99
    lines = ["the cat"] * 40 + [long] + ["a dog"] * 5 + [long] * 30
    Path("in.txt").write_text("\n".join(lines))
    said = call("translate", translator, "in.txt", "--batch-size", 1)
    assert said.out == ""
    assert "31 problems" in mistake(said)
    assert "line 41: a source of 100 tokens is too long" in said.err
    assert said.err.count("is too long") == 20
    assert "and 11 more" in said.err
    piped = call("translate", translator, "--batch-size", 1, stdin="\n".join(lines).encode())
    assert piped == said


def test_what_stands_before_a_line_that_cannot_be_translated_is_written(translator):
    """Of a pipe, of which nobody knows what will come."""
    good = b"the cat\na dog\n"
    command = [sys.executable, "-m", "regard", "translate", str(translator)]
    lines = good + b"cat " * 99 + b"\nthe dog\n"
    done = subprocess.run(command, input=lines, capture_output=True, timeout=120)
    assert done.returncode == 2
    assert done.stdout.decode() == call("translate", translator, stdin=good).out
    assert done.stderr.decode().startswith("error: translate: line 3: a source of 100 tokens")


@pytest.mark.parametrize(
    "command",
    ["generate {decoder} x", "score {decoder} x", "embed {decoder} x", "evaluate {decoder}"],
)
@pytest.mark.parametrize("device", ["meta", "tpu", ""])
def test_a_device_that_computes_nothing_is_one_sentence(command, device, decoder):
    said = call(*(word.format(decoder=decoder) for word in command.split()), "--device", device)
    assert f"nothing is computed on a device {device!r}" in mistake(said)
    assert said.out == ""

"""The commands as a person types them."""

import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

import regard
from regard.cli import COMMANDS, main
from regard.models.transformer.presets import DIALLED, SIZES


def run(capsys, *arguments):
    """Exit code, output, errors of one command."""
    code = 0
    try:
        main(list(arguments))
    except SystemExit as exit_:
        code = exit_.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_models_lists_every_preset_with_its_parameter_count(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = run(capsys, "models")
    lines = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert code == 0
    assert set(SIZES) <= set(lines)
    assert "124,439,808" in lines["gpt2"]
    assert "8,030,261,248" in lines["llama-3-8b"]
    assert "32 / 8" in lines["llama-3-8b"]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140])
def test_at_any_width_names_and_counts_are_whole_and_no_line_is_broken(capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    _, out, _ = run(capsys, "models")
    lines = out.split("\n\n")[0].splitlines()
    assert len(lines) == 1 + len(SIZES) + len(DIALLED)
    assert all(len(line.rstrip()) <= width for line in lines)
    assert "…" not in out
    assert next(line for line in lines if line.startswith("gpt2-xl")).split()[1] == "1,557,611,200"


def test_a_name_wins_over_a_folder_of_that_name(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt2").mkdir()
    assert "124,439,808" in run(capsys, "describe", "gpt2")[1]


def test_describe_shows_the_tree_with_shapes_and_counts(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = run(capsys, "describe", "gpt2")
    assert code == 0
    assert "124,439,808" in out.splitlines()[0]
    assert "0–11  × 12  Block  7,087,872 each" in out
    assert "query_key_value  Linear  weight 2304 × 768  bias 2304  1,771,776" in out
    assert "tied to embed.tokens" in out


def test_describe_reads_a_hugging_face_folder(capsys, tmp_path):
    config = replace(regard.preset("llama-tiny"), layers=3, vocabulary=99)
    regard.save(regard.build(config), tmp_path)
    code, out, _ = run(capsys, "describe", str(tmp_path))
    assert code == 0
    assert "0–2  × 3  Block" in out
    assert "weight 99 × 32" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("describe", "gtp2"), "did you mean 'gpt2'?"),
        (("describe", "regard-0"), "goes from 1 to 128"),
        (("describe", "."), "has no config.json"),
        (("describe", ""), "no model is called ''"),
        (("describe", "x" * 5000), "no model is called"),
    ],
)
def test_a_mistake_is_one_message_on_stderr_and_exit_code_2(
    capsys, monkeypatch, tmp_path, arguments, said
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert said in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("generate", "run", "a", "--temperature", "hot"), "it must be a number, not 'hot'"),
        (("generate", "run", "a", "--n", "1.5"), "it must be a whole number, not '1.5'"),
        (("translate", "run", "--batch-size", "many"), "it must be a whole number, not 'many'"),
        (("train", "reverse", "--steps", "None"), "it must be a whole number, not 'None'"),
    ],
)
def test_what_is_no_number_is_told_in_words(capsys, arguments, said):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert f"Error parsing {arguments[-2]}: {said}" in err


@pytest.mark.parametrize("asked", [(), ("--help",), ("-h",)])
def test_help_names_every_command_in_80_columns(capsys, monkeypatch, asked):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = run(capsys, *asked)
    assert (code, err) == (0, "")
    named = re.findall(r"^  (\w+)", out, re.MULTILINE)
    assert named == list(COMMANDS)
    assert all(len(line) <= 80 for line in out.splitlines())


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_each_command_fits_80_columns_and_shows_no_empty_default(
    capsys, monkeypatch, command
):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run(capsys, command, "--help")
    assert code == 0
    assert f"usage: regard {command}" in out
    assert all(len(line) <= 80 for line in out.splitlines()[2:])  # the usage may be longer
    assert not any(odd in out for odd in ("default: )", "''", "False", "None", "--no-", "STR"))


def test_an_unknown_command_is_told_with_the_nearest(capsys):
    code, out, err = run(capsys, "trian")
    assert (code, out) == (2, "")
    assert "did you mean 'train'?" in err


def test_the_version_is_the_packages(capsys):
    assert run(capsys, "--version")[1] == f"regard {regard.__version__}\n"


def test_the_installed_module_runs_and_takes_no_memory_for_eight_billion_parameters():
    # Address space is limited to less than the weights would need, so making them would fail.
    code = (
        "import resource; limit = 12 * 2**30;"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit));"
        "from regard.cli import main; main(['describe', 'llama-3-8b'])"
    )
    environment = os.environ | {"COLUMNS": "200", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "8,030,261,248" in done.stdout


def test_full_memory_is_one_sentence_and_another_error_of_torch_is_not_hidden(capsys, monkeypatch):
    def fails(error):
        def run(self, console):
            raise error

        monkeypatch.setattr(COMMANDS["models"].load(), "run", run)
        main(["models"])

    with pytest.raises(SystemExit):
        fails(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."))
    assert capsys.readouterr().err.startswith("error: memory is full; ")
    with pytest.raises(RuntimeError, match="shapes"):
        fails(RuntimeError("shapes cannot be multiplied"))

"""What needs no model answers without torch: `--help`, `--version`, `recipes`, `runs`."""

import inspect
import subprocess
import sys

import pytest

from regard.cli import COMMANDS

HEAVY = ("torch", "numpy", "tokenizers", "matplotlib")
ASKED = (
    "import sys\n"
    "from regard.__main__ import main\n"
    "try:\n"
    "    main()\n"
    "finally:\n"
    "    sys.stderr.write('loaded ' + ' '.join(sys.modules))\n"
)


def loaded(*arguments: object) -> tuple[str, set[str]]:
    """What a command prints in a process of its own, and the modules there at its end."""
    words = [str(argument) for argument in arguments]
    done = subprocess.run(
        [sys.executable, "-c", ASKED, *words], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    _, _, names = done.stderr.partition("loaded ")
    return done.stdout, {*names.split()}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--help",), "usage: regard COMMAND"),
        (("help",), "usage: regard COMMAND"),
        (("--version",), "regard "),
        (("recipes",), "shakespeare-char"),
        (("recipes", "--settings"), "input_feeding = false"),
        (("recipes", "--help"), "usage: regard recipes"),
        (("runs", "--help"), "usage: regard runs"),
    ],
)
def test_what_needs_no_model_loads_no_torch(arguments, said):
    out, modules = loaded(*arguments)
    assert said in out
    assert not modules & {*HEAVY}


def test_real_runs_are_listed_without_torch(decoder, translator):
    out, modules = loaded("runs", decoder.parent, translator, "--json")
    assert str(decoder) in out
    assert str(translator) in out
    assert '"state": "finished"' in out
    assert not modules & {*HEAVY}


def test_the_help_of_a_command_imports_no_command_that_it_does_not_use():
    out, modules = loaded("score", "--help")
    assert "usage: regard score" in out
    assert "regard.commands.score" in modules
    assert not modules & {
        "regard.commands.compare",
        "regard.commands.train",
        "regard.runs.train_run",
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_of_commands_says_what_each_says_of_itself(name):
    command = COMMANDS[name].load()
    assert COMMANDS[name].about == inspect.getdoc(command).splitlines()[0]
    assert callable(command.run)

"""SIGTERM and SIGINT in each phase of `regard train`: it says so in a line, and all is whole.

The same command then ends as if nothing had been.
"""

import random
from pathlib import Path
from signal import SIGINT, SIGTERM

import pytest
from tiny_runs import left, made

from regard.runs.status import state
from regard.runs.stored_run import open_run
from regard.training.checkpoints.reading import Checkpoint, stored_steps

HOOKS = str(Path(__file__).with_name("hooks.py"))
LONG, PATIENCE = 40.0, 30.0  # seconds: what lasts longer than our patience has to be left
SHORT = 0.2  # what has to be whole is waited for
LOOP = "regard.training.loop:Loop"
PHASES = {
    "reading": {"where": "regard.families.tasks.text:gather", "seconds": LONG},
    # Called by the learner for each text that it takes.
    "learning tokens": {"where": "regard.text.learning:cut", "seconds": SHORT},
    "encoding": {"where": "regard.data.token_files:_Preparation._document", "seconds": SHORT},
    "caching": {"where": "regard.data.token_files:_Writer.add", "seconds": LONG},
    "beginning the folder": {"where": "regard.runs.stored_run:write_together", "seconds": LONG},
    "building": {"where": "regard.families.plan:build", "seconds": LONG},
    "compiling": {"seconds": LONG},
    "the first step": {"where": f"{LOOP}._gradients", "seconds": LONG},
    "the first update": {"where": "regard.training.loop:Optimizers.step", "seconds": SHORT},
    "a step": {"where": f"{LOOP}._gradients", "call": 3, "seconds": SHORT},
    "an update": {"where": "regard.training.loop:Optimizers.step", "call": 3, "seconds": SHORT},
    "validation": {"where": "regard.training.loop:measure", "seconds": LONG},
    "sampling": {"where": "regard.families.tasks.text:continued", "seconds": LONG},
    "saving": {"where": "regard.training.checkpoints.saving:write_safetensors", "seconds": SHORT},
    "choosing the weights": {"where": f"{LOOP}._choose", "seconds": SHORT},
    "the last scores": {
        "where": "regard.training.loop:measure",
        "behind": f"{LOOP}._choose",
        "seconds": LONG,
    },
    "writing the weights": {"where": "regard.runs.stored_run:write_tensors", "seconds": SHORT},
    "translating": {"where": "regard.families.tasks.pairs:translations", "seconds": LONG},
}
NOTHING_YET = list(PHASES)[:8]  # no step is done in these
WORDS = {SIGINT: "interrupted", SIGTERM: "terminated"}


def stopped(nursery, folder, command, given, setup="stopped"):
    """The same command with some signals; it must end by itself."""
    return nursery.run(folder, *command, hooks=HOOKS, setup=setup, given=given, after=PATIENCE)


def check_whole(run: Path) -> None:
    """All that a run's folder holds can be used, and nothing half-made is there."""
    for step in stored_steps(run):
        Checkpoint(run / "checkpoints" / str(step)).verify()
    open_run(run)
    assert not list(run.rglob(".*"))


@pytest.mark.parametrize("phase", PHASES)
def test_a_signal_in_any_phase_stops_what_the_same_command_then_ends(
    nursery, whole, phase, tmp_path
):
    kind = "pairs" if phase == "translating" else "text"
    expected, folder, run = whole(kind), tmp_path / "stopped", tmp_path / "stopped" / "run"
    command, setup = made(folder, kind), "stopped"
    if phase == "compiling":
        command += ["--set", "training.compile=yes"]
        setup = "stopped_while_compiling"
    for number in (SIGTERM, SIGINT):
        ended = stopped(nursery, folder, command, {**PHASES[phase], "signals": [number]}, setup)
        assert ended.code == 128 + number, ended.out
        assert "Traceback" not in ended.out
        last = ended.out.strip().splitlines()[-1]
        assert last.startswith(WORDS[number]), ended.out
        if phase in NOTHING_YET:
            assert not run.exists()
        else:
            check_whole(run)
            step = stored_steps(run)[-1]
            assert last.startswith(f"{WORDS[number]} at step {step};"), ended.out
            assert state(run).word == "interrupted"
    ended = stopped(nursery, folder, command, {**PHASES[phase], "signals": [], "seconds": 0}, setup)
    assert ended.code == 0, ended.out
    assert left(run) == expected.left


def test_in_the_background_of_a_script_ctrl_c_is_for_others_and_sigterm_stops_it(
    nursery, whole, tmp_path
):
    folder, run = tmp_path / "background", tmp_path / "background" / "run"
    command, setup = made(folder, "text"), "stopped_in_the_background"
    for signals, code in (([SIGINT, SIGTERM, SIGINT], 143), ([SIGINT, SIGINT], 0)):
        given = {**PHASES["a step"], "signals": signals}
        ended = stopped(nursery, folder, command, given, setup)
        assert ended.code == code, ended.out
        assert "interrupted" not in ended.out.splitlines()[-1]
        check_whole(run)
    assert left(run) == whole("text").left


@pytest.mark.parametrize("number", [SIGINT, SIGTERM])
def test_a_signal_while_standard_input_is_read(nursery, number, tmp_path):
    given = {"where": "regard.runs.data_names:spool", "seconds": LONG, "signals": [number]}
    ended = stopped(nursery, tmp_path, ["train", "-", "--out", "run"], given)
    assert ended.code == 128 + number, ended.out
    assert ended.out.split() == [WORDS[number]]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("first", [SIGINT, SIGTERM])
def test_a_second_ctrl_c_leaves_at_once_and_damages_nothing(nursery, whole, first, tmp_path):
    folder, run = tmp_path / "left", tmp_path / "left" / "run"
    command = made(folder, "text")
    given = {"signals": [first, SIGINT], "seconds": LONG}
    ended = stopped(nursery, folder, command, given, "stopped_while_saving")
    assert ended.code == 130, ended.out
    assert ended.out.splitlines()[-1] == "left at once; what was saved before is whole"
    assert stored_steps(run) == []  # it was the first one
    assert nursery.run(folder, *command).code == 0
    assert left(run) == whole("text").left


def test_a_second_sigterm_changes_nothing(nursery, whole, tmp_path):
    folder, run = tmp_path / "twice", tmp_path / "twice" / "run"
    command = made(folder, "text")
    given = {"signals": [SIGTERM, SIGTERM], "seconds": SHORT}
    ended = stopped(nursery, folder, command, given, "stopped_while_saving")
    assert ended.code == 143, ended.out
    assert stored_steps(run) == [3]
    check_whole(run)
    assert nursery.run(folder, *command).code == 0
    assert left(run) == whole("text").left


def test_what_was_saved_for_a_stop_is_not_among_the_weights_that_are_averaged(
    nursery, whole, tmp_path
):
    folder, run = tmp_path / "late", tmp_path / "late" / "run"
    command = made(folder, "text")
    given = {**PHASES["a step"], "call": 22, "signals": [SIGTERM]}
    assert stopped(nursery, folder, command, given).code == 143
    assert stored_steps(run)[-1] == 22
    assert nursery.run(folder, *command).code == 0
    assert left(run) == whole("text").left


@pytest.mark.parametrize("operation", [2, 3, 4])
def test_a_second_ctrl_c_while_a_new_folder_is_taken_away(nursery, whole, operation, tmp_path):
    folder = tmp_path / "new"
    command = made(folder, "text")
    given = {"where": "regard.families.base:Loop", "signals": [SIGINT], "again": operation}
    ended = stopped(nursery, folder, command, given)
    assert ended.code == 130, ended.out
    ended = nursery.run(folder, *command)
    assert ended.code == 0, ended.out
    assert left(folder / "run") == whole("text").left


@pytest.mark.parametrize("seed", range(3))
def test_a_signal_at_any_operation_on_a_file(nursery, whole, seed, tmp_path):
    rng = random.Random(seed)
    kind, number = ("text", "gaps", "pairs")[seed % 3], (SIGINT, SIGTERM)[seed % 2]
    expected, folder = whole(kind), tmp_path / "anywhere"
    command = made(folder, kind)
    for _ in range(2):
        at = rng.randint(1, expected.operations)
        ended = nursery.run(folder, *command, at=at, by=number)
        assert ended.code in (0, 128 + number), (at, ended.out)
        assert "Traceback" not in ended.out
    ended = nursery.run(folder, *command)
    assert ended.code == 0, ended.out
    assert left(folder / "run") == expected.left

"""A loss or a gradient that is no number: left out, stepped back from, or stopped at, as set."""

import json
import math
from pathlib import Path
from signal import SIGTERM

import pytest
from tiny_runs import KINDS, OTHERS, left, made

from regard.storage import event_log
from regard.training.checkpoints.reading import Checkpoint, stored_steps

HOOKS = str(Path(__file__).with_name("hooks.py"))
STEP = 13  # its number, from 0 on; there is a checkpoint at 12


def trained(nursery, folder, command, **given):
    """A run with some faults."""
    given = {"steps": [STEP], "value": "nan", **given}
    return nursery.run(folder, *command, hooks=HOOKS, setup="faulty", given=given)


def told(run: Path, event: str) -> list[dict]:
    return [found for found in event_log.read(run) if found["event"] == event]


def check_finite(run: Path) -> None:
    """No checkpoint has what is no number, nor was one ever the best."""
    for step in stored_steps(run):
        stored = Checkpoint(run / "checkpoints" / str(step))
        stored.verify()
        for kind in ("model", "optimizer"):
            for name in stored.names(kind):
                assert stored.pieces[kind].read(name).isfinite().all(), name
    for validation in told(run, "validation"):
        figure = validation.get("loss", validation.get("bleu"))  # of captions
        assert not validation["best"] or math.isfinite(figure)


@pytest.fixture(scope="module")
def unbroken(nursery, tmp_path_factory):
    """What runs with faults left that nobody killed, by what they do about them."""
    runs: dict[str, Path] = {}

    def of(on_fault: str) -> Path:
        if on_fault not in runs:
            folder = tmp_path_factory.mktemp("faulty") / on_fault
            ended = trained(nursery, folder, commanded(folder, on_fault))
            assert ended.code == 0, ended.out
            runs[on_fault] = folder / "run"
        return runs[on_fault]

    return of


def commanded(folder: Path, on_fault: str, *more: str) -> list[str]:
    return [*made(folder, "text"), "--set", f"training.on_fault={on_fault}", *more]


# Left out


def test_a_step_without_a_number_is_left_out_and_counted(unbroken, whole):
    run = unbroken("skip")
    (fault,) = told(run, "fault")
    assert (fault["first"], fault["not_finite"], fault["spikes"]) == (STEP + 1, 1, 0)
    assert fault["message"] == f"the loss is nan at step {STEP + 1}"
    assert [step["step"] for step in told(run, "step") if math.isnan(step["loss"])] == [STEP + 1]
    check_finite(run)
    found, plain = left(run), whole("text").left
    assert found["orders"] == plain["orders"]
    assert found["weights"] != plain["weights"]


def test_a_gradient_without_a_number_is_left_out_though_the_loss_has_one(nursery, tmp_path):
    folder = tmp_path / "gradient"
    command = commanded(folder, "skip")
    ended = trained(nursery, folder, command, value="gradient", steps=[5, 6, STEP])
    assert ended.code == 0, ended.out
    faults = told(folder / "run", "fault")
    assert [fault["not_finite"] for fault in faults] == [1, 2, 3]
    assert faults[-1]["message"] == f"the gradient is nan at step {STEP + 1}"
    check_finite(folder / "run")


def test_steps_that_are_left_out_one_after_the_other_end_the_run(nursery, tmp_path):
    folder = tmp_path / "endless"
    ended = trained(nursery, folder, commanded(folder, "skip"), steps=list(range(2, 100)))
    assert ended.code == 2, ended.out
    assert "and 20 steps in a row were left out" in ended.out.splitlines()[-1]
    check_finite(folder / "run")


def test_a_loss_that_leaps_is_left_out_and_counted(nursery, tmp_path):
    folder = tmp_path / "spike"
    command = commanded(folder, "skip", "training.spike=6", "training.steps=44")
    command[command.index("--steps") + 1] = "44"
    ended = trained(nursery, folder, command, value="50", steps=[40])
    assert ended.code == 0, ended.out
    (fault,) = told(folder / "run", "fault")
    assert (fault["first"], fault["not_finite"], fault["spikes"]) == (41, 0, 1)
    check_finite(folder / "run")


# Stepped back from


def test_a_run_steps_back_and_takes_the_data_in_another_order(unbroken, whole):
    run = unbroken("back")
    (fault,), (back,) = told(run, "fault"), told(run, "back")
    assert (fault["first"], fault["not_finite"]) == (STEP + 1, 1)
    assert (back["to"], back["turn"]) == (12, 1)
    check_finite(run)
    found, plain = left(run), whole("text").left
    alike = [step for step, order in plain["orders"].items() if found["orders"][step] == order]
    assert alike == list(range(1, 13))


def test_a_run_that_steps_back_too_often_ends(nursery, tmp_path):
    folder = tmp_path / "endless"
    ended = trained(nursery, folder, commanded(folder, "back"), turns=9)
    assert ended.code == 2, ended.out
    assert "training has stepped back 5 times" in ended.out.splitlines()[-1]
    assert [back["turn"] for back in told(folder / "run", "back")] == [1, 2, 3, 4, 5]
    check_finite(folder / "run")


KILLS = {
    "back, before a step of the new order": {"step": 12, "turn": 1},
    "back, before the next checkpoint": {"step": 15, "turn": 1},
    "back, behind the next checkpoint": {"step": 17, "turn": 1},
    "skip": {"step": 14},
}


@pytest.mark.parametrize("how", KILLS)
def test_a_faulty_run_that_is_killed_ends_as_if_it_had_not(nursery, unbroken, how, tmp_path):
    on_fault = how.partition(",")[0]
    folder, run = tmp_path / "killed", tmp_path / "killed" / "run"
    command = commanded(folder, on_fault)
    ended = trained(nursery, folder, command, hook="killed", given=KILLS[how])
    assert ended.code == -9, ended.out
    ended = trained(nursery, folder, command)
    assert ended.code == 0, ended.out
    assert left(run) == left(unbroken(on_fault))


FAMILIES = [kind for kind in KINDS | OTHERS if kind != "text"]


@pytest.mark.parametrize("kind", FAMILIES)
def test_each_family_steps_back_and_ends_the_same_when_it_is_killed_there(nursery, kind, tmp_path):
    found = []
    for kills in (False, True):
        folder = tmp_path / str(kills)
        command = [*made(folder, kind), "--set", "training.on_fault=back"]
        if kills:
            how = {"hook": "killed", "given": {"step": STEP, "turn": 1}}
            assert trained(nursery, folder, command, value="inf", **how).code == -9
            assert stored_steps(folder / "run")[-1] == 12  # which knows of no step back
        ended = trained(nursery, folder, command, value="inf")
        assert ended.code == 0, ended.out
        run = folder / "run"
        (back,) = told(run, "back")
        assert (back["step"], back["to"], back["turn"]) == (STEP + 1, 12, 1)
        assert [step["step"] for step in told(run, "step")] == [*range(1, 15), *range(13, 25)]
        check_finite(run)
        found.append(left(run))
    unbroken, killed = found
    assert killed == unbroken


# Stopped at


def test_a_run_that_stops_says_why_and_can_go_on_from_before(nursery, whole, tmp_path):
    folder, run = tmp_path / "stopped", tmp_path / "stopped" / "run"
    command = commanded(folder, "stop")
    ended = trained(nursery, folder, command)
    assert ended.code == 2, ended.out
    assert "Traceback" not in ended.out
    assert f"error: the loss is nan at step {STEP + 1};" in ended.out.splitlines()[-1]
    assert told(run, "fault")[0]["not_finite"] == 1
    assert stored_steps(run)[-1] == 12
    check_finite(run)
    ended = nursery.run(folder, *command)  # with what was wrong put right
    assert ended.code == 0, ended.out
    assert left(run) == whole("text").left


@pytest.mark.parametrize("on_fault", ["skip", "back"])
def test_a_run_that_stopped_goes_on_with_another_on_fault(nursery, unbroken, on_fault, tmp_path):
    """Though `skip` is the usual one, which need not be said."""
    folder = tmp_path / "stopped"
    command = commanded(folder, "stop")
    assert trained(nursery, folder, command).code == 2
    ended = trained(nursery, folder, [*command, f"training.on_fault={on_fault}"])
    assert ended.code == 0, ended.out
    assert left(folder / "run") == left(unbroken(on_fault))


@pytest.mark.parametrize("on_fault", ["back", "stop"])
def test_a_signal_behind_a_fault_that_nobody_has_seen_yet(
    nursery, unbroken, whole, on_fault, tmp_path
):
    folder, run = tmp_path / "both", tmp_path / "both" / "run"
    command = commanded(folder, on_fault, "training.log_every=50")
    stop = {"where": "regard.training.loop:Loop._gradients", "signals": [SIGTERM], "call": STEP + 2}
    ended = trained(nursery, folder, command, hook="stopped", given=stop)
    assert ended.code in (143, 2), ended.out
    check_finite(run)
    if on_fault == "back":
        ended = trained(nursery, folder, command)
        expected = left(unbroken("back"))
    else:
        ended = nursery.run(folder, *command)
        expected = whole("text").left
    assert ended.code == 0, ended.out
    found = left(run)
    for name in ("model.safetensors", "optimizer.safetensors", "weights", "order", "validations"):
        assert found[name] == expected[name], name


# Validation


def test_a_validation_without_a_number_is_not_the_best(nursery, whole, tmp_path):
    folder, run = tmp_path / "valid", tmp_path / "valid" / "run"
    command = made(folder, "text")
    ended = nursery.run(folder, *command, hooks=HOOKS, setup="faulty_validation", given=1)
    assert ended.code == 0, ended.out
    first, *others = told(run, "validation")
    assert math.isnan(first["loss"])
    assert not first["best"]
    assert all(other["best"] for other in others)
    assert left(run)["weights"] == whole("text").left["weights"]
    assert json.loads((run / "log.jsonl").read_text().splitlines()[-1])["best_step"] == 24

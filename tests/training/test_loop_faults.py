"""Numbers that go wrong in a run: left out, stepped back from, or the end of it."""

import math
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_jobs import Made, Poisoned, Stopping, by_hand, job_of, model_of, ready_of, weights_of

from regard.data.batch import Batch
from regard.errors import RegardError
from regard.metrics.scores import Scores
from regard.training.checkpoints.reading import sound
from regard.training.job import Job
from regard.training.loop import MOST_SKIPPED, MOST_TURNS, Loop
from regard.training.optimization import faults
from regard.training.optimization.averaging import mean

FEED = Made("causal")
WHAT = ("loss", "gradient", "spike")
WORDS = {"loss": "the loss is nan", "gradient": "the gradient is nan", "spike": "the loss leaps to"}
MUON = {"kind": "muon", "muon_peak": 0.02}


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    """A loss can be a spike after three good ones."""
    monkeypatch.setattr(faults, "WARM", 3)


def at(*steps: int, feed: Made = FEED) -> Callable[[Batch], bool]:
    """Whether a batch is that of one of these steps (from 1) of this very feed."""
    first = {int(feed.step(step - 1).examples[0]) for step in steps}
    return lambda batch: int(batch.examples[0]) in first


def from_on(step: int) -> Callable[[Batch], bool]:
    """Whether a batch is of this step (from 1) or a later one, in whatever order."""
    return lambda batch: int(batch.examples[0]) // 100 % 1000 >= step - 1


def faulty(folder: Path, on_fault: str, seed: int = 0, **more) -> Job:
    """Parts are whole steps; a loss far above those before is a spike."""
    usual = {"rows": 100, "steps": 8, "checkpoint_every": 3, "validate_every": 100, "spike": 40.0}
    module = model_of("causal", seed)
    job = job_of(folder, feed=FEED, module=module, on_fault=on_fault, **{**usual, **more})
    return replace(job, found=sound(folder)[0])


def run(job: Job, what: str, when: Callable[[Batch], bool]):
    loop = Loop(job)
    loop.step.answer = Poisoned(loop.step.answer, what, when)
    return loop, loop.run()


def stepped(job: Job, batches: Sequence[tuple[int, Batch]]) -> dict[str, torch.Tensor]:
    """The weights after some steps of a loop, taken by hand."""
    loop = Loop(job)
    loop.job.module.train()
    for number, batch in batches:
        loop._step(number, ready_of(batch))
    loop.checkpoints.close()
    return weights_of(job.module)


def same(one: dict, other: dict) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


def saved(folder: Path) -> list[int]:
    """The steps of the checkpoints, all of which are whole and finite."""
    found, damaged = sound(folder)
    assert not damaged
    for one in found:
        for pieces in one.pieces.values():
            tensors = [pieces.read(name) for name in pieces.names() if name != "faults/state"]
            assert all(torch.isfinite(tensor).all() for tensor in tensors)
    return [one.place.step for one in found]


# Left out


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("log_every", [1, 100])
def test_a_step_that_is_left_out_is_counted_and_changes_nothing(tmp_path, what, log_every):
    job = faulty(tmp_path / "a", "skip", log_every=log_every)
    _, outcome = run(job, what, at(5))
    assert (outcome.reason, outcome.step) == ("finished", 8)
    batches = [(step, FEED.step(step)) for step in range(8)]
    others = [batch for batch in batches if batch[0] != 4]
    assert same(weights_of(job.module), stepped(faulty(tmp_path / "b", "skip"), others))
    assert not same(weights_of(job.module), stepped(faulty(tmp_path / "c", "skip"), batches))
    (fault,) = job.sink.of("fault")
    assert fault["step"] == (5 if log_every == 1 else 6)  # at the next line, or before saving
    assert fault["first"] == 5
    assert (fault["not_finite"], fault["spikes"]) == ((0, 1) if what == "spike" else (1, 0))
    assert fault["message"].startswith(WORDS[what])
    assert fault["message"].endswith(" at step 5")
    assert saved(tmp_path / "a") == [8]


def test_what_is_left_is_plain_training_without_that_step(tmp_path):
    job = faulty(tmp_path, "skip")
    run(job, "gradient", at(5))
    _, weights = by_hand(job, 8, left_out=[4])
    _, all_of_them = by_hand(job, 8)
    for name, weight in job.module.named_parameters():
        torch.testing.assert_close(weight, weights[name], rtol=1e-3, atol=2e-4, msg=name)
    assert any(
        not torch.allclose(weight, all_of_them[name], rtol=1e-3, atol=2e-4)
        for name, weight in job.module.named_parameters()
    )


@pytest.mark.parametrize("optimizer", [{}, MUON])
def test_what_optimizers_remember_does_not_move_either(tmp_path, optimizer):
    job = faulty(tmp_path, "skip", optimizer=optimizer)
    loop = Loop(job)
    for step in range(3):
        loop._step(step, ready_of(FEED.step(step)))
    before = {name: tensor.clone() for name, tensor in loop.optimizers.tensors().items()}
    weights = weights_of(job.module)
    loop.step.answer = Poisoned(loop.step.answer, "gradient", lambda batch: True)
    loop._step(3, ready_of(FEED.step(3)))
    loop.checkpoints.close()
    assert loop.done == 4
    assert same(weights_of(job.module), weights)
    assert same(loop.optimizers.tensors(), before)
    assert {name for name in before if name.endswith(("/step", "/momentum"))}


def test_faults_that_are_many_but_not_in_a_row_are_all_left_out(tmp_path):
    odd = range(1, 50, 2)
    job = faulty(tmp_path, "skip", steps=50, checkpoint_every=50)
    _, outcome = run(job, "loss", at(*odd))
    assert outcome.reason == "finished"
    told = job.sink.of("fault")
    assert [event["first"] for event in told] == list(odd)
    assert [event["not_finite"] for event in told] == list(range(1, 26))


@pytest.mark.parametrize(("log_every", "first", "found"), [(1, 27, 27), (7, 26, 28)])
def test_too_many_in_a_row_end_a_run(tmp_path, log_every, first, found):
    """From step 8 on; looked at each step, or at those that are logged or saved."""
    job = faulty(tmp_path, "skip", steps=60, checkpoint_every=5, log_every=log_every)
    words = f"the loss is nan at step {first} and {found - 7} steps in a row were left out; lower"
    with pytest.raises(RegardError, match=words):
        run(job, "loss", from_on(8))
    last = job.sink.of("fault")[-1]
    assert (last["step"], last["first"], last["not_finite"]) == (found, first, found - 7)
    assert found - 7 >= MOST_SKIPPED
    assert saved(tmp_path) == [25]  # with the weights of step 7


# Stepped back from


def turned(at_step: int, turn: int, steps: int) -> list[tuple[int, Batch]]:
    """The steps of a run whose data takes a turn behind a step."""
    feeds = [FEED if step < at_step else FEED.turned(turn) for step in range(steps)]
    return [(step, feed.step(step)) for step, feed in enumerate(feeds)]


@pytest.mark.parametrize(
    ("what", "step", "back"),
    [(what, *steps) for what in WHAT for steps in ((5, 3), (6, 3), (7, 6))]
    + [("loss", 2, 0), ("gradient", 2, 0)],  # nothing is a spike so early
)
def test_it_steps_back_to_the_last_checkpoint_and_goes_another_way(tmp_path, what, step, back):
    job = faulty(tmp_path / "a", "back")
    loop, outcome = run(job, what, at(step))
    assert (outcome.reason, outcome.step) == ("finished", 8)
    (event,) = job.sink.of("back")
    assert (event["step"], event["to"], event["turn"]) == (step, back, 1)
    assert event["message"] == f"back to step {back}, and on with the data in another order"
    names = [e["event"] for e in job.sink.events]
    assert names[names.index("back") - 1] == "fault"
    assert job.sink.of("fault")[0]["message"].startswith(WORDS[what])
    expected = stepped(faulty(tmp_path / "b", "back"), turned(back, 1, 8))
    assert same(weights_of(job.module), expected)
    assert loop.place.turn == sound(tmp_path / "a")[0][-1].place.turn == 1
    again = [e["step"] for e in job.sink.of("step")]
    assert again == [*range(1, step + 1), *range(back + 1, 9)]
    assert saved(tmp_path / "a") == [8]


def test_it_uses_another_order_each_time(tmp_path):
    job = faulty(tmp_path, "back")
    wrong = at(5), at(5, feed=FEED.turned(1)), at(4, feed=FEED.turned(2))
    loop, outcome = run(job, "loss", lambda batch: any(poison(batch) for poison in wrong))
    assert outcome.reason == "finished"
    assert [event["turn"] for event in job.sink.of("back")] == [1, 2, 3]
    assert [event["step"] for event in job.sink.of("back")] == [5, 5, 4]
    assert [event["not_finite"] for event in job.sink.of("fault")] == [1, 2, 3]
    orders = {}
    for event in job.sink.of("step"):
        orders.setdefault(event["step"], set()).add(event["order"])
    assert {step: len(found) for step, found in orders.items()} == {
        **dict.fromkeys((1, 2, 3), 1),
        4: 4,
        5: 3,
        **dict.fromkeys((6, 7, 8), 1),
    }
    assert loop.place.turn == 3


def test_what_goes_wrong_in_every_order_ends_a_run(tmp_path):
    job = faulty(tmp_path, "back")
    words = (
        f"at step 5 and training has stepped back {MOST_TURNS} times; lower optimizer.learning_rate"
    )
    with pytest.raises(RegardError, match=words):
        run(job, "gradient", from_on(5))
    assert [event["to"] for event in job.sink.of("back")] == [3] * MOST_TURNS
    assert [event["turn"] for event in job.sink.of("back")] == list(range(1, MOST_TURNS + 1))
    assert job.sink.of("fault")[-1]["not_finite"] == MOST_TURNS + 1
    assert saved(tmp_path) == [3]


@pytest.mark.parametrize("step", [1, 4])
def test_it_steps_back_no_less_far_because_it_was_interrupted(tmp_path, step):
    """Whose checkpoint, of step 1 or 4, is nearer than the one to step back to, of 0 or 3."""
    whole = faulty(tmp_path / "whole", "back", average=2)
    run(whole, "loss", at(step + 1))
    job = faulty(tmp_path / "broken", "back", average=2)
    job = replace(job, sink=Stopping(job.stop, "step", step))
    assert run(job, "loss", at(step + 1))[1].reason == "interrupted"
    assert step in saved(tmp_path / "broken")
    last = faulty(tmp_path / "broken", "back", seed=1, average=2)
    run(last, "loss", at(step + 1))
    assert [event["to"] for event in last.sink.of("back")] == [step - 1]
    assert same(weights_of(last.module), weights_of(whole.module))


def test_the_weights_of_the_beginning_are_none_to_average(tmp_path):
    job = faulty(tmp_path, "back", average=5)
    run(job, "loss", at(5))
    kept = [one for one in sound(tmp_path)[0] if one.place.step]
    assert [one.place.step for one in kept] == [3, 6, 8]
    expected = mean([one.weights() for one in kept])
    assert same(weights_of(job.module), expected)


def flip(path: Path) -> None:
    """As a disk does now and then."""
    content = bytearray(path.read_bytes())
    content[-9] ^= 0x40
    path.write_bytes(content)


@pytest.mark.parametrize("kind", ["model", "optimizer"])
@pytest.mark.parametrize(("read", "step"), [("to step back", 5), ("to average", 8)])
def test_a_checkpoint_damaged_since_it_was_written_is_not_gone_on_with(tmp_path, kind, read, step):
    """The last one before a step, which is a fault or the last of all."""
    how = {"checkpoint_every": 1, "average": 2 * (read == "to average")}
    loop, now = Loop(faulty(tmp_path, "back", **how)), at(step)
    damaged = tmp_path / "checkpoints" / str(step - 1)

    def when(batch: Batch) -> bool:
        if now(batch):
            loop.checkpoints.wait()
            flip(damaged / f"{kind}.safetensors")
        return now(batch) and read == "to step back"

    loop.step.answer = Poisoned(loop.step.answer, "loss", when)
    words = f"{kind}.safetensors.*; the same command puts it aside, and goes on from the checkpoint"
    with pytest.raises(RegardError, match=words):
        loop.run()
    again = faulty(tmp_path, "back", seed=1, **how)
    assert damaged.with_suffix(".damaged").is_dir()
    assert Loop(again).run().reason == "finished"


def alike(last: Job, whole: Job) -> bool:
    one, other = (sound(job.folder)[0][-1].place for job in (last, whole))
    assert replace(one, seconds=0, log=0) == replace(other, seconds=0, log=0)
    return same(weights_of(last.module), weights_of(whole.module))


def test_interrupted_behind_a_fault_that_nobody_has_seen_it_goes_on_from_before_it(tmp_path):
    how = {"log_every": 4}  # the fault of step 5 is seen at step 8
    whole = faulty(tmp_path / "whole", "back", steps=9, checkpoint_every=8, **how)
    run(whole, "loss", at(5))
    job = faulty(tmp_path / "broken", "back", steps=9, checkpoint_every=8, **how)
    poison, leave = at(5), at(7)

    def when(batch: Batch) -> bool:
        if leave(batch):
            job.stop.heard(signal.SIGTERM)
        return poison(batch)

    assert run(job, "loss", when)[1].reason == "interrupted"
    assert saved(tmp_path / "broken") == [0]
    last = faulty(tmp_path / "broken", "back", seed=1, steps=9, checkpoint_every=8, **how)
    run(last, "loss", at(5))
    assert alike(last, whole)


class GoneError(Exception):
    """Ends a run as a kill would."""


@pytest.mark.parametrize("killed", [True, False])
def test_broken_off_behind_a_step_back_it_goes_on_the_other_way(tmp_path, killed):
    whole = faulty(tmp_path / "whole", "back")
    run(whole, "loss", at(5))
    job = faulty(tmp_path / "broken", "back")
    poison, leave = at(5), at(5, feed=FEED.turned(1))

    def when(batch: Batch) -> bool:
        if leave(batch) and killed:
            raise GoneError
        if leave(batch):
            job.stop.heard(signal.SIGTERM)
        return poison(batch)

    if killed:
        with pytest.raises(GoneError):
            run(job, "loss", when)
        assert saved(tmp_path / "broken") == [3]  # which knows of no step back
    else:
        assert run(job, "loss", when)[1].reason == "interrupted"
        assert saved(tmp_path / "broken") == [3, 5]
    last = faulty(tmp_path / "broken", "back", seed=1)
    run(last, "loss", at(5))
    assert [event["turn"] for event in last.sink.of("back")] == [1] * killed
    assert alike(last, whole)


# The end


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("log_every", [1, 100])  # found in a report, or before saving
def test_it_ends_a_run_in_one_sentence_and_what_was_saved_stays(tmp_path, what, log_every):
    settings = {"checkpoint_every": 1, "validate_every": 50, "log_every": log_every}
    job = faulty(tmp_path, "stop", steps=20, **settings)
    words = rf"{WORDS[what]}.* at step 5; lower optimizer.learning_rate .*or go on from"
    with pytest.raises(RegardError, match=words) as told:
        run(job, what, at(5))
    assert str(tmp_path) in str(told.value)
    assert saved(tmp_path) == [4]
    assert [event["first"] for event in job.sink.of("fault")] == [5]
    if log_every == 1:
        figures = job.sink.of("step")[-1]
        assert math.isnan(figures["loss"])  # of the updates that were made: none
        assert math.isnan(figures["gradient_norm"]) == (what != "spike")
    with pytest.raises(RegardError, match=words):  # it is the same each time
        run(faulty(tmp_path, "stop", seed=1, steps=20, **settings), what, at(5))


def test_until_somebody_looks_no_update_is_made_behind_a_fault(tmp_path):
    job = faulty(tmp_path / "a", "stop", log_every=100, checkpoint_every=100, steps=100)
    loop = Loop(job)
    loop.step.answer = Poisoned(loop.step.answer, "loss", at(5))
    for step in range(9):
        loop._step(step, ready_of(FEED.step(step)))
    loop.checkpoints.close()
    expected = stepped(faulty(tmp_path / "b", "stop"), turned(9, 1, 4))
    assert same(weights_of(job.module), expected)


# Never into what is kept


def test_a_validation_that_is_not_a_number_is_never_the_best(tmp_path):
    job = faulty(tmp_path, "skip", patience=5)
    loop = Loop(job)
    assert not loop._judge(Scores(math.nan, math.nan, 10))
    assert (loop.place.best_loss, loop.place.best_step, loop.place.waited) == (math.inf, 0, 1)
    assert loop._judge(Scores(2.0, 7.4, 10))
    assert not loop._judge(Scores(math.nan, math.nan, 10))
    assert not loop._judge(Scores(math.inf, math.inf, 10))
    assert (loop.place.best_loss, loop.place.waited) == (2.0, 2)
    assert [event["best"] for event in job.sink.of("validation")] == [False, True, False, False]
    loop.checkpoints.close()


@pytest.mark.parametrize("on_fault", ["skip", "back", "stop"])
def test_weights_that_are_not_finite_are_never_saved(tmp_path, on_fault):
    """Whatever made them so: here a bit that flipped in memory."""
    job = faulty(tmp_path, on_fault)
    loop = Loop(job)
    step, flips = loop._step, iter([4])

    def flipped(number, ready):
        step(number, ready)
        if number == 4 and next(flips, 0):
            with torch.no_grad():
                next(job.module.parameters()).view(-1)[3] = math.inf

    loop._step = flipped
    if on_fault == "back":  # the loss that follows is no number, and the checkpoint before is good
        assert loop.run().reason == "finished"
        assert saved(tmp_path) == [8]
        return
    with pytest.raises(RegardError, match=r"finite at step 6|is nan at step 6"):
        loop.run()
    assert saved(tmp_path) == [3]


@pytest.mark.parametrize("on_fault", ["skip", "back"])
def test_a_fault_at_a_validation_leaves_the_best_good(tmp_path, on_fault):
    job = faulty(tmp_path, on_fault, validate_every=4, log_every=100)
    _, outcome = run(job, "gradient", at(4))
    validations = job.sink.of("validation")
    assert [event["step"] for event in validations] == [4, 8]
    assert all(math.isfinite(event["loss"]) for event in validations)
    assert outcome.best_step in saved(tmp_path)
    assert math.isfinite(outcome.best_loss)
    assert all(torch.isfinite(weight).all() for weight in job.module.parameters())

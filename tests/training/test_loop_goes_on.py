"""A run that was broken off goes on from its checkpoint as if nothing had happened, to the bit."""

import hashlib
import shutil
import signal
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

import pytest
import torch
from tiny_jobs import (
    KINDS,
    Around,
    Heard,
    Made,
    Stopping,
    Worsening,
    job_of,
    model_of,
    trained,
    weights_of,
)

from regard.data.feeds.pair_batches import PairBatches
from regard.data.feeds.stream import MaskedTextFeed, TextFeed
from regard.data.readers.pairs import Pair, encode_pairs
from regard.data.readers.texts import gather
from regard.data.token_files import prepare
from regard.errors import RegardError
from regard.text.learning import learn
from regard.training.checkpoints.reading import Checkpoint, sound
from regard.training.loop import Loop
from regard.training.optimization.averaging import mean
from regard.training.signals import Stop


def left(folder: Path, module: torch.nn.Module) -> dict[str, object]:
    """All that two runs must have alike: the last checkpoint, and the weights that were chosen."""
    last = sound(folder)[0][-1]
    tensors = {
        f"{kind} {name}": pieces.read(name).clone()
        for kind, pieces in last.pieces.items()
        for name in pieces.names()
    }
    chosen = {f"chosen {name}": weight for name, weight in weights_of(module).items()}
    return {**tensors, **chosen, "place": replace(last.place, seconds=0, log=0)}


def assert_alike(one: dict[str, object], other: dict[str, object]) -> None:
    assert one["place"] == other["place"]
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        if isinstance(tensor, torch.Tensor):
            assert tensor.dtype == other[name].dtype
            assert torch.equal(tensor, other[name]), name


class CrashError(Exception):
    """Ends a run as a kill would: nothing is saved."""


class Crashing(Heard):
    """A sink that breaks when an event is told of a step."""

    def __init__(self, kind: str, step: int) -> None:
        super().__init__()
        self.at = kind, step

    def write(self, event):
        super().write(event)
        if (event["event"], event["step"]) == self.at:
            raise CrashError


def told(*jobs) -> dict[tuple[str, int], object]:
    """What jobs logged of each step, the last word counting: losses, orders and validations."""
    found = {}
    for job in jobs:
        for event in job.sink.events:
            if event["event"] in ("step", "validation"):
                figures = (event["loss"], event.get("order"), event.get("best"))
                found[event["event"], event["step"]] = figures
    return found


@dataclass
class Broken:
    """A job that is broken off and gone on with, each time with weights that were drawn anew."""

    folder: Path
    kind: str = "causal"
    changes: dict[str, object] | None = None  # of the model
    settings: dict[str, object] | None = None

    def job(self, seed: int = 0):
        module = model_of(self.kind, seed, **(self.changes or {}))
        job = job_of(self.folder, self.kind, module=module, **(self.settings or {}))
        return replace(job, found=sound(self.folder)[0])

    def whole(self):
        """From the first step to the last; the job."""
        job = self.job()
        trained(job)
        return job

    def stopped(self, kind: str, step: int, seed: int = 0):
        """Somebody asks to stop when an event of a step is told."""
        job = self.job(seed)
        job = replace(job, sink=Stopping(job.stop, kind, step))
        assert trained(job)[1].reason == "interrupted"
        return job

    def killed(self, kind: str, step: int, seed: int = 0):
        job = replace(self.job(seed), sink=Crashing(kind, step))
        with pytest.raises(CrashError):
            trained(job)
        return job


ADAMW, MUON = {"kind": "adamw"}, {"kind": "muon", "muon_peak": 0.02}
SETTINGS = {
    "plain": {},
    "mean": {"ema": 0.9},
    "muon": {"optimizer": MUON},
    "muon, mean": {"optimizer": MUON, "ema": 0.9},
    "mean, halves": {"ema": 0.9, "precision": "bf16-weights"},
    "muon, halves": {"optimizer": MUON, "precision": "bf16-weights"},
    "average, spikes": {"average": 2, "spike": 6.0},
}


SOME = ("mean", "muon", "muon, halves")  # for all kinds of models; one goes through them all


@pytest.mark.parametrize(
    ("kind", "name"),
    [("causal", name) for name in SETTINGS]
    + [(kind, name) for kind in ("masked", "pairs") for name in SOME],
)
def test_wherever_it_is_broken_off_it_ends_as_if_it_had_not_been(tmp_path, kind, name):
    """With accumulation and dropout throughout; broken off again and again, in two ways."""
    how = {"rows": 2, "steps": 7, "checkpoint_every": 3, "validate_every": 2, **SETTINGS[name]}
    changes = {"dropout": 0.2, "attention_dropout": 0.2}
    unbroken = Broken(tmp_path / "whole", kind, changes, how)
    whole = unbroken.whole()
    expected = left(unbroken.folder, whole.module)
    broken = Broken(tmp_path / "broken", kind, changes, how)
    first = broken.stopped("step", 1)
    assert sound(broken.folder)[0][-1].place.step == 1
    second = broken.killed("step", 5, seed=1)
    assert sound(broken.folder)[0][-1].place.step == 4  # the best so far
    third = broken.stopped("step", 6, seed=2)
    last = broken.job(seed=3)
    trained(last)
    assert_alike(left(broken.folder, last.module), expected)
    assert told(first, second, third, last) == told(whole)


@pytest.mark.parametrize("step", range(1, 7))
def test_it_may_be_broken_off_behind_every_step(tmp_path, step):
    how = {"ema": 0.5, "steps": 6, "validate_every": 2, "checkpoint_every": 3}
    whole = Broken(tmp_path / "whole", settings=how).whole()
    broken = Broken(tmp_path / "broken", settings=how)
    first = broken.stopped("step", step)
    last = broken.job(seed=1)
    assert last.found[-1].place.step == step
    trained(last)
    assert_alike(left(broken.folder, last.module), left(tmp_path / "whole", whole.module))
    assert told(first, last) == told(whole)


# At a validation


@dataclass(frozen=True)
class Leaving(Around):
    """A feed during whose n-th validation somebody asks to stop."""

    stop: Stop | None = None
    asked: list[int] | None = None
    at: int = 2

    def held_out(self, rows: int):
        self.asked.append(rows)
        for number, batch in enumerate(self.feed.held_out(rows)):
            if number == 1 and len(self.asked) == self.at:
                self.stop.heard(signal.SIGTERM)
            yield batch


def leave_before(job):
    return replace(job, sink=Stopping(job.stop, "step", 4))


def leave_within(job):
    return replace(job, feed=Leaving(job.feed, job.stop, []))


def leave_behind(job):
    asked = iter((0, signal.SIGTERM, 0))

    def sample():
        if number := next(asked):
            job.stop.heard(number)
        return {}

    return replace(job, sample=sample)


@pytest.mark.parametrize("best", [True, False])
@pytest.mark.parametrize("leave", [leave_before, leave_within, leave_behind])
@pytest.mark.parametrize("ema", [0.0, 0.5])
def test_it_may_be_broken_off_at_a_validation(tmp_path, leave, best, ema):
    """Before, in and behind the validation of step 4, which is no checkpoint's unless it is best;
    what is validated later, and when patience ends, depends on each of them."""
    feed = Made("causal") if best else Worsening(Made("causal"), 2)
    how = {"validate_every": 2, "checkpoint_every": 3, "sample_every": 2, "ema": ema}
    how |= {"steps": 30, "patience": 3, "optimizer": {"peak": 2e-2 if best else 1e-2}, "rows": 2}
    how |= {"schedule": {"kind": "plateau", "cut": 0.5}}  # which has to remember its cuts

    def job(folder: Path, seed: int = 0):
        made = job_of(folder, feed=feed, module=model_of("causal", seed), **how)
        return replace(made, found=sound(folder)[0], sample=dict)

    whole, first = job(tmp_path / "whole"), leave(job(tmp_path / "broken"))
    outcome = trained(whole)[1]
    assert outcome.reason == "stopped early"
    assert (outcome.best_step >= 4) == best
    assert (trained(first)[1].reason, first.stop.asked) == ("interrupted", signal.SIGTERM)
    stored = Checkpoint(tmp_path / "broken" / "checkpoints" / "4").place
    assert stored.due == (leave is not leave_behind)
    assert stored.regular == (leave is leave_behind and best)
    assert stored.waited == (leave is leave_behind and not best)
    assert {event["step"] for event in first.sink.of("validation")} == (
        {2, 4} if leave is leave_behind else {2}
    )
    last = job(tmp_path / "broken", seed=1)
    ended = trained(last)[1]
    assert (ended.reason, ended.step) == (outcome.reason, outcome.step)
    assert (ended.best_step, ended.best_loss) == (outcome.best_step, outcome.best_loss)
    assert_alike(left(tmp_path / "broken", last.module), left(tmp_path / "whole", whole.module))
    assert told(first, last) == told(whole)


def test_asked_to_stop_in_its_last_evaluation_it_has_only_that_to_do(tmp_path):
    broken = Broken(tmp_path, settings={"validate_every": 6, "checkpoint_every": 6, "rows": 2})
    job = broken.job()
    job = replace(job, feed=Leaving(job.feed, job.stop, []))  # of step 6, then of what is chosen
    outcome = trained(job)[1]
    assert (outcome.reason, outcome.step, outcome.scores) == ("interrupted", 6, None)
    last = broken.job(seed=1)
    ended = trained(last)[1]
    assert (ended.reason, ended.step) == ("finished", 6)
    assert ended.scores.loss == pytest.approx(job.sink.of("validation")[0]["loss"], rel=1e-6)
    assert not last.sink.of("step")
    assert not last.sink.of("validation")


# What is remembered from before


def test_patience_that_was_over_when_a_run_was_killed_is_over_when_it_goes_on(tmp_path):
    how = {"validate_every": 1, "checkpoint_every": 1, "steps": 60, "patience": 2}
    how |= {"feed": Worsening(Made("causal"), 3), "optimizer": {"peak": 1e-2}}
    broken = Broken(tmp_path, settings=how)
    job = broken.job()
    outcome = trained(job)[1]  # and killed before it could say so
    assert outcome.reason == "stopped early"
    last = broken.job(seed=1)
    again = trained(last)[1]
    assert (again.reason, again.step, again.best_step) == (
        "stopped early",
        outcome.step,
        outcome.best_step,
    )
    assert not last.sink.of("step")
    assert_alike(left(tmp_path, last.module), left(tmp_path, job.module))


def test_with_more_steps_patience_begins_anew(tmp_path):
    how = {"validate_every": 1, "checkpoint_every": 1, "patience": 2, "optimizer": {"peak": 1e-2}}
    feed = Worsening(Made("causal"), 3)

    def job(steps: int):
        made = job_of(tmp_path, feed=feed, steps=steps, **how)
        about = {"settings": made.settings.tables()}
        return replace(made, about=about, found=sound(tmp_path)[0])

    before = trained(job(60))[1]
    assert before.reason == "stopped early"
    more = job(61)
    after = trained(more)[1]
    assert after.step == before.step + 2 == after.best_step + 4
    assert after.reason == "stopped early"


def test_the_best_weights_survive(tmp_path):
    how = {"feed": Worsening(Made("causal"), 4), "steps": 12, "optimizer": {"peak": 1e-2}}
    whole = Broken(tmp_path / "whole", settings=how).whole()
    broken = Broken(tmp_path / "broken", settings=how)
    first = broken.stopped("step", 9)
    last = broken.job(seed=1)
    outcome = trained(last)[1]
    assert 0 < outcome.best_step < 9
    assert_alike(left(broken.folder, last.module), left(tmp_path / "whole", whole.module))
    assert told(first, last) == told(whole)
    kept = Checkpoint(broken.folder / "checkpoints" / str(outcome.best_step)).weights()
    assert all(torch.equal(weight, kept[n]) for n, weight in weights_of(last.module).items())


def test_a_best_checkpoint_that_is_gone_makes_room_for_a_later_one(tmp_path):
    how = {"feed": Worsening(Made("causal"), 4), "steps": 12, "optimizer": {"peak": 1e-2}}
    broken = Broken(tmp_path, settings=how)
    broken.stopped("step", 9)
    best = sound(tmp_path)[0][-1].place.best_step
    assert best < 9
    shutil.rmtree(tmp_path / "checkpoints" / str(best))
    last = broken.job(seed=1)
    outcome = trained(last)[1]
    assert outcome.best_step == 10
    kept = Checkpoint(tmp_path / "checkpoints" / "10").weights()
    assert all(torch.equal(weight, kept[n]) for n, weight in weights_of(last.module).items())


def test_the_checkpoint_of_an_interruption_is_none_to_average(tmp_path):
    how = {"average": 3, "steps": 8, "checkpoint_every": 2, "validate_every": 20}
    whole = Broken(tmp_path / "whole", settings=how).whole()
    broken = Broken(tmp_path / "broken", settings=how)
    first = broken.stopped("step", 7)
    steps = {int(path.name) for path in (broken.folder / "checkpoints").iterdir()}
    assert steps == {2, 4, 6, 7}
    kept = [Checkpoint(broken.folder / "checkpoints" / str(s)).weights() for s in (2, 4, 6)]
    chosen = mean([dict(weights) for weights in kept])
    assert all(torch.equal(weight, chosen[n]) for n, weight in weights_of(first.module).items())
    last = broken.job(seed=1)
    trained(last)
    assert_alike(left(broken.folder, last.module), left(tmp_path / "whole", whole.module))
    steps = {int(path.name) for path in (broken.folder / "checkpoints").iterdir()}
    assert steps == {4, 6, 8}  # and that of the interruption is gone


def test_what_was_counted_goes_on(tmp_path):
    broken = Broken(tmp_path, settings={"steps": 6})
    first = broken.stopped("step", 3)
    last = broken.job(seed=1)
    before = last.found[-1].place.seconds
    loop, outcome = trained(last)
    tokens = [event["tokens"] for job in (first, last) for event in job.sink.of("step")]
    assert tokens == list(accumulate(Made("causal").step(step).real_tokens for step in range(6)))
    times = [event["time"] for job in (first, last) for event in job.sink.of("step")]
    assert times == sorted(times)
    assert outcome.seconds > loop.place.seconds > before > 0


# The order of examples


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    (folder / "text.txt").write_text("the cat sat on the mat and the dog sat on the cat. " * 20)
    found = gather([str(folder / "text.txt")])
    tokenizer = learn("char", found.texts("train"))
    return prepare(found, tokenizer, cache=folder / "cache"), tokenizer


def feed_of(kind: str, texts):
    """A feed of each kind, of which a few steps are more than an epoch."""
    parts, tokenizer = texts
    if kind == "pairs":
        words = [f"the {noun} sat" for noun in ("cat", "dog", "mat")] * 4
        pairs = encode_pairs([Pair(w, w[::-1]) for w in words], tokenizer, tokenizer)
        return PairBatches(pairs, pairs, 60), len(tokenizer)
    shape = parts["train"], parts["valid"], 24, 16
    if kind == "causal":
        return TextFeed(*shape), len(tokenizer)
    return MaskedTextFeed(*shape, vocabulary=len(tokenizer)), len(tokenizer)


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_is_the_chain_of_all_examples_so_far(tmp_path, texts, kind):
    feed, vocabulary = feed_of(kind, texts)
    assert feed.epoch(5) > 1.1
    how = {"feed": feed, "steps": 6, "rows": 3}
    broken = Broken(tmp_path, kind, {"vocabulary": vocabulary}, how)
    jobs = [broken.stopped("step", 3), broken.job(seed=1)]
    trained(jobs[1])
    chain, expected = "", []
    for step in range(6):
        ids = b"".join(int(e).to_bytes(8, "little", signed=True) for e in feed.step(step).examples)
        chain = hashlib.blake2b(chain.encode() + ids, digest_size=8).hexdigest()
        expected.append(chain)
    assert [event["order"] for job in jobs for event in job.sink.of("step")] == expected
    assert sound(tmp_path)[0][-1].place.order == chain


def test_the_order_does_not_depend_on_how_a_step_is_cut(tmp_path):
    orders = []
    for rows in (1, 100):
        job = job_of(tmp_path / str(rows), rows=rows, steps=2)
        trained(job)
        orders.append([event["order"] for event in job.sink.of("step")])
    assert orders[0] == orders[1]
    assert len(set(orders[0])) == 2


def test_another_job_than_a_checkpoints_is_told_what_does_not_fit(tmp_path):
    Broken(tmp_path).stopped("step", 2)
    wider = Broken(tmp_path, changes={"width": 32}).job()
    with pytest.raises(RegardError, match=r"has shape \(.*16.*\) in .*2, but \(.*32.*\) is needed"):
        Loop(wider)
    other = Broken(tmp_path, settings={"optimizer": MUON}).job()
    with pytest.raises(RegardError, match=r"does not fit.*optimizer\.kind"):
        Loop(other)
    mean = Broken(tmp_path, settings={"ema": 0.5}).job()
    with pytest.raises(RegardError, match="holds no tensor"):
        Loop(mean)

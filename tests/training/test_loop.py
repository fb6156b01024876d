"""The training loop against a few lines that do the same by hand, and how it ends."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from tiny_jobs import (
    KINDS,
    Around,
    Made,
    Worsening,
    batch_of,
    by_hand,
    job_of,
    model_of,
    ready_of,
    trained,
    weights_of,
)

from regard.data.batch import Batch
from regard.data.feeds.stream import MaskedTextFeed, TextFeed
from regard.data.readers.texts import gather
from regard.data.token_files import prepare
from regard.errors import RegardError
from regard.storage.tensors import TensorFolder
from regard.text.learning import learn
from regard.training.checkpoints.reading import Checkpoint
from regard.training.loop import Loop
from regard.training.objectives import objective_for
from regard.training.optimization.averaging import mean
from regard.training.optimization.schedules import factor


def losses(job) -> list[float]:
    return [event["loss"] for event in job.sink.of("step")]


def same(one: dict, other: dict) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


@pytest.mark.parametrize("rows", [1, 4, 6, 100])  # smaller and larger than a step's six
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_is_plain_training_on_whole_batches_however_they_are_cut(tmp_path, kind, rows):
    feed = Made(kind, held=0)
    job = job_of(tmp_path, kind, feed=feed, rows=rows, label_smoothing=0.1)
    trained(job)
    wanted, weights = by_hand(job, 6)
    assert losses(job) == pytest.approx(wanted, rel=1e-4)
    for name, weight in job.module.named_parameters():
        torch.testing.assert_close(weight, weights[name], rtol=1e-3, atol=2e-4, msg=name)


def test_the_same_seed_gives_the_same_losses_to_the_bit_and_another_does_not(tmp_path):
    found = []
    for number, seed in enumerate((1, 1, 2)):
        module = model_of("causal", dropout=0.2)
        feed = Made("causal")  # the same data for all: what differs is dropout
        job = job_of(tmp_path / str(number), feed=feed, module=module, seed=seed)
        trained(job)
        found.append(losses(job))
    assert found[0] == found[1]
    assert found[0][0] != found[2][0]


def test_dropout_follows_from_seed_and_step_alone(tmp_path):
    def first_loss(seed: int, step: int, before: int) -> float:
        module = model_of("causal", dropout=0.3)
        loop = Loop(job_of(tmp_path, module=module, seed=seed, steps=100))
        torch.manual_seed(before)  # whatever was drawn before
        torch.rand(before)
        batch = batch_of("causal")
        return loop._gradients(step, ready_of(batch)).item()

    assert first_loss(1, 7, before=3) == first_loss(1, 7, before=50)
    assert len({first_loss(1, 7, 0), first_loss(1, 8, 0), first_loss(2, 7, 0)}) == 3


def test_the_running_mean_is_what_is_validated_saved_and_kept(tmp_path):
    job = job_of(tmp_path, ema=0.5, steps=6, keep=10, schedule={"decay": 0.0})
    loop = Loop(job)
    weights, means = weights_of(job.module), [weights_of(job.module)]
    step = loop._step

    def watched(number, *given):
        found = step(number, *given)
        decay = min(0.5, (1 + number) / (10 + number))
        now = weights_of(job.module)
        means.append({n: decay * means[-1][n] + (1 - decay) * now[n] for n in now})
        return found

    loop._step = watched
    outcome = loop.run()
    assert outcome.best_step in (2, 4, 6)
    for at in (2, 4, 6):
        for name, saved in loop.checkpoints.open(at).weights().items():
            torch.testing.assert_close(saved, means[at][name], rtol=1e-5, atol=1e-6)
    held = weights_of(job.module)
    assert same(held, dict(loop.checkpoints.open(outcome.best_step).weights()))
    assert not same(held, weights)
    told = {event["step"]: event["loss"] for event in job.sink.of("validation")}
    assert outcome.scores.loss == pytest.approx(told[outcome.best_step], rel=1e-6)


def test_the_best_weights_are_kept_when_later_ones_are_worse(tmp_path):
    job = job_of(tmp_path, feed=Worsening(Made("causal"), 6), steps=14, optimizer={"peak": 1e-2})
    _, outcome = trained(job)
    told = {event["step"]: event["loss"] for event in job.sink.of("validation")}
    best = min(told, key=told.get)
    assert outcome.reason == "finished"
    assert outcome.step == 14
    assert 0 < best < 14
    assert (outcome.best_step, outcome.best_loss) == (best, told[best])
    assert same(weights_of(job.module), dict(TensorFolder(tmp_path / "checkpoints" / str(best))))
    assert outcome.scores.loss == pytest.approx(told[best], rel=1e-6)
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == sorted([str(best), "14"])
    flags = {event["step"]: event["best"] for event in job.sink.of("validation")}
    lowest = math.inf
    for step, value in told.items():
        assert flags[step] == (value < lowest)
        lowest = min(lowest, value)


def test_patience_ends_a_run_after_so_many_validations_without_a_new_best(tmp_path):
    job = job_of(
        tmp_path,
        feed=Worsening(Made("causal"), 4),
        steps=60,
        patience=3,
        validate_every=1,
        optimizer={"peak": 1e-2},
    )
    loop, outcome = trained(job)
    loop.ended(outcome)
    assert outcome.reason == "stopped early"
    assert outcome.step == outcome.best_step + 3 < 60
    assert job.sink.of("end")[0]["reason"] == "stopped early"
    assert losses(job)[-1] == job.sink.of("step")[outcome.step - 1]["loss"]


def test_on_a_plateau_the_rate_is_cut_behind_each_validation_without_a_new_best(tmp_path):
    job = job_of(
        tmp_path,
        feed=Worsening(Made("causal"), 4),
        steps=12,
        validate_every=2,
        optimizer={"peak": 1e-2},
        schedule={"kind": "plateau", "cut": 0.25},
    )
    trained(job)
    worse = [event["step"] for event in job.sink.of("validation") if not event["best"]]
    assert 2 <= len(worse) < 6
    for event in job.sink.of("step"):
        cuts = sum(step < event["step"] for step in worse)
        assert event["learning_rate"] == pytest.approx(1e-2 * 0.25**cuts)


def test_without_a_held_out_part_patience_waits_for_nothing_and_the_last_weights_stay(tmp_path):
    job = job_of(tmp_path, feed=Made("causal", held=0), patience=1)
    _, outcome = trained(job)
    assert (outcome.reason, outcome.step, outcome.best_step) == ("finished", 6, 0)
    assert outcome.scores.tokens == 0
    assert not job.sink.of("validation")
    assert same(weights_of(job.module), dict(TensorFolder(tmp_path / "checkpoints" / "6")))


def test_averaging_keeps_the_mean_of_the_last_checkpoints(tmp_path):
    job = job_of(tmp_path, average=3, steps=7, checkpoint_every=1)
    loop, outcome = trained(job)
    assert {5, 6, 7} <= {int(path.name) for path in (tmp_path / "checkpoints").iterdir()}
    wanted = mean([dict(loop.checkpoints.open(step).weights()) for step in (5, 6, 7)])
    assert same(weights_of(job.module), wanted)
    assert not same(wanted, dict(loop.checkpoints.open(7).weights()))
    assert outcome.scores.tokens > 0


@dataclass(frozen=True)
class Breaking(Around):
    """A feed that breaks at a step."""

    at: int = 0
    error: type[BaseException] = KeyboardInterrupt

    def step(self, step: int) -> Batch:
        if step == self.at:
            raise self.error
        return super().step(step)


def test_an_interruption_keeps_what_was_learned_by_the_last_whole_step(tmp_path):
    job = job_of(tmp_path, steps=50, validate_every=50, checkpoint_every=50)
    loop, kept = Loop(job), []
    step = loop._step

    def interrupted(number, *given):
        kept.append(weights_of(job.module))
        if number == 5:
            raise KeyboardInterrupt
        return step(number, *given)

    loop._step = interrupted
    outcome = loop.run()
    assert (outcome.reason, outcome.step, outcome.scores) == ("interrupted", 5, None)
    assert same(weights_of(job.module), kept[-1])
    assert same(dict(TensorFolder(tmp_path / "checkpoints" / "5")), kept[-1])
    place = Checkpoint(tmp_path / "checkpoints" / "5").place
    assert (place.step, place.regular, place.due) == (5, False, False)
    loop.ended(outcome)
    assert job.sink.of("end")[0]["reason"] == "interrupted"


def test_an_interrupted_run_has_its_best_weights_if_it_validated(tmp_path):
    job = job_of(tmp_path, feed=Breaking(Made("causal"), 5), steps=50)
    _, outcome = trained(job)
    assert (outcome.reason, outcome.step, outcome.best_step) == ("interrupted", 5, 4)
    assert same(weights_of(job.module), dict(TensorFolder(tmp_path / "checkpoints" / "4")))
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["4", "5"]


def test_interrupted_before_its_first_step_a_run_leaves_nothing(tmp_path):
    job = job_of(tmp_path, feed=Breaking(Made("causal"), 0))
    before = weights_of(job.module)
    _, outcome = trained(job)
    assert (outcome.reason, outcome.step) == ("interrupted", 0)
    assert not (tmp_path / "checkpoints").exists()
    assert same(weights_of(job.module), before)


def test_what_goes_wrong_with_the_data_is_heard(tmp_path):
    with pytest.raises(LookupError):
        trained(job_of(tmp_path, feed=Breaking(Made("causal"), 3, LookupError)))
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"2"}


def test_samples_are_drawn_at_rest_and_training_goes_on_as_without_them(tmp_path):
    found = []
    for number, every in enumerate((-1, 2)):
        module = model_of("causal", dropout=0.2)
        job = job_of(tmp_path / str(number), module=module, sample_every=every)

        def sample(module=module):
            torch.rand(7)
            return {"text": str(module.training)}

        trained(replace(job, sample=sample))
        assert [event["step"] for event in job.sink.of("sample")] == (
            [] if every < 0 else [2, 4, 6]
        )
        found.append(losses(job))
    assert found[0] == found[1]


def test_a_sample_that_cannot_be_written_is_a_warning_and_training_goes_on(tmp_path):
    def sample():
        raise RegardError("there is nothing to say")

    job = replace(job_of(tmp_path, sample_every=2), sample=sample)
    _, outcome = trained(job)
    assert outcome.reason == "finished"
    assert [(event["step"], event["message"]) for event in job.sink.of("warning")] == [
        (step, "no sample could be written: there is nothing to say") for step in (2, 4, 6)
    ]


@pytest.mark.parametrize("ema", [0.0, 0.5])
def test_validation_leaves_the_module_as_it_was(tmp_path, ema):
    module = model_of("causal", dropout=0.3)
    job = job_of(tmp_path, module=module, ema=ema, steps=100)
    loop = Loop(job)
    module.train()
    loop._step(0, ready_of(batch_of("causal")))
    before = weights_of(module)
    loop.place = replace(loop.place, step=2, due=True)
    loop._pause()
    loop.checkpoints.close()
    assert [event["step"] for event in job.sink.of("validation")] == [2]
    assert module.training
    assert same(weights_of(module), before)


def test_recomputing_activations_trains_alike(tmp_path):
    found = []
    for again in (False, True):
        module = model_of("pairs", dropout=0.3)
        job = job_of(tmp_path / str(again), "pairs", module=module, recompute=again)
        trained(job)
        found.append(losses(job))
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_events_say_what_happened(tmp_path):
    job = job_of(tmp_path, steps=10, log_every=4, validate_every=5, checkpoint_every=3)
    loop, outcome = trained(job)
    loop.ended(outcome)
    steps = job.sink.of("step")
    assert [event["step"] for event in steps] == [4, 8, 10]
    assert [event["step"] for event in job.sink.of("validation")] == [5, 10]
    saved = {event["step"] for event in job.sink.of("checkpoint")}
    assert {3, 6, 9, 10} <= saved <= {3, 5, 6, 9, 10}
    valid = [Made("causal").step(step).valid for step in range(10)]
    assert [event["tokens"] for event in steps] == [sum(valid[:4]), sum(valid[:8]), sum(valid)]
    rates = [3e-3 * factor(job.settings.schedule, step - 1, 10) for step in (4, 8, 10)]
    assert [event["learning_rate"] for event in steps] == pytest.approx(rates)
    assert steps[-1]["seconds_left"] == 0
    assert all(0 < event["padding"] < 1 for event in steps)
    assert [event["event"] for event in job.sink.events][-1] == "end"
    assert outcome.seconds > 0


def test_a_logged_loss_is_the_mean_over_all_targets_since_the_last(tmp_path):
    often, seldom = job_of(tmp_path / "a", log_every=1), job_of(tmp_path / "b", log_every=3)
    trained(often)
    trained(seldom)
    valid = [Made("causal").step(step).valid for step in range(6)]
    sums = [loss * count for loss, count in zip(losses(often), valid, strict=True)]
    wanted = [sum(sums[:3]) / sum(valid[:3]), sum(sums[3:]) / sum(valid[3:])]
    assert losses(seldom) == pytest.approx(wanted, rel=1e-5)


@pytest.fixture
def tokens(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("the cat sat on the mat and the dog sat on the cat. " * 40)
    texts = gather([str(tmp_path / "text.txt")])
    tokenizer = learn("char", texts.texts("train"))
    return prepare(texts, tokenizer), len(tokenizer)


@pytest.mark.parametrize("isolate", [False, True])
def test_bert_learns_from_a_stream_though_its_pooler_gets_no_gradient(tmp_path, tokens, isolate):
    parts, vocabulary = tokens
    feed = MaskedTextFeed(
        parts["train"],
        parts["valid"],
        24,
        16,
        document_mask=isolate,
        vocabulary=vocabulary,
        share=0.2,
    )
    module = model_of("masked", vocabulary=vocabulary)
    pooler = module.pooler.weight.detach().clone()
    settings = {"steps": 40, "rows": 8, "validate_every": 10, "checkpoint_every": 20}
    job = job_of(tmp_path, "masked", feed=feed, module=module, **settings)
    loop, _ = trained(job)
    told = [event["loss"] for event in job.sink.of("validation")]
    assert told[-1] < told[0] - 0.1
    assert 0 < job.sink.of("validation")[-1]["accuracy"] <= 1
    assert torch.equal(module.pooler.weight, pooler)
    assert "pooler.weight" in loop.checkpoints.open(40).weights()


@pytest.mark.parametrize("optimizer", [{"kind": "adamw"}, {"kind": "muon", "muon_peak": 0.02}])
def test_a_decoder_learns_from_a_stream(tmp_path, tokens, optimizer):
    parts, vocabulary = tokens
    feed = TextFeed(parts["train"], parts["valid"], 24, 16)
    module = model_of("causal", vocabulary=vocabulary)
    job = job_of(tmp_path, feed=feed, module=module, steps=60, rows=16, optimizer=optimizer)
    _, outcome = trained(job)
    assert outcome.best_loss < 0.8 * losses(job)[0]
    assert objective_for(module.config, "text").name == "causal"

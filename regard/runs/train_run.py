"""Carrying out a plan: the run's folder, the loop, the weights to keep and their figures."""

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from regard.errors import RegardError
from regard.families.plan import Plan
from regard.families.registry import family_of
from regard.metrics.scores import Scores
from regard.models.construction import build
from regard.models.network import BaseModel
from regard.runs import stored_run
from regard.runs.forecast import StepForecast, crowded, forecast, products_of, warned
from regard.runs.resume_or_new import check_free
from regard.runs.resuming import begun, check_begun, check_place, to_go_on_from
from regard.runs.run_folder import check_links, clear, followed, is_run
from regard.runs.tensorboard import TENSORBOARD, TensorBoard
from regard.runs.view.live import view
from regard.runs.word_vectors import start_with
from regard.storage import sweep
from regard.storage.event_log import Log, Sink, Sinks
from regard.storage.lock import Lock, signature
from regard.storage.status_file import StatusFile
from regard.training.checkpoints.reading import Checkpoint, Place, sound, stored_steps
from regard.training.distributed.joining import unmet
from regard.training.distributed.processes import ALONE, Processes
from regard.training.job import Job, Outcome, Trainer
from regard.training.memory.check import enough
from regard.training.signals import Stop, StoppedError
from regard.training.throughput import NO_PEAK, Products, peak

LATE = 60.0  # seconds until network file systems show a new file to those who had looked for it


def train_run(
    made: Plan,
    folder: Path,
    console: Console,
    *,
    asked: Mapping[str, Any] | None = None,
    stop: Stop | None = None,
    processes: Processes = ALONE,
) -> tuple[Outcome, Scores | None]:
    """Train a new run, or go on in its folder if it was begun; how it went, and the figures.

    `asked` is what the settings were before all was decided.
    """
    if made.unfit:
        raise RegardError(made.unfit)
    folder = followed(folder)
    check_links(folder)
    run = begun(folder) if processes.first else None
    if processes.first and run is None:
        check_free(folder)
    if processes.first:
        sweep(folder.parent)
    there = folder.is_dir()
    lock = Lock(folder)
    with _alone(lock, processes), _kept_if_begun(lock, there, processes) as loops:
        _check_shared(folder, processes)
        average = bool(made.settings.training.average)
        found, notes = _found(folder, processes, average)
        about = _about(made, processes)
        start = found[-1].place if found else Place()
        if found:
            check_place(found[-1], about)
        elif run:
            check_begun(run, about)
        if run:  # before run.toml has more steps than the run whose end the log tells
            Log(folder, start.log).close()
        if processes.first:
            lock.check()
            tokenizers = list(made.tokenizers)
            stored_run.write_run(folder, made.settings, made.config, tokenizers, made.digest, asked)
        with enough(made.device):
            module = made.module()
        named, news = made.settings.training.vectors, ""
        if named and not found:
            news = start_with(module, made.tokenizers[0], named)
        sink = Sinks([])
        try:
            if processes.first:
                sink.sinks += _listening(made, folder, console, start)
            products = products_of(made) if processes.first else None
            job = replace(
                _job(made, module, folder, sink, products),
                processes=processes,
                stop=stop or Stop(),
                about=about,
                found=found,
                lock=lock if processes.first else lock.seen(),
            )
            _tell_start(job, made, start, notes, again=run is not None)
            told = forecast(made, processes.count) if processes.first else None
            for event in (told.event(), warned(made, told), crowded(told)) if told else ():
                if event:
                    job.sink.write({**event, "step": start.step, "time": start.seconds})
            if news:
                job.sink.write({"event": "vectors", "step": 0, "time": 0.0, "message": news})
            loop = family_of(made.config).trainer(job, made)
            loops.append(loop)
            with enough(made.device):
                return _trained(loop, made, told)
        except RegardError as error:
            with suppress(RegardError):  # it may be the log that cannot be written
                event = {"event": "end", "step": loops[0].done if loops else start.step}
                sink.write({**event, "reason": "failed", "message": str(error)})
            raise
        finally:
            sink.close()


def _about(made: Plan, processes: Processes) -> dict[str, Any]:
    """What a checkpoint is tied to, as JSON gives it back."""
    spelled = stored_run.spelled_out(made.settings.model, made.config)
    settings = replace(made.settings, model=spelled)
    about = {
        "settings": settings.tables(),
        "data": made.digest,
        "tokenizers": [tokenizer.fingerprint for tokenizer in made.tokenizers],
        "processes": processes.count,
    }
    return dict(json.loads(json.dumps(about)))


def _trained(loop: Trainer, made: Plan, told: StepForecast | None) -> tuple[Outcome, Scores | None]:
    """Run a loop to its end, write the weights it chose, and measure them."""
    outcome = loop.run()
    scores = None
    with loop.job.stop.noted():
        weights = loop.final()
        if outcome.step and loop.processes.first:
            if loop.job.lock is not None:
                loop.job.lock.check()
            stored_run.write_weights(loop.job.folder, weights)
            try:
                with loop.job.stop.at_once():
                    scores = _final(made, loop, weights, outcome)
            except StoppedError:
                outcome = replace(outcome, reason="interrupted")
        measured = told.beside(loop) if told else None
        _tell_failed(loop.job, made, outcome)
        if measured:
            place = {"step": outcome.step, "time": round(outcome.seconds, 3)}
            loop.job.sink.write({**measured, **place})
        loop.ended(outcome)
    return outcome, scores


def _tell_failed(job: Job, made: Plan, outcome: Outcome) -> None:
    """What could not be read while training, if anything."""
    if said := family_of(made.config).work(made.config).failures(made):
        place = {"step": outcome.step, "time": round(outcome.seconds, 3)}
        job.sink.write({"event": "warning", **place, "message": said})


@contextmanager
def told_by_one() -> Iterator[list[Processes]]:
    """Of many processes with the same trouble, or one that was killed, one tells it.

    Gives a list that takes the processes once they have met.
    """
    met: list[Processes] = []
    try:
        yield met
    except (Exception, StoppedError) as error:
        processes = met[-1] if met else unmet()
        lost = processes.lost(error)
        if not processes.one_speaks() and (lost or isinstance(error, RegardError | StoppedError)):
            sys.exit(128 + error.number if isinstance(error, StoppedError) else 2)
        if lost:
            raise processes.loss(error) from None
        raise


def _alone(lock: Lock, processes: Processes) -> AbstractContextManager[Any]:
    return lock if processes.first else nullcontext()


def _check_shared(folder: Path, processes: Processes) -> None:
    """Refuse to begin where some process does not see the folder that the first one has locked."""
    locked = processes.said(signature(folder))
    end = time.monotonic() + LATE
    while signature(folder) != locked and time.monotonic() < end:
        time.sleep(0.1)
    processes.agreement(signature(folder), f"files in {folder}")


def _found(folder: Path, processes: Processes, average: bool) -> tuple[list[Checkpoint], list[str]]:
    """The checkpoints to go on from; the first process looks whether they are whole."""
    notes: list[str] = []
    if processes.first:
        found, notes = sound(folder)
    steps = json.loads(processes.said(json.dumps(stored_steps(folder))))
    if not processes.first:
        found = [Checkpoint(folder / "checkpoints" / str(step)) for step in steps]
    chosen = to_go_on_from(found, folder, average)
    if len(chosen) < len(found):
        notes.append(f"goes back to step {chosen[-1].place.step}, to make again what was damaged")
    return chosen, notes


@contextmanager
def _kept_if_begun(lock: Lock, there: bool, processes: Processes) -> Iterator[list[Trainer]]:
    """What a run wrote goes again if no step of its loop was done: the next try finds it free."""
    folder = lock.folder
    new = not is_run(folder)
    loops: list[Trainer] = []
    try:
        yield loops
    finally:
        started = any(loop.done for loop in loops)
        if new and processes.first and not started and lock.is_ours:
            clear(folder)
            if not there:
                with suppress(OSError):  # somebody put something into it
                    folder.rmdir()


def _listening(made: Plan, folder: Path, console: Console, start: Place) -> Iterator[Sink]:
    log = Log(folder, start.log)  # what was logged after the checkpoint will be logged again
    yield log
    yield StatusFile(log)
    if made.settings.training.tensorboard:
        yield TensorBoard(folder / TENSORBOARD, start.step)
    yield view(console, made.settings.training.log_every)  # the last one, which may be gone


def _job(
    made: Plan, module: BaseModel, folder: Path, sink: Sink, products: Products | None = None
) -> Job:
    family = family_of(made.config)
    work = family.work(made.config)
    return Job(
        module,
        made.objective,
        made.feed,
        made.settings,
        made.device,
        made.precision,
        made.compiled,
        peak(made.device, made.precision) if products else NO_PEAK,
        folder,
        sink,
        made.valid_bytes,
        work.sampler(made, module),
        family.recorder(made, module),
        work.judge_freely(made, module),
        products,
    )


def _tell_start(job: Job, made: Plan, start: Place, notes: Sequence[str], again: bool) -> None:
    """What is about to be trained, from where, and what was odd."""
    place = {"step": start.step, "time": start.seconds}
    job.sink.write({"event": "start", **place, **_described(job, made)})
    if again or notes:
        message = f"goes on from step {start.step:,}" if start.step else "starts from the beginning"
        job.sink.write({"event": "resume", **place, "message": message})
    for warning in [*notes, *(() if start.step else made.warnings)]:
        job.sink.write({"event": "warning", **place, "message": warning})


def _described(job: Job, made: Plan) -> dict[str, Any]:
    training = made.settings.training
    facts = {
        "run": str(job.folder),
        "model": made.settings.model.preset,
        "steps": training.steps,
        "device": str(made.device),
        "objective": made.objective.name,
        "train_tokens": made.train_tokens,
        "valid_tokens": made.valid_tokens,
        "processes": job.processes.count,
    }
    facts |= family_of(made.config).start_facts(made, job.module)
    return facts | ({"peak": job.peak.words()} if job.products else {})


def _final(
    made: Plan, loop: Trainer, weights: Mapping[str, Tensor], outcome: Outcome
) -> Scores | None:
    """The figures of the weights that are kept, over the held-out part; logged as `evaluation`."""
    scores = outcome.scores
    if scores is None or not scores.tokens:
        return None
    work = family_of(made.config).work(made.config)
    scores = work.finished(made, lambda: _whole(loop, weights), scores)
    place = {"step": outcome.step, "time": round(outcome.seconds, 3)}
    loop.job.sink.write({"event": "evaluation", **place, **scores.figures()})
    return scores


def _whole(loop: Trainer, weights: Mapping[str, Tensor]) -> BaseModel:
    """A module that one process can use by itself."""
    if not loop.sharded:
        return loop.job.module
    module = build(loop.job.module.config, loop.job.device)
    with torch.no_grad():
        for name, weight in module.named_parameters():
            weight.copy_(weights[name])
    return module

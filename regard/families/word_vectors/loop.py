"""The loop that makes word vectors (M2): no gradients are kept, the steps move the rows they touch.

Beside that it is as the other one: a step follows from the seed and its number, checkpoints hold
all there is, and a run that goes on does what it would have done.
"""

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.data.feeds.phrases import Ids, Joined
from regard.data.feeds.stream import TextFeed
from regard.errors import RegardError
from regard.families.word_vectors.steps import VectorSteps
from regard.families.word_vectors.walk import Walk
from regard.models.kernels.threads import one_thread
from regard.models.word_vectors.model import WordVectors
from regard.storage.event_log import LOG
from regard.storage.tensors import is_finite
from regard.training.checkpoints.reading import Checkpoint, Place
from regard.training.job import Job, Outcome
from regard.training.memory.allocator import keep_freed
from regard.training.meter import memory

STRETCH = 1 << 22  # tokens that are counted at once


class WordLoop:
    """Trains a job's word vectors; `run` does it all."""

    sharded = False

    def __init__(self, job: Job, words: Sequence[str]) -> None:
        """`words` spell the ids; those with a blank are phrases."""
        assert isinstance(job.module, WordVectors)
        assert isinstance(job.feed, TextFeed)
        if job.processes.count > 1:
            raise RegardError("one process makes word vectors; start it without torchrun")
        self.job, self.processes, self.settings = job, job.processes, job.settings.training
        self.module = job.module
        text = Joined(job.feed.train, words)
        self.steps = VectorSteps(
            self.module.config,
            text,
            counted(text, self.module.config.vocabulary),
            epochs=int(self.settings.epochs),
            seed=self.settings.seed,
            rate=job.settings.optimizer.learning_rate,
            device=job.device,
            piece=self.settings.tokens_per_step,
        )
        self.checkpoints = job.checkpoints(self.settings.keep)
        self.place, self.threads = Place(), torch.get_num_threads()
        if job.found:
            self._restore(job.found[-1])
        self.begin = time.perf_counter() - self.place.seconds
        self._forget()

    @property
    def done(self) -> int:
        """Steps behind us."""
        return self.place.step

    def run(self) -> Outcome:
        """Train until the steps are done, or somebody asks to stop."""
        self.checkpoints.clean()
        if self.job.device.type == "cpu":
            keep_freed()
        try:
            with self.job.stop.noted(), one_thread():
                reason = self._train()
                if reason == "interrupted" and self.done and self.done not in self._saved:
                    self._save(regular=False)
                self.checkpoints.wait()
        except BaseException:
            self.checkpoints.abandon()
            raise
        finally:
            self.checkpoints.close()
        seconds = time.perf_counter() - self.begin
        pace = self.place.tokens / max(seconds, 1e-9)
        return Outcome(reason, self.done, math.inf, 0, seconds, pace, None)

    def _train(self) -> str:
        last = self.settings.steps
        if self.done == last:
            return "finished"
        with closing(Walk(self.steps, self.module, self.done, last, self.threads)) as walk:
            return self._follow(walk)

    def _follow(self, walk: Walk) -> str:
        for learned in walk:
            self.loss += learned.loss
            self.predictions += learned.predictions
            step = self.done + 1
            self.place = replace(self.place, step=step, tokens=self._read(step))
            last = step == self.settings.steps
            if step % self.settings.log_every == 0 or last:
                self._report(step)
            if step % self.settings.checkpoint_every == 0 or last:
                walk.settle()
                self._save()
            if (
                self.job.sample
                and self.settings.sample_every > 0
                and (step % self.settings.sample_every == 0)
            ):
                walk.settle()
                event, values = self.job.sampled()
                self._tell(event, **values)
            if self.job.stop.asked is not None and not last:
                return "interrupted"
        return "finished"

    def _read(self, step: int) -> int:
        """Tokens of text behind us, the rare and the thinned ones too."""
        return self.steps.before(step)

    def _report(self, step: int) -> None:
        if not math.isfinite(self.loss):
            raise RegardError(
                f"the loss is {self.loss} at step {step}; lower optimizer.learning_rate"
            )
        seconds = max(time.perf_counter() - self.clock, 1e-9)
        left = (self.settings.steps - step) * seconds / max(step - self.reported, 1)
        self._tell(
            "step",
            loss=self.loss / self.predictions if self.predictions else math.nan,
            learning_rate=self.steps.rate(step - 1),
            tokens=self.place.tokens,
            tokens_per_second=(self.place.tokens - self._read(self.reported)) / seconds,
            epoch=round(step * self.settings.epochs / self.settings.steps, 4),
            memory=memory(self.job.device),
            seconds_left=left,
        )
        self.checkpoints.check()
        self._forget()

    def _forget(self) -> None:
        """Begin to count anew for the next report."""
        self.loss, self.predictions = 0.0, 0
        self.clock, self.reported = time.perf_counter(), self.done

    @property
    def _saved(self) -> list[int]:
        return self.checkpoints.steps

    def _weights(self) -> Mapping[str, Tensor]:
        return dict(self.module.named_parameters())

    def _save(self, regular: bool = True) -> None:
        if not all(map(is_finite, self._weights().values())):
            raise RegardError(
                f"word vectors are no longer finite at step {self.done}; lower "
                f"optimizer.learning_rate (the log and the checkpoints before it are in "
                f"{self.job.folder})"
            )
        self._tell("checkpoint", path=str(self.checkpoints.path(self.done)))
        log = self.job.folder / LOG
        size = log.stat().st_size if log.exists() else 0
        now = round(time.perf_counter() - self.begin, 3)
        place = replace(self.place, seconds=now, regular=regular, log=size)
        self.checkpoints.save(place, self._weights(), {})

    def _restore(self, stored: Checkpoint) -> None:
        stored.fill("model", self._weights())
        self.place = stored.place

    def final(self) -> dict[str, Tensor]:
        """Both layers."""
        return {name: weight.detach() for name, weight in self.module.named_parameters()}

    def ended(self, outcome: Outcome) -> None:
        """Tell that all is done: the last event of a run."""
        self._tell("end", **outcome.told())

    def _tell(self, event: str, **values: Any) -> None:
        now = round(time.perf_counter() - self.begin, 3)
        self.job.sink.write({"event": event, "step": self.done, "time": now, **values})


def counted(tokens: Ids, vocabulary: int) -> np.ndarray:
    """How often each id is there, (vocabulary,)."""
    found = np.zeros(vocabulary, np.int64)
    for start in range(0, len(tokens), STRETCH):
        found += np.bincount(tokens.read(start, start + STRETCH), minlength=vocabulary)
    return found

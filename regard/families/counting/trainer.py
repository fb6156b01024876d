"""Training without steps: an n-gram model counts its text once (M3, M4)."""

import math
import time
from typing import Any

import numpy as np
from torch import Tensor

from regard.data.feeds.stream import TextFeed
from regard.data.token_files import Tokens
from regard.errors import RegardError
from regard.metrics.scores import Scores
from regard.models.counting.estimate import Table, estimate
from regard.models.counting.model import NGram, tensors_of
from regard.text.specials import BOS, MASK, PAD
from regard.training.job import Job, Outcome
from regard.training.signals import StoppedError
from regard.training.validation import scores_of

STRETCH = 1 << 20  # tokens that are looked up at once


class Counting:
    """Counts what a job's text holds; `run` does it all."""

    sharded = False

    def __init__(self, job: Job) -> None:
        assert isinstance(job.module, NGram)
        assert isinstance(job.feed, TextFeed)
        if job.processes.count > 1:
            raise RegardError("one process counts; start it without torchrun")
        self.job, self.processes = job, job.processes
        self.module, self.feed = job.module, job.feed
        self.begin = time.perf_counter()
        self.done = 0

    def run(self) -> Outcome:
        """Count every length in turn, and measure the model; Ctrl-C leaves it at once."""
        try:
            with self.job.stop.at_once():
                self.module.counted = self._counted()
                self.done = self.module.table.order
                scores = measure_counts(self.module, self.feed.valid, self.job.valid_bytes)
        except StoppedError:
            self.done = 0
            return Outcome("interrupted", 0, math.inf, 0, self._seconds(), 0.0, None)
        self._told(self.module.table)
        if self.job.sample and self.job.settings.training.sample_every >= 0:
            event, values = self.job.sampled()
            self._tell(event, **values)
        best = scores.error if scores.tokens else math.inf
        seconds = self._seconds()
        pace = len(self.feed.train) / max(seconds, 1e-9)
        return Outcome("finished", self.done, best, self.done, seconds, pace, scores)

    def _counted(self) -> Table:
        config, train = self.module.config, self.feed.train
        return estimate(
            train,
            config.order,
            config.vocabulary,
            BOS,
            config.rule,
            prune=config.prune,
            never=(PAD, MASK),
            folder=self.job.folder,
        )

    def _told(self, table: Table) -> None:
        """How many n-grams there are, and where smoothing had to be made up."""
        self._tell("counted", message=table.counts())
        made_up = [str(n) for n, level in enumerate(table.levels, 1) if level.fallback]
        if made_up:
            self._tell(
                "warning",
                message=f"too few {', '.join(made_up)}-grams to work out what to discount; "
                "0.5, 1 and 1.5 are taken from counts of 1, 2 and more",
            )

    def final(self) -> dict[str, Tensor]:
        """The table's arrays by name."""
        return {} if self.module.counted is None else tensors_of(self.module.counted)

    def ended(self, outcome: Outcome) -> None:
        """Tell that all is done: the last event of a run."""
        self._tell("end", **outcome.told())

    def _seconds(self) -> float:
        return time.perf_counter() - self.begin

    def _tell(self, event: str, **values: Any) -> None:
        place = {"step": self.done, "time": round(self._seconds(), 3)}
        self.job.sink.write({"event": event, **place, **values})


def measure_counts(module: NGram, tokens: Tokens, text_bytes: int = 0) -> Scores:
    """Loss and perplexity over whole texts: each token has all before it in its own."""
    total, asked, reach = 0.0, 0, module.table.order - 1
    for start in range(0, len(tokens), STRETCH):
        before = min(start, reach)
        ids = tokens.read(start - before, start + STRETCH)
        found, _ = module.table.logprobs(ids)
        here = (ids != BOS) & (np.arange(len(ids)) >= before)
        total -= float(found[here].sum(dtype=np.float64))
        asked += int(here.sum())
    return scores_of(total, asked, text_bytes)


def counted_rules(module: NGram) -> str:
    """How the loss of an n-gram model is counted."""
    said = "every token once, with all that stands before it; </s> counted, <s> not"
    if module.table.normalised:
        return said
    return f"{said}; stupid back-off makes scores that do not sum to one: no true perplexity"

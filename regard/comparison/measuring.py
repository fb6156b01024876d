"""All that is measured of one run, each figure once: what was measured is kept, and found again."""

import hashlib
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from regard.comparison import writing
from regard.comparison.by_position import buckets, by_position
from regard.comparison.context_use import by_context, by_source, long_sources, places, powers
from regard.comparison.growth import growth
from regard.comparison.validation import number, well_formed
from regard.data.readers.pairs import EncodedPairs
from regard.data.token_files import Tokens
from regard.errors import RegardError, UnreadableError
from regard.loading import text_model_of
from regard.metrics.scores import Scores, by_length, compare
from regard.runs.run_folder import WEIGHTS
from regard.runs.stored_run import Run
from regard.storage import event_log, make_folder, read_json, write_json
from regard.training.validation import translations

VERSION = 3  # of the measurements; what others made is made again
LENGTHS = {False: (64, 128, 256, 512, 1024, 2048), True: (32, 64, 128, 256, 512)}  # by pairs
LONGEST = 256  # tokens of context that are given at most
ROWS = 32  # sources that are translated at once
RESAMPLES = 300  # test sets drawn anew, for the interval of BLEU
FOR_EACH_SEED = ("quality", "context", "lengths")
WORDS = ("rules", "signature")  # of an evaluation; all else are numbers
FOR_ONE = ("cost", "speed", "samples")
Figures = dict[str, Any]


@dataclass(frozen=True)
class Material:
    """What all models are measured on: held-out text, or held-out pairs."""

    tokens: Tokens | None
    pairs: EncodedPairs | None
    span: int  # the most context that is given: as much as every model reads at once
    digest: str  # of data and division

    @property
    def lengths(self) -> list[int]:
        """How much context is given, in tokens."""
        if self.pairs is None:
            return powers(self.span)
        longest = int(self.pairs.lengths[0].max()) - 1  # without </s>
        return [*(n for n in powers(longest) if n < longest), longest]

    @property
    def key(self) -> str:
        return f"{VERSION} {self.digest} {self.span}"


def material(
    valid: Tokens | EncodedPairs, contexts: Sequence[int], digest: str, longest: int = LONGEST
) -> Material:
    """The held-out part, for models that read so many tokens at once."""
    if isinstance(valid, EncodedPairs):
        if not len(valid):
            raise RegardError("no pairs are held out to measure on; give some with --valid")
        most = min(contexts) - 1
        longer = np.maximum(*valid.lengths)  # (pairs,)
        fit = np.flatnonzero(longer <= most).tolist()
        sides = (valid.sources, valid.targets, valid.texts)
        kept = EncodedPairs(*([side[i] for i in fit] for side in sides))  # type: ignore[arg-type]
        return Material(None, kept, 0, digest)
    room = len(valid) // 4
    if room < 1:
        raise RegardError("too little text is held out to measure on; give some with --valid")
    span = powers(min(longest, room, *contexts))[-1]
    return Material(valid, None, span, digest)


@dataclass(frozen=True)
class Measurement:
    """One run before its measurements."""

    run: Run
    material: Material

    def quality(self) -> Figures:
        """The figures of the held-out part; of pairs also those by length."""
        if self.material.pairs is None:
            return evaluated(self.run.folder)
        pairs = self.material.pairs
        written = translations(self.run.writer, pairs, self.run.tokenizer, rows=ROWS)
        gold = [pair.target for pair in pairs.texts]
        known = evaluated(self.run.folder)
        begun = Scores(known.get("loss"), known.get("perplexity"), known.get("tokens", 0))
        scores = compare(begun, written, gold, tokenised=False, resamples=RESAMPLES)
        sizes = [len(source) - 1 for source in pairs.sources]  # without </s>
        found = scores.figures() | {"rules": known.get("rules", "")}
        return found | {
            "by_length": [asdict(one) for one in by_length(sizes, written, gold, False)]
        }

    def context(self) -> Figures:
        """The loss of the same targets, given more and more."""
        module, lengths = self.run.writer, self.material.lengths
        if self.material.tokens is not None:
            tokens = self.material.tokens
            targets = places(tokens, self.material.span)
            losses = by_context(module, tokens, targets, lengths)
            return {"tokens": lengths, "loss": losses, "targets": len(targets)}
        pairs = self._pairs
        chosen = long_sources(pairs)
        losses = by_source(module, pairs, chosen, lengths)
        shortest = int(pairs.lengths[0][chosen].min()) - 1
        return {"tokens": lengths, "loss": losses, "targets": len(chosen), "shortest": shortest}

    def lengths(self) -> Figures:
        """The loss by position in a text; of pairs `quality` has it by length."""
        if self.material.tokens is None:
            return {}
        longest = min(2 * self.material.span, len(self.material.tokens) - 1)
        losses = by_position(self.run.writer, self.material.tokens, longest)
        return {"positions": buckets(longest)[: len(losses)], "loss": losses}

    def cost(self) -> Figures:
        """Of more and more tokens."""
        return asdict(growth(self.run.writer, LENGTHS[self.material.pairs is not None]))

    def speed(self) -> Figures:
        """Tokens written in a second, alone and many texts at once."""
        speaker = text_model_of(self.run)
        rows = {rows: self._beginnings(rows) for rows in writing.ROWS}
        return {str(n): writing.tokens_per_second(speaker, given) for n, given in rows.items()}

    def _beginnings(self, count: int) -> list[list[int]]:
        """Prompts, or sources."""
        if self.material.tokens is not None:
            half = max(1, self.material.span // 2)  # a learned table must have room for more
            return writing.prompts(self.material.tokens, count, min(writing.PROMPT, half))
        sources = self._pairs.sources
        return [sources[i].tolist() for i in writing.sentences(self._pairs, count)]

    def samples(self) -> Figures:
        """What it writes from a few beginnings."""
        speaker = text_model_of(self.run)
        if self.material.tokens is not None:
            given = self._beginnings(writing.SAMPLES)
            texts = [self.run.tokenizer.decode(ids) for ids in given]
            return {"given": texts, "written": writing.continuations(speaker, given)}
        shown = writing.sentences(self._pairs, writing.SENTENCES)
        written = writing.translations(speaker, [self._pairs.sources[i].tolist() for i in shown])
        texts = [self._pairs.texts[i].source for i in shown]
        gold = [self._pairs.texts[i].target for i in shown]
        return {"given": texts, "written": written, "gold": gold}

    @cached_property
    def _pairs(self) -> EncodedPairs:
        assert self.material.pairs is not None
        return self.material.pairs


def kept(path: Path, key: str, make: Callable[[], Figures]) -> Figures:
    """The figures in a file, if they are those of this key; else they are made now, and kept."""
    if (found := known(path, key)) is not None:
        return found
    figures = _plain(make())
    make_folder(path.parent)
    write_json({"key": key, "figures": figures}, path)
    return dict(figures)


def known(path: Path, key: str) -> Figures | None:
    """The figures in a file, if there are any of this key, as they are kept."""
    try:
        found = read_json(path)
    except UnreadableError:
        raise
    except (ValueError, RegardError):
        return None
    figures = found.get("figures")
    if found.get("key") != key or not isinstance(figures, dict):
        return None
    return figures if well_formed(path.stem, figures) else None


def key_of(folder: Path, more: str) -> str:
    """Names a run's weights, and what they are measured on."""
    with (folder / WEIGHTS).open("rb") as file:
        weights = hashlib.file_digest(file, "blake2b").hexdigest()
    return hashlib.blake2b(f"{weights} {more}".encode(), digest_size=16).hexdigest()


def evaluated(folder: Path) -> Figures:
    """The last evaluation in a run's log: the figures of the weights it keeps."""
    events = [event for event in event_log.read(folder) if event.get("event") == "evaluation"]
    if not events:
        raise RegardError(f"{folder} was not evaluated: nothing was held out")
    plain = {name: value for name, value in events[-1].items() if name != "event"}
    return {n: value for n, value in plain.items() if number(value) or n in WORDS}


def trained(folder: Path) -> Figures:
    """How a run's training went, by its log."""
    events = [_numbers(event) for event in event_log.read(folder)]
    steps = [event for event in events if event.get("event") == "step"]
    paces = [event["tokens_per_second"] for event in steps if event.get("tokens_per_second")]
    end: Mapping[str, Any] = events[-1] if events else {}
    pace = statistics.median(paces) if paces else end.get("tokens_per_second")
    validations = [event for event in events if event.get("event") == "validation"]
    return {
        "tokens_per_second": pace,
        "seconds": end.get("seconds"),
        "steps": end.get("step"),
        "tokens": steps[-1].get("tokens") if steps else None,
        "curve": [(e["time"], e["loss"]) for e in validations if {"time", "loss"} <= e.keys()],
    }


def _numbers(event: Mapping[str, Any]) -> Figures:
    """The numbers of an event and its kind: a log may have come from anybody."""
    return {name: value for name, value in event.items() if number(value) or name == "event"}


def _plain(value: Any) -> Any:
    """What JSON can hold: null for what has no end."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return json.loads(json.dumps(value))

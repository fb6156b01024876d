"""Pairs of texts: a target generated from a source, or a label for a text."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from regard.data.builtin import tasks
from regard.data.feeds.labels import LabelBatches, check_labels, strange_labels
from regard.data.feeds.pair_batches import PairBatches
from regard.data.progress import Progress
from regard.data.readers.pairs import (
    EncodedPairs,
    Pair,
    PairCounts,
    PairTexts,
    clean,
    encode_pairs,
    gather_pairs,
    read_pairs,
    task_pairs,
)
from regard.data.readers.texts import Advance
from regard.errors import RegardError
from regard.families.data.vocabularies import learned
from regard.families.plan import Plan, PreparedData
from regard.families.settings import Settings
from regard.families.tasks.base import Evaluation, Sample, Trained, Work, little, write_lines
from regard.metrics.scores import Scores, by_length, compare, judge
from regard.models.network import BaseModel, SequenceModule
from regard.terminal import cut, in_one_line
from regard.text.dropout import BPEDropout
from regard.text.learning import ALL, vocabulary_for
from regard.text.tokenizer import Kind, Tokenizer
from regard.training.objectives import objective_for
from regard.training.settings import TokenizerSettings
from regard.training.validation import measure, translations

LONGEST = 1 << 20  # tokens of a side of a pair
SOURCE = 120  # characters of a source in a hint
RESAMPLES = 1000  # test sets drawn anew, for the interval of BLEU
TESTED = 1000  # pairs of a built-in task


@dataclass(frozen=True)
class Sides:
    """The tokenizers of pairs: one for both sides, or one for each."""

    target: Tokenizer
    source: Tokenizer

    @property
    def listed(self) -> list[Tokenizer]:
        return [self.target] if self.source is self.target else [self.target, self.source]

    @property
    def described(self) -> str:
        if self.source is self.target:
            return f"{self.source.kind}, {len(self.target):,} tokens for both sides"
        return (
            f"{self.source.kind}, {len(self.source):,} source and {len(self.target):,} target "
            "tokens"
        )


class Translation(Work):
    """A target, given a source."""

    kind: Kind = "bpe"  # of tokens, where the data is no built-in task
    batches: type[PairBatches] = PairBatches
    may_share = True  # one vocabulary for both sides

    def read(
        self, settings: Settings, progress: Progress, known: Sequence[Tokenizer]
    ) -> PreparedData:
        data, wanted = settings.data, settings.tokenizer
        with progress.stage("reading"):
            texts = pairs_of(settings)
        usual: Kind = "char" if data.train[0] in tasks.TASKS else self.kind
        kind: Kind = usual if wanted.kind == "auto" else wanted.kind
        most = wanted.vocabulary or vocabulary_for(kind, texts.bytes)
        wanted = replace(wanted, kind=kind, vocabulary=most)
        with progress.stage(f"learning {kind} tokens", texts.bytes) as done:
            sides = Sides(known[0], known[-1]) if known else self.learned(wanted, texts, done)
        wanted = replace(wanted, kind=sides.source.kind, shared=wanted.shared and self.may_share)
        separate = 0 if sides.source is sides.target else len(sides.source)
        config = settings.model.config(vocabulary=len(sides.target), source_vocabulary=separate)
        longest = data.longest or min(config.context - 1, LONGEST)
        if longest > config.context:
            raise RegardError(
                f"pairs of up to {longest} tokens do not fit the model's context of "
                f"{config.context}; lower data.longest or raise model.context"
            )
        with progress.stage("encoding"):
            train = encode_pairs(texts.train, sides.source, sides.target, longest, data.ratio)
            valid = encode_pairs(texts.valid, sides.source, sides.target, config.context - 1)
        self.check(train, valid)
        if not len(train):
            raise RegardError("every pair was left out; raise data.longest or data.ratio")
        dropout = None
        if wanted.dropout:
            dropout = (
                BPEDropout(sides.source, wanted.dropout),
                BPEDropout(sides.target, wanted.dropout),
            )
        seed, jitter = settings.training.seed, data.length_jitter
        return PreparedData(
            replace(settings, tokenizer=wanted, data=replace(data, longest=longest)),
            config,
            lambda tokens: self.batches(train, valid, tokens, seed, dropout, jitter),
            sides.listed,
            {
                "pairs": f"{len(train):,} to train on, {len(valid):,} held out",
                "split": texts.rule,
                "tokenizer": sides.described,
            },
            [
                *texts.counts.sentences(),
                *train.counts.sentences(longest, data.ratio),
                *(f"held out: {said}" for said in valid.counts.sentences(config.context - 1)),
                *unknown_in_pairs(train, "train"),
                *unknown_in_pairs(valid, "held-out"),
                *little(len(valid), "pairs"),
            ],
            int(sum(side.sum() for side in train.lengths)),
            int(sum(side.sum() for side in valid.lengths)) if len(valid) else 0,
            digest=texts.digest,
        )

    def learned(self, wanted: TokenizerSettings, texts: PairTexts, done: Advance) -> Sides:
        """Tokenizers learned from the texts."""
        if wanted.file or wanted.shared:
            both = learned(wanted, texts.texts(), done)
            return Sides(both, both)
        source = learned(wanted, texts.texts(0), done)
        return Sides(learned(wanted, texts.texts(1), done), source)

    def check(self, train: EncodedPairs, valid: EncodedPairs) -> None:
        """Refuse pairs that are not what this task learns from."""

    def sampler(self, plan: Plan, module: BaseModel) -> Sample:
        assert isinstance(module, SequenceModule)
        feed, writer, tokenizer = _feed(plan), module, plan.tokenizers[0]
        pairs, turn = feed.valid if len(feed.valid) else feed.train, 0

        def sample() -> dict[str, Any]:
            nonlocal turn
            index = turn % len(pairs)
            turn += 1
            one = EncodedPairs([pairs.sources[index]], [pairs.targets[index]], [pairs.texts[index]])
            return {
                "source": pairs.texts[index].source,
                "written": translations(writer, one, tokenizer)[0],
                "target": pairs.texts[index].target,
            }

        return sample

    def finished(self, plan: Plan, module: Callable[[], BaseModel], scores: Scores) -> Scores:
        pairs, writer = _feed(plan).valid, module()
        assert isinstance(writer, SequenceModule)
        written = translations(writer, pairs, plan.tokenizers[0], precision=plan.precision)
        gold = [pair.target for pair in pairs.texts]
        return replace(self.compared(scores, written, gold), rules=self.rules(1))

    def compared(
        self,
        scores: Scores,
        written: Sequence[str],
        gold: Sequence[str],
        tokenised: bool = False,
        resamples: int = 1,
    ) -> Scores:
        """The scores with how good what was generated is."""
        return compare(scores, written, gold, tokenised, resamples)

    def rules(self, beams: int) -> str:
        """How the figures are counted."""
        how = f"beam {beams}" if beams > 1 else "greedy"
        return (
            "every target token and </s>, given the source and the true target before it; "
            f"translations: {how}"
        )

    def evaluate(self, run: Trained, asked: Evaluation) -> tuple[Scores, list[str]]:
        pairs, counts = self._encoded(run, asked)
        scores = self._measured(run, pairs, asked)
        rows, beam = asked.batch_size, asked.beam
        written = translations(run.writer, pairs, run.tokenizer, beam=beam, rows=rows)
        if asked.written:
            write_lines(asked.written, written)
        gold = [pair.target for pair in pairs.texts]
        scores = self.compared(scores, written, gold, asked.tokenised, RESAMPLES)
        if asked.by_length:
            lengths = [len(source) - 1 for source in pairs.sources]  # without </s>
            buckets = by_length(lengths, written, gold, asked.tokenised, RESAMPLES)
            scores = replace(scores, by_length=buckets)
        return replace(scores, rules=self.rules(beam.beams)), [
            *counts.sentences(),
            *pairs.counts.sentences(run.config.context - 1),
            *self.oddities(pairs),
        ]

    def loss(self, run: Trained, asked: Evaluation) -> Scores:
        return self._measured(run, self._encoded(run, asked)[0], asked)

    def _measured(self, run: Trained, pairs: EncodedPairs, asked: Evaluation) -> Scores:
        feed = self.batches(pairs, pairs, tokens=1 << 30)
        held_out = feed.held_out(asked.batch_size)
        return measure(run.writer, objective_for(run.config, "pairs"), held_out)

    def _encoded(self, run: Trained, asked: Evaluation) -> tuple[EncodedPairs, PairCounts]:
        """The pairs to evaluate on."""
        texts, counts = _texts(run, asked.given)
        if not texts and not asked.given:
            raise RegardError("the run held nothing out; name some pairs to evaluate it on")
        if not texts:
            raise RegardError(f"there are no pairs in {' and '.join(asked.given)}")
        pairs = encode_pairs(texts, run.source_tokenizer, run.tokenizer, run.config.context - 1)
        self.check_given(pairs)
        if not len(pairs):
            raise RegardError(f"every pair is longer than the model's context {run.config.context}")
        return pairs, counts

    def check_given(self, pairs: EncodedPairs) -> None:
        """Refuse pairs that cannot be judged."""

    def oddities(self, pairs: EncodedPairs) -> list[str]:
        """Sentences about what was odd in the pairs."""
        return unknown_in_pairs(pairs, "evaluated")

    def use(self, plan: Plan, folder: str) -> str:
        return f"echo {_source(plan)} | regard translate {folder}"


class Labels(Translation):
    """A label, given a text."""

    kind: Kind = "word"
    batches = LabelBatches
    may_share = False

    def learned(self, wanted: TokenizerSettings, texts: PairTexts, done: Advance) -> Sides:
        source = learned(wanted, texts.texts(0), done)
        # A label is a word as it stands, whatever words of texts are.
        labels = TokenizerSettings("word", ALL, tokenised="yes")
        return Sides(learned(labels, texts.texts(1), done), source)

    def check(self, train: EncodedPairs, valid: EncodedPairs) -> None:
        check_labels(train, "training pair", known=True)
        check_labels(valid, "held-out pair")

    def check_given(self, pairs: EncodedPairs) -> None:
        check_labels(pairs, "line")

    def compared(
        self,
        scores: Scores,
        written: Sequence[str],
        gold: Sequence[str],
        tokenised: bool = False,
        resamples: int = 1,
    ) -> Scores:
        return judge(scores, written, gold)

    def rules(self, beams: int) -> str:
        return "every label once, given its text"

    def oddities(self, pairs: EncodedPairs) -> list[str]:
        return strange_labels(pairs)

    def use(self, plan: Plan, folder: str) -> str:
        return f"regard classify {folder} {_source(plan)}"


def _feed(plan: Plan) -> PairBatches:
    assert isinstance(plan.feed, PairBatches)
    return plan.feed


def _source(plan: Plan) -> str:
    """The first source there is, short and quoted."""
    feed = _feed(plan)
    texts = feed.valid.texts if len(feed.valid) else feed.train.texts
    return shlex.quote(cut(in_one_line(texts[0].source), SOURCE))


def _texts(run: Trained, given: Sequence[str]) -> tuple[list[Pair], PairCounts]:
    """The pairs asked for, or those that the run held out."""
    if not given:
        texts = pairs_of(run.settings)
        run.check_data(texts.digest)
        return list(texts.valid), PairCounts()
    if len(given) == 1 and given[0] in tasks.TASKS:
        return task_pairs(given[0], TESTED, 0, "test"), PairCounts()
    counts = PairCounts()
    return list(clean(read_pairs(given), counts)), counts


def pairs_of(settings: Settings) -> PairTexts:
    """The pairs that some settings name, in two parts."""
    data = settings.data
    return gather_pairs(
        data.train, data.valid, data.held_out / 2, data.examples, settings.training.seed
    )


def unknown_in_pairs(pairs: EncodedPairs, part: str) -> list[str]:
    """A sentence about what the vocabulary lacks, if anything."""
    total = int(sum(side.sum() for side in pairs.lengths)) if len(pairs) else 0
    if not pairs.unknown:
        return []
    return [f"{pairs.unknown:,} of {total:,} {part} tokens are unknown to the tokenizer"]

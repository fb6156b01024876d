"""The figures of one evaluation: a loss, or how what was generated compares with what is right."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from sacrebleu.metrics import BLEU, CHRF

BUCKETS = 6  # of lengths


@dataclass(frozen=True)
class Figure:
    """A figure of an evaluation, as `evaluate`, a training run and a comparison show it."""

    key: str  # in `Scores` and in logs
    name: str
    words: str  # in a sentence
    better: int  # 1: more is better; -1: less
    digits: int
    beside: int  # digits where several models stand side by side
    share: bool = False  # in percent

    def shown(self, value: float) -> str:
        """The figure alone."""
        return f"{value:.1%}" if self.share else f"{value:,.{self.digits}f}"


FIGURES = (
    Figure("loss", "loss", "nats per token", -1, 4, 3),
    Figure("perplexity", "perplexity", "perplexity", -1, 2, 2),
    Figure("bits_per_byte", "bits/byte", "bits per byte", -1, 4, 3),
    Figure("accuracy", "accuracy", "accuracy", 1, 3, 3, share=True),
    Figure("bleu", "BLEU", "BLEU", 1, 2, 2),
    Figure("chrf", "chrF", "chrF", 1, 2, 2),
    Figure("exact", "exact", "exact", 1, 3, 3, share=True),
)


@dataclass(frozen=True)
class Bucket:
    """How good translations of sources of about one length are."""

    first: int  # tokens of the shortest source
    last: int  # and of the longest
    pairs: int
    bleu: float | None  # None where no target is long enough for it
    exact: float
    bleu_margin: float | None = None  # half of the 95 % interval of pairs drawn anew


@dataclass(frozen=True, repr=False)
class Scores:
    """Figures of one evaluation; None where a figure has no meaning."""

    loss: float | None  # nats per token; None: it was judged by what it wrote alone
    perplexity: float | None
    tokens: int  # targets that were scored, or tokens that were written
    plain_perplexity: float | None = None  # of int8 weights: before they were rounded
    bits_per_byte: float | None = None  # of the raw text
    accuracy: float | None = None  # of hidden tokens
    bleu: float | None = None
    bleu_margin: float | None = None  # half of the 95 % interval of resampled test sets
    chrf: float | None = None
    exact: float | None = None  # the share of targets that are right to the letter
    on_boxes: float | None = None  # the share of attention on what a word of a caption names
    boxes: float | None = None  # the share of the picture that is there: what chance would give
    signature: str | None = None  # sacrebleu's, for BLEU and chrF
    by_length: tuple[Bucket, ...] = ()
    rules: str = ""  # what was counted and how, in words

    @property
    def error(self) -> float:
        """What the best weights have least of: the loss, or the share of BLEU that is missing."""
        if self.loss is not None:
            return self.loss
        return math.inf if self.bleu is None else 1 - self.bleu / 100

    def __repr__(self) -> str:
        return f"Scores({', '.join(f'{name}={value!r}' for name, value in self.figures().items())})"

    def figures(self) -> dict[str, Any]:
        """What there is, by name."""
        return {name: value for name, value in asdict(self).items() if value not in (None, "", ())}


def judge(scores: Scores, written: Sequence[str], gold: Sequence[str]) -> Scores:
    """The scores with the share of labels that are right."""
    same = sum(a == b for a, b in zip(written, gold, strict=True))
    return replace(scores, accuracy=same / len(gold)) if gold else scores


def by_length(
    lengths: Sequence[int],
    written: Sequence[str],
    gold: Sequence[str],
    tokenised: bool,
    resamples: int = 1,
) -> tuple[Bucket, ...]:
    """Figures for sources of about one length (in tokens), about as many in each bucket."""
    order = np.argsort(np.asarray(lengths), kind="stable")
    ends = [lengths[part[-1]] for part in np.array_split(order, BUCKETS) if len(part)]
    found, first = [], 0
    for last in sorted(set(ends)):  # pairs of one length stay together
        here = [i for i, length in enumerate(lengths) if first <= length <= last]
        first = last + 1
        some, wanted = [written[i] for i in here], [gold[i] for i in here]
        scores = compare(Scores(0.0, 1.0, 0), some, wanted, tokenised, resamples)
        assert scores.exact is not None
        shortest = min(lengths[i] for i in here)
        told = scores.bleu, scores.exact, scores.bleu_margin
        found.append(Bucket(shortest, last, len(here), *told))
    return tuple(found)


def compare(
    scores: Scores,
    written: Sequence[str],
    gold: Sequence[str],
    tokenised: bool,
    resamples: int = 1,
) -> Scores:
    """The scores with BLEU, chrF and exact match added.

    `tokenised` text is compared token by token as it stands (published Multi30k figures are), else
    sacrebleu's own tokenisation is used. With `resamples` BLEU has its bootstrap interval; a lone
    pair has none, all draws of it are the same. Where no target has as many tokens as BLEU's
    longest n-grams there is no BLEU: it would be 0 even if all were right.
    """
    if not gold:
        return scores
    chrf = CHRF()
    letters = chrf.corpus_score(list(written), [list(gold)])
    same = sum(a == b for a, b in zip(written, gold, strict=True))
    scores = replace(
        scores,
        chrf=float(letters.score),
        exact=same / len(gold),
        signature=f"chrF {chrf.get_signature()}",
    )
    bleu = BLEU(tokenize="none" if tokenised else "13a", force=True)
    if not any(len(bleu.tokenizer(text).split()) >= bleu.max_ngram_order for text in gold):
        return scores
    found = bleu.corpus_score(list(written), [list(gold)], n_bootstrap=resamples)
    return replace(
        scores,
        bleu=float(found.score),
        bleu_margin=float(found._ci) if resamples > 1 and len(gold) > 1 else None,
        signature=f"BLEU {bleu.get_signature()}; {scores.signature}",
    )

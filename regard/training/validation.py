"""How good a model is, over a whole held-out set: the same figures each time it is asked."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from sacrebleu.metrics import BLEU, CHRF
from torch import nn

from regard.data.batch import Batch
from regard.data.feeds.masking import IGNORE
from regard.data.feeds.stream import TRACKS
from regard.data.readers.pairs import EncodedPairs
from regard.data.token_files import Tokens
from regard.decoding.settings import TARGET, Beam
from regard.decoding.text_model import TextModel
from regard.decoding.translation import translate_all
from regard.models.counting.model import NGram
from regard.models.network import SequenceModule
from regard.models.protocol import State
from regard.text.specials import BOS
from regard.text.tokenizer import Tokenizer
from regard.training.distributed.processes import ALONE, Dealt, Processes
from regard.training.objectives import Objective, loss
from regard.training.optimization.precision import Precision, computing

GREEDY = Beam(beams=1)
BUCKETS = 6  # of lengths
STRETCH = 1 << 20  # tokens that are looked up at once


@dataclass(frozen=True)
class Bucket:
    """How good translations of sources of about one length are."""

    first: int  # tokens of the shortest source
    last: int  # and of the longest
    pairs: int
    bleu: float | None  # None where no target is long enough for it
    exact: float
    bleu_margin: float | None = None  # half of the 95 % interval of pairs drawn anew


@dataclass(frozen=True)
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

    def figures(self) -> dict[str, Any]:
        """What there is, by name."""
        return {name: value for name, value in asdict(self).items() if value not in (None, "", ())}


@contextmanager
def at_rest(module: nn.Module) -> Iterator[None]:
    """The module without dropout and gradients meanwhile; then each part is as it was."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for part, training in modes:
            part.training = training


def measure(
    module: SequenceModule,
    objective: Objective,
    batches: Iterable[Batch],
    precision: Precision = "float32",
    text_bytes: int = 0,
    processes: Processes = ALONE,
) -> Scores:
    """Loss and perplexity over all targets of all batches; bits per byte if the bytes are known.

    Of hidden tokens there is accuracy instead: they are too few to spell the text.
    """
    device = module.device
    total = torch.zeros((), dtype=torch.float64, device=device)
    right = torch.zeros((), dtype=torch.int64, device=device)
    asked = 0
    state: State | None = None
    with at_rest(module), computing(precision, device, objective.varied):
        for _, batch, counts in _dealt(batches, processes):
            here = batch.to(device)
            if here.fresh is not None and state is None:
                state = module.start(batch_size=here.rows, capacity=1)
            logits = objective.logits(module, here, state)
            if counts:
                total += loss(logits, here.targets).double()
                right += ((logits.argmax(-1) == here.targets) & (here.targets != IGNORE)).sum()
                asked += batch.valid
    summed, found, all_asked = processes.sums([float(total), int(right), asked])
    asked = int(all_asked)
    masked = objective.name == "masked"
    scores = _scores(summed, asked, 0 if masked else text_bytes)
    return replace(scores, accuracy=found / asked if masked and asked else None)


def _dealt(batches: Iterable[Batch], processes: Processes) -> Iterator[Dealt[Batch]]:
    """What a process measures. Where rows continue one another each has to read all of them, and
    one counts."""
    coming = iter(batches)
    first = next(coming, None)
    if first is None:
        return
    whole = chain([first], coming)
    if first.fresh is None:
        yield from processes.dealt(whole)
        return
    for number, batch in enumerate(whole):
        yield Dealt(number, batch, processes.first)


def _scores(total: float, asked: int, text_bytes: int) -> Scores:
    """The figures of a summed loss; bits per byte if the bytes are known."""
    mean = total / asked if asked else math.nan
    return Scores(
        loss=mean,
        perplexity=math.inf if mean >= 700 else math.exp(mean),  # NaN stays NaN
        tokens=asked,
        bits_per_byte=total / math.log(2) / text_bytes if text_bytes else None,
    )


def measure_counts(module: NGram, tokens: Tokens, text_bytes: int = 0) -> Scores:
    """The same for an n-gram model, over whole texts: each token has all before it in its own."""
    total, asked, reach = 0.0, 0, module.table.order - 1
    for start in range(0, len(tokens), STRETCH):
        before = min(start, reach)
        ids = tokens.read(start - before, start + STRETCH)
        found, _ = module.table.logprobs(ids)
        here = (ids != BOS) & (np.arange(len(ids)) >= before)
        total -= float(found[here].sum(dtype=np.float64))
        asked += int(here.sum())
    return _scores(total, asked, text_bytes)


def accounted(tokens: Tokens, tokenizer: Tokenizer) -> int:
    """Bytes of text that a loss over these tokens pays for; 0 where some go unpaid.

    Words do not say which blanks stood between them, and <unk> hides what it stands for: a poorer
    vocabulary would seem the better model.
    """
    lossy = tokenizer.kind == "word" or tokens.stock.unknown
    return 0 if lossy else tokens.stock.bytes


def counted_rules(module: NGram) -> str:
    """The same for an n-gram model."""
    said = "every token once, with all that stands before it; </s> counted, <s> not"
    if module.table.normalised:
        return said
    return f"{said}; stupid back-off makes scores that do not sum to one: no true perplexity"


def rules(objective: Objective, context: int, carried: bool = False) -> str:
    """How the loss was counted, for whoever compares it; `carried`: by a model that remembers."""
    if carried and objective.name == "causal":
        return (
            f"every token once, with all that stands before it in the text, which is read from up "
            f"to {TRACKS} places at once; </s> counted, <s> not"
        )
    if objective.name == "causal":
        return (
            f"every token once, in rows of {context} that do not overlap, with what stands before "
            "it in its row; </s> counted, <s> not"
        )
    if objective.name == "masked":
        return f"tokens hidden once for all by seed 0, in rows of {context} that do not overlap"
    if objective.name == "labels":
        return "every label once, given its text"
    return "every target token and </s>, given the source and the true target before it"


def translations(
    module: SequenceModule,
    pairs: EncodedPairs,
    tokenizer: Tokenizer,
    *,
    beam: Beam = GREEDY,
    rows: int = 100,
    precision: Precision = "float32",
) -> list[str]:
    """What the model writes for each source, in the order of the pairs."""
    speaker = TextModel(module, TARGET, tokenizer)
    with at_rest(module), computing(precision, speaker.device):
        found = translate_all(speaker, [source.tolist() for source in pairs.sources], beam, rows)
    return [best[0].text for best in found]


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

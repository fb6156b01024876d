"""How good a model is, over a whole held-out set: the same figures each time it is asked."""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain

import torch
from torch import nn

from regard.data.batch import Batch
from regard.data.feeds.masking import IGNORE
from regard.data.feeds.stream import TRACKS
from regard.data.readers.pairs import EncodedPairs
from regard.data.token_files import Tokens
from regard.decoding.settings import TARGET, Beam
from regard.decoding.text_model import TextModel
from regard.decoding.translation import translate_all
from regard.metrics.scores import Scores
from regard.models.network import SequenceModule
from regard.models.protocol import State
from regard.text.tokenizer import Tokenizer
from regard.training.distributed.processes import ALONE, Dealt, Processes
from regard.training.objectives import Objective, loss
from regard.training.optimization.precision import Precision, computing

GREEDY = Beam(beams=1)


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
    scores = scores_of(summed, asked, 0 if masked else text_bytes)
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


def scores_of(total: float, asked: int, text_bytes: int) -> Scores:
    """The figures of a summed loss; bits per byte if the bytes are known."""
    mean = total / asked if asked else math.nan
    return Scores(
        loss=mean,
        perplexity=math.inf if mean >= 700 else math.exp(mean),  # NaN stays NaN
        tokens=asked,
        bits_per_byte=total / math.log(2) / text_bytes if text_bytes else None,
    )


def accounted(tokens: Tokens, tokenizer: Tokenizer) -> int:
    """Bytes of text that a loss over these tokens pays for; 0 where some go unpaid.

    Words do not say which blanks stood between them, and <unk> hides what it stands for: a poorer
    vocabulary would seem the better model.
    """
    lossy = tokenizer.kind == "word" or tokens.stock.unknown
    return 0 if lossy else tokens.stock.bytes


def rules(objective: Objective, context: int) -> str:
    """How the loss over a text is counted, for whoever compares it."""
    if objective.name == "masked":
        return f"tokens hidden once for all by seed 0, in rows of {context} that do not overlap"
    return (
        f"every token once, in rows of {context} that do not overlap, with what stands before "
        "it in its row; </s> counted, <s> not"
    )


def carried_rules() -> str:
    """How it is counted where rows continue one another."""
    return (
        f"every token once, with all that stands before it in the text, which is read from up "
        f"to {TRACKS} places at once; </s> counted, <s> not"
    )


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

"""From settings to a job: data read, tokenizer learned, model built, every "auto" decided."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.data import tasks
from regard.data.batch import Batch, Feed
from regard.data.buckets import Buckets
from regard.data.pairs import EncodedPairs, PairTexts, encode_pairs, gather_pairs
from regard.data.stream import MaskedStream, Stream
from regard.data.texts import Texts, gather
from regard.data.tokens import Tokens, prepare
from regard.errors import RegardError
from regard.models.config import TransformerConfig
from regard.models.transformer import build, usable
from regard.text.dropout import Dropout
from regard.text.learning import learn
from regard.text.tokenizer import Kind, Tokenizer
from regard.training.evaluation import accounted
from regard.training.fitting import rows_that_fit
from regard.training.job import recompute
from regard.training.objectives import Objective, loss, objective_for
from regard.training.optimizers import peak_for
from regard.training.precision import Precision, choose, computing
from regard.training.runs import config_for
from regard.training.schedules import warmup
from regard.training.settings import Settings
from regard.training.stages import Stages
from regard.training.vocabularies import tokenizer_for, vocabulary_for

OFTEN = 50  # steps between validations, at least: a pass over what is held out takes a while
JUDGED_BY = {"tokens": 1000, "pairs": 50}  # fewer held out tell little
PLACES = 8  # rows of text that should at least be there to learn from


@dataclass(frozen=True)
class Plan:
    """A run, ready to be started or described."""

    settings: Settings  # resolved
    config: TransformerConfig
    objective: Objective
    feed: Feed
    tokenizers: Sequence[Tokenizer]  # the target's, and the source's where it is another
    device: torch.device
    precision: Precision
    compiled: bool
    data: Mapping[str, str]  # what was found, for people
    warnings: Sequence[str]
    valid_bytes: int
    train_tokens: int
    valid_tokens: int
    digest: str = ""  # of data and division


def plan(settings: Settings, stages: Stages | None = None, known: Sequence[Tokenizer] = ()) -> Plan:
    """Read the data and decide everything that was left open.

    `known` are the tokenizers of a run that goes on: the target's, then a separate source's.
    """
    if not settings.data.train:
        raise RegardError(
            "there is nothing to train on; give files or folders, --pairs SOURCE TARGET, or one of "
            f"{', '.join(BUILT_IN)}"
        )
    device = device_for(settings.training.device)
    settings = _machine_defaults(settings, device)
    objective_for(settings.model.config(), settings.data.pairs)  # or say so before reading all
    made = (_pairs if _are_pairs(settings) else _text)(settings, stages or Stages(), known)
    return _decided(made, device)


BUILT_IN = ("python", *tasks.TASKS)


def _are_pairs(settings: Settings) -> bool:
    data = settings.data
    return data.pairs or (len(data.train) == 1 and data.train[0] in tasks.TASKS)


def device_for(asked: str) -> torch.device:
    """The device by name; "auto" is a GPU if there is one."""
    if asked == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return usable(asked)


def _machine_defaults(settings: Settings, device: torch.device) -> Settings:
    """What the machine alone decides: sizes that train in minutes on it."""
    gpu, pairs = device.type == "cuda", _are_pairs(settings)
    model, training = settings.model, settings.training
    named = bool(model.preset)
    if not named:
        small = "transformer-tiny" if pairs else "regard-4"
        model = replace(model, preset=small if not gpu or pairs else "regard-8")
    wanted = (8192 if pairs else 65536) if gpu else 4096
    context = training.context
    if not context:
        context = model.config().context
        if not named and not gpu and not pairs:
            context = min(context, 256)
    training = replace(
        training, tokens_per_step=training.tokens_per_step or wanted, context=context
    )
    data = replace(settings.data, pairs=pairs)
    return replace(settings, data=data, model=model, training=training)


@dataclass(frozen=True)
class _Made:
    """What reading the data gave."""

    settings: Settings
    config: TransformerConfig
    feed: Callable[[int], Feed]  # by the tokens of a step
    tokenizers: Sequence[Tokenizer]
    data: Mapping[str, str]
    warnings: Sequence[str]
    train_tokens: int
    valid_tokens: int
    valid_bytes: int = 0
    digest: str = ""


def _text(settings: Settings, stages: Stages, known: Sequence[Tokenizer]) -> _Made:
    data, training = settings.data, settings.training
    with stages.stage("reading") as progress:
        texts = gather(data.train, data.valid, data.held_out, progress)
    size = texts.census.characters
    wanted = settings.tokenizer
    kind: Kind = "bpe" if wanted.kind == "auto" else wanted.kind
    wanted = replace(wanted, kind=kind, vocabulary=wanted.vocabulary or vocabulary_for(kind, size))
    tokenizer = known[0] if known else tokenizer_for(wanted, texts, stages)
    wanted = replace(wanted, kind=tokenizer.kind)  # a file has its own
    with stages.stage("encoding", size) as progress:
        parts = prepare(texts, tokenizer, progress)
    context = min(training.context, _context_for(len(parts["train"])))
    model = replace(settings.model, changes={**settings.model.changes, "context": context})
    config = config_for(model, tokenizer, tokenizer)
    settings = replace(
        settings,
        tokenizer=wanted,
        model=model,
        training=replace(training, context=context),
    )
    return _Made(
        settings,
        config,
        lambda tokens: stream(parts["train"], parts["valid"], config, settings, tokens),
        [tokenizer],
        _described(texts, parts["train"], parts["valid"], tokenizer),
        [*texts.warnings, *_unknown(parts), *_little(len(parts["valid"]), "tokens")],
        len(parts["train"]),
        len(parts["valid"]),
        accounted(parts["valid"], tokenizer),
        texts.digest,
    )


def stream(
    train: Tokens, valid: Tokens, config: TransformerConfig, settings: Settings, tokens: int
) -> Stream:
    """Rows of text as this kind of model reads them, `tokens` in a step."""
    training = settings.training
    rows = max(1, tokens // training.context)
    shape = train, valid, training.context, rows, training.seed, settings.data.isolate
    if config.kind == "encoder":
        return MaskedStream(*shape, vocabulary=config.vocabulary, share=training.masked)
    return Stream(*shape)


def _context_for(tokens: int) -> int:
    """The longest row of which little text still has several."""
    context = 16
    while context * 2 * PLACES <= tokens:
        context *= 2
    return context


def _described(texts: Texts, train: Tokens, valid: Tokens, tokenizer: Tokenizer) -> dict[str, str]:
    files = len(texts.files)
    return {
        "text": f"{texts.bytes:,} bytes in {files:,} file{'s' if files != 1 else ''}",
        "split": texts.rule(),
        "tokenizer": f"{tokenizer.kind}, {len(tokenizer):,} tokens",
        "train": _tokens_in(train),
        "valid": _tokens_in(valid),
    }


def _tokens_in(tokens: Tokens) -> str:
    documents = tokens.stock.documents
    return f"{len(tokens):,} tokens in {documents:,} document{'s' if documents != 1 else ''}"


def _unknown(parts: Mapping[Any, Tokens]) -> list[str]:
    return [
        f"{tokens.stock.unknown:,} of {len(tokens):,} {part} tokens are unknown to the tokenizer"
        for part, tokens in parts.items()
        if tokens.stock.unknown
    ]


def unknown_in_pairs(pairs: EncodedPairs, part: str) -> list[str]:
    """A sentence about what the vocabulary lacks, if anything."""
    total = int(sum(side.sum() for side in pairs.lengths)) if len(pairs) else 0
    if not pairs.unknown:
        return []
    return [f"{pairs.unknown:,} of {total:,} {part} tokens are unknown to the tokenizer"]


def _little(count: int, what: str) -> list[str]:
    """A sentence where what is held out is too little to judge by."""
    if not 0 < count < JUDGED_BY[what]:
        return []
    return [f"only {count:,} {what} are held out: the figures over them say little"]


def pairs_of(settings: Settings) -> PairTexts:
    """The pairs that some settings name, in two parts."""
    data = settings.data
    return gather_pairs(
        data.train, data.valid, data.held_out / 2, data.examples, settings.training.seed
    )


def _pairs(settings: Settings, stages: Stages, known: Sequence[Tokenizer]) -> _Made:
    data, wanted = settings.data, settings.tokenizer
    with stages.stage("reading"):
        texts = pairs_of(settings)
    task = data.train[0] in tasks.TASKS
    kind: Kind = ("char" if task else "bpe") if wanted.kind == "auto" else wanted.kind
    size = texts.bytes
    wanted = replace(wanted, kind=kind, vocabulary=wanted.vocabulary or vocabulary_for(kind, size))
    with stages.stage(f"learning {kind} tokens", size) as progress:
        if known:
            target, source = known[0], known[-1]
        elif wanted.file:
            target = source = Tokenizer.load(Path(wanted.file))
        elif wanted.shared:
            target = source = learn(kind, texts.texts(), wanted.vocabulary, progress)
        else:
            source = learn(kind, texts.texts(0), wanted.vocabulary, progress)
            target = learn(kind, texts.texts(1), wanted.vocabulary, progress)
    wanted = replace(wanted, kind=target.kind)
    config = config_for(settings.model, target, source)
    longest = data.longest or config.context - 1
    if longest > config.context:
        raise RegardError(
            f"pairs of up to {longest} tokens do not fit the model's context of {config.context}; "
            "lower data.longest or raise model.context"
        )
    with stages.stage("encoding"):
        train = encode_pairs(texts.train, source, target, longest, data.ratio)
        valid = encode_pairs(texts.valid, source, target, config.context - 1)
    if not len(train):
        raise RegardError("every pair was left out; raise data.longest or data.ratio")
    dropout = None
    if wanted.dropout:
        dropout = Dropout(source, wanted.dropout), Dropout(target, wanted.dropout)
    seed = settings.training.seed
    lengths = train.lengths
    return _Made(
        replace(settings, tokenizer=wanted, data=replace(data, longest=longest)),
        config,
        lambda tokens: Buckets(train, valid, tokens, seed, dropout, data.spread),
        [target] if source is target else [target, source],
        _described_pairs(train, valid, texts.rule, [target, source]),
        [
            *texts.counts.sentences(),
            *train.counts.sentences(longest, data.ratio),
            *(f"held out: {said}" for said in valid.counts.sentences(config.context - 1)),
            *unknown_in_pairs(train, "train"),
            *unknown_in_pairs(valid, "held-out"),
            *_little(len(valid), "pairs"),
        ],
        int(sum(side.sum() for side in lengths)),
        int(sum(side.sum() for side in valid.lengths)) if len(valid) else 0,
        digest=texts.digest,
    )


def _described_pairs(
    train: EncodedPairs, valid: EncodedPairs, rule: str, tokenizers: Sequence[Tokenizer]
) -> dict[str, str]:
    target, source = tokenizers
    vocabulary = f"{target.kind}, {len(target):,} tokens for both sides"
    if source is not target:
        vocabulary = f"{target.kind}, {len(source):,} source and {len(target):,} target tokens"
    return {
        "pairs": f"{len(train):,} to train on, {len(valid):,} held out",
        "split": rule,
        "tokenizer": vocabulary,
    }


def _decided(made: _Made, device: torch.device) -> Plan:
    """Decide what depends on model, data and machine together."""
    settings, config = made.settings, made.config
    training, optimizer = settings.training, settings.optimizer
    objective = objective_for(config, settings.data.pairs)
    precision = choose(training.precision, device)
    feed = made.feed(training.tokens_per_step)
    steps = training.steps
    every = training.validate_every or min(steps, max(OFTEN, steps // 20))
    training = replace(
        training,
        device=str(device),
        precision=precision,
        compile="yes" if _compiled(settings, config, device) else "no",
        validate_every=every,
        checkpoint_every=training.checkpoint_every or every,
        sample_every=training.sample_every or every,
        log_every=training.log_every or max(1, steps // 200),
        rows=training.rows or _rows(config, objective, feed, settings, device, precision),
    )
    optimizer = replace(optimizer, peak=optimizer.peak or peak_for(config.width))
    schedule = replace(settings.schedule, warmup=warmup(settings.schedule, steps))
    settings = replace(settings, training=training, optimizer=optimizer, schedule=schedule)
    return Plan(
        settings,
        config,
        objective,
        feed,
        made.tokenizers,
        device,
        precision,
        training.compile == "yes",
        made.data,
        made.warnings,
        made.valid_bytes,
        made.train_tokens,
        made.valid_tokens,
        made.digest,
    )


# FLOPs of a whole run from which compiling is tried: a minute of work at a third of an H200's peak.
# In a run of one minute that did little of it, compiling took 17 s and did not pay.
WORTH_COMPILING = 2e16


def _compiled(settings: Settings, config: TransformerConfig, device: torch.device) -> bool:
    """Compiling pays on a GPU, for rows of one shape, when there is enough to do."""
    training = settings.training
    if training.compile == "auto":
        weights = sum(weight.numel() for weight in build(config, "meta").parameters())
        flops = 6.0 * weights * training.tokens_per_step * training.steps
        return device.type == "cuda" and not settings.data.pairs and flops > WORTH_COMPILING
    return training.compile == "yes"


def _rows(
    config: TransformerConfig,
    objective: Objective,
    feed: Feed,
    settings: Settings,
    device: torch.device,
    precision: Precision,
) -> int:
    """How many rows to compute at once: all of a step's, or as many as fit the memory."""
    module, training = build(config, device), settings.training
    if precision == "bf16-weights":
        module.to(torch.bfloat16)
    batch = _widest(feed)
    beside: list[Tensor] = []
    if device.type == "cuda":  # elsewhere what a row keeps is counted, not tried
        if training.recompute:
            recompute(module)
        # Moments take their room from the start; so do masters and their gradients, and means.
        copies = 2 + 2 * (precision == "bf16-weights") + 2 * bool(training.ema)
        weights = [weight for weight in module.parameters() for _ in range(copies)]
        beside = [torch.empty_like(weight, dtype=torch.float32) for weight in weights]

    def attempt(rows: int) -> None:
        part = _repeated(batch, rows).to(device)
        with computing(precision, device, objective.varied):
            loss(objective.logits(module, part), part.targets).backward()
        module.zero_grad(set_to_none=True)

    most = max(step.rows for step in _first_steps(feed))
    fitting = rows_that_fit(attempt, most, device)
    del beside
    return fitting


def _first_steps(feed: Feed) -> list[Batch]:
    """Enough steps to see how rows vary: not at all in a stream."""
    return [feed.step(step) for step in range(1 if isinstance(feed, Stream) else 20)]


def _widest(feed: Feed) -> Batch:
    """One row as long as rows get, sources too."""
    batch = max(_first_steps(feed), key=lambda found: found.positions / found.rows)
    return batch.each(lambda tensor: tensor[:1])


def _repeated(batch: Batch, rows: int) -> Batch:
    return batch.each(lambda tensor: tensor.expand(rows, *tensor.shape[1:]).contiguous())

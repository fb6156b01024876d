"""From settings to a job: data read, tokenizer learned, model built, every "auto" decided."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch

from regard.data.builtin import tasks
from regard.data.feeds.labels import LabelBatches, check_labels
from regard.data.feeds.pair_batches import PairBatches
from regard.data.feeds.phrases import find_phrases, spelled
from regard.data.feeds.stream import ContinuedTextFeed, MaskedTextFeed, TextFeed
from regard.data.progress import Progress
from regard.data.readers.files import expanded
from regard.data.readers.pairs import EncodedPairs, PairTexts, encode_pairs, gather_pairs
from regard.data.readers.texts import Part, Texts, gather
from regard.data.token_files import Tokens, prepare
from regard.errors import RegardError
from regard.families.data import images
from regard.families.data.vocabularies import ALL, learned, tokenizer_for, vocabulary_for
from regard.families.settings import Settings
from regard.models.bag.model import BagConfig
from regard.models.config import ModelConfig
from regard.models.construction import usable
from regard.models.counting.model import NGramConfig
from regard.models.recurrent.config import RecurrentConfig
from regard.models.transformer.config import TransformerConfig
from regard.models.word_vectors.model import Word2VecConfig
from regard.runs.resolve import Plan, PreparedData, resolve
from regard.runs.stored_run import config_for
from regard.text.dropout import BPEDropout
from regard.text.tokenizer import Kind, Tokenizer
from regard.training.objectives import criterion_of, objective_for
from regard.training.settings import DataSettings, TokenizerSettings
from regard.training.validation import accounted
from regard.training.word2vec.steps import PIECE

__all__ = ["Plan", "device_for", "pairs_of", "plan", "stream", "unknown_in_pairs"]

JUDGED_BY = {"tokens": 1000, "pairs": 50}  # fewer held out tell little
RARE = 5  # word2vec leaves out words that are seen less often
LONGEST = 1 << 20  # tokens of a side of a pair
ROW = 256  # tokens, where a model does not say
USUAL = {  # models, on a CPU and on a GPU
    "text": ("regard-4", "regard-8"),
    "pairs": ("transformer-tiny", "transformer-tiny"),
    "images": ("captioner", "captioner"),
}
TOKENS = {"text": (4096, 65536), "pairs": (4096, 8192), "images": (512, 4096)}  # of a step
REACH = 64  # tokens that gradients of recurrent models go back
PLACES = 8  # rows of text that should at least be there to learn from


def plan(
    settings: Settings, stages: Progress | None = None, known: Sequence[Tokenizer] = ()
) -> Plan:
    """Read the data and decide everything that was left open.

    `known` are the tokenizers of a run that goes on: the target's, then a separate source's.
    """
    if not settings.data.train:
        raise RegardError(
            "there is nothing to train on; give files or folders, --pairs SOURCE TARGET, or one of "
            f"{', '.join(BUILT_IN)}"
        )
    vectors = settings.training.vectors
    if vectors and not expanded(vectors).exists():
        raise RegardError(f"training.vectors is {vectors!r}, which is not there")
    device = device_for(settings.training.device)
    settings = _machine_defaults(settings, device)
    if isinstance(settings.model.config(), NGramConfig):  # its tables are searched on the CPU
        device = torch.device("cpu")
    data = settings.data
    objective_for(settings.model.config(), data.form)  # or say so before reading all
    prepare_for = {"text": _text, "pairs": _pairs, "images": images.prepared}[data.form]
    return resolve(prepare_for(settings, stages or Progress(), known), device)


BUILT_IN = ("python", *tasks.TASKS, images.SCENES)


def _formed(data: DataSettings) -> DataSettings:
    """The same with what built-in data is."""
    if data.pairs and data.images:
        raise RegardError("data is pairs or images, not both; leave out data.pairs or data.images")
    if len(data.train) != 1:
        return data
    named = data.train[0]
    return replace(
        data,
        pairs=data.pairs or named in tasks.TASKS,
        images=data.images or (named == images.SCENES and not data.pairs),
    )


def device_for(asked: str) -> torch.device:
    """The device by name; "auto" is a GPU if there is one."""
    if asked == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        kind = torch.device(asked).type
    except RuntimeError:  # no device at all
        kind = ""
    if kind in ("", "meta"):
        raise RegardError(f"nothing is computed on a device {asked!r}; give cpu, cuda or cuda:1")
    return usable(asked)


def _machine_defaults(settings: Settings, device: torch.device) -> Settings:
    """What the machine alone decides: sizes that train in minutes on it."""
    data, gpu = _formed(settings.data), device.type == "cuda"
    model, training = settings.model, settings.training
    named = bool(model.preset)
    if not named:
        model = replace(model, preset=USUAL[data.form][gpu])
    wanted = TOKENS[data.form][gpu]
    context, config = training.context, model.config()
    if settings.data.document_mask and not isinstance(config, TransformerConfig):
        raise RegardError(
            f"a model like {model.preset} reads across documents; leave out data.document_mask"
        )
    if training.recompute and not isinstance(config, TransformerConfig):
        raise RegardError(
            f"a model like {model.preset} keeps what it computed; leave out training.recompute"
        )
    if training.r_drop:
        _check_consistency(model.preset, config)
    if criterion_of(training).regularises:
        _check_calming(model.preset, config)
    if isinstance(config, RecurrentConfig):
        wanted, context = (8192 if gpu else 2048), context or REACH
    if isinstance(config, Word2VecConfig):
        wanted = PIECE
    if not isinstance(config, TransformerConfig):
        context = context or ROW
    if not context:
        context = config.context
        if not named and not gpu and not data.pairs:
            context = min(context, 256)
    training = replace(
        training, tokens_per_step=training.tokens_per_step or wanted, context=context
    )
    return replace(settings, data=data, model=model, training=training)


def _check_consistency(name: str, config: ModelConfig) -> None:
    """Refuse to read rows twice where that is of no use."""
    leave = "leave out training.r_drop"
    if isinstance(config, RecurrentConfig) and config.kind == "decoder":
        raise RegardError(f"rows of a model like {name} go on from one another, once; {leave}")
    shares = [f.name for f in fields(config) if f.name.endswith("dropout")]
    if not any(getattr(config, share) for share in shares):
        more = f"; set model.{shares[0]}, or" if shares else ","
        raise RegardError(f"without dropout both readings of a row are the same{more} {leave}")


def _check_calming(name: str, config: ModelConfig) -> None:
    """Refuse to calm hidden vectors that do not follow one another."""
    if not isinstance(config, RecurrentConfig) or config.kind != "decoder":
        raise RegardError(
            f"only recurrent language models are calmed, not one like {name}; leave out "
            "training.ar_alpha and training.tar_beta"
        )


def _text(settings: Settings, stages: Progress, known: Sequence[Tokenizer]) -> PreparedData:
    data, training = settings.data, settings.training
    asked = settings.model.config()
    if isinstance(asked, Word2VecConfig):  # nothing is measured on what is held out
        data = replace(data, held_out=0.0)
    with stages.stage("reading") as progress:
        texts = gather(data.train, data.valid, data.held_out, progress)
    size = texts.census.characters
    counts = isinstance(asked, NGramConfig | Word2VecConfig)  # then lines are texts, of words
    lines = data.lines == "yes" or (counts and data.lines == "auto")
    wanted = settings.tokenizer
    usual: Kind = "word" if counts else "bpe"
    kind: Kind = usual if wanted.kind == "auto" else wanted.kind
    most = wanted.vocabulary or vocabulary_for(kind, size, all_words=counts)
    least = wanted.min_frequency or (RARE if isinstance(asked, Word2VecConfig) else 0)
    wanted = replace(wanted, kind=kind, vocabulary=most, min_frequency=least)
    tokenizer = known[0] if known else tokenizer_for(wanted, texts, stages, lines)
    wanted = replace(wanted, kind=tokenizer.kind)  # a file has its own
    with stages.stage("encoding", size) as progress:
        parts = prepare(texts, tokenizer, progress, lines=lines)
    if isinstance(asked, Word2VecConfig) and asked.phrases and not known:
        with stages.stage("finding phrases"):
            tokenizer = _with_phrases(
                tokenizer, parts["train"], asked.phrases, wanted.min_frequency
            )
            parts = prepare(texts, tokenizer, lines=lines)
    context = min(training.context, _context_for(len(parts["train"])))
    model = settings.model
    if isinstance(model.config(), TransformerConfig):
        model = replace(model, changes={**model.changes, "context": context})
    config = config_for(model, tokenizer, tokenizer)
    settings = replace(
        settings,
        data=replace(data, lines="yes" if lines else data.lines),
        tokenizer=wanted,
        model=model,
        training=replace(training, context=context),
    )
    return PreparedData(
        settings,
        config,
        lambda tokens: stream(parts["train"], parts["valid"], config, settings, tokens),
        [tokenizer],
        _described(texts, parts, tokenizer, lines),
        [*texts.warnings, *_unknown(parts), *_little(len(parts["valid"]), "tokens")],
        len(parts["train"]),
        len(parts["valid"]),
        accounted(parts["valid"], tokenizer),
        texts.digest,
    )


def _with_phrases(tokenizer: Tokenizer, train: Tokens, threshold: float, least: int) -> Tokenizer:
    """The tokenizer with the text's phrases as further words, which it does not look for."""
    known = tokenizer.vocabulary
    pairs = find_phrases(train, len(tokenizer), threshold, least)
    return Tokenizer(replace(known, tokens=(*known.tokens, *spelled(pairs, known.tokens))))


def stream(
    train: Tokens, valid: Tokens, config: ModelConfig, settings: Settings, tokens: int
) -> TextFeed:
    """Rows of text as this kind of model reads them, `tokens` in a step."""
    training = settings.training
    rows = max(1, tokens // training.context)
    shape = train, valid, training.context, rows, training.seed, settings.data.document_mask
    if isinstance(config, RecurrentConfig):
        return ContinuedTextFeed(*shape)
    if config.kind == "encoder":
        return MaskedTextFeed(*shape, vocabulary=config.vocabulary, share=training.masked)
    return TextFeed(*shape)


def _context_for(tokens: int) -> int:
    """The longest row of which little text still has several."""
    context = 16
    while context * 2 * PLACES <= tokens:
        context *= 2
    return context


def _described(
    texts: Texts, parts: Mapping[Part, Tokens], tokenizer: Tokenizer, lines: bool
) -> dict[str, str]:
    files, unit = len(texts.files) + len(texts.valid_files), "line" if lines else "document"
    return {
        "text": f"{texts.bytes:,} bytes in {files:,} file{'s' if files != 1 else ''}",
        "split": texts.rule(),
        "tokenizer": f"{tokenizer.kind}, {len(tokenizer):,} tokens"
        + ", as they stand between blanks" * tokenizer.vocabulary.tokenised,
        "train": _tokens_in(parts["train"], unit),
        "valid": _tokens_in(parts["valid"], unit),
    }


def _tokens_in(tokens: Tokens, unit: str) -> str:
    count = tokens.stock.documents
    return f"{len(tokens):,} tokens in {count:,} {unit}{'s' if count != 1 else ''}"


def _unknown(parts: Mapping[Any, Tokens]) -> list[str]:
    return [
        sentence
        for part, tokens in parts.items()
        for sentence in tokens.stock.lacking(f"{len(tokens):,} {part} tokens")
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


def _pairs(settings: Settings, stages: Progress, known: Sequence[Tokenizer]) -> PreparedData:
    data, wanted = settings.data, settings.tokenizer
    with stages.stage("reading"):
        texts = pairs_of(settings)
    task, labelled = data.train[0] in tasks.TASKS, isinstance(settings.model.config(), BagConfig)
    usual: Kind = "char" if task else "word" if labelled else "bpe"
    kind: Kind = usual if wanted.kind == "auto" else wanted.kind
    size = texts.bytes
    wanted = replace(wanted, kind=kind, vocabulary=wanted.vocabulary or vocabulary_for(kind, size))
    with stages.stage(f"learning {kind} tokens", size) as progress:
        if known:
            target, source = known[0], known[-1]
        elif labelled:
            source = learned(wanted, texts.texts(0), progress)
            # A label is a word as it stands, whatever words of texts are.
            labels = TokenizerSettings("word", ALL, tokenised="yes")
            target = learned(labels, texts.texts(1), progress)
        elif wanted.file or wanted.shared:
            target = source = learned(wanted, texts.texts(), progress)
        else:
            source = learned(wanted, texts.texts(0), progress)
            target = learned(wanted, texts.texts(1), progress)
    wanted = replace(wanted, kind=source.kind, shared=wanted.shared and not labelled)
    config = config_for(settings.model, target, source)
    longest = data.longest or min(config.context - 1, LONGEST)
    if longest > config.context:
        raise RegardError(
            f"pairs of up to {longest} tokens do not fit the model's context of {config.context}; "
            "lower data.longest or raise model.context"
        )
    with stages.stage("encoding"):
        train = encode_pairs(texts.train, source, target, longest, data.ratio)
        valid = encode_pairs(texts.valid, source, target, config.context - 1)
    if labelled:
        check_labels(train, "training pair", known=True)
        check_labels(valid, "held-out pair")
    if not len(train):
        raise RegardError("every pair was left out; raise data.longest or data.ratio")
    dropout = None
    if wanted.dropout:
        dropout = BPEDropout(source, wanted.dropout), BPEDropout(target, wanted.dropout)
    seed = settings.training.seed
    lengths = train.lengths
    buckets = LabelBatches if labelled else PairBatches
    return PreparedData(
        replace(settings, tokenizer=wanted, data=replace(data, longest=longest)),
        config,
        lambda tokens: buckets(train, valid, tokens, seed, dropout, data.length_jitter),
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
    vocabulary = f"{source.kind}, {len(target):,} tokens for both sides"
    if source is not target:
        vocabulary = f"{source.kind}, {len(source):,} source and {len(target):,} target tokens"
    return {
        "pairs": f"{len(train):,} to train on, {len(valid):,} held out",
        "split": rule,
        "tokenizer": vocabulary,
    }

"""Text as it is: the next token from those before it, or hidden tokens from all around them."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard.data.batch import Batch
from regard.data.feeds.masking import IGNORE
from regard.data.feeds.stream import MaskedTextFeed, TextFeed
from regard.data.progress import Progress
from regard.data.readers.texts import Part, Texts, gather
from regard.data.token_files import Tokens, prepare
from regard.decoding.decode_batch import continued
from regard.decoding.settings import Sampling
from regard.errors import RegardError
from regard.families.data.vocabularies import tokenizer_for
from regard.families.plan import Plan, PreparedData
from regard.families.settings import Settings
from regard.families.tasks.base import Evaluation, Sample, Trained, Work, little
from regard.metrics.scores import Scores
from regard.models.config import ModelConfig
from regard.models.network import BaseModel, SequenceModule
from regard.text.learning import vocabulary_for
from regard.text.specials import EOS
from regard.text.tokenizer import Kind, Tokenizer
from regard.training.objectives import objective_for
from regard.training.validation import accounted, at_rest, measure, rules

PLACES = 8  # rows of text that should at least be there to learn from
RANK = 300  # of a word that is neither very frequent nor rare
SHOWN = 48  # tokens of a text with gaps


@dataclass(frozen=True)
class Reading:
    """How text is read where nobody says otherwise."""

    kind: Kind = "bpe"  # of tokens
    lines: bool = False  # each line is a text
    all_words: bool = False  # the vocabulary has every word
    min_frequency: int = 0  # tokens seen fewer times are left out
    held_out: bool = True  # whether anything is measured on what is held out
    phrases: float = 0.0  # two words that score more become one


class Text(Work):
    """What both ways to learn from text have in common."""

    def __init__(self, reading: Reading | None = None) -> None:
        self.reading = reading or Reading()

    def read(
        self, settings: Settings, progress: Progress, known: Sequence[Tokenizer]
    ) -> PreparedData:
        usual, data = self.reading, settings.data
        if not usual.held_out:
            data = replace(data, held_out=0.0)
        with progress.stage("reading") as done:
            texts = gather(data.train, data.valid, data.held_out, done)
        lines = data.lines == "yes" or (usual.lines and data.lines == "auto")
        tokenizer, wanted = self._tokenizer(settings, texts, lines, progress, known)
        with progress.stage("encoding", texts.census.characters) as done:
            encoded = prepare(texts, tokenizer, done, lines=lines)
        tokenizer, parts = self.encoded(settings, texts, tokenizer, encoded, lines, progress, known)
        context = min(settings.training.context, _context_for(len(parts["train"])))
        model = settings.model
        if not model.config().unlimited:
            model = replace(model, changes={**model.changes, "context": context})
        config = model.config(vocabulary=len(tokenizer), source_vocabulary=0)
        settings = replace(
            settings,
            data=replace(data, lines="yes" if lines else data.lines),
            tokenizer=wanted,
            model=model,
            training=replace(settings.training, context=context),
        )
        return PreparedData(
            settings,
            config,
            lambda tokens: self.feed(parts["train"], parts["valid"], config, settings, tokens),
            [tokenizer],
            _described(texts, parts, tokenizer, lines),
            [*texts.warnings, *_unknown(parts), *little(len(parts["valid"]), "tokens")],
            len(parts["train"]),
            len(parts["valid"]),
            accounted(parts["valid"], tokenizer),
            texts.digest,
        )

    def _tokenizer(
        self,
        settings: Settings,
        texts: Texts,
        lines: bool,
        progress: Progress,
        known: Sequence[Tokenizer],
    ) -> tuple[Tokenizer, Any]:
        """The tokenizer, and its settings with nothing left open."""
        usual, wanted, size = self.reading, settings.tokenizer, texts.census.characters
        kind: Kind = usual.kind if wanted.kind == "auto" else wanted.kind
        wanted = replace(
            wanted,
            kind=kind,
            vocabulary=wanted.vocabulary or vocabulary_for(kind, size, all_words=usual.all_words),
            min_frequency=wanted.min_frequency or usual.min_frequency,
        )
        tokenizer = known[0] if known else tokenizer_for(wanted, texts, progress, lines)
        return tokenizer, replace(wanted, kind=tokenizer.kind)  # a file has its own

    def encoded(
        self,
        settings: Settings,
        texts: Texts,
        tokenizer: Tokenizer,
        parts: Mapping[Part, Tokens],
        lines: bool,
        progress: Progress,
        known: Sequence[Tokenizer],
    ) -> tuple[Tokenizer, Mapping[Part, Tokens]]:
        """What becomes of tokens before they are fed."""
        return tokenizer, parts

    def feed(
        self, train: Tokens, valid: Tokens, config: ModelConfig, settings: Settings, tokens: int
    ) -> TextFeed:
        """Rows of text as this kind of model reads them, `tokens` in a step."""
        return TextFeed(*self.shape(train, valid, settings, tokens))

    def shape(
        self, train: Tokens, valid: Tokens, settings: Settings, tokens: int
    ) -> tuple[Tokens, Tokens, int, int, int, bool]:
        """What every feed of text is made from."""
        training = settings.training
        rows = max(1, tokens // training.context)
        return train, valid, training.context, rows, training.seed, settings.data.document_mask

    def evaluate(self, run: Trained, asked: Evaluation) -> tuple[Scores, list[str]]:
        run.writer  # noqa: B018  # or say that there is nothing to judge, before reading all
        tokens, texts = self._held_out(run, asked)
        scores = self.measured(run, tokens, asked)
        warnings = [*texts.warnings, *tokens.stock.lacking(f"{len(tokens):,} tokens")]
        return scores, warnings

    def _held_out(self, run: Trained, asked: Evaluation) -> tuple[Tokens, Texts]:
        """The tokens to judge by: all of some text, or what the run held out."""
        data, given = run.settings.data, asked.given
        if not run.settings.training.context:  # 0 leaves it open; a run.toml leaves nothing open
            raise RegardError(
                f"{run.folder / 'run.toml'}: [training] context must be at least 1; put back what "
                "was written"
            )
        own = not given or list(given) == ["python"]
        if own:
            texts = gather(given or data.train, () if given else data.valid, data.held_out)
        else:
            texts = gather(given, held_out=0.0)
        if not given:
            run.check_data(texts.digest)
        parts = prepare(texts, run.tokenizer, lines=data.lines == "yes")
        tokens = parts["valid" if own else "train"]
        if not len(tokens):
            raise RegardError("the run held nothing out; name some text to evaluate it on")
        return tokens, texts

    def measured(self, run: Trained, tokens: Tokens, asked: Evaluation) -> Scores:
        """A run's figures over all of some tokens."""
        objective, context = objective_for(run.config, "text"), run.settings.training.context
        size = accounted(tokens, run.tokenizer) if objective.name == "causal" else 0
        feed = self.feed(tokens, tokens, run.config, run.settings, context)
        held_out = feed.held_out(asked.batch_size)
        scores = measure(run.writer, objective, held_out, asked.precision, size)
        return replace(scores, rules=self.rules(run.config, context))

    def rules(self, config: ModelConfig, context: int) -> str:
        """How the loss is counted, in words."""
        return rules(objective_for(config, "text"), context)

    def finished(self, plan: Plan, module: Any, scores: Scores) -> Scores:
        return replace(scores, rules=self.rules(plan.config, plan.settings.training.context))


class Causal(Text):
    """The next token, from those before it."""

    def sampler(self, plan: Plan, module: BaseModel) -> Sample:
        assert isinstance(module, SequenceModule)
        assert isinstance(plan.feed, TextFeed)
        writer, tokenizer = module, plan.tokenizers[0]
        held_out = plan.feed.valid if len(plan.feed.valid) else plan.feed.train
        prompt = held_out.read(1, 1 + min(16, plan.config.context // 4)).tolist()
        if EOS in prompt:  # a short first document, of which half is left to generate
            prompt = prompt[: (prompt.index(EOS) + 1) // 2]

        def sample() -> dict[str, Any]:
            with at_rest(writer):
                written = list(continued(writer, prompt, Sampling(limit=60, temperature=0.8)))
            return {"prompt": tokenizer.decode(prompt), "text": tokenizer.decode(written)}

        return sample

    def use(self, plan: Plan, folder: str) -> str:
        begin = some_word(plan) if plan.settings.tokenizer.kind == "word" else "Once"
        return f"regard generate {folder} {begin}"


class Masked(Text):
    """The tokens that were hidden, from all around them."""

    def feed(
        self, train: Tokens, valid: Tokens, config: ModelConfig, settings: Settings, tokens: int
    ) -> TextFeed:
        shape = self.shape(train, valid, settings, tokens)
        share = settings.training.masked
        return MaskedTextFeed(*shape, vocabulary=config.vocabulary, share=share)

    def sampler(self, plan: Plan, module: BaseModel) -> Sample:
        assert isinstance(module, SequenceModule)
        reader = module

        def sample() -> dict[str, Any]:
            batch = next(plan.feed.held_out(1), None) or plan.feed.step(0)
            width = SHOWN if batch.lengths is None else min(SHOWN, int(batch.lengths[0]))
            short = batch.each(
                lambda tensor: tensor[:1, :width] if tensor.dim() == 2 else tensor[:1]
            )
            short = replace(short.to(plan.device), lengths=None)
            with at_rest(reader):
                logits = plan.objective.logits(reader, short)
            hidden, filled = _hidden_text(short, logits, plan.tokenizers[0])
            return {"prompt": hidden, "text": filled}

        return sample

    def use(self, plan: Plan, folder: str) -> str:
        return f"regard fill {folder} 'Once [mask] a time'"


def some_word(plan: Plan) -> str:
    """Some word that is neither very frequent nor rare, quoted."""
    words = plan.tokenizers[0].vocabulary.tokens
    return shlex.quote(words[min(RANK, len(words) - 1)].replace(" ", "_"))


def _hidden_text(batch: Batch, logits: Tensor, tokenizer: Tokenizer) -> tuple[str, str]:
    """The first row of a masked batch as text, and with what the model put in the gaps."""
    asked = batch.targets[0] != IGNORE
    filled = torch.where(asked, logits[0].argmax(-1), batch.tokens[0])
    return (
        "".join(tokenizer.pieces(batch.tokens[0].tolist())),
        "".join(tokenizer.pieces(filled.tolist())),
    )


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

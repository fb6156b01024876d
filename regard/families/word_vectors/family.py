"""The family of word vectors (M2): two layers and nothing between them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional as F

from regard.costs.jobs import Shape
from regard.costs.report import Asked, Report, of_counted
from regard.data.feeds.phrases import find_phrases, spelled
from regard.data.progress import Progress
from regard.data.readers.texts import Part, Texts
from regard.data.token_files import Tokens, prepare
from regard.errors import Problems, RegardError
from regard.families.base import Family, GivenOptions
from regard.families.plan import Plan, PreparedData
from regard.families.resolve import planned
from regard.families.settings import Settings
from regard.families.tasks.base import Sample, Work
from regard.families.tasks.text import Reading, Text, some_word
from regard.families.word_vectors.loop import WordLoop
from regard.families.word_vectors.price import vectors
from regard.families.word_vectors.steps import PIECE, RATES
from regard.models.config import ModelConfig, Task
from regard.models.network import BaseModel
from regard.models.word_vectors.config import Word2VecConfig
from regard.models.word_vectors.model import WordVectors
from regard.text.specials import SPECIALS
from regard.text.tokenizer import Tokenizer
from regard.training.job import Job, Trainer
from regard.training.settings import TrainingSettings

EPOCHS = 5  # as its authors have it
RANKS = range(300, 3000, 270)  # of words that are shown with their neighbours
RARE = 5  # words that are seen less often are left out
TEXT = 4096  # tokens that a step reads where its cost is asked for


class Neighbours(Text):
    """The words around each."""

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
        """The tokenizer with the text's phrases as further words, which it does not look for."""
        asked = settings.model.config()
        assert isinstance(asked, Word2VecConfig)
        if not asked.phrases or known:
            return tokenizer, parts
        with progress.stage("finding phrases"):
            vocabulary, least = tokenizer.vocabulary, settings.tokenizer.min_frequency or RARE
            pairs = find_phrases(parts["train"], len(tokenizer), asked.phrases, least)
            words = (*vocabulary.tokens, *spelled(pairs, vocabulary.tokens))
            tokenizer = Tokenizer(replace(vocabulary, tokens=words))
            return tokenizer, prepare(texts, tokenizer, lines=lines)

    def sampler(self, plan: Plan, module: BaseModel) -> Sample:
        """The nearest neighbours of one word after the other, neither frequent nor rare."""
        assert isinstance(module, WordVectors)
        tokenizer, turn, vectors_of = plan.tokenizers[0], 0, module.vectors
        ranks = [rank for rank in RANKS if rank < len(tokenizer)] or [len(SPECIALS)]

        def sample() -> dict[str, Any]:
            nonlocal turn
            word = ranks[turn % len(ranks)]
            turn += 1
            vectors = F.normalize(vectors_of(), dim=1)
            likeness = vectors @ vectors[word]  # (vocabulary,)
            likeness[[*range(len(SPECIALS)), word]] = -2.0
            nearest = likeness.topk(min(8, len(tokenizer) - len(SPECIALS))).indices.tolist()
            words = [tokenizer.decode([near]) for near in nearest if near != word]
            return {"prompt": tokenizer.decode([word]), "text": f": {', '.join(words)}"}

        return sample

    def use(self, plan: Plan, folder: str) -> str:
        return f"regard words {folder} nearest {some_word(plan)}"


class Vectors(Family):
    works: Mapping[Task, Work] = {
        "neighbours": Neighbours(
            Reading("word", lines=True, all_words=True, min_frequency=RARE, held_out=False)
        )
    }
    predictable = False
    only_learns = True

    def check_options(
        self, given: GivenOptions, config: ModelConfig | None, problems: Problems
    ) -> None:
        super().check_options(given, config, problems)
        if given.steps:
            problems.add("word vectors are made in passes over the text; give --epochs")
        if given.valid:
            problems.add("nothing is measured on text held out of word vectors; leave out --valid")

    def sizes(
        self, settings: Settings, config: ModelConfig, gpu: bool, named: bool
    ) -> tuple[int, int]:
        return PIECE, super().sizes(settings, config, gpu, named)[1]

    def resolve(self, prepared: PreparedData, device: torch.device) -> Plan:
        """A plan of whole passes over the text."""
        settings, config = prepared.settings, prepared.config
        assert isinstance(config, Word2VecConfig)
        training = settings.training
        if training.epochs != int(training.epochs):
            raise RegardError(
                f"word vectors are made in whole passes over the text, not {training.epochs}; "
                "set training.epochs to a whole number"
            )
        epochs = int(training.epochs) or EPOCHS
        steps = epochs * -(-prepared.train_tokens // training.tokens_per_step)
        every = training.checkpoint_every or max(1, steps // 10)
        training = replace(
            training,
            steps=steps,
            epochs=float(epochs),
            device=str(device),
            precision="float32",
            compile="no",
            micro_batch_size=1,
            checkpoint_every=every,
            sample_every=training.sample_every or every,
            log_every=training.log_every or max(1, steps // 200),
        )
        rate = settings.optimizer.learning_rate or RATES[config.method]
        optimizer = replace(settings.optimizer, learning_rate=rate)
        settings = replace(settings, training=training, optimizer=optimizer)
        return planned(prepared, settings, device)

    def in_words(self, plan: Plan) -> str:
        config = plan.config
        assert isinstance(config, Word2VecConfig)
        return f"{config.method} with loss {config.loss}, width {config.width}"

    def trainer(self, job: Job, plan: Plan) -> Trainer:
        return WordLoop(job, plan.tokenizers[0].vocabulary.tokens)

    def start_facts(self, plan: Plan, module: BaseModel) -> Mapping[str, Any]:
        return {
            "parameters": sum(weight.numel() for weight in module.parameters()),
            "tokens_per_step": plan.settings.training.tokens_per_step,
        }

    def steps_in_words(self, plan: Plan) -> Mapping[str, str]:
        training = plan.settings.training
        return {"steps": f"{training.steps:,}, {training.epochs:g} passes over the text"}

    def tokens_priced(self, training: TrainingSettings) -> int:
        return training.tokens_per_step or TEXT

    def check_priced(self, options: Mapping[str, Any]) -> None:
        useless = ("batch_size", "source", "generate", "recompute")
        given = [f"--{name.replace('_', '-')}" for name in useless if options[name]]
        if given or options["processes"] > 1:
            raise RegardError(
                "word vectors are learned from a running text, and generate nothing; leave out "
                f"{', '.join(given) or '--processes'}"
            )

    def priced(self, config: ModelConfig, asked: Asked, load: Callable[[], BaseModel]) -> Report:
        """A step of training, which is all that they do by themselves."""
        assert isinstance(config, Word2VecConfig)
        tokens = asked.shape.tokens
        counted = vectors(config, tokens, asked.device.kind)
        step = Asked("train", Shape(1, tokens), asked.device, steps=asked.steps)
        return of_counted(counted, step)


FAMILY = Vectors()

"""What to show of a model while it learns: a text continued, a translation, or gaps filled."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data.batch import Batch
from regard.data.feeds.images import ImageFeed, as_tensor
from regard.data.feeds.masking import IGNORE
from regard.data.feeds.pair_batches import PairBatches
from regard.data.feeds.stream import TextFeed
from regard.data.readers.pairs import EncodedPairs
from regard.decoding.captions import captioned
from regard.decoding.decode_batch import continued
from regard.decoding.settings import TARGET, Sampling
from regard.decoding.text_model import TextModel
from regard.models.captioner.model import Captioner
from regard.models.network import BaseModel, SequenceModule
from regard.models.word_vectors.model import WordVectors
from regard.runs.plan import Plan
from regard.text.specials import EOS, SPECIALS
from regard.text.tokenizer import Tokenizer
from regard.training.objectives import Masked
from regard.training.validation import GREEDY, at_rest, translations

Sample = Callable[[], Mapping[str, Any]]
RANKS = range(300, 3000, 270)  # of words that are shown with their neighbours
SHOWN = 48  # tokens of a text with gaps


def sampler(plan: Plan, module: BaseModel) -> Sample:
    """What to show of a model now and then: a text, a translation, or gaps filled."""
    tokenizer = plan.tokenizers[0]
    if isinstance(module, WordVectors):
        return _comparing(module, tokenizer)
    assert isinstance(module, SequenceModule)
    if isinstance(plan.feed, PairBatches):
        shown = plan.feed.valid if len(plan.feed.valid) else plan.feed.train
        return _translating(shown, module, tokenizer)
    if isinstance(plan.feed, ImageFeed):
        assert isinstance(module, Captioner)
        return _describing(plan.feed, module, tokenizer)
    if isinstance(plan.objective, Masked):
        return _filling(plan, module)
    assert isinstance(plan.feed, TextFeed)
    held_out = plan.feed.valid if len(plan.feed.valid) else plan.feed.train
    prompt = held_out.read(1, 1 + min(16, plan.config.context // 4)).tolist()
    if EOS in prompt:  # a short first document, of which half is left to write
        prompt = prompt[: (prompt.index(EOS) + 1) // 2]

    def sample() -> dict[str, Any]:
        with at_rest(module):
            written = list(continued(module, prompt, Sampling(limit=60, temperature=0.8)))
        return {"prompt": tokenizer.decode(prompt), "text": tokenizer.decode(written)}

    return sample


def _comparing(module: WordVectors, tokenizer: Tokenizer) -> Sample:
    """The nearest neighbours of one word after the other, neither the most frequent nor rare."""
    ranks = [rank for rank in RANKS if rank < len(tokenizer)] or [len(SPECIALS)]
    turn = 0

    def sample() -> dict[str, Any]:
        nonlocal turn
        word = ranks[turn % len(ranks)]
        turn += 1
        vectors = F.normalize(module.vectors(), dim=1)
        likeness = vectors @ vectors[word]  # (vocabulary,)
        likeness[[*range(len(SPECIALS)), word]] = -2.0
        nearest = likeness.topk(min(8, len(tokenizer) - len(SPECIALS))).indices.tolist()
        words = [tokenizer.decode([near]) for near in nearest if near != word]
        return {"prompt": tokenizer.decode([word]), "text": f": {', '.join(words)}"}

    return sample


def _translating(pairs: EncodedPairs, module: SequenceModule, tokenizer: Tokenizer) -> Sample:
    turn = 0

    def sample() -> dict[str, Any]:
        nonlocal turn
        index = turn % len(pairs)
        turn += 1
        one = EncodedPairs([pairs.sources[index]], [pairs.targets[index]], [pairs.texts[index]])
        written = translations(module, one, tokenizer)[0]
        return {
            "source": pairs.texts[index].source,
            "written": written,
            "target": pairs.texts[index].target,
        }

    return sample


def _describing(feed: ImageFeed, module: Captioner, tokenizer: Tokenizer) -> Sample:
    """What is written about one picture after the other."""
    speaker, turn = TextModel(module, TARGET, tokenizer), 0
    shown = feed.valid if len(feed.valid) else feed.train

    def sample() -> dict[str, Any]:
        nonlocal turn
        index = turn % len(shown)
        turn += 1
        picture = as_tensor(feed.pictures.get([shown.images[index]]))
        with at_rest(module):
            ((best, *_),) = captioned(speaker, picture, GREEDY)
        return {
            "source": shown.images[index].name,
            "written": best.text,
            "target": shown.texts[index],
        }

    return sample


def _filling(plan: Plan, module: SequenceModule) -> Sample:
    def sample() -> dict[str, Any]:
        batch = next(plan.feed.held_out(1), None) or plan.feed.step(0)
        width = SHOWN if batch.lengths is None else min(SHOWN, int(batch.lengths[0]))
        short = batch.each(lambda tensor: tensor[:1, :width] if tensor.dim() == 2 else tensor[:1])
        short = replace(short.to(plan.device), lengths=None)
        with at_rest(module):
            logits = plan.objective.logits(module, short)
        hidden, filled = _hidden_text(short, logits, plan.tokenizers[0])
        return {"prompt": hidden, "text": filled}

    return sample


def _hidden_text(batch: Batch, logits: Tensor, tokenizer: Tokenizer) -> tuple[str, str]:
    """The first row of a masked batch as text, and with what the model put in the gaps."""
    asked = batch.targets[0] != IGNORE
    filled = torch.where(asked, logits[0].argmax(-1), batch.tokens[0])
    return (
        "".join(tokenizer.pieces(batch.tokens[0].tolist())),
        "".join(tokenizer.pieces(filled.tolist())),
    )

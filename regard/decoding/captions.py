"""Pictures described by beam search (M8)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.decoding.search.beam import Hypothesis, SearchResult, search
from regard.decoding.settings import Beam
from regard.decoding.text_model import Given, TextModel
from regard.errors import RegardError
from regard.models.config import Ability


@dataclass(frozen=True)
class Caption:
    """One way to describe a picture."""

    text: str
    ids: list[int]
    logprob: float
    score: float  # what it was chosen by: with its penalties
    attention: Tensor | None = None  # (tokens and the end, places of the grid)


def captioned(
    speaker: TextModel, pictures: Tensor, beam: Beam, *, limit: int = 0, prefix: Given = ""
) -> list[list[Caption]]:
    """The best captions of each of some pictures (rows, 3, size, size), bytes, as one batch.

    They begin with `prefix` and have at most `limit` tokens, their end included; 0: as many as the
    model knows.
    """
    speaker.require(Ability.CAPTION, what="describe pictures")
    begin = speaker.beginning(prefix, "caption")
    room = speaker.context - len(begin)
    if limit < 0:
        raise RegardError(f"a caption cannot have {limit} tokens at most; give 1 or more, or 0")
    if room < 1:
        raise RegardError(
            f"a caption has at most {speaker.context} tokens, and {len(begin)} of them are given "
            "to begin with; give fewer"
        )
    with torch.inference_mode():
        memory = speaker.module.encode(pictures.to(speaker.device))
    prompts = [[speaker.signs.begin, *begin]] * len(pictures)
    found = search(
        speaker.module,
        prompts,
        [min(limit or room, room)] * len(pictures),
        beam,
        signs=speaker.signs,
        device=speaker.device,
        memory=memory,
    )
    return [[_caption(speaker, begin, one, best) for best in one.hypotheses] for one in found]


def _caption(
    speaker: TextModel, begin: list[int], found: SearchResult, best: Hypothesis
) -> Caption:
    ids, attention = [*begin, *best.ids], found.looked(best)
    attention = None if attention is None else attention.float()
    return Caption(speaker.text(ids), ids, best.logprob, best.worth, attention)

"""Filling gaps: what a model that sees both sides of one would write there."""

import re
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from regard.decoding.sampling import check_numbers
from regard.decoding.settings import require_whole
from regard.decoding.text_model import TextModel
from regard.errors import Problems, RegardError
from regard.models.config import Ability
from regard.models.kernels.attention import any_shape
from regard.text.invalid_utf8 import escaped
from regard.text.specials import MASK, SPECIALS
from regard.text.tokenizer import Tokenizer

GAP = re.compile(r"\[mask\]|\[MASK\]|<mask>")


class GapCandidate(NamedTuple):
    """What may stand in a gap."""

    text: str  # the token's; by name (⟨E2⟩) where it is only a part of a character
    probability: float  # the model's own, of all tokens: those never proposed keep theirs


@dataclass(frozen=True)
class Filling:
    """A text whose gaps are filled, and what else might have stood in each."""

    text: str  # with the most probable token in each gap
    gaps: tuple[tuple[GapCandidate, ...], ...]  # of each gap, the most probable first
    ids: tuple[tuple[int, ...], ...]  # the same candidates as token ids
    tokens: int  # of the text around the gaps
    unknown: int  # of these, what the vocabulary lacks


def filled(speaker: TextModel, text: str, top: int = 5) -> Filling:
    """Fill each `[mask]`, `[MASK]` or `<mask>` of a text, with the `top` candidates of each.

    All gaps are filled at once, each without knowing what comes into the others. Special tokens
    are never proposed, but the probabilities are shares of all tokens, these too, so that those of
    a gap add up to less than 1.
    """
    if not isinstance(text, str):
        raise RegardError(f"give a text with gaps, not {text!r:.40}")
    speaker.require(Ability.FILL, what="fill gaps")
    problems = Problems("fill")
    require_whole(problems, "top", top, 1)
    problems.report()
    tokenizer = speaker.tokenizer
    if tokenizer is None:
        raise RegardError("this model came without a tokenizer, so its gaps cannot be filled")
    parts = _parts(text, tokenizer)
    ids = _ids(speaker, tokenizer, parts)
    best = _probabilities(speaker, ids, len(tokenizer)).topk(
        min(int(top), len(tokenizer) - len(SPECIALS)), dim=-1
    )
    found = (best.indices + len(SPECIALS)).tolist()  # (gaps, top)
    gaps = [
        tuple(GapCandidate(_text(tokenizer, token), p) for token, p in zip(*gap, strict=True))
        for gap in zip(found, best.values.tolist(), strict=True)
    ]
    return Filling(
        _joined(tokenizer, parts, found),
        tuple(gaps),
        tuple(map(tuple, found)),
        len(ids) - len(gaps) - 2,  # without what begins and ends it
        tokenizer.unknown(ids),
    )


def _parts(text: str, tokenizer: Tokenizer) -> list[str]:
    """What stands before, between and behind the gaps."""
    parts = GAP.split(text)
    if len(parts) == 1:
        gap = SPECIALS[MASK]
        raise RegardError(
            f'there is no gap to fill: write {gap} (or [mask]) where one is, e.g. "the {gap} sat"'
        )
    if tokenizer.kind == "bpe":  # whose tokens begin with their blank: it is in the gap too
        parts = [*(part.removesuffix(" ") for part in parts[:-1]), parts[-1]]
    return parts


def _ids(speaker: TextModel, tokenizer: Tokenizer, parts: list[str]) -> list[int]:
    first, *others = (tokenizer.encode(part).tolist() for part in parts)
    signs = speaker.signs
    ids = [signs.begin, *first, *chain(*([MASK, *part] for part in others)), signs.ends[0]]
    if len(ids) > speaker.context:
        raise RegardError(
            f"the text has {len(ids):,} tokens; this model reads at most {speaker.context:,}"
        )
    return ids


@torch.inference_mode()
def _probabilities(speaker: TextModel, ids: list[int], known: int) -> Tensor:
    """What may stand in each gap: (gaps, ordinary tokens), of a softmax over all tokens."""
    module = speaker.require_one("fill gaps")
    tokens = torch.tensor([ids], device=speaker.device)  # (1, positions)
    with any_shape():
        hidden = module.hidden(tokens)[tokens == MASK]  # (gaps, width)
    logits = module.logits(hidden)  # (gaps, vocabulary)
    check_numbers(logits)
    return logits.double().softmax(-1)[:, len(SPECIALS) : known].cpu()


def _text(tokenizer: Tokenizer, token: int) -> str:
    try:
        return tokenizer.decode_bytes([token]).decode("utf-8")
    except UnicodeDecodeError:
        return tokenizer.pieces([token])[0]


def _joined(tokenizer: Tokenizer, parts: list[str], found: list[list[int]]) -> str:
    """The parts with the first candidate between them; as bytes, since tokens may share one."""
    pieces = [escaped(part) for part in parts]
    fills = [tokenizer.decode_bytes(tokens[:1]) for tokens in found]
    whole = pieces[0] + b"".join(chain(*zip(fills, pieces[1:], strict=True)))
    return whole.decode("utf-8", "replace")

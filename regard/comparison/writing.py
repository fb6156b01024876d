"""What each model writes from the same beginnings, and how fast it writes."""

import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from regard.data.readers.pairs import EncodedPairs
from regard.data.token_files import Tokens
from regard.decoding.settings import Beam, Sampling
from regard.decoding.streams import continue_all
from regard.decoding.text_model import TextModel
from regard.decoding.translation import translate_all
from regard.text.specials import BOS, EOS

PROMPT = 32  # tokens of a text
LIMIT = 64  # tokens that are written for time
ROWS = (1, 16)  # texts at once
SAMPLES, SHOWN = 3, 100  # prompts, and tokens written behind each
SENTENCES = 6  # of a translation
DRAWN = Sampling(temperature=0.8)


def prompts(tokens: Tokens, count: int, length: int = PROMPT) -> list[list[int]]:
    """Beginnings from a text (token ids), evenly spread; what parts documents is left out."""
    found = []
    for i in range(count):
        start = i * max(len(tokens) - length, 0) // count
        ids = tokens.read(start, start + length).tolist()
        found.append([token for token in ids if token not in (BOS, EOS)] or [EOS])
    return found


def sentences(pairs: EncodedPairs, count: int) -> list[int]:
    """Pairs to show, from short sources to long ones."""
    order = pairs.lengths[0].argsort(kind="stable")
    return [int(order[(2 * i + 1) * len(order) // (2 * count)]) for i in range(count)]


def tokens_per_second(speaker: TextModel, given: Sequence[Sequence[int]]) -> float:
    """How fast texts are written side by side, each to the same length; the best of two."""
    never = speaker.signs.ends  # else the shortest text would count as the fastest
    room = speaker.context - (1 if speaker.reads else 1 + max(map(len, given)))
    asked = replace(DRAWN, limit=max(1, min(LIMIT, room)), banned=never)
    rates = []
    for _ in range(2):
        begin = time.perf_counter()
        written = continue_all(speaker, given, asked).whole()
        if speaker.device.type == "cuda":
            torch.cuda.synchronize(speaker.device)
        rates.append(sum(len(one.tokens) for one in written) / (time.perf_counter() - begin))
    return max(rates)


def continuations(speaker: TextModel, given: Sequence[Sequence[int]]) -> list[str]:
    """What is drawn behind each beginning, with the same seed for every model."""
    room = speaker.context - 1 - max(map(len, given))
    asked = replace(DRAWN, limit=max(1, min(SHOWN, room)))
    return [one.text for one in continue_all(speaker, given, asked).whole()]


def translations(speaker: TextModel, sources: Sequence[Sequence[int]]) -> list[str]:
    """The most probable translations, token by token."""
    return [best[0].text for best in translate_all(speaker, sources, Beam(beams=1))]

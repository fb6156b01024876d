"""Which source words a target's words looked at, from a model's cross-attention (M15, M24).

A target is read as if the model had written it, by a state that watches. What its tokens looked at
becomes what words looked at: the mean over a target word's tokens, the sum over a source word's.
Tokens that lie in no word (blanks, </s>) are left out and nothing is scaled up for it: a row of the
matrix says how much of the attention, of 1, went to words.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Literal

import torch
from torch import Tensor

from regard.data.readers.pairs import Pair
from regard.decoding.attention_weights import attended
from regard.decoding.sampling import check_numbers
from regard.decoding.session import DecoderSession
from regard.decoding.text_model import TextModel, batches
from regard.decoding.translation import WINDOW
from regard.errors import RegardError
from regard.models.config import Ability
from regard.text.invalid_utf8 import replace_invalid_utf8
from regard.text.specials import UNK
from regard.text.tokenizer import Tokenizer

By = Literal["words", "characters"]
Link = tuple[int, int]  # a source unit and a target unit, each counted from 0
Span = tuple[int, int]  # from one character of a text to before another

CELLS = 1 << 20  # target × source positions at once; as much again for each head
UNITS: dict[By, re.Pattern[str]] = {
    "words": re.compile(r"\S+"),  # what stands between blanks, as `str.split` finds it
    "characters": re.compile(r"[\s\S]"),
}


@dataclass(frozen=True)
class Heads:
    """Which heads count: one, all of a layer, or by default those that translations show."""

    layer: int | None = None  # from 0
    head: int | None = None

    def __str__(self) -> str:
        if self.layer is None and self.head is None:
            return "upper half of the layers, all heads"
        which = "all heads" if self.head is None else f"head {self.head}"
        return f"layer {self.layer or 0}, {which}"

    def of(self, layers: int, heads: int) -> str:
        """These in words, for a model that has so many."""
        if layers * heads == 1:
            return "all the attention that there is"
        return "all heads" if layers == 1 and self == Heads() else str(self)

    def mean(self, seen: Tensor) -> Tensor:
        """(layers, heads, target tokens, source tokens) -> (target tokens, source tokens)."""
        self._check(*seen.shape[:2])
        if self.layer is None and self.head is None:
            return attended(seen[None])[0]
        layer = seen[self.layer or 0]
        return layer.mean(0) if self.head is None else layer[self.head]

    def _check(self, layers: int, heads: int) -> None:
        if self.head is not None and self.layer is None and layers > 1:
            raise RegardError(
                f"each of {layers} layers has a head {self.head}; say which layer is meant"
            )
        for name, value, there in (("layer", self.layer, layers), ("head", self.head, heads)):
            if value is not None and not 0 <= value < there:
                known = f"{name}s 0 to {there - 1}" if there > 1 else f"{name} 0 only"
                raise RegardError(f"there is no {name} {value}; this model's attention has {known}")


@dataclass(frozen=True)
class TokenizedText:
    """A text as a model's tokens, and as units: words or characters."""

    text: str
    ids: list[int]  # its end included
    pieces: list[str]  # what to show for each id
    spans: list[Span]  # of each token but the end
    unit_spans: list[Span]

    @property
    def unknown(self) -> int:
        """Tokens that stand for what the vocabulary lacks."""
        return self.ids.count(UNK)

    @property
    def units(self) -> list[str]:
        return [self.text[start:stop] for start, stop in self.unit_spans]

    @cached_property
    def shares(self) -> Tensor:
        """(tokens, units): how much of each token lies in each unit.

        A token in several units is divided among them; a row is 0 if it lies in none, as the end.
        """
        tokens = torch.tensor([*self.spans, (0, 0)])  # (tokens, 2)
        units = torch.tensor(self.unit_spans).reshape(-1, 2)  # (units, 2)
        first = torch.maximum(tokens[:, None, 0], units[:, 0])  # (tokens, units)
        last = torch.minimum(tokens[:, None, 1], units[:, 1])
        common = (last - first).clamp(min=0).float()
        return common / common.sum(-1, keepdim=True).clamp(min=1)


def unit_spans(text: str, by: By) -> list[Span]:
    """Where the words or characters of a text stand."""
    return [found.span() for found in UNITS[by].finditer(text)]


def cut(tokenizer: Tokenizer, text: str, ids: Sequence[int], by: By) -> TokenizedText:
    """A text and its ids, which end in an end, cut into units."""
    spans = tokenizer.reference.encode(text).offsets
    return TokenizedText(text, list(ids), tokenizer.pieces(ids), spans, unit_spans(text, by))


@dataclass(frozen=True, eq=False)
class Alignment:
    """What each part of a target looked at."""

    source: TokenizedText
    target: TokenizedText
    tokens: Tensor  # (target tokens, source tokens), the ends included; each row sums to 1
    matrix: Tensor  # (target units, source units); what lacks of 1 went to blanks and </s>

    @property
    def links(self) -> list[Link]:
        """Each target unit with the source unit it looked at most, if it looked at any."""
        if not self.matrix.numel():
            return []
        weights, sources = self.matrix.max(-1)
        both = zip(weights.tolist(), sources.tolist(), strict=True)
        return [(source, target) for target, (weight, source) in enumerate(both) if weight > 0]


@dataclass(frozen=True, eq=False)
class PairAttention:
    """How every head looked at a source while its target was read."""

    source: TokenizedText
    target: TokenizedText
    attention: Tensor  # (layers, heads, target tokens, source tokens)

    @property
    def shape(self) -> tuple[int, int]:
        """Layers and heads."""
        return self.attention.shape[0], self.attention.shape[1]

    @property
    def each(self) -> list[Heads]:
        """What can be asked for: each head and then all of a layer, layer by layer."""
        layers, heads = self.shape
        return [Heads(layer, head) for layer in range(layers) for head in (*range(heads), None)]

    def by(self, heads: Heads) -> Alignment:
        """What these heads align."""
        tokens = heads.mean(self.attention)
        within = (self.target.shares > 0).to(tokens)  # (target tokens, target units)
        rows = within.T @ tokens / within.sum(0)[:, None].clamp(min=1)  # (target units, tokens)
        return Alignment(self.source, self.target, tokens, rows @ self.source.shares)


def check_watchable(speaker: TextModel) -> None:
    """Refuse a model without cross-attention before any work."""
    speaker.require(Ability.TRANSLATE, what="align words")
    try:
        speaker.module.start(batch_size=1, capacity=1, return_attention=True).free()
    except RegardError as error:
        raise RegardError(f"nothing can be aligned: {error}") from None


def watched(
    speaker: TextModel, pairs: Iterable[Pair], by: By = "words", *, rows: int = 32
) -> Iterator[PairAttention | str]:
    """Pairs, in order, as a model looks at them; for one that it cannot read a sentence says why.

    So many `rows` of about the same length are computed at once.
    """
    check_watchable(speaker)
    given = iter(pairs)
    while some := list(islice(given, rows * WINDOW)):
        found: dict[int, PairAttention | str] = {}
        cuts: dict[int, tuple[TokenizedText, TokenizedText]] = {}
        for index, pair in enumerate(some):
            try:
                cuts[index] = _cuts(speaker, pair, by)
            except RegardError as error:
                found[index] = str(error)
        for batch in _batches(cuts, rows):
            found.update(zip(batch, _looks(speaker, [cuts[i] for i in batch]), strict=True))
        yield from (found[index] for index in range(len(some)))


def watched_pair(speaker: TextModel, pair: Pair, by: By = "words") -> PairAttention:
    """The same for one pair, which the model must be able to read."""
    (found,) = watched(speaker, [pair], by)
    if isinstance(found, str):
        raise RegardError(found)
    return found


def _cuts(speaker: TextModel, pair: Pair, by: By) -> tuple[TokenizedText, TokenizedText]:
    """Both sides of a pair as the model reads and writes them."""
    pair = Pair(*(replace_invalid_utf8(text) for text in pair))
    read, written = speaker.source(pair.source), speaker.ids(pair.target)
    if not written:
        raise RegardError("the target is empty; give something to align")
    written.append(speaker.signs.ends[0])
    if len(written) > speaker.context:
        raise RegardError(
            f"a target of {len(written):,} tokens is too long, this model writes "
            f"{speaker.context:,}; shorten it or leave it out"
        )
    source, target = speaker.source_tokenizer, speaker.tokenizer
    assert source is not None
    assert target is not None
    return cut(source, pair.source, read, by), cut(target, pair.target, written, by)


def _batches(
    cuts: Mapping[int, tuple[TokenizedText, TokenizedText]], rows: int
) -> Iterator[list[int]]:
    """Which pairs to take together: of about the same length, and fewer of long ones."""
    which = list(cuts)
    lengths = [(len(source.ids), len(target.ids)) for source, target in cuts.values()]
    for batch in batches([sum(both) for both in lengths], rows):
        sources, targets = zip(*(lengths[index] for index in batch), strict=True)
        fit = max(1, CELLS // (max(sources) * max(targets)))
        for first in range(0, len(batch), fit):
            yield [which[index] for index in batch[first : first + fit]]


def _looks(
    speaker: TextModel, pairs: Sequence[tuple[TokenizedText, TokenizedText]]
) -> list[PairAttention]:
    """Some pairs as one batch."""
    prompts = [[speaker.signs.begin, *target.ids[:-1]] for _, target in pairs]
    with torch.inference_mode():
        memory = speaker.encode([source.ids for source, _ in pairs])
        room = max(map(len, prompts))
        read = DecoderSession.read(
            speaker.module, prompts, room, speaker.device, memory, return_attention=True
        )
    seen = read.state.attention  # (rows, layers, heads, longest target, longest source)
    if seen is None:
        raise RegardError("nothing can be aligned: this model does not tell what it looked at")
    check_numbers(seen)
    seen = seen.float().cpu()
    read.state.free()
    return [
        PairAttention(source, target, look[..., : len(target.ids), : len(source.ids)].clone())
        for look, (source, target) in zip(seen, pairs, strict=True)
    ]

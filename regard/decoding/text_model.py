"""A model and the tokenizers it reads and writes with: from text to text."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from operator import index
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.data.batch import padded
from regard.decoding.settings import SpecialTokens
from regard.errors import RegardError
from regard.models.config import Ability
from regard.models.kernels.attention import any_shape
from regard.models.network import Network, SequenceModule
from regard.models.protocol import Memory
from regard.text.invalid_utf8 import replace_invalid_utf8
from regard.text.tokenizer import Tokenizer

Given = str | Sequence[int]  # a text, or token ids as they are


@dataclass(frozen=True)
class TextModel:
    """What a search needs of a model beside the protocol."""

    module: SequenceModule
    signs: SpecialTokens
    tokenizer: Tokenizer | None = None  # of what is written; None: only ids can be given and had
    source_tokenizer: Tokenizer | None = None  # of what is read, for encoder–decoders

    @property
    def device(self) -> torch.device:
        return self.module.device

    @property
    def context(self) -> int:
        return self.module.config.context

    @property
    def reads(self) -> bool:
        """Whether it writes from a source."""
        return self.module.config.reads_text

    def with_module(self, module: Any) -> "TextModel":
        """The same with another model of the same vocabulary, such as an ensemble."""
        return replace(self, module=module)

    def require(self, *needed: Ability, what: str, who: str = "this model") -> None:
        """Refuse a model that can do none of what is needed, and one whose dropout is on."""
        if self.module.training:
            raise RegardError("the model is being trained, with dropout; call its `eval()` first")
        if self.device.type == "meta":
            raise RegardError("a model on the meta device has no weights; load it on a real one")
        config = self.module.config
        if not config.abilities & {*needed}:
            raise RegardError(f"{who} ({config.kind}) cannot {what}: it {config.in_words}")

    def require_text(self, who: str) -> None:
        """Refuse a model that came without a tokenizer: text can be neither given nor had."""
        if self.tokenizer is None:
            asked = "translate([[5, 7]])" if self.reads else "generate([5, 7])"
            raise RegardError(
                f"{who} came without a tokenizer (a Hugging Face folder's own is not read), so it "
                f"takes no text; from Python it takes token ids: regard.load(path).{asked}"
            )

    def require_one(self, what: str) -> Network:
        """The one model with hidden vectors; those of an ensemble have nothing in common."""
        if isinstance(self.module, Network):
            return self.module
        if Ability.EMBED not in self.module.config.abilities:
            raise RegardError(f"this model cannot {what}: it {self.module.config.in_words}")
        raise RegardError(f"an ensemble cannot {what}; ask its members one by one")

    def require_words_of(self, other: "TextModel", what: str) -> None:
        """Refuse a model to work together with whose ids mean something else."""
        sides = ((self.tokenizer, other.tokenizer), (self.source_tokenizer, other.source_tokenizer))
        for mine, theirs in sides:
            if mine is not None and theirs is not None and mine.fingerprint != theirs.fingerprint:
                raise RegardError(
                    f"{what} has another vocabulary, so they cannot work together; train one with "
                    "the other's: --set tokenizer.file=OTHER/tokenizer.json"
                )

    def ids(self, given: Given, source: bool = False) -> list[int]:
        """The ids of a text, without what begins and ends it; ids are checked."""
        if not isinstance(given, str):
            return self._checked(given, source)
        tokenizer = self.source_tokenizer if source else self.tokenizer
        if tokenizer is None:
            raise RegardError(
                "this model came without a tokenizer; from Python, give token ids instead of text"
            )
        return tokenizer.encode(replace_invalid_utf8(given) if source else given).tolist()

    def unknown(self, ids: Sequence[int]) -> int:
        """How many of a text's ids stand for words that the vocabulary lacks."""
        tokenizer = self.source_tokenizer or self.tokenizer
        return 0 if tokenizer is None else tokenizer.unknown(ids)

    def prompt(self, given: Given) -> list[int]:
        """What a row begins with; ids of a model without a tokenizer are taken as they are."""
        ids = self.ids(given)
        return ids if ids and self.tokenizer is None else [self.signs.begin, *ids]

    def beginning(self, prefix: Given, what: str = "text") -> list[int]:
        """What every text must begin with, without what begins it; writing goes on behind it.

        A word that the vocabulary lacks cannot be forced, though its id can.
        """
        if not isinstance(prefix, str | Sequence | np.ndarray | Tensor):
            raise RegardError(f"a prefix must be text or token ids, not {prefix!r:.80}")
        ids = self.ids(prefix) if len(prefix) else []
        strange = [token for token in ids if token in (*self.signs.ends, *self.signs.never)]
        if strange:
            raise RegardError(
                f"no {what} can begin with token id {strange[0]}, which ends texts or is never "
                "written; leave it out of the prefix"
            )
        if isinstance(prefix, str) and self.tokenizer and self.tokenizer.unknown(ids):
            raise RegardError(f"no {what} can begin with {prefix!r}: the model lacks a word of it")
        return ids

    def source_ids(self, given: Given) -> list[int]:
        """The ids of a source, without blanks around it and without its end."""
        return self.ids(given.strip() if isinstance(given, str) else given, source=True)

    def source(self, given: Given) -> list[int]:
        """A source as the model reads it, without blanks around it, its end included."""
        ids = self.source_ids(given)
        if not ids:
            raise RegardError("the source is empty; give something to read")
        ids = ids if ids[-1] in self.signs.ends else [*ids, self.signs.ends[0]]
        if len(ids) > self.context:
            raise RegardError(
                f"a source of {len(ids):,} tokens is too long, this model reads {self.context:,}; "
                "shorten it or leave it out"
            )
        return ids

    def encode(self, sources: Sequence[Sequence[int]]) -> Memory:
        """Sources of any lengths, read once."""
        tokens, lengths = padded_rows(sources, self.device)
        whole = int(lengths.min()) == tokens.shape[1]
        with torch.inference_mode(), any_shape():
            return self.module.encode(tokens, None if whole else lengths)

    def text(self, ids: Sequence[int]) -> str:
        """What the ids spell; nothing without a tokenizer."""
        return self.tokenizer.decode(ids) if self.tokenizer is not None else ""

    def _checked(self, given: Sequence[int], source: bool) -> list[int]:
        try:
            if isinstance(given, bytes) or any(isinstance(token, bool) for token in given):
                raise TypeError
            ids = [index(token) for token in given]
        except TypeError:
            raise RegardError(f"a prompt must be text or token ids, not {given!r:.80}") from None
        config = self.module.config
        known = (getattr(config, "source_vocabulary", 0) if source else 0) or config.vocabulary
        strange = [token for token in ids if not 0 <= token < known]
        if strange:
            raise RegardError(
                f"token id {strange[0]} does not exist; this model knows 0 to {known - 1}"
            )
        return ids


def batches(lengths: Sequence[int], rows: int) -> list[list[int]]:
    """Which to take together: up to `rows` of about the same length, the longest first.

    As few as can be, and as many in each, or one less: so none waits long for another.
    """
    if rows < 1:
        raise RegardError(f"at least one row must be computed at once, not {rows}")
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    count = ceil(len(order) / rows)
    cuts = [ceil(len(order) * index / count) for index in range(count + 1)] if count else []
    return [order[first:behind] for first, behind in pairwise(cuts)]


def padded_rows(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows of ids as one tensor (rows, longest), padded on the right, and their lengths (rows,)."""
    tokens, lengths = padded([np.asarray(row, np.int64) for row in rows])
    return tokens.to(device), lengths

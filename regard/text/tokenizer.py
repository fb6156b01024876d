"""A tokenizer: text to ids and back."""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import tokenizers

from regard.errors import RegardError, UnreadableError
from regard.storage import check_bounds, make_folder, read_file, replacing
from regard.text.encoders import ENCODERS, TextEncoder
from regard.text.line_encoder import LineEncoder, Lines, line_encoder
from regard.text.reference import Ids
from regard.text.specials import SPECIALS, UNK
from regard.text.vocabulary import KINDS, NO_KIND, Kind, Vocabulary, assemble, recognise

__all__ = ["KINDS", "Kind", "Tokenizer"]

# Where words are joined without a blank: around newlines, before closing and after opening signs.
_GLUED = re.compile(r" ?\n ?| (?=[.,;:!?%)\]}…”»]|['’]\w)|(?<=[(\[{“«]) ")
_NEWLINE = re.compile(r" ?\n ?")  # the only place if the text was tokenised already
READ = ("version", "added_tokens", "normalizer", "pre_tokenizer", "model")  # of a file's parts
LARGEST = 512 << 20  # bytes of a tokenizer.json
_SHOWN = {"\n": "↵", " ": "·", "\t": "⇥", "\r": "␍"}


class Tokenizer:
    """Of one of four kinds; the ids are those of the `tokenizers` library for the same file."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Read a `tokenizer.json`."""
        try:
            text = read_file(Path(path), LARGEST).decode("utf-8")
        except OSError as error:
            raise UnreadableError(path, error) from None
        except UnicodeDecodeError:
            raise RegardError(f"{path} is not a tokenizer.json (it is not UTF-8)") from None
        except ValueError as error:
            raise RegardError(f"{path} is not a tokenizer.json ({error})") from None
        try:
            return cls(recognise(_plain(text)))
        except RegardError as error:
            raise RegardError(f"{path} cannot be used: {error}") from None

    def save(self, path: str | Path) -> None:
        """Write a `tokenizer.json`, whole or not at all."""
        path = Path(path)
        make_folder(path.parent)
        with replacing(path) as unfinished:
            unfinished.write_text(self.spelled(), encoding="utf-8")

    def spelled(self) -> str:
        """What stands in the `tokenizer.json`."""
        return self.reference.to_str(pretty=True) + "\n"

    @property
    def kind(self) -> Kind:
        return self.vocabulary.kind

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the content: tokenizers with equal fingerprints give equal ids."""
        content: list[object] = [self.kind, self.vocabulary.tokens, self.vocabulary.merges]
        if self.vocabulary.tokenised:  # the others have kept the fingerprints they always had
            content.append("tokenised")
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    @cached_property
    def reference(self) -> tokenizers.Tokenizer:
        """The same tokenizer in the `tokenizers` library."""
        return assemble(self.vocabulary)

    def __len__(self) -> int:
        """The number of tokens, specials included."""
        return len(self.vocabulary.tokens)

    def encode(self, text: str | bytes) -> Ids:
        """The ids (tokens,) of a text; none is added, and no spelling gives a special one.

        Broken UTF-8, given as bytes or as lone surrogates, is kept byte by byte in kinds byte and
        bpe and read as U+FFFD in the others. In kind word, <unk> is the unknown word.
        """
        return self._encoder(_read(text))

    def encode_lines(self, text: str | bytes) -> Lines:
        """The ids of a text's lines, each encoded by itself; only a newline ends a line.

        The newline has no id, nor has the carriage return before it.
        """
        return self._line_encoder(_read(text))

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some ids, specials left out, U+FFFD for what is not UTF-8."""
        return self.decode_bytes(ids).decode("utf-8", "replace")

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of some ids, specials left out."""
        found = [self._contents[i] for i in self._checked(ids) if i >= len(SPECIALS)]
        if self.kind != "word":
            return b"".join(found)
        return self._glued(b" ".join(found).decode()).encode()

    def behind(self, last: str, token: int) -> bytes:
        """What a token adds to a text that ends in the character `last` ("": it has none)."""
        added = self.decode_bytes([token])
        if self.kind != "word" or not added or not last or last.isspace():
            return added
        return self._glued(f"{last} {added.decode()}")[1:].encode()

    def _glued(self, words: str) -> str:
        """Words between blanks, without the blanks that text has not."""
        joined = _NEWLINE if self.vocabulary.tokenised else _GLUED
        return joined.sub(lambda gap: gap[0].strip(" "), words)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """What to show for each id: specials by name, blanks as signs, broken bytes as ⟨E2⟩."""
        return [
            SPECIALS[i] if i < len(SPECIALS) else _shown(self._contents[i])
            for i in self._checked(ids)
        ]

    def unknown(self, ids: Iterable[int]) -> int:
        """How many of the ids stand for what the vocabulary lacks."""
        return int(np.count_nonzero(np.asarray(ids) == UNK))

    @cached_property
    def _encoder(self) -> TextEncoder:
        return ENCODERS[self.kind](self.vocabulary, self.reference)

    @cached_property
    def _line_encoder(self) -> LineEncoder:
        return line_encoder(self.vocabulary, self.reference, self._encoder)

    @cached_property
    def _contents(self) -> list[bytes]:
        return self.vocabulary.contents()

    def _checked(self, ids: Iterable[int]) -> Sequence[int]:
        given = np.asarray(ids, np.int64)  # (tokens,)
        strange = given[(given < 0) | (given >= len(self))]
        if strange.size:
            raise RegardError(f"id {strange[0]} is not in this vocabulary of {len(self):,} tokens")
        return given.tolist()


def _plain(text: str) -> str:
    """The parts of a `tokenizer.json` that are read, without what the library cannot bear.

    It panics at some settings, and counts up to the largest id: 2^31 took more than 3 GB. What it
    gets is spelled here, so that it cannot read a key that stands twice otherwise than it was read.
    """
    try:
        found = json.loads(text)
        check_bounds(found)
    except (ValueError, RecursionError) as error:
        raise RegardError(f"it is no tokenizer of the `tokenizers` library ({error})") from None
    model = found.get("model") if isinstance(found, dict) else None
    if not isinstance(model, dict):
        raise RegardError("it is no tokenizer of the `tokenizers` library (it has no model)")
    if model.get("type") not in (None, "BPE", "WordLevel"):
        raise RegardError(NO_KIND)
    prefix = model.get("continuing_subword_prefix")
    for part, more in (("normalizer", found.get("normalizer")), ("model", prefix)):
        if more:
            raise RegardError(f"its {part} has settings that Regard does not have")
    ids = model["vocab"].values() if isinstance(model.get("vocab"), dict) else ()
    if any(type(one) is int and not 0 <= one < len(ids) for one in ids):
        raise RegardError("its ids must be 0, 1, 2, … with none left out")
    return json.dumps({part: found[part] for part in READ if part in found})


def _read(text: str | bytes) -> str:
    return text if isinstance(text, str) else text.decode("utf-8", "surrogateescape")


def _shown(content: bytes) -> str:
    """A token's bytes as printable text."""
    return "".join(map(_sign, content.decode("utf-8", "surrogateescape")))


def _sign(character: str) -> str:
    if character in _SHOWN:
        return _SHOWN[character]
    if "\udc80" <= character <= "\udcff":
        return f"⟨{ord(character) - 0xDC00:02X}⟩"
    return character if character.isprintable() else f"⟨U+{ord(character):04X}⟩"

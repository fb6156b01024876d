"""What a tokenizer is made of, and the `tokenizer.json` that holds it.

The file is the format of Hugging Face's `tokenizers` and nothing else: the kind is not written
down but told by the model and the pattern, so that other programs read our files as they are.
"""

import json
from dataclasses import dataclass
from typing import Literal, get_args

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from regard.errors import RegardError, nearest
from regard.text import words
from regard.text.bytelevel import CHARACTERS, unspell
from regard.text.specials import SPECIALS

Kind = Literal["char", "word", "byte", "bpe"]
KINDS: tuple[Kind, ...] = get_args(Kind)
BYTES = len(SPECIALS) + 256  # the vocabulary of kind byte, and what kind bpe starts from

CHARACTER = r"[\s\S]"
NO_KIND = f"it is of no kind that Regard has ({', '.join(KINDS)})"


@dataclass(frozen=True)
class Vocabulary:
    """The tokens by id, as the file spells them, and for kind bpe the merge rules by rank."""

    kind: Kind
    tokens: tuple[str, ...]
    merges: tuple[tuple[str, str], ...] = ()
    tokenised: bool = False  # kind word: a word is all that stands between blanks

    def contents(self) -> list[bytes]:
        """The bytes that each token stands for; none for a special."""
        read = unspell if self.kind in ("byte", "bpe") else str.encode
        return [b""] * len(SPECIALS) + [read(token) for token in self.tokens[len(SPECIALS) :]]


def check_kind(kind: str) -> Kind:
    """`kind` if it is one."""
    for known in KINDS:
        if kind == known:
            return known
    raise RegardError(f"a tokenizer cannot be of kind {kind!r}; {nearest(kind, KINDS)}")


def assemble(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """The vocabulary as a tokenizer of the `tokenizers` library, our reference."""
    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    if vocabulary.kind in ("byte", "bpe"):
        built = tokenizers.Tokenizer(models.BPE(ids, list(vocabulary.merges)))
        built.pre_tokenizer = pre_tokenizers.ByteLevel(
            add_prefix_space=False, use_regex=vocabulary.kind == "bpe"
        )
        built.decoder = decoders.ByteLevel()
    else:
        built = tokenizers.Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
        if vocabulary.kind == "char":
            character = tokenizers.Regex(CHARACTER)
            built.pre_tokenizer = pre_tokenizers.Split(character, "isolated")
            built.decoder = decoders.Fuse()
        else:
            built.pre_tokenizer = words.splitting(vocabulary.tokenised)
    built.add_special_tokens(list(SPECIALS))
    built.encode_special_tokens = True  # a text that spells "</s>" is text
    return built


def recognise(text: str) -> Vocabulary:
    """The vocabulary in a `tokenizer.json`; a file that means anything else is refused."""
    try:
        loaded = json.loads(tokenizers.Tokenizer.from_str(text).to_str())
    except Exception as error:  # the library raises bare Exceptions
        raise RegardError(f"it is no tokenizer of the `tokenizers` library ({error})") from None
    model = loaded["model"]
    kind, tokenised = _kind(loaded["pre_tokenizer"], model)
    tokens = tuple(sorted(model["vocab"], key=model["vocab"].get))
    merges = tuple((left, right) for left, right in model.get("merges", ()))
    _check_ids(loaded, tokens)
    vocabulary = Vocabulary(kind, tokens, merges, tokenised)
    _check_tokens(vocabulary)
    ours = json.loads(assemble(vocabulary).to_str())
    for part in ("model", "pre_tokenizer", "normalizer"):
        if loaded[part] != ours[part]:
            raise RegardError(f"its {part} has settings that Regard does not have")
    return vocabulary


def _kind(split: dict[str, object] | None, model: dict[str, object]) -> tuple[Kind, bool]:
    """The kind, and whether its texts are tokenised already."""
    found = (model["type"], (split or {}).get("type"))
    if split and found == ("BPE", "ByteLevel"):
        return "bpe" if split["use_regex"] else "byte", False
    if split and found == ("WordLevel", "Split"):
        if split["pattern"] == {"Regex": CHARACTER}:
            return "char", False
        if split["pattern"] == {"Regex": words.PATTERN}:
            return "word", False
        if split["pattern"] == {"Regex": words.BETWEEN_BLANKS}:
            return "word", True
    raise RegardError(NO_KIND)


def _check_ids(loaded: dict[str, list[dict[str, object]]], tokens: tuple[str, ...]) -> None:
    added = tuple(token["content"] for token in loaded["added_tokens"])
    if tokens[: len(SPECIALS)] != SPECIALS or added != SPECIALS:
        raise RegardError(
            f"its first ids, and its only special ones, must be {' '.join(SPECIALS)}; "
            "learn a new one from the text"
        )
    ids = sorted(loaded["model"]["vocab"].values())  # type: ignore[call-overload]
    if ids != list(range(len(tokens))):
        raise RegardError("its ids must be 0, 1, 2, … with none left out")


def _check_tokens(vocabulary: Vocabulary) -> None:
    tokens, specials = vocabulary.tokens[len(SPECIALS) :], set(SPECIALS)
    if vocabulary.kind == "char" and any(len(token) != 1 for token in tokens):
        raise RegardError("its tokens must be single characters")
    if vocabulary.kind in ("byte", "bpe"):
        if set(CHARACTERS) != {token for token in tokens if len(token) == 1}:
            raise RegardError("its tokens must include each of the 256 bytes")
        if vocabulary.kind == "byte" and len(tokens) != 256:
            raise RegardError("its tokens must be the 256 bytes and no more")
        if not {c for token in tokens for c in token} <= set(CHARACTERS):
            raise RegardError("its tokens must be spelled in the 256 characters for bytes")
        if any(left + right in specials for left, right in vocabulary.merges):
            raise RegardError("its merges must not form a special token")

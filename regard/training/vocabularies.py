"""The tokenizer of a run on text: learned from it once, and kept for the next run."""

import hashlib
from contextlib import suppress
from pathlib import Path

from regard.data.texts import Texts
from regard.data.tokens import cache_folder
from regard.errors import RegardError
from regard.storage import no_room, replacing
from regard.text.learning import learn
from regard.text.tokenizer import Kind, Tokenizer
from regard.training.settings import TokenizerSettings
from regard.training.stages import Stages

LEARN_FROM = 100_000_000  # characters a tokenizer learns from at most, spread over the corpus


def vocabulary_for(kind: Kind, characters: int) -> int:
    """How many tokens a text of this size can teach: BPE's merges need examples."""
    if kind != "bpe":
        return 0
    vocabulary = 512
    while vocabulary < 32768 and vocabulary * 512 < characters:
        vocabulary *= 2
    return vocabulary


def tokenizer_for(settings: TokenizerSettings, texts: Texts, stages: Stages) -> Tokenizer:
    """The tokenizer named in a file, or one learned from the training part, kept for next time."""
    if settings.file:
        return Tokenizer.load(Path(settings.file))
    name = f"1 {settings.kind} {settings.vocabulary} {texts.digest}"
    key = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
    kept = cache_folder() / f"tokenizer-{key}.json"
    if (known := _known(kept)) is not None:
        return known
    assert settings.kind != "auto"
    size = min(texts.census.characters, LEARN_FROM)
    with stages.stage(f"learning {settings.kind} tokens", size) as progress:
        found = learn(
            settings.kind, texts.texts("train", LEARN_FROM), settings.vocabulary, progress
        )
    try:
        found.save(kept)
        with replacing(_seal(kept)) as partial:
            partial.write_text(found.fingerprint)
    except OSError as error:
        needed = len(found.spelled().encode())
        raise RegardError(
            f"cannot keep the tokenizer in {kept.parent}: "
            f"{no_room(error, kept.parent, needed)}; set REGARD_CACHE to a folder with room"
        ) from None
    return found


def _known(kept: Path) -> Tokenizer | None:
    """A tokenizer that was kept; a damaged one is as good as none."""
    with suppress(RegardError, OSError, ValueError):
        known = Tokenizer.load(kept)
        if _seal(kept).read_text() == known.fingerprint:
            return known
    return None


def _seal(kept: Path) -> Path:
    """Where the fingerprint of a kept tokenizer stands."""
    return kept.with_suffix(".seal")

"""The tokenizer of a run: learned from its text, once, and kept for the next run."""

import hashlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from regard.data.progress import Progress
from regard.data.readers.texts import Texts
from regard.errors import RegardError
from regard.storage import cache_folder, no_room, replacing
from regard.text.learning import learn
from regard.text.tokenised import beginning, looks_tokenised
from regard.text.tokenizer import Tokenizer
from regard.training.settings import TokenizerSettings

LEARN_FROM = 100_000_000  # characters a tokenizer learns from at most, spread over the corpus


def is_tokenised(settings: TokenizerSettings) -> bool | None:
    """What the settings say of the text; None: it is to be looked at."""
    return {"auto": None, "yes": True, "no": False}[settings.tokenised]


def tokenizer_for(
    settings: TokenizerSettings, texts: Texts, stages: Progress, lines: bool = False
) -> Tokenizer:
    """The tokenizer named in a file, or one learned from the training part, kept for next time.

    With `lines`, each line will be encoded by itself, and no token has a newline.
    """
    if settings.file:
        return Tokenizer.load(Path(settings.file))
    tokenised = settings.kind == "word" and is_tokenised(settings)
    if tokenised is None:
        tokenised = looks_tokenised(beginning(texts.texts("train", LEARN_FROM))[0])
    # What is not asked for is not named, so that a tokenizer from before it could be is found.
    asked = {
        "lines": lines,
        "tokenised": tokenised,
        f"least {settings.min_frequency}": settings.min_frequency > 0,
    }
    name = " ".join(
        [f"1 {settings.kind} {settings.vocabulary} {texts.digest}", *(n for n in asked if asked[n])]
    )
    key = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
    kept = cache_folder() / f"tokenizer-{key}.json"
    if (known := _known(kept)) is not None:
        return known
    assert settings.kind != "auto"
    size = min(texts.census.characters, LEARN_FROM)
    with stages.stage(f"learning {settings.kind} tokens", size) as progress:
        found = learn(
            settings.kind,
            texts.texts("train", LEARN_FROM),
            settings.vocabulary,
            progress,
            min_frequency=settings.min_frequency,
            tokenised=tokenised,
            lines=lines,
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


def learned(
    wanted: TokenizerSettings, texts: Iterable[str], progress: Callable[[int], None] | None
) -> Tokenizer:
    """A tokenizer of pairs or captions, from a file or from their texts."""
    if wanted.file:
        return Tokenizer.load(Path(wanted.file))
    assert wanted.kind != "auto"
    tokenised, least = is_tokenised(wanted), wanted.min_frequency
    return learn(
        wanted.kind, texts, wanted.vocabulary, progress, min_frequency=least, tokenised=tokenised
    )


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

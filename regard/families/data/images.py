"""From settings to a run on images with captions: read, encoded, ready to be fed (M8)."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from regard.data.builtin.scenes import write_folder
from regard.data.builtin.tasks import Part
from regard.data.feeds.images import ImageFeed, Pictures, workers_for
from regard.data.progress import Progress
from regard.data.readers.captions import (
    CaptionCounts,
    Captioned,
    CaptionTexts,
    EncodedCaptions,
    encode_captions,
    encode_firsts,
    gather_captions,
)
from regard.data.readers.texts import Advance
from regard.errors import RegardError
from regard.families.data.vocabularies import learned
from regard.families.plan import PreparedData
from regard.families.settings import Settings
from regard.families.tasks.base import little
from regard.models.captioner.config import CaptionConfig
from regard.storage import cache_folder, no_room, size
from regard.text.learning import vocabulary_for
from regard.text.tokenizer import Kind, Tokenizer

SCENES = "scenes"  # the built-in data
HELD_OUT = 500  # scenes
TOLD = 5  # captions of a scene to learn from: so many people describe a picture of Flickr30k
FORMAT = 1  # of scenes that are kept
AT_ONCE = 64  # images
PNG = 5 << 10  # bytes of a scene, about


def kept_scenes(count: int, seed: int, part: Part, pixels: int, told: int = 0) -> Path:
    """A folder of built-in scenes, drawn once and kept; see `data.scenes.write_folder`."""
    name = f"scenes-{FORMAT}-{part}-{count}-{seed}-{pixels}" + f"-{told}" * bool(told)
    folder = cache_folder() / name
    if not folder.is_dir():
        try:
            write_folder(folder, count, seed, part, pixels, told)
        except OSError as error:
            needed = no_room(error, folder.parent, count * PNG)
            raise RegardError(
                f"cannot keep scenes in {folder.parent}: {needed}; set REGARD_CACHE to a folder "
                "with room"
            ) from None
    return folder


def images_of(settings: Settings, progress: Advance | None = None) -> CaptionTexts:
    """The images with captions that some settings name, in two parts."""
    data, config = settings.data, settings.model.config()
    assert isinstance(config, CaptionConfig)
    if data.train == (SCENES,) and not data.valid:
        seed, pixels = settings.training.seed, config.picture
        train = kept_scenes(data.examples, seed, "train", pixels, TOLD)
        valid = kept_scenes(HELD_OUT, seed, "valid", pixels)
        found = gather_captions(train, valid, progress=progress)
        return replace(found, rule="held out: scenes of which none is arranged as in training")
    for what, names in (("to train on", data.train), ("to hold out", data.valid)):
        if len(names) > 1:
            raise RegardError(
                f"give one folder of images {what}, or one list of captions, not {len(names)}"
            )
    valid_list = data.valid[0] if data.valid else None
    return gather_captions(data.train[0], valid_list, data.held_out, progress)


def prepared(settings: Settings, stages: Progress, known: Sequence[Tokenizer]) -> PreparedData:
    """Read the images' list, learn the captions' tokens, and make what a run is fed with."""
    data, wanted = settings.data, settings.tokenizer
    with stages.stage("looking at images") as progress:
        texts = images_of(settings, progress)
    usual: Kind = "word" if data.train == (SCENES,) else "bpe"
    kind: Kind = usual if wanted.kind == "auto" else wanted.kind
    characters = sum(map(len, texts.texts()))
    most = wanted.vocabulary or vocabulary_for(kind, characters)
    wanted = replace(wanted, kind=kind, vocabulary=most)
    with stages.stage(f"learning {kind} tokens", characters) as progress:
        tokenizer = known[0] if known else learned(wanted, texts.texts(), progress)
    wanted = replace(wanted, kind=tokenizer.kind)
    config = settings.model.config(vocabulary=len(tokenizer), source_vocabulary=0)
    assert isinstance(config, CaptionConfig)
    longest = data.longest or config.context
    if longest > config.context:
        raise RegardError(
            f"captions of up to {longest} tokens do not fit the model's context of "
            f"{config.context}; lower data.longest or raise model.context"
        )
    pictures = Pictures(config.picture, workers_for(len(texts.train)))
    digest = texts.digest  # of all that was named
    with stages.stage("decoding what is held out"):
        texts = replace(texts, valid=decodable(texts.valid, pictures, texts.counts))
    with stages.stage("encoding"):
        train = encode_captions(texts.train, tokenizer, longest)
        valid = encode_firsts(texts.valid, tokenizer)
    if not len(train):
        raise RegardError("every caption was left out; raise data.longest")
    tokens = sum(len(ids) - 1 for ids in train.targets)

    def feed(step: int) -> ImageFeed:
        rows = max(1, round(step * len(train) / tokens))  # of the usual length
        seed, augment = settings.training.seed, data.augment
        return ImageFeed(train, valid, pictures, rows, seed, augment, texts.valid)

    return PreparedData(
        replace(settings, tokenizer=wanted, data=replace(data, longest=longest)),
        config,
        feed,
        [tokenizer],
        _described(texts, train, tokenizer, config),
        _warnings(texts, train, tokens, longest),
        tokens,
        sum(len(ids) - 1 for ids in valid.targets),
        digest=digest,
    )


def decodable(
    images: Sequence[Captioned], pictures: Pictures, counts: CaptionCounts
) -> list[Captioned]:
    """Those of some images that can be decoded to the end; the others are counted."""
    kept = []
    for first in range(0, len(images), AT_ONCE):
        some = images[first : first + AT_ONCE]
        for one, found in zip(some, pictures.tried([one.image for one in some]), strict=True):
            if isinstance(found, RegardError):
                counts.unusable += 1
                counts.first.setdefault("unusable", str(found))
                pictures.failed.pop(one.image, None)  # told already
            else:
                kept.append(one)
    return kept


def _described(
    texts: CaptionTexts, train: EncodedCaptions, tokenizer: Tokenizer, config: CaptionConfig
) -> dict[str, str]:
    each = len(train) / len(texts.train)
    pixels, side = config.picture, config.side
    return {
        "images": f"{len(texts.train):,} to train on with {each:.3g} captions each, "
        f"{len(texts.valid):,} held out",
        "split": texts.rule,
        "pictures": f"the centre square in {pixels} × {pixels} pixels, as a grid of {side} × "
        f"{side}; up to {size(3 * pixels**2 * len(texts.train))} decoded",
        "tokenizer": f"{tokenizer.kind}, {len(tokenizer):,} tokens",
    }


def _warnings(texts: CaptionTexts, train: EncodedCaptions, tokens: int, longest: int) -> list[str]:
    """A sentence for all that is odd."""
    told = [*texts.counts.sentences(), *train.counts.sentences(longest)]
    if train.unknown:
        told.append(f"{train.unknown:,} of {tokens:,} tokens are unknown to the tokenizer")
    return [*told, *little(len(texts.valid), "images")]

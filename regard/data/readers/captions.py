"""Images with captions: a list read, checked, divided by image, encoded.

The list is a .jsonl file of {"image": path, "caption": text} or {"image": path, "captions": [text,
…]}, or a .tsv file of image, tab, caption; an image on several lines has several captions. Nothing
is dropped without a count.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from regard.data.readers.files import expanded, find, lines, unpacked_name
from regard.data.readers.images import examined
from regard.data.readers.texts import Advance, chosen
from regard.errors import Problems, RegardError
from regard.storage import parse_line
from regard.text.invalid_utf8 import broken, canonical, replace_invalid_utf8
from regard.text.specials import BOS, EOS
from regard.text.tokenizer import Tokenizer

MOST_HELD_OUT = 1000  # images: as many as the usual division of Flickr30k has
KINDS = (".jsonl", ".ndjson", ".tsv")
BOX = '{"start": n, "stop": n, "box": [x0, y0, x1, y1]}'
FORM = 'an object {"image": path, "caption": text} or {"image": path, "captions": [text, …]}'


@dataclass(frozen=True)
class Captioned:
    """One image and what is said of it."""

    image: Path
    captions: tuple[str, ...]
    boxes: tuple[Any, ...]  # beside each caption the JSON given as its boxes, or None
    extra: Mapping[str, Any]  # other keys of its lines, of the last where several have one
    mark: int  # drawn from the file's content


@dataclass
class CaptionCounts:
    """What became of the captions and images that were read."""

    read: int = 0  # captions
    empty: int = 0
    broken: int = 0  # captions with bytes that are no UTF-8, replaced
    long: int = 0
    kept: int = 0
    images: int = 0  # named by the lines
    missing: int = 0
    unusable: int = 0
    bare: int = 0  # images without a caption
    first: dict[str, str] = field(default_factory=dict)  # of the missing and the unusable

    def sentences(self, longest: int = 0) -> list[str]:
        """One sentence for each thing that happened to some captions or images."""
        missing, unusable = (self.first.get(kind, "") for kind in ("missing", "unusable"))
        captions = (
            (self.empty, "are empty and were left out"),
            (self.broken, "have bytes that are not UTF-8, replaced by �"),
            (self.long, f"have more than {longest} tokens and were left out"),
        )
        images = (
            (self.missing, f"are not there and were left out, {missing} first"),
            (self.unusable, f"cannot be used and were left out; the first: {unusable}"),
            (self.bare, "have no caption and were left out"),
        )
        told = [f"{n:,} of {self.read:,} captions {what}" for n, what in captions if n]
        return told + [f"{n:,} of {self.images:,} images {what}" for n, what in images if n]


@dataclass(frozen=True)
class CaptionTexts:
    """Images with their captions as text, in two parts."""

    train: Sequence[Captioned]
    valid: Sequence[Captioned]
    counts: CaptionCounts
    rule: str

    @property
    def digest(self) -> str:
        """Names captions, images and division, whatever the files are called.

        Of an image its size and its two ends are known (see `examined`): all of 20 GB of pictures
        would take minutes to read, and no encoder changes the middle alone.
        """
        found = hashlib.blake2b(digest_size=16)
        for part in (self.train, self.valid):
            for one in part:
                found.update(json.dumps([one.mark, one.captions]).encode() + b"\n")
            found.update(b"\n")
        return found.hexdigest()

    def texts(self) -> Iterator[str]:
        """The training captions, for a tokenizer to learn from."""
        for one in self.train:
            yield from one.captions


def gather_captions(
    train: str | Path,
    valid: str | Path | None = None,
    held_out: float = 0.05,
    progress: Advance | None = None,
) -> CaptionTexts:
    """Images to train on and to hold out, from a folder with one list in it, or from a list.

    Every image is looked at, `progress` told how many: those that are missing or that cannot be
    used are counted and left out.
    """
    if not 0 <= held_out < 1:
        raise RegardError(f"the share held out must be from 0 to below 1, not {held_out}")
    counts = CaptionCounts()
    found = _usable(_list(train), counts, progress)
    if valid is not None:
        held = _usable(_list(valid), counts, progress)
        known = {one.mark for one in found}
        shared = sum(one.mark in known for one in held)
        also = f", {shared:,} of its {len(held):,} images are also trained on" if shared else ""
        return CaptionTexts(found, held, counts, f"held out: a named list{also}")
    if not held_out:
        return CaptionTexts(found, [], counts, "nothing held out")
    # By content: all captions of an image stay together, and so do copies under other names.
    marks = np.array([one.mark for one in found], dtype=np.uint64)
    if (marks == marks[0]).all():
        raise RegardError(
            f"{train}: there is only one image, or one over and over, so that none can be held "
            "out; give more, or a list to hold out"
        )
    share = min(held_out, MOST_HELD_OUT / len(found))
    out = chosen(np.ones_like(marks, dtype=np.int64), marks, share).tolist()
    return CaptionTexts(
        [one for one, held in zip(found, out, strict=True) if not held],
        [one for one, held in zip(found, out, strict=True) if held],
        counts,
        f"held out: {sum(out) / len(found):.3g} of the images, chosen by their content",
    )


def _list(given: str | Path) -> Path:
    """The list that is meant: a file, or the only one in a folder, or its `captions`."""
    path = expanded(given)
    if path.is_file():
        if not _kind(path):
            raise RegardError(f"{path} is no list of captions; give a .jsonl or .tsv file")
        return path
    if not path.is_dir():
        what = "is no file or folder" if path.exists() else "is not there"
        raise RegardError(f"{path} {what}; give a folder of images with a list of captions in it")
    lists = sorted(one for one in path.iterdir() if _kind(one) and one.is_file())
    lists = [one for one in lists if one.name.startswith("captions.")] or lists
    if len(lists) != 1:
        names = ", ".join(one.name for one in lists)
        what = f"has several lists ({names}); give one" if lists else "has no list"
        raise RegardError(f"{path} {what} of captions, a .jsonl or .tsv file")
    return lists[0]


def _kind(path: Path) -> str:
    return next((kind for kind in KINDS if unpacked_name(path).endswith(kind)), "")


class _Line(NamedTuple):
    """What one line says of an image."""

    name: str  # relative to the list
    captions: list[str]
    boxes: list[Any]  # as many
    extra: dict[str, Any]


def _usable(path: Path, counts: CaptionCounts, progress: Advance | None) -> list[Captioned]:
    """The images of one list that are there, can be read, and have captions."""
    images: dict[str, _Line] = {}
    for line in _lines(path):
        name = os.path.normpath(canonical(line.name))
        one = images.setdefault(name, _Line(name, [], [], {}))
        _add(one, line, counts)
    images.pop(".", None)  # blank lines
    found, before = [], counts.images
    for number, one in enumerate(images.values(), 1):
        counts.images += 1
        if (usable := _looked_at(path.parent / one.name, one, counts)) is not None:
            found.append(usable)
            counts.kept += len(usable.captions)
        if progress:
            progress(before + number)
    if not found:
        told = "; ".join(counts.sentences()) or "it is empty"
        raise RegardError(
            f"{path}: there is no image with a caption to use ({told}); the images' paths must be "
            f"relative to {path.parent}"
        )
    return found


def _add(one: _Line, line: _Line, counts: CaptionCounts) -> None:
    """Add a line's captions to those of its image, cleaned and counted."""
    for caption, boxes in zip(line.captions, line.boxes, strict=True):
        counts.read += 1
        if broken(caption):
            counts.broken += 1
        text = replace_invalid_utf8(caption).strip()
        if text:
            one.captions.append(text)
            one.boxes.append(boxes)
        else:
            counts.empty += 1
    one.extra.update(line.extra)


def _looked_at(path: Path, one: _Line, counts: CaptionCounts) -> Captioned | None:
    """The image with its captions, or nothing and a count of why not."""
    if not os.path.isfile(path):  # False for a name that no file can have, too
        counts.missing += 1
        counts.first.setdefault("missing", replace_invalid_utf8(str(path)))
        return None
    try:
        mark = examined(path)
    except RegardError as error:
        counts.unusable += 1
        counts.first.setdefault("unusable", str(error))
        return None
    if not one.captions:
        counts.bare += 1
        return None
    return Captioned(path, tuple(one.captions), tuple(one.boxes), one.extra, mark)


def _lines(path: Path) -> Iterator[_Line]:
    """What the lines of a list say; all that is wrong with them is told when all are read."""
    find([path])  # tells what is no text
    read: Callable[[str], _Line | str] = _columns if _kind(path) == ".tsv" else _object
    problems = Problems(str(path))
    for number, text in enumerate(lines(path), 1):
        line = read(text) if text.strip() else _Line("", [""], [None], {})
        if isinstance(line, _Line) and text.strip():
            line = _within(line)
        if isinstance(line, _Line):
            yield line
        else:
            problems.add(f"line {number}: {line}")
    problems.report()


def _within(line: _Line) -> _Line | str:
    """The line, or what is wrong with the path of its image."""
    name, shown = os.path.normpath(line.name), replace_invalid_utf8(line.name)
    if not line.name.strip() or name == "." or "\0" in name:
        return f"{shown!r} names no image"
    if os.path.isabs(name) or Path(name).parts[0] == "..":
        return f"{shown} lies outside of the list's folder; images must lie in it, paths relative"
    return line


def _columns(text: str) -> _Line | str:
    fields = text.split("\t")
    if len(fields) != 2:
        return f"{len(fields)} column{'s' * (len(fields) > 1)}; a line is image, tab, caption"
    return _Line(fields[0], fields[1:], [None], {})


def _object(text: str) -> _Line | str:
    try:
        found = parse_line(text)
    except (ValueError, RecursionError):
        return f"it is no JSON; a line is {FORM}"
    if not isinstance(found, dict) or ("caption" in found) == ("captions" in found):
        return f"a line is {FORM}"
    captions = found.pop("captions") if "captions" in found else [found.pop("caption")]
    name, boxes = found.pop("image", None), found.pop("boxes", None)
    texts = isinstance(captions, list) and all(isinstance(one, str) for one in captions)
    if not texts or not isinstance(name, str):
        return f"a line is {FORM}"
    if boxes is None:
        boxes = [None] * len(captions)
    lists = isinstance(boxes, list) and all(one is None or isinstance(one, list) for one in boxes)
    if not lists or len(boxes) != len(captions):
        return f"`boxes` must be a list with a list of boxes for each of {len(captions)} captions"
    strange = [box for several in boxes for box in several or () if not _is_box(box)]
    if strange:
        return f"a box is {BOX}, not {strange[0]!r:.80}"
    return _Line(name, captions, boxes, found)


def _is_box(given: Any) -> bool:
    """Whether it says which characters name what lies where."""
    if not isinstance(given, dict) or not {"start", "stop", "box"} <= given.keys():
        return False
    corners = given["box"]
    numbers = [given["start"], given["stop"], *(corners if isinstance(corners, list) else ())]
    return len(numbers) == 6 and all(
        isinstance(n, int | float) and not isinstance(n, bool) and abs(n) < 1e9 for n in numbers
    )


@dataclass(frozen=True)
class EncodedCaptions:
    """Captions as ids between <s> and </s>, each with its image."""

    images: Sequence[Path]  # of each caption
    targets: Sequence[np.ndarray]  # each (tokens,)
    texts: Sequence[str]
    unknown: int = 0
    counts: CaptionCounts = field(default_factory=CaptionCounts)

    def __len__(self) -> int:
        return len(self.targets)


def encode_firsts(records: Sequence[Captioned], tokenizer: Tokenizer) -> EncodedCaptions:
    """The first caption of each image, whatever its length."""
    firsts = [replace(one, captions=one.captions[:1]) for one in records]
    return encode_captions(firsts, tokenizer)


def encode_captions(
    records: Sequence[Captioned], tokenizer: Tokenizer, longest: int = 0
) -> EncodedCaptions:
    """Every caption as ids, without those of more than `longest` tokens with </s>; 0 keeps all."""
    counts = CaptionCounts(images=len(records))
    images, targets, texts = [], [], []
    unknown = 0
    for one in records:
        for text in one.captions:
            counts.read += 1
            ids = np.concatenate(([BOS], tokenizer.encode(text).astype(np.int64), [EOS]))
            if longest and len(ids) - 1 > longest:
                counts.long += 1
                continue
            images.append(one.image)
            targets.append(ids)
            texts.append(text)
            unknown += tokenizer.unknown(ids)
    counts.kept = len(texts)
    return EncodedCaptions(images, targets, texts, unknown, counts)

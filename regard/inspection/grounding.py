"""Whether a model looks at what it names (M8): the attention of its words, and where things are.

A caption that was written freely and is one of an image's own has the boxes given for it. While the
words of a name were written, a share of the attention lay on the box of what they name; attention
spread evenly over the picture would have the box's own share of it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.data.readers.captions import Captioned
from regard.data.readers.images import upright_size
from regard.decoding.captions import Caption
from regard.text.tokenizer import Tokenizer

Box = tuple[float, float, float, float]  # x0, y0, x1, y1


@dataclass(frozen=True)
class Grounding:
    """Over all names in all captions that have boxes."""

    names: int
    share: float  # of the attention, on the box of what is named
    chance: float  # the box's share of the picture


def grounded(
    written: Sequence[Caption], told: Sequence[Captioned], tokenizer: Tokenizer
) -> Grounding | None:
    """The mean share over the names of all right captions with boxes; nothing if there is none."""
    shares, chances = [], []
    for caption, one in zip(written, told, strict=True):
        for span, box in _named(caption.text, one):
            attention = _attention(caption, span, tokenizer)
            if attention is None:
                continue
            cover = covered(box, int(len(attention) ** 0.5))
            shares.append(float(attention @ cover))
            chances.append(float(cover.mean()))
    if not shares:
        return None
    count = len(shares)
    return Grounding(count, sum(shares) / count, sum(chances) / count)


def covered(box: Box, side: int) -> Tensor:
    """How much of each place of a grid lies in a box, whose corners are shares of the picture.

    (side²,), row by row. Even attention has on it what the box has of the picture.
    """
    x0, y0, x1, y1 = (corner * side for corner in box)
    start = torch.arange(side, dtype=torch.float32)  # (side,)
    across, down = (
        (torch.clamp(start + 1, max=last) - torch.clamp(start, min=first)).clamp(min=0)
        for first, last in ((x0, x1), (y0, y1))
    )
    return (down[:, None] * across).flatten()


def _named(text: str, one: Captioned) -> Iterator[tuple[tuple[int, int], Box]]:
    """Where a caption names something, and where that lies in the square that the model sees."""
    if text not in one.captions:
        return
    boxes = one.boxes[one.captions.index(text)]
    size = upright_size(one.image) if boxes else (1, 1)
    for given in boxes or ():
        if (seen := _in_square(given["box"], size)) is not None:
            yield (given["start"], given["stop"]), seen


def _in_square(box: Sequence[float], size: tuple[int, int]) -> Box | None:
    """A box in pixels of the image as shares of its centre square; None if it lies outside."""
    width, height = size
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    x0, x1 = (min(max((x - left) / side, 0.0), 1.0) for x in (box[0], box[2]))
    y0, y1 = (min(max((y - top) / side, 0.0), 1.0) for y in (box[1], box[3]))
    return (x0, y0, x1, y1) if x0 < x1 and y0 < y1 else None


def _attention(caption: Caption, span: tuple[int, int], tokenizer: Tokenizer) -> Tensor | None:
    """What the tokens of some characters looked at, on average; (places,)."""
    assert caption.attention is not None
    rows = [
        row
        for row, (start, stop) in enumerate(token_spans(caption, tokenizer))
        if max(start, span[0]) < min(stop, span[1])
    ]
    return caption.attention[rows].mean(0) if rows else None


def token_spans(caption: Caption, tokenizer: Tokenizer) -> list[tuple[int, int]]:
    """Which characters of a caption each of its tokens stands for.

    If the text would be cut otherwise than it was written, nobody knows.
    """
    encoded = tokenizer.reference.encode(caption.text)
    return list(encoded.offsets) if encoded.ids == caption.ids else []

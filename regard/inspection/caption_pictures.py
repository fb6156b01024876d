"""A picture, and for each word written about it where the model looked (M8, M24)."""

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data.readers.images import Pixels
from regard.decoding.captions import Caption
from regard.inspection.alignment import unit_spans
from regard.inspection.drawing import drawing
from regard.inspection.grounding import token_spans
from regard.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 5  # pictures side by side
PANEL = 1.8  # inches of a side
LETTERS = 15  # that fit above a picture, even capitals
DARKEST = 0.25  # how much of a picture is left where nothing was looked at


def words_seen(caption: Caption, tokenizer: Tokenizer) -> list[tuple[str, Tensor]]:
    """Each word of a caption, with what its tokens looked at on average, (places,).

    Where a text would be cut otherwise than it was written, tokens stand for words.
    """
    assert caption.attention is not None
    spans = token_spans(caption, tokenizer)
    if not spans:
        pieces = tokenizer.pieces(caption.ids)
        return list(zip(pieces, caption.attention, strict=False))
    found = []
    for first, last in unit_spans(caption.text, "words"):
        rows = [i for i, (start, stop) in enumerate(spans) if max(start, first) < min(stop, last)]
        if rows:
            found.append((caption.text[first:last], caption.attention[rows].mean(0)))
    return found


def brightened(image: Pixels, attention: Tensor) -> Tensor:
    """An image (size, size, 3), dark where attention (places,) is little; numbers from 0 to 1."""
    size, side = len(image), math.isqrt(len(attention))
    grid = (attention / attention.max().clamp(min=1e-9)).reshape(1, 1, side, side)
    smooth = F.interpolate(grid, (size, size), mode="bilinear", align_corners=False)
    light = DARKEST + (1 - DARKEST) * smooth[0, 0].clamp(0, 1)[..., None]  # (size, size, 1)
    return torch.from_numpy(image.copy()).float() / 255 * light


def draw_caption(
    image: Pixels, seen: Sequence[tuple[str, Tensor]], path: str | Path, text: str = ""
) -> "Figure":
    """Draw an image (size, size, 3), and beside it one for each word, light where it looked.

    Attention is scaled so that the largest weight of a word is white; a title tells that weight.
    """
    rows = -(-(1 + len(seen)) // COLUMNS)
    columns = min(COLUMNS, 1 + len(seen))
    lines = textwrap.wrap(text, LETTERS * columns)
    height = rows * (PANEL + 0.28) + 0.18 * len(lines) + 0.17
    with drawing(Path(path), (columns * PANEL, height)) as figure:
        axes = figure.subplots(rows, columns, squeeze=False).flatten()
        for place in axes:
            place.set_axis_off()
        axes[0].imshow(image)
        axes[0].set_title("the picture", fontsize=8, color="dimgray")
        for place, (word, attention) in zip(axes[1:], seen, strict=False):
            place.imshow(brightened(image, attention).numpy())
            short = word if len(word) <= LETTERS else word[: LETTERS - 1] + "…"
            title = f"{short}  {float(attention.max()):.0%}"
            place.set_title(title, fontsize=8, parse_math=False)
        figure.suptitle("\n".join(lines), fontsize=10, parse_math=False)
    return figure

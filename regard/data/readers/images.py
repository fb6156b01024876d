"""Pictures as pixels: PNG and JPEG files read upright, cut to a square, and varied a little.

The centre square of a picture (as if its shorter side were scaled to `size` and the ends of the
longer one cut off) is resized with Pillow's antialiased bicubic filter. Colour profiles are
ignored. What is transparent lies over white.
"""

import hashlib
import json
import os
import struct
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile

from regard.errors import RegardError
from regard.text.invalid_utf8 import replace_invalid_utf8

# This module must not import torch: `serve` runs in processes that start in 0.2 s without it.

Pixels = NDArray[np.uint8]


class Kind(NamedTuple):
    """How files of one kind begin and end, and who reads them."""

    begin: bytes
    end: bytes
    open: Callable[[BinaryIO], ImageFile]


SMALLEST = 8  # pixels of a side
LARGEST = 64_000_000  # pixels in all, 192 MB decoded
ENDS = 16 << 10  # bytes at each end of a file that tell its content
AREA = 0.85, 1.0  # of the picture, kept by an augmentation
LIGHT = 0.9, 1.1  # factors of brightness and of contrast
ORIENTATION = 0x0112  # the EXIF tag

# Pillow's own classes, not Image.open: that would warn about large pictures before we refuse them.
KINDS = (
    Kind(b"\x89PNG\r\n\x1a\n", b"IEND", PngImageFile),
    Kind(b"\xff\xd8\xff", b"\xff\xd9", JpegImageFile),
)
OTHERS = (
    (0, b"GIF8", "a GIF"),
    (0, b"BM", "a BMP"),
    (0, b"II*\0", "a TIFF"),
    (0, b"MM\0*", "a TIFF"),
    (8, b"WEBP", "a WebP"),
    (4, b"ftyp", "a HEIC, AVIF or film"),
)
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def read_image(path: Path, size: int) -> Pixels:
    """The pixels (size, size, 3) of the centre square of a PNG or JPEG file."""
    with _file(path) as file:
        image = _opened(path, file)[0]
        try:
            image.draft(None, (2 * size, 2 * size))  # a JPEG can be decoded at 1/2, 1/4, 1/8
            image.load()
            square = _square(_coloured(image), size)
            turn = UPRIGHT.get(_orientation(image))
            return np.array(square.transpose(turn) if turn is not None else square)
        except Exception as error:  # Pillow's decoders raise all kinds for a damaged file
            raise _damaged(path, error) from None


def examined(path: Path) -> int:
    """A mark of 64 bits drawn from a file's size, beginning and end; unusable files are refused.

    Only headers are read, and the whole only if its end is missing: 1,000 files in 0.1 s. Damage in
    the middle is met by `read_image`.
    """
    with _file(path) as file:
        image, kind = _opened(path, file)
        try:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            head = file.read(ENDS)
            file.seek(max(size - ENDS, 0))
            tail = file.read(ENDS)
            if kind.end not in tail:  # cut short, or more follows the picture
                file.seek(0)
                _opened(path, file)[0].load()
        except Exception as error:
            raise _damaged(path, error) from None
        finally:
            image.close()
    found = hashlib.blake2b(struct.pack("<Q", size) + head + tail, digest_size=8)
    return int.from_bytes(found.digest(), "big")


def upright_size(path: Path) -> tuple[int, int]:
    """How wide and how high an image is, in pixels, when it stands upright."""
    with _file(path) as file:
        image = _opened(path, file)[0]
        width, height = image.size
        return (height, width) if _orientation(image) in (5, 6, 7, 8) else (width, height)


def augmented(image: Pixels, rng: np.random.Generator) -> Pixels:
    """A picture (size, size, 3) a little closer, brighter or darker, with more or less contrast.

    A square of 85 to 100 % of the area anywhere in it is resized back, and brightness and contrast
    change by up to 10 %. It is never mirrored: captions say left and right.
    """
    size = len(image)
    side = size * float(np.sqrt(rng.uniform(*AREA)))
    left, top = rng.uniform(0, size - side, 2).tolist()
    brightness, contrast = rng.uniform(*LIGHT, 2)
    box = left, top, min(left + side, size), min(top + side, size)
    closer = Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR, box)
    mean = float(image.mean())
    levels = ((np.arange(256) - mean) * contrast + mean) * brightness  # (256,)
    table = np.clip(levels.round(), 0, 255).astype(np.uint8)
    return np.array(closer.point(table.tolist() * 3))


def serve() -> None:
    """Answer each line [path, size] of standard input: a line, empty or an error, then pixels.

    It ends when the input does, as it does when the process that writes there is killed.
    """
    warnings.simplefilter("ignore")  # of Pillow, about damaged notes beside a picture
    try:
        for line in sys.stdin.buffer:
            path, size = json.loads(line)
            try:
                pixels, told = read_image(Path(path), size).tobytes(), ""
            except RegardError as error:
                pixels, told = b"", json.dumps(str(error))
            sys.stdout.buffer.write(told.encode() + b"\n" + pixels)
            sys.stdout.buffer.flush()
    except BrokenPipeError:
        os._exit(1)  # nobody listens; a normal exit would complain that it cannot flush


def _file(path: Path) -> BinaryIO:
    try:
        return open(path, "rb")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise RegardError(f"{replace_invalid_utf8(str(path))} cannot be read ({why})") from None


def _opened(path: Path, file: BinaryIO) -> tuple[ImageFile, Kind]:
    """The picture, not yet decoded, and its kind; unfit sizes are refused."""
    name = replace_invalid_utf8(str(path))
    try:
        head = file.read(16)
        file.seek(0)
        kind = next((one for one in KINDS if head.startswith(one.begin)), None)
        image = kind and kind.open(file)
    except Exception as error:
        raise _damaged(path, error) from None
    if kind is None or image is None:
        if not head:
            raise RegardError(f"{name} is empty; fetch it again, or leave it out")
        others = (what for place, mark, what in OTHERS if head[place:].startswith(mark))
        what = next(others, "no image that is known")
        raise RegardError(f"{name} is {what}; only PNG and JPEG are read, so convert it")
    width, height = image.size
    if min(width, height) < SMALLEST:
        raise RegardError(
            f"{name} has only {width} × {height} pixels; a side needs {SMALLEST} at least"
        )
    if width * height > LARGEST:
        raise RegardError(
            f"{name} has {width:,} × {height:,} pixels, over {LARGEST // 10**6} million; make it "
            "smaller"
        )
    return image, kind


def _coloured(image: Image.Image) -> Image.Image:
    """The same in RGB, or in RGBA where something is transparent."""
    if image.mode.startswith("I"):  # 16 bits of grey, which Pillow would cut at 255
        return Image.fromarray((np.array(image) >> 8).astype(np.uint8)).convert("RGB")
    mode = "RGBA" if image.has_transparency_data else "RGB"
    return image if image.mode == mode else image.convert(mode)  # which copies at any rate


def _square(image: Image.Image, size: int) -> Image.Image:
    """The centre square, resized, in RGB.

    Cut and resized in one: a thin picture scaled by its shorter side first could fill the memory.
    """
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    box = left, top, left + side, top + side
    small = image.resize((size, size), Image.Resampling.BICUBIC, box, reducing_gap=2.0)
    if small.mode == "RGBA":
        white = Image.new("RGBA", small.size, "white")
        small = Image.alpha_composite(white, small).convert("RGB")
    return small


def _orientation(image: ImageFile) -> Any:
    """The EXIF orientation, 1 if it cannot be told."""
    try:
        return image.getexif().get(ORIENTATION, 1)
    except Exception:  # a damaged note beside a picture that is whole
        return 1


def _damaged(path: Path, error: Exception) -> RegardError:
    if isinstance(error, RegardError):
        return error
    name = replace_invalid_utf8(str(path))
    if isinstance(error, OSError) and error.errno:  # decoders raise others, without a number
        return RegardError(f"{name} cannot be read ({error.strerror})")
    why = str(error) or type(error).__name__
    return RegardError(f"{name} is damaged ({why}); fetch it again, or leave it out")

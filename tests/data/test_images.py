"""Images: upright, in RGB, cut to the centre; what is no usable picture is refused."""

import errno
import io
import struct
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from regard.data.feeds.order import generator
from regard.data.readers import images as module
from regard.data.readers.images import augmented, examined, read_image
from regard.errors import RegardError


def noise(height: int, width: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    made = np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)
    return made[:, :, 0] if channels == 1 else made


def smooth(height: int, width: int, seed: int = 0) -> np.ndarray:
    """A picture that survives JPEG: a few soft colours."""
    small = Image.fromarray(noise(4, 4, seed=seed))
    return np.array(small.resize((width, height), Image.Resampling.BICUBIC))


def save(path: Path, pixels: np.ndarray | Image.Image, **how) -> Path:
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    image.save(path, **how)
    return path


def chunk(name: bytes, content: bytes) -> bytes:
    return (
        struct.pack(">I", len(content))
        + name
        + content
        + struct.pack(">I", zlib.crc32(name + content))
    )


def png(width: int, height: int, depth: int, kind: int, rows: bytes, *before: bytes) -> bytes:
    """A PNG file written by hand, its rows with their filter bytes."""
    header = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    parts = [
        chunk(b"IHDR", header),
        *before,
        chunk(b"IDAT", zlib.compress(rows)),
        chunk(b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def near(one: np.ndarray, other: np.ndarray) -> int:
    return int(np.abs(one.astype(int) - other.astype(int)).max())


# --- pixels ----------------------------------------------------------------------------------


def test_a_picture_of_the_size_asked_for_is_read_as_it_is(tmp_path):
    pixels = noise(24, 24)
    found = read_image(save(tmp_path / "a.png", pixels), 24)
    assert found.dtype == np.uint8
    assert (found == pixels).all()


@pytest.mark.parametrize(("height", "width"), [(24, 40), (40, 24), (24, 25), (31, 24)])
def test_the_centre_is_cut_out(height, width, tmp_path):
    pixels = noise(height, width)
    top, left = (height - 24) // 2, (width - 24) // 2
    found = read_image(save(tmp_path / "a.png", pixels), 24)
    if (height + width) % 2 == 0:
        assert (found == pixels[top : top + 24, left : left + 24]).all()
    else:  # the centre lies between two pixels
        assert found.shape == (24, 24, 3)


@pytest.mark.parametrize(
    ("height", "width", "size"),
    [(60, 92, 30), (96, 64, 16), (64, 64, 30), (12, 18, 24), (160, 240, 16)],
)
def test_it_is_as_if_resized_by_the_shorter_side_and_then_cut(height, width, size, tmp_path):
    pixels = smooth(height, width)
    scale = size / min(height, width)
    scaled = int(width * scale), int(height * scale)
    whole = Image.fromarray(pixels).resize(scaled, Image.Resampling.BICUBIC)
    left, top = (whole.width - size) // 2, (whole.height - size) // 2
    expected = np.array(whole.crop((left, top, left + size, top + size)))
    found = read_image(save(tmp_path / "a.png", pixels), size)
    assert near(found, expected) <= 2


def test_small_things_are_averaged_not_skipped(tmp_path):
    checks = np.kron(np.indices((128, 128)).sum(0) % 2, np.ones((1, 1))) * 255
    pixels = np.repeat(checks.astype(np.uint8)[:, :, None], 3, 2)
    found = read_image(save(tmp_path / "a.png", pixels), 16)
    assert near(found[2:-2, 2:-2], np.full((12, 12, 3), 127)) <= 2


def test_a_large_jpeg_decoded_small_is_the_same_picture(tmp_path):
    path = save(tmp_path / "a.jpg", smooth(600, 800), quality=95)
    with Image.open(path) as image:
        whole = image.resize((32, 32), Image.Resampling.BICUBIC, (100, 0, 700, 600))
    assert near(read_image(path, 32), np.array(whole)) <= 3


TURNS = {  # from what is stored to what is meant, by hand
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
    8: lambda a: np.rot90(a),
}


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", ["a.png", "a.jpg"])
@pytest.mark.parametrize("size", [32, 20])
def test_every_orientation_is_turned_upright(orientation, name, size, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = smooth(32, 48, seed=3)
    path = save(tmp_path / name, stored, exif=exif)
    with Image.open(path) as image:
        meant = np.ascontiguousarray(TURNS[orientation](np.array(image)))
    twin = save(tmp_path / "twin.png", meant)
    assert near(read_image(path, size), read_image(twin, size)) <= 1
    if orientation != 1:
        assert near(read_image(path, size), read_image(save(tmp_path / "b.png", stored), size)) > 20


@pytest.mark.parametrize(
    "exif", [b"Exif\0\0", b"Exif\0\0rubbish", b"Exif\0\0II*\0\xff\xff\xff\xff"]
)
@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_damaged_notes_beside_a_picture_leave_it_as_it_is(exif, tmp_path):
    pixels = smooth(24, 24)
    plain = read_image(save(tmp_path / "a.jpg", pixels), 24)
    assert (read_image(save(tmp_path / "b.jpg", pixels, exif=exif), 24) == plain).all()


def test_an_orientation_that_is_none_is_ignored(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 9
    pixels = noise(24, 24)
    assert (read_image(save(tmp_path / "a.png", pixels, exif=exif), 24) == pixels).all()


# --- modes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "LA", "RGBA", "CMYK", "YCbCr"])
def test_every_mode_becomes_rgb(mode, tmp_path):
    image = Image.fromarray(smooth(24, 24)).convert(mode)
    name = "a.jpg" if mode in ("CMYK", "YCbCr") else "a.png"
    found = read_image(
        save(tmp_path / name, image, **({"quality": 95} if name == "a.jpg" else {})), 24
    )
    assert found.shape == (24, 24, 3)
    assert near(found, np.array(image.convert("RGB"))) <= (40 if name == "a.jpg" else 0)


def test_sixteen_bits_of_grey_keep_their_range(tmp_path):
    ramp = np.linspace(0, 65535, 24 * 24).astype(np.uint16).reshape(24, 24)
    found = read_image(save(tmp_path / "a.png", Image.fromarray(ramp)), 24)
    assert (found == (ramp >> 8)[:, :, None]).all()


def test_sixteen_bits_of_colour_keep_their_range(tmp_path):
    colours = np.random.default_rng(0).integers(0, 1 << 16, (9, 9, 3)).astype(">u2")
    rows = b"".join(b"\0" + row.tobytes() for row in colours)
    (tmp_path / "a.png").write_bytes(png(9, 9, 16, 2, rows))
    assert near(read_image(tmp_path / "a.png", 9), colours.astype(int) >> 8) <= 1


def test_what_is_transparent_lies_over_white(tmp_path):
    pixels = noise(24, 24, 4)
    pixels[:12, :, 3], pixels[12:, :, 3] = 0, 255
    found = read_image(save(tmp_path / "a.png", pixels), 24)
    assert (found[:12] == 255).all()
    assert (found[12:] == pixels[12:, :, :3]).all()
    half = np.full((24, 24, 4), (0, 0, 0, 128), dtype=np.uint8)
    assert near(read_image(save(tmp_path / "b.png", half), 24), np.full((24, 24, 3), 127)) <= 1
    # What is hidden does not bleed into what is seen.
    hidden = np.full((24, 24, 4), (255, 0, 0, 0), dtype=np.uint8)
    hidden[:, 12:] = (0, 0, 255, 255)
    small = read_image(save(tmp_path / "c.png", hidden), 8).astype(int)
    assert (small[:, :, 0] <= small[:, :, 1] + 2).all()


def test_a_palette_and_a_colour_can_be_transparent_too(tmp_path):
    image = Image.new("P", (16, 16), 0)
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.paste(1, (0, 0, 16, 8))
    found = read_image(save(tmp_path / "a.png", image, transparency=0), 16)
    assert (found[:8] == (200, 100, 50)).all()
    assert (found[8:] == 255).all()
    image = Image.new("RGB", (16, 16), (1, 2, 3))
    image.paste((9, 9, 9), (0, 0, 16, 8))
    found = read_image(save(tmp_path / "b.png", image, transparency=(1, 2, 3)), 16)
    assert (found[:8] == 9).all()
    assert (found[8:] == 255).all()


# --- refusals --------------------------------------------------------------------------------


def refused(path: Path) -> str:
    """What both the examination and the reading say."""
    told = []
    for look in (examined, lambda one: read_image(one, 16)):
        with pytest.raises(RegardError) as error:
            look(path)
        told.append(str(error.value))
    assert told[0] == told[1]
    assert "\n" not in told[0]
    assert str(path) in told[0]
    return told[0]


def test_a_disk_that_fails_is_told_as_such_and_not_as_damage(tmp_path, monkeypatch):
    class Failing(io.FileIO):
        def read(self, size=-1):
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(module, "_file", Failing)
    path = save(tmp_path / "a.png", noise(16, 16))
    assert refused(path) == f"{path} cannot be read (Input/output error)"


@pytest.mark.parametrize("size", [(1, 1), (7, 100), (100, 7)])
def test_tiny_pictures_are_refused(size, tmp_path):
    path = save(tmp_path / "a.png", Image.new("RGB", size))
    assert f"only {size[0]} × {size[1]} pixels" in refused(path)


def test_eight_pixels_are_enough(tmp_path):
    assert read_image(save(tmp_path / "a.png", noise(8, 8)), 24).shape == (24, 24, 3)


@pytest.mark.parametrize("size", [(8001, 8000), (15_000, 10_000), (1_000_000, 1_000_000)])
def test_huge_pictures_are_refused_by_their_header_without_a_warning(size, tmp_path, recwarn):
    (tmp_path / "a.png").write_bytes(png(*size, 8, 2, b""))
    assert "over 64 million" in refused(tmp_path / "a.png")
    assert not recwarn.list


def test_a_thin_picture_takes_no_more_memory_than_its_own(tmp_path):
    path = save(tmp_path / "a.png", Image.new("L", (8, 1_000_000), 77))
    assert (read_image(path, 224) == 77).all()  # by its shorter side it would be 224 × 28,000,000


@pytest.mark.parametrize(
    ("kind", "what"),
    [("GIF", "a GIF"), ("WEBP", "a WebP"), ("BMP", "a BMP"), ("TIFF", "a TIFF")],
)
def test_other_kinds_of_images_are_named_whatever_the_file_is_called(kind, what, tmp_path):
    path = save(tmp_path / "a.png", Image.new("RGB", (16, 16)), format=kind)
    assert f"is {what}; only PNG and JPEG" in refused(path)


def test_what_is_no_image_is_told(tmp_path):
    path = tmp_path / "a.jpg"
    path.write_text("<html>404</html>")
    assert "is no image that is known; only PNG and JPEG" in refused(path)
    path.write_bytes(b"")
    assert f"{path} is empty; fetch it again, or leave it out" in refused(path)
    assert "cannot be read (No such file" in refused(tmp_path / "missing.png")
    assert "cannot be read" in refused(tmp_path)


@pytest.mark.parametrize("name", ["a.png", "a.jpg"])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
def test_a_file_that_is_cut_short_is_refused_before_training(name, share, tmp_path):
    path = save(tmp_path / name, noise(64, 64))
    raw = path.read_bytes()
    path.write_bytes(raw[: int(share * len(raw))])
    assert "is damaged (" in refused(path)
    assert "fetch it again, or leave it out" in refused(path)


def test_more_behind_a_picture_does_no_harm(tmp_path):
    """Phones append films to their pictures."""
    path = save(tmp_path / "a.jpg", smooth(32, 32))
    plain = read_image(path, 32)
    path.write_bytes(path.read_bytes() + bytes(3 * module.ENDS))
    examined(path)
    assert (read_image(path, 32) == plain).all()


def test_damage_in_the_middle_is_told_when_it_is_met(tmp_path):
    path = save(tmp_path / "a.png", noise(64, 64))
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 255
    path.write_bytes(raw)
    examined(path)
    with pytest.raises(RegardError, match=r"a\.png is damaged \("):
        read_image(path, 16)


@given(st.data(), st.sampled_from(["PNG", "JPEG"]))
@settings(max_examples=150)
def test_damaged_bytes_give_a_picture_or_a_sentence(tmp_path_factory, data, kind):
    kept, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(noise(16, 12)).save(kept, kind, exif=exif)
    raw = bytearray(kept.getvalue())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(raw)
    for look in (examined, lambda one: read_image(one, 10)):
        with suppress(RegardError):
            look(path)


# --- marks -----------------------------------------------------------------------------------


def test_a_mark_follows_from_the_content_not_from_the_name(tmp_path):
    one, other = (save(tmp_path / name, noise(16, 16)) for name in ("a.png", "b.png"))
    assert examined(one) == examined(other)
    marks = {examined(save(tmp_path / "c.png", noise(200, 200, seed=n))) for n in range(20)}
    assert len(marks) == 20


def test_one_pixel_in_the_middle_of_a_png_changes_its_mark(tmp_path):
    pixels = noise(200, 200)
    one = examined(save(tmp_path / "a.png", pixels, compress_level=0))
    pixels[100, 100] ^= 1
    assert examined(save(tmp_path / "a.png", pixels, compress_level=0)) != one


# --- augmentation ----------------------------------------------------------------------------


def test_an_augmentation_follows_from_its_draws_alone():
    image = smooth(32, 32)
    before = image.copy()
    one, again = (augmented(image, generator(0, 8, 2, 5)) for _ in range(2))
    assert (one == again).all()
    assert (image == before).all()
    others = [augmented(image, generator(0, 8, *place)) for place in ((2, 6), (3, 5))]
    assert all((one != other).any() for other in others)
    assert one.shape == image.shape
    assert one.dtype == np.uint8


@given(st.integers(0, 10_000))
def test_it_stays_near_the_picture_and_is_never_mirrored(seed):
    across = np.linspace(60, 190, 64)
    image = np.broadcast_to(across[None, :, None], (64, 64, 3)).astype(np.uint8)
    found = augmented(image, generator(seed)).astype(int)
    assert near(found, image) <= 45  # at most 7.8 % of the width, then 10 % twice
    assert (np.diff(found.mean((0, 2))) >= 0).all()
    down = augmented(np.ascontiguousarray(image.transpose(1, 0, 2)), generator(seed)).astype(int)
    assert (np.diff(down.mean((1, 2))) >= 0).all()


def test_at_least_eighty_five_hundredths_of_the_area_are_seen():
    ramp = np.broadcast_to(np.arange(64, dtype=np.uint8)[None, :, None] * 2 + 50, (64, 64, 3))
    image, seen = np.ascontiguousarray(ramp), []
    for seed in range(200):
        found = augmented(image, generator(seed)).astype(float)[32, :, 0]
        flat = augmented(np.full_like(image, 114), generator(seed))[0, 0, 0]
        # The mean of the ramp is 113: what a flat picture becomes there tells the brightness.
        seen.append((found[-2] - found[1]) / (image[32, -2, 0] - image[32, 1, 0]) / (flat / 114))
    share = np.array(seen)  # of the width, times the contrast
    assert 0.9 * np.sqrt(0.85) - 0.03 <= share.min() < 0.9
    assert 1.02 < share.max() <= 1.13


def test_an_average_picture_stays_as_bright_as_it_was():
    image = smooth(32, 32)
    means = [augmented(image, generator(seed)).mean() for seed in range(200)]
    assert np.mean(means) == pytest.approx(image.mean(), rel=0.02)
    assert max(means) < 1.16 * image.mean()
    assert min(means) > 0.84 * image.mean()

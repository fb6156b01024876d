"""Pictures made on the spot, with captions that are known to be true and the boxes they speak of.

A scene is a few coloured shapes on a plain ground. Any two of them stand in exactly one relation,
which anybody can see, and no two share both colour and shape. So what a caption says is true or
false, and "large red circle" names one box.

Wording cannot be seen in a picture, nor which two things somebody would speak of. So a scene has
not one right caption but a set of them: all that the wordings below can truly say about any two of
its things. A model is right when what it writes is in the set.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations, permutations
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from regard.data.builtin.tasks import TENTHS, Part
from regard.data.feeds.order import generator
from regard.errors import RegardError, nearest
from regard.storage import building

Size = Literal["small", "large"]
Relation = Literal["left", "right", "above", "below"]
Box = tuple[int, int, int, int]
Floats = NDArray[np.float64]

SIDE = 256  # units along each side of a scene, whatever the size of its picture
FEWEST, MOST = 2, 4  # things in a scene
SIZES: tuple[Size, Size] = ("small", "large")
RADII = {"small": (20, 24), "large": (37, 43)}  # least and most
COLOURS = {
    "red": (210, 30, 36),
    "orange": (244, 132, 22),
    "yellow": (242, 222, 48),
    "green": (32, 148, 52),
    "blue": (38, 72, 214),
    "purple": (144, 44, 176),
    "white": (243, 243, 243),
    "black": (14, 14, 14),
}
SHADE = 10  # how far each channel may be from that of the named colour
EDGE = 4  # units between a thing and the edge of the picture, at least
GAP = 8  # units between the boxes of two things, at least
CLEAR = 1.5  # how many times the one offset between two centres is the other, at least
TRIES = 40  # places tried for all things of a scene together
SAMPLES = 4  # along each side of a pixel, to see how much of it a thing covers
SMALLEST, LARGEST = 32, 1024  # pixels along a side of a picture


class Thing(NamedTuple):
    """A shape that fills the square of twice its radius around its centre; lengths in units."""

    shape: str
    colour: str
    size: Size
    x: int  # of the centre, from the left
    y: int  # of the centre, from the top
    radius: int
    rgb: tuple[int, int, int]

    @property
    def name(self) -> str:
        """What captions call it, such as "large red circle"."""
        return f"{self.size} {self.colour} {self.shape}"


class Ground(NamedTuple):
    """What lies behind the things: nearly grey, slightly graded and noisy."""

    tone: tuple[int, int, int]  # in the middle
    slope: tuple[int, int]  # how much lighter the right edge is than the left, the lower the upper
    noise: int  # its seed


@dataclass(frozen=True)
class Scene:
    """All that there is to see, and so to tell."""

    things: tuple[Thing, ...]
    ground: Ground


class Mention(NamedTuple):
    """Characters [start, stop) of a caption, which name `scene.things[thing]`."""

    start: int
    stop: int
    thing: int


class SceneCaption(NamedTuple):
    """A true sentence about two things, and where it names them, in its own order."""

    text: str
    mentions: tuple[Mention, Mention]


def scenes(count: int, seed: int, part: Part) -> Iterator[Scene]:
    """`count` scenes; the same for the same arguments. A larger count continues a smaller one.

    A hash of the arrangement decides the part: what the things are called and how each two of them
    stand, which is all that captions tell. So no arrangement of one part occurs in another, under
    any seed. Within its part it may come again, with other places and shades.
    """
    if part not in TENTHS:
        raise RegardError(f"scenes have no part {part!r}; {nearest(part, set(TENTHS))}")
    if count < 0:
        raise RegardError(f"there cannot be {count} scenes; ask for 0 or more")
    return _drawn(count, generator(seed, *b"scenes"), part)


def _drawn(count: int, rng: np.random.Generator, part: Part) -> Iterator[Scene]:
    found = 0
    while found < count:
        things = _things(rng)
        if TENTHS[_arrangement(things) % 10] == part:
            found += 1
            yield Scene(things, _ground(rng))


def _arrangement(things: tuple[Thing, ...]) -> int:
    """A number for what can be told of the things; their order does not matter."""
    ordered = sorted(things, key=lambda thing: thing.name)
    facts = [f"{one.name} {relation(one, to)} {to.name}" for one, to in combinations(ordered, 2)]
    digest = hashlib.blake2b("\n".join(facts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _things(rng: np.random.Generator) -> tuple[Thing, ...]:
    count = int(rng.integers(FEWEST, MOST + 1))
    kinds = rng.choice(len(KINDS), count, replace=False).tolist()
    sizes = [SIZES[i] for i in rng.integers(len(SIZES), size=count).tolist()]
    radii = [int(rng.integers(*RADII[size], endpoint=True)) for size in sizes]
    while not (places := _places(radii, rng)):  # one time in eight
        pass
    shades = rng.integers(-SHADE, SHADE, (count, 3), endpoint=True).tolist()
    things = []
    for kind, size, (x, y, radius), shade in zip(kinds, sizes, places, shades, strict=True):
        shape, colour = KINDS[kind]
        red, green, blue = (base + more for base, more in zip(COLOURS[colour], shade, strict=True))
        things.append(Thing(shape, colour, size, x, y, radius, (red, green, blue)))
    return tuple(things)


def _places(radii: list[int], rng: np.random.Generator) -> list[tuple[int, int, int]]:
    """An (x, y, radius) for each radius, each two of them clear; none if that did not come out."""
    tries = iter(rng.random((TRIES, 2)).tolist())
    places: list[tuple[int, int, int]] = []
    for radius in radii:
        least, room = EDGE + radius, SIDE - 2 * (EDGE + radius)
        for across, down in tries:
            place = (least + int(across * room), least + int(down * room), radius)
            if all(_clear(place, other) for other in places):
                places.append(place)
                break
        else:
            return []
    return places


def _clear(one: tuple[int, int, int], other: tuple[int, int, int]) -> bool:
    """Whether two boxes lie apart, and nobody could take left or right for above or below."""
    smaller, larger = sorted((abs(one[0] - other[0]), abs(one[1] - other[1])))
    return larger >= one[2] + other[2] + GAP and larger >= CLEAR * smaller


def _ground(rng: np.random.Generator) -> Ground:
    tone = int(rng.integers(100, 156))
    red, green, blue, across, down = rng.integers(-6, 6, 5, endpoint=True).tolist()
    slope = (4 * across, 4 * down)
    return Ground((tone + red, tone + green, tone + blue), slope, int(rng.integers(1 << 62)))


# --- captions --------------------------------------------------------------------------------

# The first thing stands in the relation to the second.
WORDINGS: dict[Relation, tuple[str, ...]] = {
    "left": (
        "a {0} is left of a {1}",
        "a {0} is to the left of a {1}",
        "there is a {0} on the left of a {1}",
        "to the left of a {1} is a {0}",
    ),
    "right": (
        "a {0} is right of a {1}",
        "a {0} is to the right of a {1}",
        "there is a {0} on the right of a {1}",
        "to the right of a {1} is a {0}",
    ),
    "above": (
        "a {0} is above a {1}",
        "a {0} is over a {1}",
        "there is a {0} over a {1}",
        "above a {1} is a {0}",
    ),
    "below": (
        "a {0} is below a {1}",
        "a {0} is under a {1}",
        "there is a {0} under a {1}",
        "below a {1} is a {0}",
    ),
}


def relation(one: Thing, other: Thing) -> Relation:
    """How `one` stands to `other`: the larger of the two offsets between their centres decides."""
    across, down = one.x - other.x, one.y - other.y
    if abs(across) > abs(down):
        return "left" if across < 0 else "right"
    return "above" if down < 0 else "below"


def captions(scene: Scene) -> list[SceneCaption]:
    """All that can truly be said: each wording for each two things in both orders, all different.

    That is 8 captions for two things, 24 for three and 48 for four.
    """
    return [
        _said(wording, scene.things, one, other)
        for one, other in permutations(range(len(scene.things)), 2)
        for wording in WORDINGS[relation(scene.things[one], scene.things[other])]
    ]


def _said(wording: str, things: tuple[Thing, ...], one: int, other: int) -> SceneCaption:
    text = wording.format(things[one].name, things[other].name)
    # No name is part of another: each has one word for the size, the colour and the shape.
    starts = sorted((text.index(things[thing].name), thing) for thing in (one, other))
    first, second = (Mention(i, i + len(things[thing].name), thing) for i, thing in starts)
    return SceneCaption(text, (first, second))


# --- pictures --------------------------------------------------------------------------------


def _circle(x: Floats, y: Floats) -> NDArray[np.bool_]:
    return x * x + y * y <= 1


def _square(x: Floats, y: Floats) -> NDArray[np.bool_]:
    return np.maximum(abs(x), abs(y)) <= 1


def _triangle(x: Floats, y: Floats) -> NDArray[np.bool_]:
    return (2 * abs(x) <= y + 1) & (y <= 1)


def _star(x: Floats, y: Floats) -> NDArray[np.bool_]:
    """Five tips, whose sides meet halfway to the centre."""
    x, y = 0.95106 * x, 0.90451 * y - 0.09549  # from the square to the circle through the tips
    # The three tips of the right half: the left is its mirror image.
    right, up = abs(x), -y
    along = np.maximum(up, 0.95106 * right + 0.30902 * up)
    along = np.maximum(along, 0.58779 * right - 0.80902 * up)  # towards the nearest tip
    aside = np.sqrt(np.maximum(x * x + y * y - along * along, 0))
    return aside <= 0.4935 * (1 - along)


def _cross(x: Floats, y: Floats) -> NDArray[np.bool_]:
    return _square(x, y) & (np.minimum(abs(x), abs(y)) <= 0.3)


def _ring(x: Floats, y: Floats) -> NDArray[np.bool_]:
    return _circle(x, y) & (x * x + y * y >= 0.3)


# Whether points, in radii right of and below the centre, lie in the shape.
SHAPES: dict[str, Callable[[Floats, Floats], NDArray[np.bool_]]] = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "star": _star,
    "cross": _cross,
    "ring": _ring,
}
KINDS = [(shape, colour) for shape in SHAPES for colour in COLOURS]


def render(scene: Scene, size: int = 64) -> NDArray[np.uint8]:
    """The picture of a scene, (size, size, 3): from the top, from the left, red green blue."""
    picture = _painted(scene.ground, _checked(size))
    for thing in scene.things:
        left, top, covered = _coverage(thing, size)  # covered: (height, width, 1)
        behind = picture[top : top + covered.shape[0], left : left + covered.shape[1]]
        mixed = covered * np.array(thing.rgb) + (SAMPLES**2 - covered) * behind
        behind[:] = (mixed + SAMPLES**2 // 2) // SAMPLES**2
    return picture.astype(np.uint8)


def boxes(scene: Scene, size: int = 64) -> list[Box]:
    """The pixels of each thing, (x0, y0, x1, y1): those from x0 up to x1, without x1 itself."""
    found = []
    for thing in scene.things:
        left, top, covered = _coverage(thing, _checked(size))
        rows, columns = (np.flatnonzero(covered.any(axis=axis)) for axis in ((1, 2), (0, 2)))
        across = left + int(columns[0]), left + int(columns[-1]) + 1
        down = top + int(rows[0]), top + int(rows[-1]) + 1
        found.append((across[0], down[0], across[1], down[1]))
    return found


def _checked(size: int) -> int:
    if not SMALLEST <= size <= LARGEST:
        raise RegardError(
            f"a scene is drawn with {SMALLEST} to {LARGEST} pixels on each side, not {size}"
        )
    return size


def _painted(ground: Ground, size: int) -> NDArray[np.int64]:
    steps = 2 * np.arange(size) + 1 - size  # from left to right, and from the top
    across, down = ground.slope
    grade = (across * steps + down * steps[:, None]) // (2 * size)  # (size, size)
    noise = generator(ground.noise).integers(-4, 4, (size, size), endpoint=True)
    return (grade + noise)[..., None] + np.array(ground.tone)  # (size, size, 3)


def _coverage(thing: Thing, size: int) -> tuple[int, int, NDArray[np.int64]]:
    """Where its square starts (left, top), and how many samples of each pixel the thing covers.

    The counts are (height, width, 1). Nothing here depends on the machine: points are whole numbers
    until they are divided by the radius, and no two operations are fused.
    """
    left, x = _samples(thing.x, thing.radius, size)
    top, y = _samples(thing.y, thing.radius, size)
    inside = SHAPES[thing.shape](x, y[:, None])
    fine = inside.reshape(len(y) // SAMPLES, SAMPLES, len(x) // SAMPLES, SAMPLES)
    return left, top, fine.sum((1, 3))[..., None]


def _samples(centre: int, radius: int, size: int) -> tuple[int, Floats]:
    """The first pixel that a thing may touch along one axis, and its sample points, in radii."""
    first = (centre - radius) * size // SIDE
    behind = -(-(centre + radius) * size // SIDE)
    points = 2 * np.arange(first * SAMPLES, behind * SAMPLES) + 1  # in half samples
    half_samples = 2 * SAMPLES * size  # along a side
    return first, (points * SIDE - centre * half_samples) / (radius * half_samples)


# --- files -----------------------------------------------------------------------------------


def write_folder(
    path: Path, count: int, seed: int, part: Part, size: int = 64, told: int = 0
) -> None:
    """Write pictures 00001.png, … and `captions.jsonl`, with a line for each of them.

    A line has the name of the `image`, its `captions`, and `boxes` with a list for each caption:
    which of its characters, `start` up to `stop`, name what lies in `box` (x0, y0, x1, y1). Of all
    that is true so much is `told` of each scene, drawn anew for each; 0: all.
    """
    _checked(size)
    drawn = scenes(count, seed, part)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise RegardError(f"{path} is there already; name a folder that is new or empty")
    with building(path) as folder, (folder / "captions.jsonl").open("w", encoding="utf-8") as lines:
        for number, scene in enumerate(drawn, 1):
            image = f"{number:05}.png"
            Image.fromarray(render(scene, size)).save(folder / image)
            said, places = captions(scene), boxes(scene, size)
            if told:
                drawn_from = generator(seed, *b"told", number)
                chosen = drawn_from.permutation(len(said))[:told].tolist()
                said = [said[which] for which in chosen]
            named = [
                [{"start": i, "stop": j, "box": places[thing]} for i, j, thing in caption.mentions]
                for caption in said
            ]
            line = {"image": image, "captions": [text for text, _ in said], "boxes": named}
            lines.write(json.dumps(line) + "\n")

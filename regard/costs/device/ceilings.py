"""What a device can do: measured by `regard calibrate`, or else taken from a datasheet.

A device is a small JSON file of rates over grids of sizes. Ours are in `regard/costs/devices/`, and
those that were measured here in the cache folder; the latter come first.
"""

import math
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any, cast

import torch

from regard.costs.trace.fake_device import Kind
from regard.errors import RegardError, nearest
from regard.storage import cache_folder, read_json
from regard.training.datasheets import SHEETS, named_in

FORMAT = 3
FOLDER = resources.files("regard.costs") / "devices"
GIB = 1 << 30
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
SUFFIXES = {"K": 10, "M": 20, "G": 30}
MOST = 1e30  # of whatever a device has or can
COPY = "aten::copy_"
SHIPPED_CPU = "cpu-2"  # others are taken to be like it
# The grids of a device, and over how many sizes each is.
GRIDS = dict.fromkeys(("products", "batched", "attention", "attention_back", "recurrence"), 3)
GRIDS["traffic"] = 1


@dataclass(frozen=True)
class Grid:
    """A rate at some sizes; between them it changes evenly in logarithms, beyond them it stays."""

    axes: tuple[tuple[int, ...], ...]
    rates: tuple[float, ...]  # the last axis runs fastest

    def __post_init__(self) -> None:
        wanted = math.prod(map(len, self.axes))
        rising = all(list(axis) == sorted(set(axis)) and axis for axis in self.axes)
        positive = all(0 < rate < math.inf for rate in self.rates)
        if len(self.rates) != wanted or not rising or not positive:
            raise RegardError(f"a grid of {wanted} rates above 0 over rising sizes was expected")

    @classmethod
    def constant(cls, rate: float, axes: int) -> "Grid":
        """The same at all sizes."""
        return cls(((1,),) * axes, (rate,))

    @property
    def best(self) -> float:
        return max(self.rates)

    def at(self, *sizes: float) -> float:
        """The rate at any sizes."""
        corners = [_between(axis, size) for axis, size in zip(self.axes, sizes, strict=True)]
        found = 0.0
        for chosen in product(*corners):
            place, weight = 0, 1.0
            for axis, (index, share) in zip(self.axes, chosen, strict=True):
                place, weight = place * len(axis) + index, weight * share
            found += weight * math.log(self.rates[place])
        return math.exp(found)

    def beyond(self, size: float) -> float:
        """The best rate at this size or any larger, of a single axis.

        A small copy takes long on a GPU because it is begun at all, not because of where it lies.
        """
        further = zip(self.axes[0], self.rates, strict=True)
        return max(self.at(size), *(rate for point, rate in further if point > size), 0.0)


def _between(axis: Sequence[int], size: float) -> list[tuple[int, float]]:
    """The neighbours of a size on an axis, and how much each counts."""
    if size <= axis[0]:
        return [(0, 1.0)]
    if size >= axis[-1]:
        return [(len(axis) - 1, 1.0)]
    high = next(i for i, point in enumerate(axis) if point > size)
    low = high - 1
    share = math.log(size / axis[low]) / math.log(axis[high] / axis[low])
    return [(low, 1 - share), (high, share)]


@dataclass(frozen=True)
class Device:
    """Rates in operations or bytes a second, overheads in seconds."""

    name: str
    kind: Kind
    source: str  # how this is known
    memory: int  # bytes
    # By type, some with variants of it: "float32", "float32/turned".
    products: Mapping[str, Grid]  # over rows, inner, columns; turned, write; each also far
    batched: Mapping[str, Grid]  # the same of many small products at once
    attention: Mapping[str, Grid]  # over queries, width of a head, keys; causal
    attention_back: Mapping[str, Grid]
    recurrence: Mapping[str, Grid]  # over steps, rows, hidden; back
    traffic: Mapping[str, Grid]  # by operation: over bytes moved; "aten::copy_" for all others
    launch: Mapping[str, float]  # host seconds, such as of a "forward call" or a "write module"
    kernel: float  # seconds that the shortest kernel takes
    fixed: int = 0  # bytes that libraries hold beside what a job asks for
    link: float = 0.0  # bytes a second between processes
    cache: int = 32 << 20  # bytes that lie near
    versions: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """What `of_json` reads."""
        found: dict[str, Any] = {"format": FORMAT}
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, Mapping):
                value = {
                    key: {"axes": grid.axes, "rates": [float(f"{r:.4g}") for r in grid.rates]}
                    if isinstance(grid, Grid)
                    else grid
                    for key, grid in value.items()
                }
            found[one.name] = value
        return found

    def check(self) -> None:
        """Raise a ValueError that names what no measurement gives: a file may be anybody's."""
        seconds = {"kernel": self.kernel, "link": self.link, **self.launch}
        sizes = {"memory": self.memory, "fixed": self.fixed, "cache": self.cache}
        wrong = [name for name, value in seconds.items() if not _amount(value, float)]
        wrong += [name for name, value in sizes.items() if not _amount(value, int)]
        wrong += [name for name in ("name", "source") if not isinstance(getattr(self, name), str)]
        wrong += [name for name, axes in GRIDS.items() if not self._fit(name, axes)]
        wrong += ["kind"] * (self.kind not in ("cpu", "cuda"))
        wrong += ["versions"] * (not isinstance(self.versions, Mapping))
        if wrong:
            raise ValueError(f"its {wrong[0]:.40} is not as it is measured")

    def _fit(self, name: str, axes: int) -> bool:
        """Whether there are grids of that name, as far as needed, over so many sizes each."""
        grids: Mapping[str, Grid] = getattr(self, name)
        there = COPY in grids if name == "traffic" else bool(grids) or name == "recurrence"
        return there and all(len(grid.axes) == axes for grid in grids.values())

    @classmethod
    def of_json(cls, found: Mapping[str, Any], where: str) -> "Device":
        """A device from a file, or one sentence about what is wrong with it."""
        if found.get("format") != FORMAT:
            raise RegardError(
                f"{where} is no calibration that this Regard reads; `regard calibrate` makes one"
            )
        try:
            given = {one.name: found[one.name] for one in fields(cls) if one.name in found}
            for name in GRIDS:
                given[name] = {str(key): _grid(grid) for key, grid in given[name].items()}
            device = cls(**given)
            device.check()
            return device
        except (KeyError, TypeError, ValueError, AttributeError, RegardError) as error:
            raise RegardError(f"{where} is not a calibration: {error}") from None


def _amount(value: object, kind: type) -> bool:
    """Whether it is a number from 0 on, and no absurd one."""
    return type(value) in (int, kind) and 0 <= cast(float, value) < MOST


def _grid(found: Mapping[str, Any]) -> Grid:
    axes = tuple(tuple(int(size) for size in axis) for axis in found["axes"])
    return Grid(axes, tuple(float(rate) for rate in found["rates"]))


# Seconds of the host for a call of torch where nobody has measured.
CALLS = {f"{phase} call": 4e-6 for phase in ("forward", "backward", "optimizer", "write")}
# What is reached of a datasheet in practice, roughly: of products, and of traffic.
REACHED, MOVED = 0.6, 0.8


def of_sheet(name: str) -> Device:
    """An estimate for a device that nobody has measured."""
    sheet = SHEETS[name]
    rates = {"float32": sheet.full * REACHED, "bfloat16": sheet.half * REACHED}
    fast = {kind: Grid.constant(rate, 3) for kind, rate in rates.items()}
    half = {kind: Grid.constant(rate / 2, 3) for kind, rate in rates.items()}
    return Device(
        name,
        "cuda",
        "an estimate from the datasheet; `regard calibrate` on such a machine measures",
        sheet.memory,
        fast,
        half,
        half,
        half,
        {},
        {COPY: Grid.constant(sheet.bandwidth * MOVED, 1)},
        CALLS,
        3e-6,
        fixed=GIB // 2,
        link=sheet.link,
    )


def main_memory() -> int:
    """Bytes of main memory."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 8 * GIB


def cache_bytes(device: torch.device) -> int:
    """What the largest cache holds; 32 MiB where nobody tells."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    found = [path.read_text().strip() for path in CACHES.glob("index*/size")]
    sizes = [int(size[:-1]) << SUFFIXES[size[-1]] for size in found if size[-1:] in SUFFIXES]
    return max(sizes, default=32 << 20)


def measured_folder() -> Path:
    """Where `regard calibrate` puts what it finds."""
    return cache_folder() / "devices"


def here(kind: str = "") -> str:
    """The name of the device that this machine computes on, or of its CPU."""
    if kind != "cpu" and torch.cuda.is_available():
        words = torch.cuda.get_device_name().lower()
        return re.sub(r"[^a-z0-9]+", "-", words.replace("nvidia", "")).strip("-")
    return f"cpu-{torch.get_num_threads()}"


def processor(device: torch.device) -> str:
    """What this machine computes with, as it calls it itself."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    threads = torch.get_num_threads()
    count = "one thread" if threads == 1 else f"{threads} threads"
    return f"{named[0] if named else platform.machine()}, {count}"


def shipped() -> list[str]:
    """The devices whose measurements come with Regard."""
    listed = FOLDER.iterdir() if FOLDER.is_dir() else ()
    return sorted(Path(f.name).stem for f in listed if f.name.endswith(".json"))


def device_named(name: str) -> Device:
    """A device by name, or by the path of its file; "auto" is what this machine has."""
    if name.endswith(".json"):
        return Device.of_json(read_json(Path(name)), name)
    wanted = here() if name == "auto" else name.lower()
    if wanted == "cuda" and torch.cuda.is_available():
        wanted = here()
    if wanted == "cpu":
        wanted = here("cpu")
    own = measured_folder() / f"{wanted}.json"
    if own.is_file():
        return Device.of_json(read_json(own), str(own))
    if wanted in shipped():
        found = _shipped(wanted)
        return _as_here(found) if wanted == here(found.kind) else found
    if sheet := named_in(wanted):
        return of_sheet(sheet)
    if re.fullmatch(r"cpu-[1-9]\d{0,3}", wanted):
        return _like(SHIPPED_CPU, int(wanted.removeprefix("cpu-")))
    known = sorted({"auto", "cpu", *SHEETS, *shipped(), *_measured()})
    raise RegardError(f"no device is called {name!r}; {nearest(name, known)}")


def _shipped(name: str) -> Device:
    path = Path(str(FOLDER / f"{name}.json"))
    return Device.of_json(read_json(path), str(path))


def _like(measured: str, threads: int) -> Device:
    """A CPU of so many threads, by one that was measured: as much faster as it has more of them."""
    found = _shipped(measured)
    factor = threads / int(measured.removeprefix("cpu-"))
    grids: dict[str, Any] = {name: _faster(getattr(found, name), factor) for name in GRIDS}
    return replace(
        found,
        name=f"cpu-{threads}",
        source=f"a guess by what {measured} can do, {found.source}; `regard calibrate` measures",
        memory=main_memory(),
        **grids,
    )


def _faster(grids: Mapping[str, Grid], factor: float) -> dict[str, Grid]:
    return {
        name: Grid(grid.axes, tuple(rate * factor for rate in grid.rates))
        for name, grid in grids.items()
    }


def _as_here(found: Device) -> Device:
    """A device like this machine's, that was measured elsewhere."""
    source = f"{found.source}; `regard calibrate` measures this one"
    memory = main_memory() if found.kind == "cpu" else found.memory
    return replace(found, source=source, memory=memory)


def _measured() -> list[str]:
    folder = measured_folder()
    return [path.stem for path in folder.glob("*.json")] if folder.is_dir() else []

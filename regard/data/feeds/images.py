"""Batches of images with captions; the images are decoded beside the training and kept.

Decoding is left to other processes when there are many images. Which process decodes one, and
whether it was kept from before, changes no pixel.
"""

import json
import os
import subprocess
import sys
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import torch

from regard.data.batch import Batch, padded
from regard.data.feeds.masking import IGNORE
from regard.data.feeds.order import generator, shuffled, turned_seed
from regard.data.readers.captions import Captioned, EncodedCaptions
from regard.data.readers.images import Pixels, augmented, read_image
from regard.errors import RegardError
from regard.text.invalid_utf8 import replace_invalid_utf8
from regard.text.specials import PAD

AHEAD = 2  # steps whose images are decoded while one is put together
FEW = 500  # images, which are decoded here within a second or so
MOST_WORKERS = 4
BUDGET = 1 << 30  # bytes of decoded images that are kept
AUGMENTATION = 8  # what is drawn for it, apart from other draws

# `import regard` would bring torch: 2 s and 300 MB for each process. So they begin with an empty
# package of that name, in which `regard.data.readers.images` is found as ever.
PACKAGE = str(Path(__file__).parents[2])
SERVE = """import sys, types
regard = sys.modules["regard"] = types.ModuleType("regard")
regard.__path__ = [sys.argv[1]]
from regard.data.readers.images import serve
serve()"""


@dataclass(frozen=True)
class ImageFeed:
    """Every caption of every image once in an epoch, `rows` of them in a step.

    Tokens are <s> and the caption, targets the caption and </s>; the source is the picture, uint8
    (rows, 3, size, size). A step may reach over the end of an epoch. What is held out is each image
    with its first caption; all that people said of it is in `told`.
    """

    train: EncodedCaptions
    valid: EncodedCaptions
    pictures: "Pictures"
    rows: int
    seed: int = 0
    augment: bool = True
    told: Sequence[Captioned] = ()  # the images held out, in the order of `valid`
    telling = 3  # pictures are alike, captions are not

    def __post_init__(self) -> None:
        if not len(self.train):
            raise RegardError("there are no captions to train on")

    def epoch(self, step: int) -> float:
        return step * self.rows / len(self.train)

    def step(self, step: int) -> Batch:
        epochs, chosen = self._rows(step)
        coming = [self._rows(step + later)[1] for later in range(1, AHEAD + 1)]
        now, later = self._paths(self.train, chosen, np.concatenate(coming))
        chosen, images = _without_failed(chosen, self.pictures.tried(now, later))
        if self.augment:
            places = zip(epochs.tolist(), chosen.tolist(), strict=True)
            images = [
                augmented(image, generator(self.seed, AUGMENTATION, epoch, example))
                for image, (epoch, example) in zip(images, places, strict=True)
            ]
        return _batch(self.train, chosen, images)

    def held_out(self, rows: int) -> Iterator[Batch]:
        for first in range(0, len(self.valid), rows):
            some = np.arange(first, min(first + (1 + AHEAD) * rows, len(self.valid)))
            chosen, coming = some[:rows], some[rows:]
            images = self.pictures.get(*self._paths(self.valid, chosen, coming))
            yield _batch(self.valid, chosen, images)

    def turned(self, turn: int) -> Self:
        return replace(self, seed=turned_seed(self.seed, turn))

    def _rows(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """The epochs and the captions of a step's rows, each (rows,)."""
        numbers = step * self.rows + np.arange(self.rows)
        epochs, places = np.divmod(numbers, len(self.train))
        chosen = np.empty(self.rows, dtype=np.int64)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            chosen[here] = shuffled(places[here], len(self.train), self.seed, int(epoch))
        return epochs, chosen

    def _paths(
        self, part: EncodedCaptions, chosen: np.ndarray, coming: np.ndarray
    ) -> tuple[list[Path], list[Path]]:
        """The images of the chosen captions, and those of the coming ones."""
        now, later = ([part.images[i] for i in some.tolist()] for some in (chosen, coming))
        return now, later


def _without_failed(
    chosen: np.ndarray, images: Sequence[Pixels | RegardError]
) -> tuple[np.ndarray, list[Pixels]]:
    """The same rows, the first good one in the place of each whose image cannot be decoded."""
    good = [row for row, image in enumerate(images) if not isinstance(image, RegardError)]
    if not good:
        assert isinstance(images[0], RegardError)
        raise images[0]
    kept = set(good)
    rows = [row if row in kept else good[0] for row in range(len(images))]
    found = [images[row] for row in rows]
    return chosen[rows], [image for image in found if not isinstance(image, RegardError)]


def _batch(part: EncodedCaptions, chosen: np.ndarray, images: list[Pixels]) -> Batch:
    """The chosen captions with their images as one batch, padded on the right."""
    targets = [part.targets[i] for i in chosen.tolist()]
    tokens, lengths = padded([ids[:-1] for ids in targets], PAD)
    asked, _ = padded([ids[1:] for ids in targets], IGNORE)
    count = int(lengths.sum())
    source = as_tensor(images)
    return Batch(tokens, asked, count, count, lengths, source=source, examples=chosen)


def as_tensor(images: Sequence[Pixels]) -> torch.Tensor:
    """Images, each (size, size, 3), as models look at them, (rows, 3, size, size)."""
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()


class Pictures:
    """Decoded images (size, size, 3): those asked for last are kept, as many as a budget holds.

    With `workers` they are decoded by so many processes; without, here. Threads may share it.
    """

    def __init__(self, size: int, workers: int = 0, budget: int = BUDGET) -> None:
        self.size, self.workers = size, workers
        self.room = budget // (3 * size * size)  # images
        self._kept: OrderedDict[Path, Future[Pixels]] = OrderedDict()  # the last asked for last
        self.failed: dict[Path, RegardError] = {}  # what looked good from outside, and is not
        self._lock = threading.Lock()
        self._idle: deque[_Decoder] = deque()
        # A thread waits for each process, and starts it when there is something to do.
        self._pool = ThreadPoolExecutor(workers, "decoding") if workers else None
        weakref.finalize(self, _end, self._idle)

    def get(self, paths: Sequence[Path], coming: Sequence[Path] = ()) -> list[Pixels]:
        """The images, each (size, size, 3); `coming` ones are begun if there are workers."""
        found = []
        for one in self.tried(paths, coming):
            if isinstance(one, RegardError):
                raise one
            found.append(one)
        return found

    def tried(
        self, paths: Sequence[Path], coming: Sequence[Path] = ()
    ) -> list[Pixels | RegardError]:
        """The same, with what is wrong in the place of each that cannot be decoded."""
        asked = [*paths, *coming] if self._pool else paths
        futures = [self._future(path) for path in asked]
        with self._lock:
            while len(self._kept) > max(self.room, len(asked)):
                self._kept.popitem(last=False)
        found: list[Pixels | RegardError] = []
        for path, future in zip(paths, futures, strict=False):
            try:
                found.append(future.result())
            except RegardError as error:
                self.failed.setdefault(path, error)
                found.append(error)
        return found

    def _future(self, path: Path) -> Future[Pixels]:
        """The image that is kept, or that is being decoded from now on."""
        with self._lock:
            future = self._kept.get(path)
            if future is None and self._pool:
                future = self._pool.submit(self._read, path)
            if future is not None:
                self._kept[path] = future
                self._kept.move_to_end(path)
                return future
        future = Future()
        try:
            future.set_result(read_image(path, self.size))  # not under the lock: it takes long
        except RegardError as error:
            future.set_exception(error)
        with self._lock:
            self._kept[path] = future
        return future

    def _read(self, path: Path) -> Pixels:
        with self._lock:
            decoder = self._idle.pop() if self._idle else None
        decoder = decoder or _Decoder()
        try:
            return decoder.read(path, self.size)
        finally:
            if decoder.process.poll() is None:
                self._idle.append(decoder)


class _Decoder:
    """A process that decodes images one by one, and ends when nobody can ask any more."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", SERVE, PACKAGE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,  # Ctrl-C is for those who ask
            env={**os.environ, "OMP_NUM_THREADS": "1"},  # numpy would start a thread for each core
        )

    def read(self, path: Path, size: int) -> Pixels:
        """The pixels (size, size, 3) of one image."""
        asked, answers = self.process.stdin, self.process.stdout
        assert asked is not None
        assert answers is not None
        try:
            asked.write(json.dumps([str(path), size]).encode() + b"\n")
            asked.flush()
            told = answers.readline()
            raw = answers.read(size * size * 3) if told == b"\n" else b""
        except BrokenPipeError:
            told = raw = b""
        if told.strip():
            raise RegardError(json.loads(told))
        if len(raw) < size * size * 3:
            raise RegardError(
                f"the process that decoded {replace_invalid_utf8(str(path))} ended with status "
                f"{self.close()}; "
                "there may be too little memory, or the file is harmful"
            )
        return np.frombuffer(raw, dtype=np.uint8).reshape(size, size, 3)

    def close(self) -> int:
        """Let the process end, and tell how it did."""
        with suppress(BrokenPipeError), self.process:
            pass  # leaving it closes its pipes and waits
        return self.process.returncode


def _end(decoders: "deque[_Decoder]") -> None:
    while decoders:
        decoders.pop().close()


def workers_for(images: int) -> int:
    """How many processes should decode so many images: none if they are few."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return 0 if images <= FEW else min(MOST_WORKERS, cores or 1)

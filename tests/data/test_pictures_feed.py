"""Batches of images with captions: each once an epoch, the same whoever decodes them."""

import gc
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from regard.data.batch import Batch
from regard.data.feeds import images as module
from regard.data.feeds.images import ImageFeed, Pictures, workers_for
from regard.data.feeds.masking import IGNORE
from regard.data.feeds.order import generator
from regard.data.readers.captions import EncodedCaptions
from regard.data.readers.images import augmented, read_image
from regard.errors import RegardError
from regard.text.specials import BOS, EOS, PAD

SIZE = 16
IMAGES = 12


@pytest.fixture(scope="module")
def paths(tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("pictures")
    made = [folder / f"{n}.{'jpg' if n % 2 else 'png'}" for n in range(IMAGES)]
    for n, path in enumerate(made):
        pixels = np.random.default_rng(n).integers(0, 256, (20 + n, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    return made


def captions(paths: list[Path], each: int = 3) -> EncodedCaptions:
    """Captions of different lengths; the first token is the caption's number."""
    images = [path for path in paths for _ in range(each)]
    targets = [np.array([BOS, n + 5, *[7] * (n % 5), EOS]) for n in range(len(images))]
    return EncodedCaptions(images, targets, [str(n) for n in range(len(images))])


def feed(paths: list[Path], workers: int = 0, rows: int = 5, **given) -> ImageFeed:
    pictures = Pictures(SIZE, workers)
    return ImageFeed(captions(paths), captions(paths[:4], 2), pictures, rows, **given)


def equal(one: Batch, other: Batch) -> bool:
    names = ("tokens", "targets", "lengths", "source")
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in names) and (
        (one.valid, one.real_tokens, one.examples.tolist())
        == (other.valid, other.real_tokens, other.examples.tolist())
    )


def processes(pictures: Pictures) -> list[int]:
    """Those that decode, once they have nothing to do."""
    for future in list(pictures._kept.values()):
        future.exception()
    return [decoder.process.pid for decoder in pictures._idle]


def ended(pids: list[int], seconds: float = 20) -> bool:
    """Whether all of them are gone, or soon."""
    until = time.monotonic() + seconds
    while left := [pid for pid in pids if alive(pid)]:
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return not left


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# --- steps -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 4, 5, 36, 50])
def test_every_caption_is_read_once_an_epoch(rows, paths):
    made = feed(paths, rows=rows, augment=False)
    steps = [made.step(step) for step in range(-(-3 * 36 // rows))]
    seen = np.concatenate([batch.examples for batch in steps])
    orders = [tuple(seen[36 * epoch : 36 * (epoch + 1)].tolist()) for epoch in range(3)]
    assert all(sorted(order) == list(range(36)) for order in orders)
    assert len(set(orders)) == 3
    assert all(batch.rows == rows for batch in steps)
    assert made.epoch(0) == 0
    assert made.epoch(36) == rows


def test_a_batch_holds_captions_with_their_images_and_asks_for_the_next_token(paths):
    made = feed(paths, augment=False)
    for step in range(8):
        batch = made.step(step)
        for row, number in enumerate(batch.examples.tolist()):
            ids, asked = made.train.targets[number], int(batch.lengths[row])
            assert batch.tokens[row, :asked].tolist() == ids[:-1].tolist()
            assert batch.targets[row, :asked].tolist() == ids[1:].tolist()
            assert (batch.tokens[row, asked:] == PAD).all()
            assert (batch.targets[row, asked:] == IGNORE).all()
            image = read_image(made.train.images[number], SIZE)
            assert (batch.source[row].numpy() == image.transpose(2, 0, 1)).all()
        assert batch.source.dtype == torch.uint8
        assert batch.source.shape == (5, 3, SIZE, SIZE)
        assert batch.source.is_contiguous()
        assert batch.valid == batch.real_tokens == int((batch.targets != IGNORE).sum())


def test_parts_of_a_batch_are_the_batch(paths):
    batch = feed(paths).step(3)
    parts = batch.parts(2)
    assert [part.rows for part in parts] == [2, 2, 1]
    assert torch.equal(torch.cat([part.source for part in parts]), batch.source)
    assert sum(part.valid for part in parts) == batch.valid
    assert sum(part.real_tokens for part in parts) == batch.real_tokens


def test_pictures_vary_by_seed_epoch_and_example(paths):
    made = feed(paths, rows=36, seed=3)
    seen = []
    for epoch in range(2):
        batch = made.step(epoch)
        for row, number in enumerate(batch.examples.tolist()):
            draws = generator(3, module.AUGMENTATION, epoch, number)
            expected = augmented(read_image(made.train.images[number], SIZE), draws)
            assert (batch.source[row].numpy() == expected.transpose(2, 0, 1)).all()
            seen.append(expected.tobytes())
    assert len(set(seen)) == 72


@given(st.lists(st.integers(0, 60), min_size=1, max_size=12), st.integers(0, 3))
def test_a_step_is_the_same_in_any_order_and_by_any_feed(paths, steps, kept):
    made = feed(paths)
    small = replace(made, pictures=Pictures(SIZE, budget=kept * 3 * SIZE * SIZE))
    for step in steps:
        assert equal(made.step(step), small.step(step))
    assert equal(feed(paths).step(steps[-1]), small.step(steps[-1]))
    assert not equal(feed(paths, seed=1).step(steps[0]), made.step(steps[0]))


def test_turned_it_has_the_same_captions_in_another_order_each_time(paths):
    made = feed(paths, rows=36)
    orders = {turn: made.turned(turn).step(0).examples.tolist() for turn in range(4)}
    assert equal(made.turned(0).step(0), made.step(0))
    assert len({tuple(order) for order in orders.values()}) == 4
    assert all(sorted(order) == list(range(36)) for order in orders.values())
    assert made.turned(2).pictures is made.pictures


@pytest.mark.parametrize("rows", [1, 3, 8, 50])
def test_the_held_out_part_comes_once_in_order_as_it_is(rows, paths):
    made = feed(paths)
    batches = list(made.held_out(rows))
    assert np.concatenate([batch.examples for batch in batches]).tolist() == list(range(8))
    assert all(batch.rows <= rows for batch in batches)
    found = torch.cat([batch.source for batch in batches]).numpy()
    for image, path in zip(found, made.valid.images, strict=True):
        assert (image == read_image(path, SIZE).transpose(2, 0, 1)).all()


def test_nothing_to_train_on_is_told(paths):
    with pytest.raises(RegardError, match="no captions to train on"):
        ImageFeed(captions([]), captions(paths), Pictures(SIZE), 5)
    assert list(ImageFeed(captions(paths), captions([]), Pictures(SIZE), 5).held_out(3)) == []


# --- keeping ---------------------------------------------------------------------------------


def test_images_that_fit_are_decoded_once(paths, monkeypatch):
    decoded = []
    monkeypatch.setattr(
        module, "read_image", lambda path, size: decoded.append(path) or read_image(path, size)
    )
    made = feed(paths)
    for step in range(30):
        made.step(step)
    list(made.held_out(3))
    assert sorted(decoded) == sorted(paths)
    bounded = Pictures(SIZE, budget=3 * SIZE * SIZE * 4)
    for path in [*paths, *paths]:
        bounded.get([path])
        assert len(bounded._kept) <= 4
    assert len(decoded) == 3 * len(paths)
    bounded.get(paths[-4:])
    assert len(decoded) == 3 * len(paths)


def test_few_images_need_no_process(paths, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", None)
    feed(paths, workers_for(len(paths))).step(0)
    assert workers_for(module.FEW) == 0
    assert 1 <= workers_for(module.FEW + 1) <= module.MOST_WORKERS


# --- processes -------------------------------------------------------------------------------


def test_whoever_decodes_the_batches_are_the_same(paths):
    alone, few = feed(paths), feed(paths, workers=2)
    bare = replace(few, pictures=Pictures(SIZE, workers=1, budget=0))
    for step in (0, 1, 2, 9, 3):
        assert equal(few.step(step), alone.step(step))
        assert equal(bare.step(step), alone.step(step))
    for one, other in zip(few.held_out(3), alone.held_out(3), strict=True):
        assert equal(one, other)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(few.step, range(12)))
    assert all(equal(batch, alone.step(step)) for step, batch in enumerate(found))


def test_images_of_coming_steps_are_begun(paths):
    made = feed(paths, workers=1)
    made.step(0)
    coming = {made.train.images[n] for step in (1, 2) for n in made._rows(step)[1]}
    assert coming <= set(made.pictures._kept)


def test_decoding_processes_do_without_torch_and_end_with_the_feed(paths):
    made = feed(paths, workers=2)
    made.step(0)
    pids = processes(made.pictures)
    assert 1 <= len(pids) <= 2
    assert all("torch" not in Path(f"/proc/{pid}/maps").read_text() for pid in pids)
    del made
    gc.collect()
    assert ended(pids)


def test_a_broken_image_is_named_and_the_others_are_still_read(paths, tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_bytes(paths[0].read_bytes()[:-40])
    made = Pictures(SIZE, workers=1)
    for _ in range(2):
        with pytest.raises(RegardError, match=r"broken\.png is damaged \("):
            made.get([paths[1], broken])
    made.get(paths[2:4], [broken])
    assert (made.get([paths[4]])[0] == read_image(paths[4], SIZE)).all()
    assert len(processes(made)) == 1


def test_a_process_that_was_killed_is_told_and_replaced(paths):
    made = Pictures(SIZE, workers=1, budget=0)
    made.get(paths[:1])
    (pid,) = processes(made)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(RegardError, match=r"that decoded .*1\.jpg ended with status -9"):
        made.get(paths[1:2])
    assert (made.get([paths[2]])[0] == read_image(paths[2], SIZE)).all()


def test_no_process_stays_when_the_one_that_asked_is_killed(paths):
    read, write = os.pipe()
    child = os.fork()
    if not child:
        made = Pictures(SIZE, workers=2, budget=0)
        made.get(paths)
        os.write(write, " ".join(map(str, processes(made))).encode())
        time.sleep(60)
        os._exit(0)
    pids = [int(pid) for pid in os.read(read, 100).split()]
    try:
        assert pids
        assert all(map(alive, pids))
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ended(pids)


INTERRUPTED = """import os, sys
from pathlib import Path
from regard.data.feeds.images import Pictures
parent = os.getppid()
made = Pictures(16, 2, 0)
paths = [Path(path) for path in sys.argv[1:]]
made.get(paths)
print(*(decoder.process.pid for decoder in made._idle), flush=True)
while os.getppid() == parent:
    made.get(paths, paths)
"""


def test_an_interruption_ends_all_and_only_the_one_that_asked_speaks(paths):
    script = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, *map(str, paths)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    pids = [int(pid) for pid in script.stdout.readline().split()]
    assert pids
    os.killpg(script.pid, signal.SIGINT)  # as a terminal does
    told = script.communicate(timeout=30)[1]
    assert script.returncode == -signal.SIGINT
    assert told.count("Traceback") == told.count("KeyboardInterrupt") == 1
    assert ended(pids)

"""Captioners really learn what is in a picture, and to look at it while they name it."""

import json
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from regard.cli import main

SIZE = 32
COLOURS = {"red": (220, 40, 40), "green": (40, 170, 60), "blue": (50, 70, 220), "white": (245,) * 3}
SIDE = 8  # pixels of a square: a sixteenth of the picture


def squares(folder: Path, count: int, seed: int) -> Path:
    """Pictures of two squares side by side, with two captions and the boxes of what they name."""
    folder.mkdir()
    rng = np.random.default_rng(seed)
    kinds = list(permutations(COLOURS, 2))
    lines = []
    for number in range(count):
        left, right = kinds[number % len(kinds)]
        pixels = rng.integers(100, 140, (SIZE, SIZE, 3))
        boxes = {}
        for colour, first in ((left, 0), (right, SIZE // 2)):
            x, y = int(first + rng.integers(0, 9)), int(rng.integers(0, SIZE - SIDE + 1))
            pixels[y : y + SIDE, x : x + SIDE] = np.array(COLOURS[colour]) - rng.integers(0, 30, 3)
            boxes[colour] = [x, y, x + SIDE, y + SIDE]
        name = f"{number}.png"
        Image.fromarray(pixels.astype(np.uint8)).save(folder / name)
        captions = [f"{left} is left of {right}", f"{right} is right of {left}"]
        named = [
            [
                {"start": caption.index(colour), "stop": caption.index(colour) + 3, "box": box}
                for colour, box in boxes.items()
            ]
            for caption in captions
        ]
        lines.append(json.dumps({"image": name, "captions": captions, "boxes": named}))
    (folder / "captions.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.parametrize("model", ["captioner", "captioner-lstm"])
def test_a_captioner_learns_what_is_in_a_picture_and_looks_at_it(
    model, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    train, valid = squares(tmp_path / "train", 240, 0), squares(tmp_path / "valid", 60, 1)
    small = [
        "model.picture=32",
        "model.patch=4",
        "model.width=32",
        "model.encoder_layers=1",
        "model.layers=2",
    ]
    data = ["--images", str(train), "--valid", str(valid), "--tokenizer", "word"]
    steps = [
        "training.tokens_per_step=256",
        "training.validate_every=225",
        "optimizer.learning_rate=4e-3",
    ]
    sets = [
        *small,
        *steps,
        "training.steps=450",
        "model.dropout=0",
        "data.augment=false",
        "training.sample_every=-1",
    ]
    main(["train", *data, "--model", model, "--out", "run", "--set", *sets])
    capsys.readouterr()
    main(["evaluate", "run", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["exact"] >= 0.9
    assert found["bleu"] >= 90
    assert "loss" not in found  # it is never told what it should have written
    assert found["on_boxes"] >= 2 * found["boxes"]

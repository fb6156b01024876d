"""How much of the attention lies on a box, against counting pixels."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from regard.data.readers.captions import Captioned, gather_captions
from regard.decoding.captions import Caption
from regard.inspection.caption_pictures import brightened, draw_caption, words_seen
from regard.inspection.grounding import covered, grounded
from regard.text.learning import learn

TEXT = "a red circle"
TOKENIZER = learn("word", [TEXT, "a blue square"], 100)
IDS = TOKENIZER.encode(TEXT).tolist()
corners = (
    st.tuples(st.integers(0, 24), st.integers(0, 24)).map(sorted).filter(lambda c: c[0] < c[1])
)


def picture(folder: Path, width: int, height: int, orientation: int = 1) -> Path:
    image = Image.fromarray(np.zeros((height, width, 3), np.uint8))
    note = Image.Exif()
    note[0x0112] = orientation
    image.save(folder / "picture.jpg", exif=note)
    return folder / "picture.jpg"


def said(path: Path, box: object, text: str = TEXT) -> Captioned:
    """A picture whose caption names something with "red circle"."""
    return Captioned(path, (text,), ([{"start": 2, "stop": 12, "box": box}],), {}, 0)


def caption(attention: torch.Tensor, text: str = TEXT) -> Caption:
    return Caption(text, IDS, 0.0, 0.0, attention)


def on(place: int, places: int = 16) -> torch.Tensor:
    """The words of the name look at one place, "a" and the end at another."""
    seen = torch.zeros(len(IDS) + 1, places)
    seen[[0, -1], 0] = 1.0
    seen[1:-1, place] = 1.0
    return seen


@given(corners, corners, st.sampled_from([1, 2, 3, 4, 6, 8]))
def test_a_box_covers_what_its_pixels_do(across, down, side):
    box = (across[0] / 24, down[0] / 24, across[1] / 24, down[1] / 24)
    pixels = np.zeros((24, 24))
    pixels[down[0] : down[1], across[0] : across[1]] = 1
    cell = 24 // side
    by_hand = pixels.reshape(side, cell, side, cell).mean((1, 3)).flatten()
    np.testing.assert_allclose(covered(box, side).numpy(), by_hand, atol=1e-6)


def test_even_attention_has_chance_and_a_look_at_the_box_all(tmp_path):
    path = picture(tmp_path, 40, 40)
    one = said(path, [10, 20, 20, 30])  # place 9 of a grid of 4 × 4
    even = grounded([caption(torch.full((len(IDS) + 1, 16), 1 / 16))], [one], TOKENIZER)
    assert even.share == pytest.approx(even.chance) == pytest.approx(1 / 16)
    assert grounded([caption(on(9))], [one], TOKENIZER).share == pytest.approx(1.0)
    assert grounded([caption(on(5))], [one], TOKENIZER).share == 0.0


@pytest.mark.parametrize(
    ("size", "orientation", "box"),
    [
        ((80, 40), 1, [30, 20, 40, 30]),  # what the model sees begins 20 pixels from the left
        ((40, 80), 1, [10, 40, 20, 50]),
        ((40, 80), 6, [30, 20, 40, 30]),  # stands on its side: upright it is 80 × 40
    ],
)
def test_boxes_are_of_the_upright_image_and_the_model_sees_its_centre(
    size, orientation, box, tmp_path
):
    one = said(picture(tmp_path, *size, orientation), box)
    assert grounded([caption(on(9))], [one], TOKENIZER).share == pytest.approx(1.0)


def test_what_lies_outside_of_the_square_is_not_counted(tmp_path):
    one = said(picture(tmp_path, 80, 40), [0, 0, 20, 40])
    assert grounded([caption(on(9))], [one], TOKENIZER) is None


def test_only_right_captions_have_boxes(tmp_path):
    one = said(picture(tmp_path, 40, 40), [10, 20, 20, 30], "a blue circle")
    assert grounded([caption(on(9))], [one], TOKENIZER) is None
    bare = Captioned(one.image, (TEXT,), (None,), {}, 0)
    assert grounded([caption(on(9))], [bare], TOKENIZER) is None


def test_boxes_come_with_a_list(tmp_path):
    picture(tmp_path, 40, 40)
    line = {"image": "picture.jpg", "caption": TEXT}
    line["boxes"] = [[{"start": 2, "stop": 12, "box": [10, 20, 20, 30]}]]
    (tmp_path / "captions.jsonl").write_text(json.dumps(line) + "\n")
    told = gather_captions(tmp_path, held_out=0.0).train
    assert grounded([caption(on(9))], told, TOKENIZER).share == pytest.approx(1.0)


def test_words_are_shown_with_what_their_tokens_saw():
    seen = dict(words_seen(caption(on(9)), TOKENIZER))
    assert list(seen) == ["a", "red", "circle"]
    assert int(seen["red"].argmax()) == 9
    assert int(seen["a"].argmax()) == 0


def test_a_picture_is_light_where_attention_is():
    image = np.full((8, 8, 3), 200, np.uint8)
    light = brightened(image, on(15)[1])
    assert float(light[7, 7, 0]) == pytest.approx(200 / 255)
    assert float(light[0, 0, 0]) == pytest.approx(0.25 * 200 / 255)


@pytest.mark.parametrize(
    "text", ["a dog", "a " + "G" * 60, " ".join(["WIDE LETTERS and others"] * 12)]
)
def test_no_writing_of_a_drawing_lies_over_other_or_outside(text, tmp_path):
    image = np.full((8, 8, 3), 200, np.uint8)
    seen = [(word, torch.ones(16)) for word in text.split()]
    figure = draw_caption(image, seen, tmp_path / "drawn.png", text)
    figure.draw_without_rendering()
    whole, writing = figure.bbox, [place.title for place in figure.axes]
    assert [one.get_text() for one in writing[1:3]] == [
        f"{word if len(word) <= 15 else word[:14] + '…'}  100%" for word in text.split()[:2]
    ]
    assert figure.get_suptitle().replace("\n", "").replace(" ", "") == text.replace(" ", "")
    boxes = [one.get_window_extent() for one in [figure._suptitle, *writing] if one.get_text()]
    for number, box in enumerate(boxes):
        assert whole.x0 <= box.x0 < box.x1 <= whole.x1
        assert whole.y0 <= box.y0 < box.y1 <= whole.y1
        assert not any(box.overlaps(other) for other in boxes[:number])

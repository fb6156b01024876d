"""Captioners: every eye with every hand, in the protocol."""

from itertools import product

import pytest
import torch

from regard.errors import RegardError
from regard.models.captioner.config import CaptionConfig
from regard.models.captioner.model import Captioner

SMALL = {"vocabulary": 30, "picture": 32, "patch": 8, "width": 32, "heads": 2, "dropout": 0.0}
BOTH = pytest.mark.parametrize(
    ("eye", "hand"),
    [("cnn", "lstm"), ("cnn", "transformer"), ("patches", "lstm"), ("patches", "transformer")],
)


def captioner(eye: str, hand: str) -> Captioner:
    torch.manual_seed(0)
    return Captioner(CaptionConfig(encoder=eye, decoder=hand, **SMALL)).double().eval()


def pictures(rows: int, size: int = 32) -> torch.Tensor:
    made = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (rows, 3, size, size), generator=made, dtype=torch.uint8)


@BOTH
def test_gradients_reach_every_weight_and_every_pixel_counts(eye, hand):
    model = captioner(eye, hand).train()
    tokens = torch.randint(0, 30, (2, 5))
    model(tokens, model.encode(pictures(2))).square().sum().backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.abs().sum() > 0, name
    model.eval()
    before = model(tokens, model.encode(pictures(2)))
    for place in ((0, 0), (31, 31), (7, 24)):
        changed = pictures(2)
        changed[:, 0, place[0], place[1]] += 128
        assert (model(tokens, model.encode(changed)) - before).abs().max() > 0


@pytest.mark.parametrize("eye", ["cnn", "patches"])
@torch.no_grad()
def test_places_of_the_grid_stand_row_by_row(eye):
    """Pixels farther down move vectors farther down, those farther right, to the right."""
    model, several = captioner(eye, "transformer"), pictures(16)
    before = model.encode(several).values  # (rows, places, width)
    down, across = torch.zeros(2, 4, 4)  # where vectors moved, by the square's row and column
    for row, column in product(range(4), repeat=2):
        changed = several.clone()
        changed[..., 8 * row : 8 * row + 8, 8 * column : 8 * column + 8] ^= 255
        moved = (model.encode(changed).values - before).norm(dim=-1).mean(0).view(4, 4)
        down[row, column] = moved.sum(1) @ torch.arange(4.0).double() / moved.sum()
        across[row, column] = moved.sum(0) @ torch.arange(4.0).double() / moved.sum()
    assert (down.diff(dim=0) > 0.02).all()
    assert (across.diff(dim=1) > 0.02).all()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (torch.zeros(1, 3, 32, 32), "must be a tensor of bytes"),
        (torch.zeros(1, 3, 16, 16, dtype=torch.uint8), r"must be \(rows, 3, 32, 32\)"),
        ([[1, 2]], "must be a tensor of bytes"),
    ],
)
def test_what_is_no_picture_is_told(given, said):
    with pytest.raises(RegardError, match=said):
        captioner("cnn", "lstm").encode(given)
    with pytest.raises(RegardError, match="all of one size"):
        captioner("cnn", "lstm").encode(pictures(2), [1, 2])


def test_settings_that_cannot_be_are_told_together():
    with pytest.raises(RegardError) as told:
        CaptionConfig(encoder="cnnn", width=0, dropout=1.0)
    assert all(word in str(told.value) for word in ("'cnn'", "width must be", "dropout must be"))
    for changes in ({"patch": 6}, {"picture": 60}, {"heads": 3}, {"patch": 12, "picture": 48}):
        with pytest.raises(RegardError):
            CaptionConfig(**changes)
    CaptionConfig(encoder="patches", patch=12, picture=48)

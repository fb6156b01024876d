"""Captioners: every eye with every hand, in the protocol."""

from itertools import product

import pytest
import torch

from regard.errors import RegardError
from regard.inspection.tape import record
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
def test_a_caption_is_the_same_whole_or_word_by_word_alone_or_with_others(eye, hand):
    model, tokens = captioner(eye, hand), torch.randint(0, 30, (3, 6))
    memory = model.encode(pictures(3))
    assert memory.values.shape == (3, 16, 32)
    whole = model(tokens, memory)
    state = model.start(3, 6, return_attention=True)
    parts = [model(tokens[:, :2], memory, state)]
    parts += [model(tokens[:, i : i + 1], None, state) for i in range(2, 6)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-10)
    assert state.attention.shape[-1] == 16
    torch.testing.assert_close(state.attention.sum(-1), torch.ones_like(state.attention[..., 0]))
    alone = model(tokens[1:2], model.encode(pictures(3)[1:2]))
    torch.testing.assert_close(alone[0], whole[1], rtol=0, atol=1e-10)
    with record(model) as tape:
        model(tokens, memory)
    assert tape.names


@BOTH
def test_beams_change_places_and_tokens_are_taken_back(eye, hand):
    """What is left is what rows that never did so would have."""
    model, tokens = captioner(eye, hand), torch.randint(0, 30, (4, 5))
    memory = model.encode(pictures(2))
    state = model.start(2, 9, return_attention=True)
    model(tokens[:2, :1], memory, state)
    state.reorder([0, 0, 1, 1])  # two beams of each picture
    model(tokens, None, state, lengths=[5, 4, 5, 3])
    state.rollback([2, 0, 5, 1])
    state.reorder([1, 0, 3, 2])
    after = model(tokens[:, :2], None, state)
    assert state.attention.shape[:1] + state.attention.shape[-2:] == (4, 2, 16)
    for row, (first, left) in enumerate([(0, 4), (0, 3), (1, 2), (1, 0)]):
        was = [1, 0, 3, 2][row]
        said = torch.cat([tokens[first : first + 1, :1], tokens[was : was + 1, :left]], dim=1)
        said = torch.cat([said, tokens[row : row + 1, :2]], dim=1)
        whole = model(said, model.encode(pictures(2)[first : first + 1]))
        torch.testing.assert_close(after[row], whole[0, -2:], rtol=0, atol=1e-10)


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

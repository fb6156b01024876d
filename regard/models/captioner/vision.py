"""Pictures as grids of vectors (M8): a small residual network, or patches and a Transformer.

Both are trained from scratch and give one vector for each place of a square grid, which a decoder
looks at as at the words of a source.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.errors import RegardError
from regard.models.kernels.linear import Linear
from regard.models.masks import QueryKeyRange
from regard.models.transformer.blocks import Stack
from regard.models.transformer.config import TransformerConfig
from regard.models.transformer.positions import sinusoid

GROUPS = 8  # of channels that are normalised together: batches may be small, or shared out


def pixels(pictures: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """Pictures (rows, 3, size, size) in bytes as numbers from −1 to 1, checked."""
    if not isinstance(pictures, Tensor) or pictures.dtype != torch.uint8:
        raise RegardError("pictures must be a tensor of bytes (uint8), from 0 to 255")
    if pictures.dim() != 4 or tuple(pictures.shape[1:]) != (3, size, size):
        shape = tuple(pictures.shape)
        raise RegardError(f"pictures must be (rows, 3, {size}, {size}), not {shape}")
    return pictures.to(dtype) / 127.5 - 1


def grid_places(side: int, width: int) -> Tensor:
    """What the vectors of places begin with, (side², width): half of each tells row or column.

    Sinusoids, so that what is left of what can be told from the start. From small random vectors a
    model had learned after 80,000 scenes what is in them, but not how it stands: of captions whose
    things were right, a third were.
    """
    along = sinusoid(torch.arange(side, device="cpu"), width // 2)  # (side, width / 2)
    down, across = along[:, None].expand(-1, side, -1), along[None].expand(side, -1, -1)
    both = torch.cat([down, across], dim=-1).flatten(0, 1)
    return both.to(torch.get_default_device())  # on `meta` arange would import a compiler


class Residual(nn.Module):
    """relu(x + f(x)), f being two convolutions of 3 × 3; the first may halve the grid."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.first_norm = nn.GroupNorm(GROUPS, outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = nn.GroupNorm(GROUPS, outputs)
        same = inputs == outputs and stride == 1
        self.shortcut = None if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x (rows, inputs, height, width) -> (rows, outputs, height / stride, width / stride)."""
        y = F.relu(self.first_norm(self.first(x)))
        y = self.second_norm(self.second(y))
        return F.relu((x if self.shortcut is None else self.shortcut(x)) + y)


class Grid(nn.Module):
    """A residual network whose last grid has a vector for each `patch` × `patch` pixels.

    Its first convolution halves the picture twice, as in the networks of He 2015: with blocks at
    full size the same step took 2.7 times as long on a CPU. The norm at the end is for who looks:
    without it an LSTM needed twice as many steps to tell left from right.
    """

    def __init__(self, size: int, patch: int, width: int, blocks: int) -> None:
        super().__init__()
        self.size = size
        stride = min(patch, 4)
        halvings = (patch // stride).bit_length() - 1
        wide = [max(width >> (halvings - step), 32) for step in range(halvings + 1)]
        channels = [GROUPS * (count // GROUPS) for count in wide]
        self.stem = nn.Conv2d(3, channels[0], 2 * stride - 1, stride, stride - 1, bias=False)
        self.stem_norm = nn.GroupNorm(GROUPS, channels[0])
        parts: list[nn.Module] = []
        for before, after in pairwise([channels[0], *channels]):
            first = Residual(before, after, 2 if parts else 1)
            parts += [first, *(Residual(after, after, 1) for _ in range(blocks - 1))]
        self.blocks = nn.Sequential(*parts)
        self.output = Linear(channels[-1], width)
        self.output_norm = nn.LayerNorm(width)
        self.places = nn.Parameter(grid_places(size // patch, width))

    def forward(self, pictures: Tensor) -> Tensor:
        """pictures (rows, 3, size, size) -> (rows, places, width), row by row of the grid."""
        x = pixels(pictures, self.size, self.stem.weight.dtype)
        x = self.blocks(F.relu(self.stem_norm(self.stem(x))))  # (rows, channels, side, side)
        return self.output_norm(self.output(x.flatten(2).transpose(1, 2))) + self.places


class Patches(nn.Module):
    """Each `patch` × `patch` pixels as a token of a Transformer encoder (Dosovitskiy 2020)."""

    def __init__(self, size: int, patch: int, config: TransformerConfig, layers: int) -> None:
        super().__init__()
        self.size, self.patch = size, patch
        self.embed = Linear(3 * patch * patch, config.width)
        self.places = nn.Parameter(grid_places(size // patch, config.width))
        self.encoder = Stack(config, layers, causal=False)

    def forward(self, pictures: Tensor) -> Tensor:
        """pictures (rows, 3, size, size) -> (rows, places, width), row by row of the grid."""
        x = pixels(pictures, self.size, self.embed.weight.dtype)
        cut = F.unfold(x, self.patch, stride=self.patch)  # (rows, 3 · patch², places)
        y = self.embed(cut.transpose(1, 2)) + self.places
        rows, places = y.shape[:2]
        return self.encoder(y, QueryKeyRange.of(rows, places, places, y.device), None)

"""How close a run comes to what its machine can do.

FLOPs of a training step: 6 for each weight in a matrix product and token, and 12 · layers · width ·
keys for attention's own products (1 multiply-add = 2 FLOPs; backward counts twice forward; masked
pairs are not counted: half of the keys in a causal layer). The peak is the datasheet's where the
device is known, else the fastest matrix product measured here.
"""

import math
import time
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from regard.models.captioner import Captioner
from regard.models.cells import Cell
from regard.models.config import TransformerConfig
from regard.models.convolution import Convolution
from regard.models.families import build
from regard.models.recurrent import Recurrent
from regard.models.transformer import Transformer
from regard.training.precision import Precision

# Dense bf16 FLOP/s by the datasheets.
DATASHEETS = {
    "H200": 989e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "A10": 125e12,
    "L4": 121e12,
    "4090": 165e12,
    "3090": 71e12,
}


@dataclass(frozen=True)
class Peak:
    """The most FLOP/s to be had, and how that is known."""

    rate: float
    source: str

    def words(self) -> str:
        return f"{self.rate / 1e12:.3g} TFLOP/s {self.source}, 6N + 6Ldn per token"


NO_PEAK = Peak(math.inf, "")  # of who multiplies nothing


def peak(device: torch.device, precision: Precision) -> Peak:
    """The device's peak for matrix products in this precision."""
    kind = torch.float32 if precision == "float32" else torch.bfloat16
    if device.type == "cuda" and kind == torch.bfloat16:
        words = torch.cuda.get_device_name(device).replace("-", " ").split()
        for known, rate in DATASHEETS.items():
            if known in words:  # an L40 is no L4
                return Peak(rate, "bf16 by the datasheet")
    return Peak(_fastest_product(device, kind), f"{str(kind)[6:]} matrix product, measured here")


def _fastest_product(device: torch.device, kind: torch.dtype) -> float:
    size = 4096 if device.type == "cuda" else 768
    a, b = (torch.randn(size, size, device=device, dtype=kind) for _ in range(2))
    best, end = float("inf"), time.perf_counter() + 0.5
    while time.perf_counter() < end:  # the best of many: others may use the machine meanwhile
        begin = time.perf_counter()
        product = a @ b
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - begin)
    del product
    return 2 * size**3 / best


@dataclass(frozen=True)
class Work:
    """FLOPs of one training step by what is read: per token, and per token and key."""

    token: float
    source: float
    token_key: float
    source_key: float
    places: int = 0  # what a picture is read as, where sources are pictures

    def step(self, tokens: int, width: int, sources: int = 0, source_width: int = 0) -> float:
        """FLOPs of forward and backward over rows of `width` tokens (and `source_width`)."""
        return tokens * (self.token + self.token_key * (width / 2 + source_width)) + sources * (
            self.source + self.source_key * source_width
        )


def work(module: nn.Module) -> Work:
    """What a step over this module costs, from its weights."""
    if isinstance(module, Captioner):
        return _captioner(module)
    if isinstance(module, Recurrent | Convolution):
        return _network(module)
    if not isinstance(module, Transformer):
        return Work(0, 6 * _products(module), 0, 0)
    config: TransformerConfig = module.config
    encoder, decoder = getattr(module, "encoder", None), getattr(module, "decoder", None)
    attention = 12 * config.heads * config.head_width
    output = 6 * config.vocabulary * config.width
    if module.head.kind == "masked":
        output += 6 * module.head.transform.weight.numel()
    if decoder is None:  # every token sees all keys, where `step` counts half of them
        assert isinstance(encoder, nn.Module)
        return Work(6 * _products(encoder) + output, 0, 2 * attention * config.layers, 0)
    read = encoder if isinstance(encoder, nn.Module) else nn.Module()
    crossing = [block.cross for block in decoder.blocks if hasattr(block, "cross")]
    looked_at = sum(_products(cross.key_value) for cross in crossing)
    return Work(
        6 * (_products(decoder) - looked_at) + output,
        6 * (_products(read) + looked_at),  # cross-attention's keys and values are the source's
        attention * config.layers,
        attention * config.encoder_layers,
    )


def _network(module: Recurrent | Convolution) -> Work:
    """The same for other networks; attention's own products, width · keys, are left out."""
    output = 6 * module.config.vocabulary * module.head.width
    encoder, decoder = getattr(module, "encoder", None), module.get_submodule("decoder")
    read = _products(encoder) if isinstance(encoder, nn.Module) else 0
    named = decoder.named_modules()
    keys = sum(_products(part) for name, part in named if name.split(".")[-1] in KEYS)
    return Work(6 * (_products(decoder) - keys) + output, 6 * (read + keys), 0, 0)


def _captioner(module: Captioner) -> Work:
    """The same for a captioner: what the eye does is counted with one picture."""
    config = module.config
    hand = module.hand
    written = work(hand) if isinstance(hand, Transformer) else _network(hand)
    eye = build(config, "meta").eye
    picture = torch.zeros(1, 3, config.picture, config.picture, dtype=torch.uint8, device="meta")
    with FlopCounterMode(display=False) as counted:
        eye(picture)
    places = config.side**2
    look = written.source + 3 * counted.get_total_flops() / places
    return Work(written.token, look, written.token_key, 0, places)


KEYS = ("key", "key_value")  # of cross-attention: products with the source


def _products(part: nn.Module) -> int:
    """Weights that are multiplied with something."""
    layers = sum(m.weight.numel() for m in part.modules() if isinstance(m, nn.Linear))
    cells = [m for m in part.modules() if isinstance(m, Cell)]
    return layers + sum(m.input.numel() + m.recurrent.numel() for m in cells)

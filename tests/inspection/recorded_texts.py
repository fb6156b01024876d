"""Tiny models whose attention really chooses, a text for them, and a tape of it."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

from dataclasses import dataclass, replace

import torch
import transformers as hf
from torch import Tensor, nn

from regard import TransformerConfig, build, record
from regard.inspection.tape import Tape
from regard.models.protocol import Memory
from regard.models.transformer.model import Transformer
from regard.models.transformer.presets import SIZES, preset

TINY = [*(name for name in SIZES if name.endswith("-tiny")), "regard-2"]
WRITERS = [name for name in TINY if name != "bert-tiny"]

hf.logging.set_verbosity_error()
hf.logging.disable_progress_bar()


def tiny(name: str, **changes: object) -> Transformer:
    """A preset with few tokens and no dropout, and weights wide enough for attention to choose."""
    config: TransformerConfig = replace(preset(name), vocabulary=64, **changes)
    if name.startswith("regard"):
        config = replace(config, width=32, heads=4, hidden=64)
    return draw(build(config))


@torch.no_grad()
def draw(model: nn.Module) -> nn.Module:
    """Rows of norm 1, scales around 1, and no bias left at zero."""
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            parameter.normal_(1.0 if name.endswith("norm.weight") else 0.0, 0.2)
        else:
            parameter.normal_(0.0, parameter.shape[-1] ** -0.5)
    return model.eval()


@dataclass(frozen=True)
class Text:
    """Rows of 9 tokens, of which some are padding, and for those that read one a source of 7."""

    tokens: Tensor
    source: Tensor
    lengths: tuple[int, ...] = (9, 4, 1)
    source_lengths: tuple[int, ...] = (3, 7, 1)

    def memory(self, model: Transformer) -> Memory | None:
        if model.config.kind != "encoder-decoder":
            return None
        return model.encode(self.source, self.source_lengths)

    def read_by(self, model: Transformer) -> Tensor:
        return model(self.tokens, self.memory(model), lengths=self.lengths)

    @property
    def real(self) -> Tensor:
        return torch.arange(9) < torch.tensor(self.lengths)[:, None]  # (rows, 9)

    @property
    def source_real(self) -> Tensor:
        return torch.arange(7) < torch.tensor(self.source_lengths)[:, None]  # (rows, 7)


def recorded(model: Transformer, text: Text) -> Tape:
    with torch.no_grad(), record(model) as tape:
        text.read_by(model)
    return tape


def hooks(model: nn.Module) -> list[object]:
    return [hook for module in model.modules() for hook in module._forward_hooks.values()]


# It changes nothing

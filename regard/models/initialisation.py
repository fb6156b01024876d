"""How weights start, in one table: scheme × role -> standard deviation of a normal, or Xavier.

Biases start at 0 and norm scales at 1 in every scheme. `residual` weights write into the residual
stream, which 2 · layers of them add up in; `fan` is a weight's number of inputs, d the width.

| scheme | embedding | positions | weight       | residual         | where it comes from     |
|--------|-----------|-----------|--------------|------------------|-------------------------|
| normal | 0.02      | 0.02      | 0.02         | 0.02 / √(2L)     | GPT-2                   |
| xavier | 1 / √d    | 1 / √d    | Xavier       | Xavier           | the 2017 Transformer    |
| fan-in | 1         | 1 / √d    | 1 / √fan     | 1 / √fan         | T5                      |

With `fan-in` and unscaled scores, queries start smaller by the √head_width that is not divided by.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from regard.models.transformer.attention import Attention
from regard.models.transformer.config import TransformerConfig


def _normal(deviation: Callable[[TransformerConfig, int], float]) -> Callable[..., object]:
    def fill(weight: Tensor, config: TransformerConfig) -> object:
        return nn.init.normal_(weight, 0.0, deviation(config, weight.shape[-1]))

    return fill


def _xavier(weight: Tensor, config: TransformerConfig) -> object:
    # A fused projection counts all its outputs; for self-attention that equals the gain of 1/√2
    # that fairseq gives its three separate ones.
    return nn.init.xavier_uniform_(weight)


TABLE: dict[str, dict[str, Callable[..., object]]] = {
    "normal": {
        "embedding": _normal(lambda c, fan: 0.02),
        "positions": _normal(lambda c, fan: 0.02),
        "weight": _normal(lambda c, fan: 0.02),
        "residual": _normal(lambda c, fan: 0.02 * (2 * c.layers) ** -0.5),
    },
    "xavier": {
        "embedding": _normal(lambda c, fan: c.width**-0.5),
        "positions": _normal(lambda c, fan: c.width**-0.5),
        "weight": _xavier,
        "residual": _xavier,
    },
    "fan-in": {
        "embedding": _normal(lambda c, fan: 1.0),
        "positions": _normal(lambda c, fan: c.width**-0.5),
        "weight": _normal(lambda c, fan: fan**-0.5),
        "residual": _normal(lambda c, fan: fan**-0.5),
    },
}


def role(name: str, module: nn.Module) -> str:
    """What a weight is for, told from its module: the row of the table that fills it."""
    if isinstance(module, nn.Embedding):
        return "positions" if ".positions." in f".{name}." else "embedding"
    return "residual" if name.endswith((".output", ".contract")) else "weight"


@torch.no_grad()
def initialise(model: nn.Module, config: TransformerConfig) -> None:
    """Fill every parameter of a freshly built model by the configured scheme."""
    fill = TABLE[config.initialisation]
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            fill[role(name, module)](module.weight, config)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
    if config.initialisation == "fan-in" and not config.scale_scores:
        for module in model.modules():
            if isinstance(module, Attention):
                module.query_rows().mul_(config.head_width**-0.5)

"""Continuing a text: feed back what was written, one token at a time (M21)."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.models.attention import any_shape
from regard.models.transformer import Transformer
from regard.text.specials import BOS, EOS, MASK, PAD, UNK

NEVER = (PAD, BOS, UNK, MASK)  # a text holds none of these


@torch.inference_mode()
def continued(
    module: Transformer,
    prompt: Sequence[int],
    limit: int,
    *,
    temperature: float = 1.0,
    top: int = 0,
    seed: int = 0,
) -> Iterator[int]:
    """Token ids that follow a prompt, as they are written, until `</s>` or `limit`.

    Temperature 0 takes the most probable token; `top` > 0 draws among that many. A prompt that
    leaves no room for `limit` tokens is cut at its beginning, at most to half of the model's
    context, and writing ends where the context does.
    """
    if not 0 <= temperature < math.inf or top < 0 or limit < 0:
        raise RegardError(
            "temperature, top and the number of tokens must not be negative, nor without end"
        )
    device = module.embed.tokens.weight.device
    context = module.config.context
    ids = [BOS, *prompt][-max(context - limit, context // 2, 1) :]
    generator = torch.Generator().manual_seed(seed)
    state = module.start(1, context)
    new = torch.tensor([ids], device=device)
    for _ in range(min(limit, context - len(ids) + 1)):
        with any_shape():
            logits = module(new, state=state)[0, -1].float().cpu()  # (vocabulary,)
        token = choose(logits, temperature, top, generator)
        if token == EOS:
            return
        yield token
        new = torch.tensor([[token]], device=device)


def choose(logits: Tensor, temperature: float, top: int, generator: torch.Generator) -> int:
    """One token id from logits (vocabulary,), which are changed."""
    logits[list(NEVER)] = -torch.inf
    if not temperature:
        return int(logits.argmax())
    if 0 < top < len(logits):
        best = logits.topk(top)  # exactly so many, even among equals
        logits = torch.full_like(logits, -torch.inf).scatter_(0, best.indices, best.values)
    # In float64 and from the best downwards, so that no temperature makes numbers overflow.
    weights = ((logits.double() - logits.max()) / temperature).softmax(-1)
    return int(torch.multinomial(weights, 1, generator=generator))

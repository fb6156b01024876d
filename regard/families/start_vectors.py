"""Word vectors as the start of a language model's embedding (M2)."""

from pathlib import Path

import torch

from regard.commands.words import table_of
from regard.errors import RegardError
from regard.models.network import BaseModel, Network
from regard.text.specials import SPECIALS
from regard.text.tokenizer import Tokenizer


@torch.no_grad()
def start_with(module: BaseModel, tokenizer: Tokenizer, path: str) -> str:
    """Let a fresh embedding begin with the vectors of a run or a file; says how many it took.

    They are scaled to be as long, on average, as the rows they replace: what follows the embedding
    was made for those. Tokens that the vectors do not know keep theirs.
    """
    if not isinstance(module, Network):
        raise RegardError("training.vectors is for models with an embedding; this one has none")
    table, weight = table_of(Path(path)), module.embed.tokens.weight  # (vocabulary, width)
    if table.width != weight.shape[1]:
        raise RegardError(
            f"{path} has vectors of {table.width} numbers and the model an embedding of "
            f"{weight.shape[1]}; set model.width={table.width}, or make others"
        )
    places = {word: place for place, word in enumerate(table.words)}
    known = [
        (token, place)
        for token in range(len(SPECIALS), len(tokenizer))
        if (place := places.get(tokenizer.decode([token]).strip())) is not None
    ]
    if not known:
        raise RegardError(f"{path} has a vector for none of the model's {len(tokenizer):,} tokens")
    tokens, rows = (torch.tensor(each) for each in zip(*known, strict=True))
    found = torch.from_numpy(table.vectors)[rows].to(weight.device, weight.dtype)
    before = weight[tokens].norm(dim=1).mean()
    weight[tokens] = found * (before / found.norm(dim=1).mean().clamp(min=1e-12))
    return f"{len(known):,} of {len(tokenizer):,} tokens begin with the vectors of {path}"

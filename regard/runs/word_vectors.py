"""Word vectors of a run or of a file (M2): looked up, or as the start of a model's embedding."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from regard.data.readers.files import expanded
from regard.errors import RegardError
from regard.inspection.word_table import WordTable
from regard.interchange.word_vectors import read_vectors
from regard.models.config import Ability
from regard.models.network import BaseModel, Network
from regard.runs.stored_run import open_run
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


def table_of(path: Path, note: Callable[[str], None] = lambda said: None) -> WordTable:
    """The words and vectors of a run or of a file; `note` is told what was left out."""
    path = expanded(path)
    if not path.is_dir():
        return read_vectors(path)
    run = open_run(path)
    found = run.module.word_rows(len(SPECIALS))
    if found is None:
        raise RegardError(f"{path} has no word vectors: its model has no embedding of tokens")
    rows, vectors = found
    if Ability.WORDS in run.config.abilities:
        # A phrase has a blank in it, which no file of vectors can hold.
        tokens = run.tokenizer.vocabulary.tokens
        return labelled([tokens[row].replace(" ", "_") for row in rows], vectors, note)
    return labelled(run.tokenizer.pieces(rows), vectors, note)


def labelled(
    pieces: Sequence[str], vectors: Any, note: Callable[[str], None] = lambda said: None
) -> WordTable:
    """A vocabulary's rows as a table; where two tokens look alike, the first has the name."""
    first: dict[str, int] = {}
    for row, piece in enumerate(pieces):
        first.setdefault(piece, row)
    if alike := len(pieces) - len(first):
        note(f"{alike:,} of the {len(pieces):,} tokens look like others and were left out")
    return WordTable(list(first), vectors[list(first.values())])

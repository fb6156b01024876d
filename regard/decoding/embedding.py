"""Texts as vectors: what a model's last layer makes of their tokens, pooled to one for each."""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from regard.decoding.sampling import check_numbers
from regard.decoding.text_model import Given, TextModel, batches, padded_rows
from regard.errors import Problems, RegardError, nearest
from regard.models.config import Ability
from regard.models.kernels.attention import any_shape
from regard.models.network import Network

Pool = Literal["mean", "first", "last"]
POOLS = get_args(Pool)


def embedded(
    speaker: TextModel, texts: Sequence[Given], *, pool: Pool = "mean", rows: int = 32
) -> Tensor:
    """One vector for each text (text or token ids): (texts, width), float32, on the CPU.

    An encoder reads the text between the signs that begin and end one, a decoder behind the one
    that begins it, an encoder–decoder as a source, with its end; these signs are pooled with the
    rest. `pool` takes the mean of all tokens' vectors, or that of the first or last one. `rows` are
    computed at once; padding never counts.
    """
    if pool not in POOLS:
        raise RegardError(f"vectors cannot be pooled by {pool!r}; {nearest(str(pool), POOLS)}")
    speaker.require(Ability.EMBED, what="embed texts")
    module = speaker.require_one("embed")
    read = _read(speaker, texts)
    found = torch.empty(len(read), module.config.vector_width, dtype=torch.float32)
    with torch.inference_mode(), any_shape():
        for some in batches([len(ids) for ids in read], rows):
            hidden, lengths = _hidden(speaker, module, [read[index] for index in some])
            lengths = lengths.clamp(max=hidden.shape[1])  # all of a source may be one vector
            found[some] = _pooled(hidden, lengths.to(hidden.device), pool).to("cpu", torch.float32)
    check_numbers(found.abs())
    return found


def ids_of(speaker: TextModel, text: Given) -> list[int]:
    """What `embedded` reads of a text, without the signs that begin and end it."""
    return speaker.source_ids(text) if speaker.reads else speaker.ids(text)


def _read(speaker: TextModel, texts: Sequence[Given]) -> list[list[int]]:
    """The tokens that a model reads of each text."""
    if isinstance(texts, str):
        raise RegardError("give a list of texts, not one text")
    problems, found = Problems("embed"), []
    for number, text in enumerate(texts, 1):
        try:
            ids = ids_of(speaker, text)
        except RegardError as error:
            raise RegardError(f"text {number}: {error}") from None
        ids = _with_signs(speaker, ids)
        problems.require(
            len(ids) <= speaker.context,
            f"text {number} has {len(ids):,} tokens; this model reads at most {speaker.context:,}",
        )
        found.append(ids)
    problems.report()
    return found


def _with_signs(speaker: TextModel, ids: list[int]) -> list[int]:
    """The ids with what begins and ends them, as the model learnt it; bare ids stay as given."""
    if speaker.tokenizer is None and ids:
        return ids
    config, signs = speaker.module.config, speaker.signs
    begin = [] if config.reads_text else [signs.begin]
    ended = config.task == "causal" or (bool(ids) and ids[-1] in signs.ends)
    return [*begin, *ids, *([] if ended else [signs.ends[0]])]


def _hidden(
    speaker: TextModel, module: Network, read: Sequence[list[int]]
) -> tuple[Tensor, Tensor]:
    """The last layer's vectors (rows, positions, width), and how many of each row are real."""
    tokens, lengths = padded_rows(read, speaker.device)
    if speaker.reads:
        return speaker.encode(read).values, lengths
    whole = int(lengths.min()) == tokens.shape[1]
    return module.hidden(tokens, lengths=None if whole else lengths), lengths


def _pooled(hidden: Tensor, lengths: Tensor, pool: Pool) -> Tensor:
    """hidden (rows, positions, width), lengths (rows,) -> (rows, width)."""
    if pool == "first":
        return hidden[:, 0]
    if pool == "last":
        return hidden[torch.arange(len(hidden), device=hidden.device), lengths - 1]
    padding = torch.arange(hidden.shape[1], device=hidden.device) >= lengths[:, None]
    summed = hidden.masked_fill(padding[..., None], 0.0)
    kind = torch.promote_types(hidden.dtype, torch.float32)
    return summed.sum(1, dtype=kind) / lengths[:, None]

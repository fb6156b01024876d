"""What comes with a call of a model: token ids, and how many of each row are real."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from regard.errors import RegardError
from regard.models.masks import whole_numbers

Lengths = Tensor | Sequence[int] | None


def check_ids(what: str, ids: Tensor, table: nn.Embedding) -> None:
    if not isinstance(ids, Tensor):
        raise RegardError(f"{what} ids must be a tensor, not a {type(ids).__name__}")
    if ids.dim() != 2 or ids.dtype not in (torch.int64, torch.int32):
        raise RegardError(
            f"{what} ids must be whole numbers (rows, positions), "
            f"not {ids.dtype} of shape {tuple(ids.shape)}"
        )
    if ids.device != table.weight.device:
        raise RegardError(
            f"the {what} ids are on {ids.device} but the model is on {table.weight.device}; "
            "move one to the other"
        )
    # On an accelerator the question would stop it at every step; data is checked when prepared.
    if ids.device.type == "cpu" and ids.numel() and not torch.compiler.is_compiling():
        low, high = (int(end) for end in ids.aminmax())
        if low < 0 or high >= table.num_embeddings:
            worst = low if low < 0 else high
            raise RegardError(
                f"{what} id {worst} is out of range; this model knows 0 to "
                f"{table.num_embeddings - 1}"
            )


def last_real(hidden: Tensor, lengths: Lengths) -> Tensor:
    """Of hidden (rows, new, width) the vectors of each row's last real token, (rows, 1, width)."""
    if lengths is None:
        return hidden[:, -1:]
    ends = (whole_numbers(lengths, "lengths").to(hidden.device) - 1).clamp(min=0)  # (rows,)
    return hidden[torch.arange(len(hidden), device=hidden.device), ends][:, None]


def checked_lengths(lengths: Lengths, rows: int, most: int) -> Tensor:
    """Lengths as a tensor (rows,), checked where that costs nothing."""
    given = whole_numbers(lengths, "lengths")
    if given.shape != (rows,):
        shape = tuple(given.shape)
        raise RegardError(f"lengths must be one number for each of {rows} rows, not {shape}")
    known = given.device.type == "cpu" and not torch.compiler.is_compiling()
    if known and bool(((given < 0) | (given > most)).any()):
        raise RegardError(f"lengths must be between 0 and {most}, not {given.tolist()}")
    return given

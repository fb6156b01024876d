"""What comes with a call of a model: ids, lengths, a source that was read; told if it is wrong."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from regard.errors import RegardError
from regard.models.masks import whole_numbers
from regard.models.protocol import Memory

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


def either(lengths: Lengths, source_lengths: Lengths) -> Lengths:
    """The one that was given of two names for the same thing."""
    if lengths is not None and source_lengths is not None:
        raise RegardError("`lengths` and `source_lengths` are the same thing; give one")
    return source_lengths if lengths is None else lengths


def check_room(batch_size: int, capacity: int) -> None:
    """Refuse a state of nothing."""
    given = batch_size, capacity
    if not all(isinstance(size, int) and size >= 1 for size in given):
        raise RegardError(
            "a state needs at least one row and room for one token, "
            f"not {batch_size} rows × {capacity} tokens"
        )


def checked_memory(memory: object, rows: int) -> Memory:
    """The source that so many rows are written from."""
    if memory is None:
        raise RegardError("this model writes from a source; give `memory=model.encode(source)`")
    if not isinstance(memory, Memory):
        raise RegardError(f"memory must be what `encode` gave, not a {type(memory).__name__}")
    if memory.rows != rows:
        raise RegardError(f"the source has {memory.rows} rows, the target {rows}")
    return memory


def check_same(held: Memory, memory: Memory | None) -> None:
    """Refuse another source than a state was begun with; it may be left out."""
    if memory is not None and memory is not held:
        raise RegardError("the state was begun with another source; start a new one")

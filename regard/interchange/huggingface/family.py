"""How one kind of Hugging Face folder maps to ours.

A family says three things: how its config reads as ours and ours as its, which of its tensors
make up which of ours, and what in its folder is not needed. Reading and writing use the same
rules in both directions, so they cannot drift apart.
"""

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from regard.errors import Problems, RegardError, nearest
from regard.models.transformer.config import TransformerConfig

ACTIVATIONS = {  # theirs -> ours; the first of several is the one we write
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "relu2": "relu-squared",
}


@dataclass(frozen=True)
class TensorRule:
    """One tensor of ours is one of theirs, or several joined along the first dimension."""

    ours: str
    theirs: tuple[str, ...]
    sizes: tuple[int, ...] = ()  # rows each of several brings
    transposed: bool = False  # GPT-2 keeps (inputs, outputs)
    row: bool = False  # theirs has a leading dimension of 1
    copies: tuple[str, ...] = ()  # other names a file may hold the same tensor under
    write_copies: bool = False


class ConfigReader:
    """A config.json read key by key; what is missing or unsupported is noted, all of it."""

    def __init__(self, found: Mapping[str, Any], problems: Problems) -> None:
        self.found, self.problems = found, problems

    def size(self, key: str, default: int | None = None) -> int:
        value = self.found.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool):
            self.problems.add(f"{key} must be a whole number, not {_short(value)}")
            return 1
        return value

    def number(self, key: str, default: float) -> float:
        value = self.found.get(key, default)
        value = default if value is None else value
        whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53
        if not whole and not (isinstance(value, float) and math.isfinite(value)):
            self.problems.add(f"{key} must be a finite number, not {_short(value)}")
            return default
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.found.get(key)
        if value is not None and not isinstance(value, bool):
            self.problems.add(f"{key} must be true or false, not {_short(value)}")
        return default if value is None else bool(value)

    def activation(self, key: str) -> Any:
        name = str(self.found.get(key))
        if name not in ACTIVATIONS:
            self.problems.add(f"{key} {name!r} is not supported; {nearest(name, ACTIVATIONS)}")
        return ACTIVATIONS.get(name, "relu")

    def must_be(self, key: str, *values: object) -> None:
        """Refuse a setting that would change the function in a way we do not have."""
        value = self.found.get(key, values[0])
        self.problems.require(value in values, f"{key} = {_short(value)} is not supported")


def activation_name(ours: str) -> str:
    return next(theirs for theirs, name in ACTIVATIONS.items() if name == ours)


def _short(value: object) -> str:
    """A value for a message, cut if it is long."""
    try:
        text = repr(value)
    except ValueError:  # a whole number of thousands of digits
        return "a number too long to print"
    return text if len(text) <= 60 else f"{text[:60]}…"


class FolderFamily:
    """How one kind of Hugging Face folder maps to ours."""

    name: ClassVar[str]  # their model_type
    prefix: ClassVar[str] = ""  # which a bare base model's tensors lack
    outside: ClassVar[tuple[str, ...]] = ()  # what stands outside the prefix
    head: ClassVar[str]  # the output matrix, and which embedding it may be tied to
    embedding: ClassVar[tuple[str, ...]]
    unneeded: ClassVar[str] = r"(?!)"  # a pattern of tensors that hold nothing of their own

    def read(
        self, settings: ConfigReader, names: Collection[str], own_head: bool
    ) -> dict[str, Any]:
        """Our settings for their config, as arguments of `TransformerConfig`.

        `names` are the folder's tensors; `own_head` says that the output matrix among them is
        another than the embedding, whatever the config claims.
        """
        raise NotImplementedError

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        """Their config for ours (with its zeros resolved)."""
        raise NotImplementedError

    def rules(self, config: TransformerConfig) -> Iterator[TensorRule]:
        """Every tensor of a model of this config."""
        raise NotImplementedError

    def canonical(self, names: list[str]) -> dict[str, str]:
        """Their names as today's files spell them -> as this file does."""
        bare = not any(name.startswith(self.prefix) for name in names)
        result: dict[str, str] = {}
        for name in names:
            known = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
            known = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", known)
            if bare and not known.startswith(self.outside):
                known = self.prefix + known
            if known in result:
                raise RegardError(f"tensors {result[known]} and {name} are two spellings of one")
            result[known] = name
        return result


def plain(ours: str, theirs: str, bias: bool = True) -> Iterator[TensorRule]:
    yield TensorRule(f"{ours}.weight", (f"{theirs}.weight",))
    if bias:
        yield TensorRule(f"{ours}.bias", (f"{theirs}.bias",))


def joined(ours: str, theirs: list[str], sizes: list[int], bias: bool) -> Iterator[TensorRule]:
    for part in ("weight", "bias") if bias else ("weight",):
        yield TensorRule(f"{ours}.{part}", tuple(f"{name}.{part}" for name in theirs), tuple(sizes))


def head_rows(config: TransformerConfig) -> list[int]:
    """Rows of the query, key and value projections."""
    return [h * config.head_width for h in (config.heads, config.kv_heads, config.kv_heads)]

"""A Transformer is its config: frozen, validated when made, and enough to build the module."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, get_args, get_origin, get_type_hints

from regard.errors import Problems, nearest

Kind = Literal["decoder", "encoder", "encoder-decoder"]
Activation = Literal["relu", "gelu", "gelu-tanh", "silu", "relu-squared"]
Scheme = Literal[
    "none", "sinusoidal", "sinusoidal-halves", "learned", "rotary", "alibi", "relative"
]


# Beyond these a number is a mistake, and a tensor's size could not be counted in 64 bits.
LARGEST = {
    "vocabulary": 2**26,
    "source_vocabulary": 2**26,
    "context": 2**26,
    "layers": 1024,
    "encoder_layers": 1024,
    "width": 2**20,
    "heads": 2**14,
    "kv_heads": 2**14,
    "head_width": 2**14,
    "hidden": 2**22,
    "segments": 2**20,
}
MAY_BE_ZERO = ("source_vocabulary", "encoder_layers", "kv_heads", "head_width", "segments")


@dataclass(frozen=True)
class RotaryScaling:
    """Stretches rotary wavelengths so that a model reads further than it was trained.

    `linear` divides every frequency by `factor`; `llama3` leaves the fast ones, divides the slow
    ones, and blends in between (by how often a wave fits into the `original_context`).
    """

    kind: Literal["linear", "llama3"] = "llama3"
    factor: float = 8.0
    low: float = 1.0
    high: float = 4.0
    original_context: int = 8192

    def __post_init__(self) -> None:
        problems = Problems("rotary scaling")
        if _check_types(self, problems) - {"kind"}:
            problems.report()
        good = 1 <= self.factor < math.inf
        problems.require(good, f"factor must be at least 1 and finite, not {self.factor}")
        problems.require(self.low < self.high, f"low {self.low} must be below high {self.high}")
        problems.require(self.original_context > 0, "original_context must be positive")
        problems.report()
        if self.kind == "linear":  # which has no other setting; so that equal scalings are equal
            object.__setattr__(self, "low", 1.0)
            object.__setattr__(self, "high", 4.0)
            object.__setattr__(self, "original_context", 8192)


@dataclass(frozen=True)
class TransformerConfig:
    """Everything that tells one Transformer from another; 0 means "the usual", as noted."""

    kind: Kind = "decoder"
    vocabulary: int = 50257
    source_vocabulary: int = 0  # 0: source and target share one vocabulary and embedding
    context: int = 1024  # the learned table's size; for other schemes, the length trained on

    layers: int = 12
    encoder_layers: int = 0  # 0: as many as `layers`
    width: int = 768
    heads: int = 12
    kv_heads: int = 0  # 0: as many as `heads`; fewer: grouped-query attention
    head_width: int = 0  # 0: width / heads
    hidden: int = 3072  # width of the feed-forward layer
    activation: Activation = "gelu-tanh"
    gated: bool = False  # f(xW) * (xV) instead of f(xW)

    norm: Literal["layer", "rms"] = "layer"
    norm_place: Literal["pre", "post"] = "pre"
    norm_epsilon: float = 1e-5
    query_key_norm: bool = False

    positions: Scheme = "learned"
    rotary_base: float = 10000.0
    rotary_scaling: RotaryScaling | None = None
    relative_buckets: int = 32
    relative_distance: int = 128

    attention_bias: bool = True
    feedforward_bias: bool = True
    scale_scores: bool = True  # divide q·k by the square root of the head width
    scale_embeddings: bool = False  # multiply embeddings by the square root of the width
    embedding_norm: bool = False
    segments: int = 0  # kinds of token ("sentence A", "sentence B") with an embedding each

    head: Literal["linear", "masked", "none"] = "linear"
    tied: bool = True  # the output matrix is the (target) embedding
    head_bias: bool = False
    scale_head: bool = False  # divide the last hidden state by the square root of the width
    pooler: bool = False

    dropout: float = 0.0
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    initialisation: Literal["normal", "xavier", "fan-in"] = "normal"

    def __post_init__(self) -> None:
        problems = Problems("model settings")
        wrong = _check_types(self, problems) | _check_ranges(self, problems)
        _check_agreement(self, problems, wrong)
        problems.report()

    def resolved(self) -> Self:
        """The same settings with every 0 ("the usual") written out."""
        both = self.kind == "encoder-decoder"
        return replace(
            self,
            kv_heads=self.kv_heads or self.heads,
            head_width=self.head_width or self.width // self.heads,
            encoder_layers=self.encoder_layers or (self.layers if both else 0),
        )

    def inert(self) -> set[str]:
        """The settings that have no effect beside the others."""
        names = set()
        if self.positions != "rotary":
            names |= {"rotary_base", "rotary_scaling"}
        if self.positions != "relative":
            names |= {"relative_buckets", "relative_distance"}
        return names


def _check_types(settings: object, problems: Problems) -> set[str]:
    """Note every setting whose value is not of its type, or not one of its words."""
    wrong = set()
    for name, kind in get_type_hints(type(settings)).items():
        value = getattr(settings, name)
        if get_origin(kind) is Literal:
            if value not in get_args(kind):
                wrong.add(name)
                problems.add(f"{name} cannot be {value!r}; {nearest(str(value), get_args(kind))}")
        elif not _is_a(value, kind):
            wrong.add(name)
            problems.add(
                f"{name} must be {NAMES.get(kind, 'a RotaryScaling or None')}, not {value!r}"
            )
    return wrong


NAMES = {int: "a whole number", float: "a number", bool: "True or False"}


def _is_a(value: object, kind: Any) -> bool:
    if kind in (int, float):  # True is no number here, and a whole number is a fine float
        allowed = int if kind is int else (int, float)
        return isinstance(value, allowed) and not isinstance(value, bool)
    return isinstance(value, kind)


def _check_ranges(config: TransformerConfig, problems: Problems) -> set[str]:
    """Note every number that is out of its range; those of a wrong type are left alone."""
    wrong = set()

    def require(name: str, good: Callable[[float], bool], otherwise: str) -> None:
        value = getattr(config, name)
        if isinstance(value, int | float) and not isinstance(value, bool) and not good(value):
            wrong.add(name)
            problems.add(f"{name} must {otherwise.format(value)}")

    for name, most in LARGEST.items():
        if name in MAY_BE_ZERO:
            require(name, lambda value: value >= 0, "not be negative, but is {}")
        else:
            require(name, lambda value: value >= 1, "be at least 1, not {}")
        require(name, lambda value, most=most: value <= most, f"be at most {most:,}")  # type: ignore[misc]
    for name in ("dropout", "attention_dropout", "activation_dropout"):
        require(name, lambda value: 0 <= value < 1, "be in [0, 1), not {}")
    for name in ("norm_epsilon", "rotary_base"):
        require(name, lambda value: value > 0, "be positive, not {}")
        require(name, lambda value: value < math.inf, "be finite, not {}")
    return wrong


def _check_agreement(config: TransformerConfig, problems: Problems, wrong: set[str]) -> None:
    """Settings that are each fine but not together; what is wrong by itself is left alone."""

    def require(good: Callable[[], bool], otherwise: str, *names: str) -> None:
        if not wrong & {*names} and not good():
            problems.add(otherwise)

    sizes = ("width", "heads", "kv_heads", "head_width")
    kv_heads = config.kv_heads or config.heads
    head_width = config.head_width or (0 if wrong & {*sizes} else config.width // config.heads)
    require(
        lambda: config.head_width > 0 or config.width % config.heads == 0,
        f"{config.heads} heads do not divide width {config.width}; "
        "choose a divisor or set head_width",
        *sizes,
    )
    require(
        lambda: config.heads % kv_heads == 0,
        f"{kv_heads} key/value heads do not divide {config.heads} heads",
        *sizes,
    )
    require(
        lambda: config.positions != "rotary" or head_width % 2 == 0,
        f"rotary positions turn pairs, so head_width must be even, not {head_width}",
        "positions",
        *sizes,
    )
    require(
        lambda: not config.positions.startswith("sinusoidal") or config.width % 2 == 0,
        f"sinusoidal positions come in pairs, so width must be even, not {config.width}",
        "positions",
        "width",
    )
    buckets, distance = config.relative_buckets, config.relative_distance
    require(
        lambda: buckets >= 4 and distance > buckets,
        f"relative_buckets ({buckets}) must be at least 4 and below relative_distance ({distance})",
        "relative_buckets",
        "relative_distance",
    )
    encoder, both = config.kind == "encoder", config.kind == "encoder-decoder"
    for good, otherwise, name in (
        (encoder or not config.pooler, "a pooler belongs to an encoder only", "pooler"),
        (encoder or not config.segments, "segments belong to an encoder only", "segments"),
        (
            encoder or config.head == "linear",
            f"head {config.head!r} belongs to an encoder",
            "head",
        ),
        (
            both or not config.source_vocabulary,
            "source_vocabulary needs kind 'encoder-decoder'",
            "source_vocabulary",
        ),
        (
            both or not config.encoder_layers,
            "encoder_layers needs kind 'encoder-decoder'",
            "encoder_layers",
        ),
    ):
        require(lambda good=good: good, otherwise, "kind", name)  # type: ignore[misc]

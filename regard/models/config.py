"""A Transformer is its config: frozen, validated when made, and enough to build the module."""

import math
from dataclasses import dataclass, replace
from typing import Literal, Self, get_args, get_origin, get_type_hints

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
        _check_literals(self, problems)
        problems.require(self.factor >= 1, f"factor must be at least 1, not {self.factor}")
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
        _check_literals(self, problems)
        _check_ranges(self, problems)
        if not problems.found:
            _check_agreement(self, problems)
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


def _check_literals(settings: object, problems: Problems) -> None:
    """Note every field whose value is not among the words its type allows."""
    for name, kind in get_type_hints(type(settings)).items():
        value = getattr(settings, name)
        if get_origin(kind) is Literal and value not in get_args(kind):
            hint = nearest(str(value), get_args(kind))
            problems.add(f"{name} cannot be {value!r}; {hint}")


def _check_ranges(config: TransformerConfig, problems: Problems) -> None:
    for name, most in LARGEST.items():
        value, least = getattr(config, name), 0 if name in MAY_BE_ZERO else 1
        problems.require(value >= least, f"{name} must be at least {least}, not {value}")
        problems.require(value <= most, f"{name} must be at most {most:,}")
    for name in ("dropout", "attention_dropout", "activation_dropout"):
        value = getattr(config, name)
        problems.require(0 <= value < 1, f"{name} must be in [0, 1), not {value}")
    for name in ("norm_epsilon", "rotary_base"):
        value = getattr(config, name)
        good = value > 0 and math.isfinite(value)
        problems.require(good, f"{name} must be a positive number, not {value}")
    enough = config.relative_buckets >= 4 and config.relative_distance > config.relative_buckets
    problems.require(
        enough,
        f"relative_buckets ({config.relative_buckets}) must be at least 4 and below "
        f"relative_distance ({config.relative_distance})",
    )


def _check_agreement(config: TransformerConfig, problems: Problems) -> None:
    """Settings that are each fine but not together."""
    kv_heads = config.kv_heads or config.heads
    head_width = config.head_width or config.width // config.heads
    problems.require(
        config.head_width > 0 or config.width % config.heads == 0,
        f"{config.heads} heads do not divide width {config.width}; "
        "choose a divisor or set head_width",
    )
    problems.require(
        config.heads % kv_heads == 0,
        f"{kv_heads} key/value heads do not divide {config.heads} heads",
    )
    if config.positions == "rotary":
        problems.require(
            head_width % 2 == 0,
            f"rotary positions turn pairs, so head_width must be even, not {head_width}",
        )
    if config.positions in ("sinusoidal", "sinusoidal-halves"):
        problems.require(
            config.width % 2 == 0,
            f"sinusoidal positions come in pairs, so width must be even, not {config.width}",
        )
    if config.kind != "encoder":
        problems.require(not config.pooler, "a pooler belongs to an encoder only")
        problems.require(not config.segments, "segments belong to an encoder only")
        problems.require(config.head == "linear", f"head {config.head!r} belongs to an encoder")
    if config.kind != "encoder-decoder":
        problems.require(
            not config.source_vocabulary, "source_vocabulary needs kind 'encoder-decoder'"
        )
        problems.require(not config.encoder_layers, "encoder_layers needs kind 'encoder-decoder'")

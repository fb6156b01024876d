"""A Transformer is its config: frozen, validated when made, and enough to build the module."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar, Literal, Self, get_args, get_origin, get_type_hints

from regard.errors import Problems, nearest
from regard.models.config import Ability, ModelConfig

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
class TransformerConfig(ModelConfig):
    """Everything that tells one Transformer from another; 0 means "the usual", as noted."""

    family: ClassVar[str] = "transformer"

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
        wrong = _check_types(self, problems)
        wrong |= _check_ranges(self, problems, wrong)
        for problem in _disagreements(self, wrong):
            problems.add(problem)
        problems.report()

    @property
    def abilities(self) -> frozenset[Ability]:
        return super().abilities | {
            Ability.MASK_DOCUMENTS,
            Ability.RECOMPUTE,
            Ability.SHARD,
            Ability.CONVERT,
            Ability.RESIZE,
        }

    @property
    def about(self) -> str:
        article = "a" if self.kind == "decoder" else "an"
        kind = self.kind.replace("-", "–")
        return f"a Transformer, {article} {kind} with {self.positions} positions"

    @property
    def sizes(self) -> Mapping[str, str]:
        whole = self.resolved()
        layers, heads = f"{whole.layers}", f"{whole.heads}"
        if whole.encoder_layers:
            layers = f"{whole.encoder_layers} + {whole.layers}"
        if whole.kv_heads != whole.heads:
            heads += f" / {whole.kv_heads}"
        return {
            "layers": layers,
            "width": f"{whole.width}",
            "heads": heads,
            "kind": whole.kind,
            "hidden": f"{whole.hidden}",
            "vocabulary": f"{whole.vocabulary}",
            "positions": whole.positions,
            "norm": f"{whole.norm_place} {whole.norm}",
        }

    @property
    def depth(self) -> int:
        return self.layers + self.resolved().encoder_layers

    @property
    def unlearnable(self) -> str:
        if self.head != "none":
            return ""
        return "a model with head 'none' answers nothing; choose head 'linear'"

    @property
    def ties_output(self) -> bool:
        return self.tied and self.head != "none"

    @classmethod
    def parsed(cls, changes: Mapping[str, Any]) -> dict[str, Any]:
        found = dict(changes)
        if "rotary_scaling" in found:
            found["rotary_scaling"] = _scaling(found["rotary_scaling"])
        return found

    def spelled(self) -> dict[str, Any]:
        scaling = self.rotary_scaling
        return {
            **super().spelled(),
            "rotary_scaling": False if scaling is None else asdict(scaling),
        }

    def module(self) -> Any:
        from regard.models.transformer.model import ASSEMBLIES

        return ASSEMBLIES[self.kind](self)

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


def _scaling(given: Any) -> Any:
    """A table of TOML as the scaling it stands for; false is none, which TOML cannot say."""
    if given is False:
        return None
    if not isinstance(given, Mapping):
        return given
    known = [f.name for f in fields(RotaryScaling)]
    problems = Problems("rotary scaling")
    for key in given:
        problems.require(key in known, f"there is no {key!r}; {nearest(str(key), known)}")
    problems.report()
    return RotaryScaling(**given)


def _check_types(settings: object, problems: Problems) -> set[str]:
    """Note every setting whose value is not of its type, or not one of its words."""
    wrong = set()
    kinds = get_type_hints(type(settings))
    for name in (f.name for f in fields(settings)):  # type: ignore[arg-type]
        kind, value = kinds[name], getattr(settings, name)
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


def _check_ranges(config: TransformerConfig, problems: Problems, wrong: set[str]) -> set[str]:
    """Note every number that is out of its range, leaving alone those of a wrong type."""
    found = {}
    for name, most in LARGEST.items():
        value = getattr(config, name)
        if name in wrong:
            continue
        if name in MAY_BE_ZERO and value < 0:
            found[name] = f"{name} must not be negative, but is {value}"
        elif name not in MAY_BE_ZERO and value < 1:
            found[name] = f"{name} must be at least 1, not {value}"
        elif value > most:
            found[name] = f"{name} must be at most {most:,}"
    for name in ("dropout", "attention_dropout", "activation_dropout"):
        if name not in wrong and not 0 <= getattr(config, name) < 1:
            found[name] = f"{name} must be in [0, 1), not {getattr(config, name)}"
    for name in ("norm_epsilon", "rotary_base"):
        if name not in wrong and not 0 < getattr(config, name) < math.inf:
            found[name] = f"{name} must be positive, not {getattr(config, name)}"
    for problem in found.values():
        problems.add(problem)
    return set(found)


def _disagreements(config: TransformerConfig, wrong: set[str]) -> Iterator[str]:
    """Settings that are each fine but not together; what is wrong by itself is left alone."""

    def fine(*names: str) -> bool:
        return not wrong & {*names}

    width, heads, kv_heads = config.width, config.heads, config.kv_heads or config.heads
    if fine("width", "heads", "head_width") and not config.head_width and width % heads:
        yield f"{heads} heads do not divide width {width}; choose a divisor or set head_width"
    if fine("heads", "kv_heads") and heads % kv_heads:
        yield f"{kv_heads} key/value heads do not divide {heads} heads"
    if config.positions == "rotary" and fine("width", "heads", "head_width"):
        head_width = config.head_width or width // heads
        if head_width % 2:
            yield f"rotary positions turn pairs, so head_width must be even, not {head_width}"
    if config.positions in ("sinusoidal", "sinusoidal-halves") and fine("width") and width % 2:
        yield f"sinusoidal positions come in pairs, so width must be even, not {width}"
    buckets, distance = config.relative_buckets, config.relative_distance
    if fine("relative_buckets", "relative_distance") and not 4 <= buckets < distance:
        yield (
            f"relative_buckets ({buckets}) must be at least 4 and below "
            f"relative_distance ({distance})"
        )
    if fine("kind") and config.kind != "encoder":
        if fine("pooler") and config.pooler:
            yield "a pooler belongs to an encoder only"
        if fine("segments") and config.segments:
            yield "segments belong to an encoder only"
        if fine("head") and config.head != "linear":
            yield f"head {config.head!r} belongs to an encoder"
    if fine("kind") and config.kind != "encoder-decoder":
        for name in ("source_vocabulary", "encoder_layers"):
            if fine(name) and getattr(config, name):
                yield f"{name} needs kind 'encoder-decoder'"

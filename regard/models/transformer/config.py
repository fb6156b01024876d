"""A Transformer is its config: frozen, validated when made, and enough to build the module."""

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated, Any, ClassVar, Literal, Self

from regard.errors import Problems, nearest
from regard.fields import Positive, Range, Share, check
from regard.models.config import Ability, ModelConfig, SourceVocabulary, Vocabulary

Kind = Literal["decoder", "encoder", "encoder-decoder"]
Activation = Literal["relu", "gelu", "gelu-tanh", "silu", "relu-squared"]
Scheme = Literal[
    "none", "sinusoidal", "sinusoidal-halves", "learned", "rotary", "alibi", "relative"
]


@dataclass(frozen=True)
class RotaryScaling:
    """Stretches rotary wavelengths so that a model reads further than it was trained.

    `linear` divides every frequency by `factor`; `llama3` leaves the fast ones, divides the slow
    ones, and blends in between (by how often a wave fits into the `original_context`).
    """

    kind: Literal["linear", "llama3"] = "llama3"
    factor: Annotated[float, Range(1)] = 8.0
    low: float = 1.0
    high: float = 4.0
    original_context: Annotated[int, Range(1)] = 8192

    def __post_init__(self) -> None:
        problems = Problems("rotary scaling")
        if not check(self, problems) & {"low", "high"}:
            problems.require(self.low < self.high, f"low {self.low} must be below high {self.high}")
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
    vocabulary: Vocabulary = 50257
    # 0: source and target share one vocabulary and embedding
    source_vocabulary: SourceVocabulary = 0
    # the learned table's size; for other schemes, the length trained on
    context: Annotated[int, Range(1, 1 << 26)] = 1024

    layers: Annotated[int, Range(1, 1024)] = 12
    encoder_layers: Annotated[int, Range(0, 1024)] = 0  # 0: as many as `layers`
    width: Annotated[int, Range(1, 1 << 20)] = 768
    heads: Annotated[int, Range(1, 1 << 14)] = 12
    # 0: as many as `heads`; fewer: grouped-query attention
    kv_heads: Annotated[int, Range(0, 1 << 14)] = 0
    head_width: Annotated[int, Range(0, 1 << 14)] = 0  # 0: width / heads
    hidden: Annotated[int, Range(1, 1 << 22)] = 3072  # width of the feed-forward layer
    activation: Activation = "gelu-tanh"
    gated: bool = False  # f(xW) * (xV) instead of f(xW)

    norm: Literal["layer", "rms"] = "layer"
    norm_place: Literal["pre", "post"] = "pre"
    norm_epsilon: Positive = 1e-5
    query_key_norm: bool = False

    positions: Scheme = "learned"
    rotary_base: Positive = 10000.0
    rotary_scaling: RotaryScaling | None = None
    relative_buckets: int = 32
    relative_distance: int = 128

    attention_bias: bool = True
    feedforward_bias: bool = True
    scale_scores: bool = True  # divide q·k by the square root of the head width
    scale_embeddings: bool = False  # multiply embeddings by the square root of the width
    embedding_norm: bool = False
    # kinds of token ("sentence A", "sentence B") with an embedding each
    segments: Annotated[int, Range(0, 1 << 20)] = 0

    head: Literal["linear", "masked", "none"] = "linear"
    tied: bool = True  # the output matrix is the (target) embedding
    head_bias: bool = False
    scale_head: bool = False  # divide the last hidden state by the square root of the width
    pooler: bool = False

    dropout: Share = 0.0
    attention_dropout: Share = 0.0
    activation_dropout: Share = 0.0
    initialisation: Literal["normal", "xavier", "fan-in"] = "normal"

    def disagreements(self, wrong: AbstractSet[str]) -> Iterator[str]:
        def fine(*names: str) -> bool:
            return not wrong & {*names}

        width, heads, kv_heads = self.width, self.heads, self.kv_heads or self.heads
        if fine("width", "heads", "head_width") and not self.head_width and width % heads:
            yield f"{heads} heads do not divide width {width}; choose a divisor or set head_width"
        if fine("heads", "kv_heads") and heads % kv_heads:
            yield f"{kv_heads} key/value heads do not divide {heads} heads"
        if self.positions == "rotary" and fine("width", "heads", "head_width"):
            head_width = self.head_width or width // heads
            if head_width % 2:
                yield f"rotary positions turn pairs, so head_width must be even, not {head_width}"
        if self.positions in ("sinusoidal", "sinusoidal-halves") and fine("width") and width % 2:
            yield f"sinusoidal positions come in pairs, so width must be even, not {width}"
        buckets, distance = self.relative_buckets, self.relative_distance
        if fine("relative_buckets", "relative_distance") and not 4 <= buckets < distance:
            yield (
                f"relative_buckets ({buckets}) must be at least 4 and below "
                f"relative_distance ({distance})"
            )
        if fine("kind") and self.kind != "encoder":
            if fine("pooler") and self.pooler:
                yield "a pooler belongs to an encoder only"
            if fine("segments") and self.segments:
                yield "segments belong to an encoder only"
            if fine("head") and self.head != "linear":
                yield f"head {self.head!r} belongs to an encoder"
        if fine("kind") and self.kind != "encoder-decoder":
            for name in ("source_vocabulary", "encoder_layers"):
                if fine(name) and getattr(self, name):
                    yield f"{name} needs kind 'encoder-decoder'"

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
